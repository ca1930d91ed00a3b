"""Tools, behind one protocol."""

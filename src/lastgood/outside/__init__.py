"""The way out: what may leave this machine, and where to."""

"""What the server shows to the outside. Surfaces ask; they decide nothing about a session."""

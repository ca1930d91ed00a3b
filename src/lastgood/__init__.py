"""Lastgood: an agent server whose sessions continue from their last good turn."""

__version__ = "0.1.0.dev0"

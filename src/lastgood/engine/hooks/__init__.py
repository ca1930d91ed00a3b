"""Hooks of agent files: running them, and the moments of a turn at which they run."""

"""Outgoing requests: what may leave this machine, and where to."""

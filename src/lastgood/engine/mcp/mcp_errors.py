"""Why the tools of an MCP server are not there."""

from __future__ import annotations


class ServerUnavailable(Exception):
    """The server cannot be reached or started. The text is for people and for the model, and holds no key."""


class ServerLimit(ServerUnavailable):
    """As many of it run as may. It did not fail."""

"""Decides whether a worker and a server of different releases can work together.

The number is raised when a release changes what a call of the work API means. New fields do not raise it:
each side ignores what it does not know. Numbers that are one apart work together, so that servers and workers
can be upgraded one after the other.
"""

from __future__ import annotations

WORK_PROTOCOL = 1
#: Of a worker or a server that does not say.
FIRST_PROTOCOL = 1


def why_incompatible(*, worker: int, server: int) -> str | None:
    """In words, with what to upgrade; None: they can work together."""
    if abs(worker - server) <= 1:
        return None
    older = "worker" if worker < server else "server"
    return (
        f"The worker speaks version {worker} of the work API and the server version {server}; they must not "
        f"be more than one apart. Upgrade the {older}"
    )

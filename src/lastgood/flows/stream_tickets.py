"""Tickets for event streams: short-lived, for one session, read-only.

A browser's EventSource cannot send a header, and a token must not be in an address. A ticket opens streams
for a minute; an open stream lasts as long as the token behind it.
"""

from __future__ import annotations

import hashlib
import secrets

from lastgood.flows.dependencies import Dependencies
from lastgood.model.tickets import StreamTicket

#: How long a stream can be opened with a ticket.
TICKET_SECONDS = 60.0


class StreamTickets:
    def __init__(self, deps: Dependencies) -> None:
        self._store = deps.store

    async def issue(self, ticket: StreamTicket) -> tuple[str, float]:
        """Returns the ticket and when it expires."""
        plain = secrets.token_urlsafe(32)
        return plain, await self._store.add_ticket(_hash_of(plain), ticket, TICKET_SECONDS)

    async def open(self, plain: str) -> StreamTicket | None:
        """Returns None if the ticket is unknown or expired, or the token behind it has ended."""
        found = await self._store.find_ticket(_hash_of(plain))
        return found if found is not None and await self.holds(found) else None

    async def holds(self, ticket: StreamTicket) -> bool:
        """While a stream is open."""
        return not await self._store.has_token_ended(ticket.token)


def _hash_of(plain: str) -> bytes:
    return hashlib.sha256(plain.encode(errors="replace")).digest()

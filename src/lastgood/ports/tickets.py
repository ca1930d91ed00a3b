"""The seam to tickets for event streams."""

from __future__ import annotations

from typing import Protocol

from lastgood.model.tickets import StreamTicket


class TicketStore(Protocol):
    async def add_ticket(self, hash: bytes, ticket: StreamTicket, seconds: float) -> float:
        """Returns when it expires, by database time. Deletes expired ones."""
        ...

    async def find_ticket(self, hash: bytes) -> StreamTicket | None:
        """Returns None if it is unknown or has expired."""
        ...

    async def has_token_ended(self, token: str) -> bool:
        """Whether the token with this id was revoked or has expired."""
        ...

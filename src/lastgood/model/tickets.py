"""Tickets: what a page may put into the address of an event stream."""

from __future__ import annotations

from dataclasses import dataclass

from lastgood.model.ids import SessionId, TenantId


@dataclass(frozen=True, slots=True)
class StreamTicket:
    """Allows reading the events of one session. `token` and `user` are those of its requester."""

    tenant: TenantId
    session: SessionId
    token: str
    user: str

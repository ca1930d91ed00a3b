"""Tickets: what a page may put into the address of an event stream."""

from __future__ import annotations

from dataclasses import dataclass

from lastgood.model.ids import SessionId, TenantId


@dataclass(frozen=True, slots=True)
class StreamTicket:
    """Good for reading the events of one session. `token` and `user` are those of whoever asked for it."""

    tenant: TenantId
    session: SessionId
    token: str
    user: str

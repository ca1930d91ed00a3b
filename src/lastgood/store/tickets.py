"""Tickets for event streams, on either database."""

from __future__ import annotations

from lastgood.model.ids import SessionId, TenantId
from lastgood.model.tickets import StreamTicket
from lastgood.store.rows import writable
from lastgood.store.work_access import Statements, WorkTransactions


class SqlTickets(WorkTransactions):
    async def add_ticket(self, hash: bytes, ticket: StreamTicket, seconds: float) -> float:
        new = {
            "hash": hash,
            "tenant": ticket.tenant,
            "session": ticket.session,
            "token": ticket.token,
            "user": writable(ticket.user),
            "seconds": seconds,
        }

        async def work(statements: Statements) -> float:
            await statements.rows("drop_expired_tickets", {})
            return float((await statements.rows("insert_ticket", new))[0][0])

        return await self._transact(work, durable=False)

    async def find_ticket(self, hash: bytes) -> StreamTicket | None:
        row = await self._row("find_ticket", {"hash": hash})
        return None if row is None else StreamTicket(TenantId(row[0]), SessionId(row[1]), row[2], row[3])

    async def has_token_ended(self, token: str) -> bool:
        return await self._row("token_ended", {"token": token}) is not None

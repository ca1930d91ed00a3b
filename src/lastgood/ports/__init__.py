"""The protocols between rooms: what the flows need from the store, composed of one protocol per noun.

Writes name their condition (`begin_if_free`, `commit_if_head`), and the store
checks it where it writes. Any store call may raise StoreUnavailable; one whose
answer was lost raises OutcomeUnknown, and then it may have happened.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from lastgood.model.attempts import Attempt, Hold
from lastgood.model.audit import AuditEntry, AuditFilter, AuditRecord
from lastgood.model.ids import AttemptId, SessionId, TaskId, TenantId, TurnId
from lastgood.model.stored_rows import DatabaseStatistics, StoredRow, StoredTable, StoredTurn
from lastgood.model.tokens import Token
from lastgood.ports.activity import ActivityStore
from lastgood.ports.attempts import AttemptStore, EventStore, QueueStore
from lastgood.ports.imports import ImportStore
from lastgood.ports.notes import NoteStore
from lastgood.ports.sessions import SessionStore, TurnStore
from lastgood.ports.tickets import TicketStore
from lastgood.ports.usage import UsageStore
from lastgood.ports.webhooks import WebhookStore
from lastgood.ports.work import WorkStore

#: Renews leases for this many seconds; returns the attempts that are still held, as they are now.
Renew = Callable[[Sequence[Hold], float], Awaitable[dict[AttemptId, Attempt]]]


class TokenStore(Protocol):
    async def create_token(self, token: Token, hash: bytes, audit: AuditEntry | None = None) -> Token: ...

    async def find_token(self, hash: bytes) -> Token | None:
        """The token itself names the tenant, so this lookup needs none."""
        ...

    async def bind_token(self, id: str, worker: str) -> Token | None:
        """Binds the token to the worker, unless it is bound already. Returns the token as it is now."""
        ...

    async def get_token(self, tenant: TenantId, id: str) -> Token | None:
        """Also if it has expired or was revoked: what it did stays its own."""
        ...

    async def list_tokens(self) -> tuple[Token, ...]: ...

    async def revoke_token(self, id: str, audit: AuditEntry | None = None) -> Token | None: ...


class AuditStore(Protocol):
    """Append-only. Most records are written by the call that does what they record."""

    async def record(self, entry: AuditEntry) -> None: ...

    async def list_audit(
        self, tenant: TenantId, filter: AuditFilter, *, limit: int, after: int = 0
    ) -> tuple[AuditRecord, ...]:
        """Oldest first, those numbered above `after`."""
        ...


class Inspection(Protocol):
    """One moment of the whole database, of all tenants."""

    async def structure(self) -> Sequence[str]:
        """Returns what the database's own integrity check finds."""
        ...

    def rows(self, table: StoredTable) -> AsyncGenerator[StoredRow | StoredTurn, None]:
        """Every row, one after the other. Turns come by session and number. DatabaseDamaged: no further row
        of the table can be read."""
        ...

    async def statistics(self) -> DatabaseStatistics: ...


class Store(
    SessionStore,
    TurnStore,
    AttemptStore,
    QueueStore,
    EventStore,
    TokenStore,
    WorkStore,
    ImportStore,
    AuditStore,
    WebhookStore,
    UsageStore,
    ActivityStore,
    TicketStore,
    NoteStore,
    Protocol,
):
    alone: bool  # True: no other process can be using it, so whatever this one does not run is dead

    def renewals(self) -> AbstractAsyncContextManager[Renew]:
        """`renew_leases` over a connection of its own, for the event loop that enters this."""
        ...

    def hint(self, session: SessionId) -> None:
        """Tells other processes that the session has new events. Best effort: never waits, never fails."""
        ...

    def on_hint(self, callback: Callable[[SessionId], None]) -> None:
        """Calls `callback` for each hint of another process. Hints get lost; the table is polled anyway."""
        ...

    async def why_not_writable(self) -> str | None:
        """Returns None if writes work, else the reason, for people. Seldom writes anything itself."""
        ...

    def inspect(self) -> AbstractAsyncContextManager[Inspection]:
        """For a check. Writes may continue meanwhile."""
        ...

    async def mark_restored(self, now: float, source: str) -> None:
        """After a restore, before anybody uses it: raises every number that clients may have seen since the
        backup, and voids claims. `source`: what was restored, for people."""
        ...

    async def other_connections(self) -> int:
        """How many other connections to this database are open, as far as can be known."""
        ...

    async def close(self) -> None: ...


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the epoch, for people; orders nothing."""
        ...

    def monotonic(self) -> float:
        """Seconds that only rise, the same on every thread: for measuring, whatever the wall clock does."""
        ...


class Ids(Protocol):
    def session(self) -> SessionId: ...
    def turn(self) -> TurnId: ...
    def attempt(self) -> AttemptId: ...
    def task(self) -> TaskId: ...

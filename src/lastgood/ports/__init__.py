"""The seams: what the flows need from the outside, on one page.

Writes name their condition (`begin_if_free`, `commit_if_head`), and the store
checks it where it writes. Any store call may raise StoreUnavailable; one whose
answer was lost raises OutcomeUnknown, and then it may have happened.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from lastgood.model.attempts import (
    Ask,
    Attempt,
    AttemptStatus,
    Begin,
    BeginConflict,
    Begun,
    Commit,
    Committed,
    Hold,
    Interrupted,
    Step,
    TurnRequest,
    UnreadableAttempt,
)
from lastgood.model.audit import AuditEntry, AuditFilter, AuditRecord
from lastgood.model.events import Event, StoredEvent
from lastgood.model.ids import AttemptId, SessionId, TaskId, TenantId, TurnId
from lastgood.model.queue import NewQueued, NotQueued, Parking, Queued
from lastgood.model.rules import RuleLayer
from lastgood.model.sessions import (
    Branch,
    EncodedTurn,
    NewSession,
    Session,
    SessionPage,
    SessionStatus,
    TitleBy,
    Turn,
)
from lastgood.model.stored_rows import StoredRow, StoredTable, StoredTurn
from lastgood.model.tasks import TaskEnd
from lastgood.model.tokens import Token
from lastgood.ports.imports import ImportStore
from lastgood.ports.webhooks import WebhookStore
from lastgood.ports.work import WorkStore

#: Renews leases for this many seconds; returns the attempts that are still held, as they are now.
Renew = Callable[[Sequence[Hold], float], Awaitable[dict[AttemptId, Attempt]]]


class SessionStore(Protocol):
    async def create_session(self, new: NewSession) -> Session | None:
        """None: there is a session for this conversation already."""
        ...

    async def find_conversation(self, tenant: TenantId, conversation: str) -> Session | None: ...

    async def get_session(self, tenant: TenantId, session: SessionId) -> Session | None: ...

    async def list_sessions(
        self,
        tenant: TenantId,
        *,
        limit: int,
        cursor: int | None = None,
        query: str = "",
        agent: str | None = None,
        status: SessionStatus | None = None,
    ) -> SessionPage:
        """Newest first, metadata only."""
        ...

    async def set_title(
        self, tenant: TenantId, session: SessionId, title: str, by: TitleBy, events: Sequence[Event] = ()
    ) -> bool:
        """Sets only the title. A generated title never replaces one that a person set."""
        ...

    async def set_field(
        self,
        tenant: TenantId,
        session: SessionId,
        field: str,
        value: object,
        audit: AuditEntry | None = None,
    ) -> bool:
        """Writes one field and nothing else: `model` or `agent_key` only while the session is free;
        `starred` or `metadata` at any time."""
        ...

    async def set_rules_if_unchanged(
        self,
        tenant: TenantId,
        session: SessionId,
        expected: tuple[RuleLayer, ...],
        rules: tuple[RuleLayer, ...],
        audit: AuditEntry | None = None,
    ) -> bool:
        """Replaces the rules, at any time. False: they are not as expected, or the session is gone."""
        ...

    async def fork_session(self, source: Session, at: Turn | None, new: NewSession) -> Session | None:
        """A new session whose head is `at`; copies no message. None: the source is gone, or its rules
        have changed since it was read."""
        ...

    async def count_forks(self, tenant: TenantId, session: SessionId) -> int:
        """How many sessions were forked from this one and live."""
        ...

    async def import_session(self, new: NewSession, turns: Sequence[Turn]) -> Session:
        """A session that was made elsewhere, with its whole chain, in one transaction."""
        ...

    async def usage_of_tenant(self, tenant: TenantId) -> Mapping[str, tuple[int, int]]:
        """Sessions and stored bytes, by the token that made the sessions."""
        ...

    async def walk_sessions(self, *, after: int, limit: int) -> tuple[Session, ...]:
        """Of all tenants, oldest first, those numbered above `after`: for upkeep in bounded steps."""
        ...

    async def delete_session(
        self, tenant: TenantId, session: SessionId, *, unused_since: float | None = None
    ) -> bool:
        """Ends its attempt and erases its branches and every turn that no other session reaches. With
        `unused_since`, only a session that is free, has no unfinished task, is not starred, and was not
        changed since then."""
        ...


class TurnStore(Protocol):
    async def read_turns(self, tenant: TenantId, head: TurnId, *, after_seq: int = 0) -> tuple[Turn, ...]:
        """The chain that ends in `head`, oldest first, without the first `after_seq` turns."""
        ...

    def stream_turns(
        self, tenant: TenantId, head: TurnId, *, after_seq: int = 0
    ) -> AsyncGenerator[EncodedTurn, None]:
        """The same chain in bounded pages, however long it is; the loop runs between them. It ends before
        `head` if turns are missing, or are deleted meanwhile."""
        ...

    async def find_turn(self, tenant: TenantId, turn: TurnId) -> Turn | None: ...

    async def turn_at(self, tenant: TenantId, head: TurnId, seq: int) -> Turn | None:
        """Turn number `seq` of the chain that ends in `head`, without reading the others."""
        ...

    async def list_branches(
        self, tenant: TenantId, session: SessionId, *, after: int = 0, limit: int
    ) -> tuple[Branch, ...]:
        """What edits have replaced in this session, oldest first, those numbered above `after`."""
        ...

    async def count_branches(self, tenant: TenantId, session: SessionId) -> int: ...


class AttemptStore(Protocol):
    async def begin_if_free(self, begin: Begin, events: Sequence[Event]) -> Begun | BeginConflict: ...

    async def look_up(self, ask: Ask) -> BeginConflict:
        """Returns what a begin of this ask would meet now, read at one moment. Writes nothing."""
        ...

    async def journal_if_held(
        self, hold: Hold, steps: Sequence[Step], events: Sequence[Event], *, batch: int | None = None
    ) -> bool:
        """False: the hold is gone, or this batch was stored before; then nothing was stored now.

        The caller numbers the batches of one hold in rising order, because it may have to send one again.
        """
        ...

    async def is_stored(self, hold: Hold, batch: int) -> bool:
        """True: this is the last batch that the hold stored. False also if the hold is gone."""
        ...

    async def commit_if_head(
        self, hold: Hold, commit: Commit, events: Sequence[Event], task: TaskEnd | None = None
    ) -> Committed:
        """With `task`, its end is part of the transaction; LOST also if the claim is not its current one."""
        ...

    async def finish_if_held(
        self,
        hold: Hold,
        status: AttemptStatus,
        error: tuple[str, str] | None,
        events: Sequence[Event],
        *,
        only_if_expired: bool = False,
        died: bool = False,
        parking: Parking | None = None,
        task: TaskEnd | None = None,
    ) -> bool:
        """Ends an attempt without a commit and frees its session. False: it had ended already.

        `died`: its process died. `parking`: when the follow-up that it was an attempt of is parked, and
        whether the rest of the queue is. `task`: its end is part of the transaction; False also if the claim
        is not its current one.
        """
        ...

    async def wait_if_held(
        self, hold: Hold, question: dict[str, Any], seconds: float, events: Sequence[Event]
    ) -> bool:
        """Gives the lease back, keeps the session busy, and starts the question's own deadline."""
        ...

    async def resume_if_waiting(
        self, hold: Hold, holder: str, lease_seconds: float, audit: AuditEntry | None = None
    ) -> Hold | None:
        """Takes a waiting attempt up again under a new fence, and records who said so. None: it waits no
        more, and nothing is recorded."""
        ...

    async def set_orphaned(self, hold: Hold, orphaned: bool) -> bool: ...

    async def ask_cancel(self, hold: Hold) -> bool:
        """Marks the attempt; its holder sees the mark when it renews the lease."""
        ...

    async def renew_leases(self, holds: Sequence[Hold], lease_seconds: float) -> dict[AttemptId, Attempt]:
        """Those still held, as they now stand."""
        ...

    async def expired_attempts(self, limit: int) -> tuple[Attempt, ...]:
        """Running ones past their lease and waiting ones past their deadline, by database time."""
        ...

    async def running_attempts(self, limit: int) -> tuple[Attempt, ...]: ...

    async def interrupted_asks(
        self, limit: int, *, deaths_below: int, skip: int = 0
    ) -> tuple[Interrupted | UnreadableAttempt, ...]:
        """Durable requests with fewer deaths whose last attempt was interrupted and whose session is free."""
        ...

    async def get_attempt(self, tenant: TenantId, attempt: AttemptId) -> Attempt | None: ...

    async def list_attempts(self, tenant: TenantId, session: SessionId) -> tuple[Attempt, ...]: ...

    async def failures(self, tenant: TenantId, *, age_seconds: float, limit: int) -> tuple[Attempt, ...]:
        """Attempts that failed or were interrupted within this time, newest first."""
        ...

    async def waiting_sessions(self, tenant: TenantId, *, limit: int) -> tuple[SessionId, ...]:
        """Those whose turn on this server waits for a person, newest first."""
        ...

    async def close_requests(
        self, tenant: TenantId, session: SessionId, *, fingerprint: str, caller: str
    ) -> None:
        """No later SDK retry means the ended requests with this body any more. Those that run stay open."""
        ...

    async def read_request(self, tenant: TenantId, turn: TurnId) -> TurnRequest | None:
        """HistoryDamaged: it is not as it was stored."""
        ...

    async def read_steps(self, tenant: TenantId, attempt: AttemptId) -> tuple[Step, ...]:
        """In the order of their journal. HistoryDamaged: one is missing, or not as it was stored."""
        ...


class QueueStore(Protocol):
    """Its rows also change where attempts do: a commit settles what it took and leaves unheard steers as
    follow-ups; any other end returns its entries to the queue, and parks what failed too often."""

    async def enqueue(self, new: NewQueued, *, most: int) -> Queued | NotQueued:
        """`most`: the limit of waiting entries of its kind. An entry with the same key is returned."""
        ...

    async def read_queue(self, tenant: TenantId, session: SessionId) -> tuple[Queued, ...]:
        """Entries that are not settled, including parked ones, in the order they were queued."""
        ...

    async def parked(self, tenant: TenantId, *, limit: int) -> tuple[Queued, ...]:
        """Follow-ups that are not tried any more, of all sessions, newest first."""
        ...

    async def steers_of(self, hold: Hold) -> tuple[Queued, ...]:
        """The steers for this attempt that are not in its journal yet."""
        ...

    async def waiting_queues(self, limit: int) -> tuple[tuple[TenantId, SessionId], ...]:
        """Free sessions with a follow-up to run."""
        ...

    async def drop_queued(self, tenant: TenantId, session: SessionId, number: int) -> bool:
        """False: it is not there, or an attempt has it."""
        ...

    async def park_queued(self, tenant: TenantId, session: SessionId, number: int, why: str) -> bool:
        """For an entry that cannot begin: it is not tried again until somebody retries it."""
        ...

    async def unpark_queued(self, tenant: TenantId, session: SessionId, number: int) -> bool: ...


class EventStore(Protocol):
    async def append_events_if_held(
        self, hold: Hold, events: Sequence[Event], *, at: float | None = None, batch: int | None = None
    ) -> int | None:
        """The number of the last one; None: the hold is gone, or this batch was stored before.

        They are stored with the time `at`, else the database's. With `at`, the caller knows what is stored.
        """
        ...

    async def read_events(
        self, tenant: TenantId, session: SessionId, *, after: int, limit: int = 500
    ) -> tuple[StoredEvent, ...]: ...

    async def tidy(self, *, events_older_than: float, keys_older_than: float, limit: int = 100) -> int:
        """Drops what has served its time, at most `limit` at once; how many it dropped."""
        ...


class TokenStore(Protocol):
    async def create_token(self, token: Token, hash: bytes, audit: AuditEntry | None = None) -> Token: ...

    async def find_token(self, hash: bytes) -> Token | None:
        """The token itself names the tenant, so this lookup needs none."""
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
        """What the database itself finds wrong with its files, in its own words."""
        ...

    def rows(self, table: StoredTable) -> AsyncGenerator[StoredRow | StoredTurn, None]:
        """Every row, one after the other. Turns come by session and number. DatabaseDamaged: no further row
        of the table can be read."""
        ...


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
        """For a check. Others may go on writing meanwhile."""
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

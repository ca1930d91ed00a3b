"""What the flows need of stored attempts, and of the queue and the events that change with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from lastgood.model.attempts import (
    NO_LIMIT,
    Ask,
    Attempt,
    AttemptStatus,
    Begin,
    BeginConflict,
    Begun,
    Commit,
    CommitResult,
    Hold,
    Interrupted,
    Step,
    TurnRequest,
    UnreadableAttempt,
)
from lastgood.model.audit import AuditEntry
from lastgood.model.events import Event, StoredEvent
from lastgood.model.ids import AttemptId, SessionId, TenantId, TurnId
from lastgood.model.queue import NewQueued, NotQueued, Parking, Queued
from lastgood.model.tasks import TaskEnd
from lastgood.model.usage import NO_USE, AttemptUse


class AttemptStore(Protocol):
    async def begin_if_free(self, begin: Begin, events: Sequence[Event]) -> Begun | BeginConflict: ...

    async def look_up(self, ask: Ask) -> BeginConflict:
        """Returns what would prevent a begin of this ask now, read at one moment. Writes nothing."""
        ...

    async def journal_if_held(
        self,
        hold: Hold,
        steps: Sequence[Step],
        events: Sequence[Event],
        *,
        batch: int | None = None,
        audit: AuditEntry | None = None,
    ) -> bool:
        """False: the hold is gone, or this batch was stored before; then nothing was stored now.

        The caller numbers the batches of one hold in rising order, because it may have to send one again.
        """
        ...

    async def is_stored(self, hold: Hold, batch: int) -> bool:
        """True: this is the last batch that the hold stored. False also if the hold is gone."""
        ...

    async def commit_if_head(
        self,
        hold: Hold,
        commit: Commit,
        events: Sequence[Event],
        task: TaskEnd | None = None,
        use: AttemptUse = NO_USE,
    ) -> CommitResult:
        """With `task`, its end is part of the transaction; LOST also if the claim is not its current one. The
        events get the time of the turn."""
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
        use: AttemptUse = NO_USE,
        audit: AuditEntry | None = None,
    ) -> bool:
        """Ends an attempt without a commit and frees its session. False: it had ended already.

        `died`: its process died. `parking`: when the follow-up that it was an attempt of is parked, and
        whether the rest of the queue is. `task`: its end is part of the transaction; False also if the claim
        is not its current one.
        """
        ...

    async def wait_if_held(
        self,
        hold: Hold,
        question: dict[str, Any],
        seconds: float,
        events: Sequence[Event],
        use: AttemptUse = NO_USE,
    ) -> bool:
        """Gives the lease back, keeps the session busy, and starts the question's own deadline."""
        ...

    async def resume_if_waiting(
        self, hold: Hold, holder: str, lease_seconds: float, audit: AuditEntry | None = None
    ) -> Hold | None:
        """Resumes a waiting attempt under a new fence, and records who answered. None: it does not wait any
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

    async def list_attempts(
        self, tenant: TenantId, session: SessionId, *, after: int = 0, limit: int = NO_LIMIT
    ) -> tuple[Attempt, ...]:
        """Those with a fence above `after`, oldest first."""
        ...

    async def newest_attempt(self, tenant: TenantId, turn: TurnId) -> Attempt | None: ...

    async def failures(self, tenant: TenantId, *, age_seconds: float, limit: int) -> tuple[Attempt, ...]:
        """Attempts that failed or were interrupted within this time, newest first."""
        ...

    async def waiting_sessions(self, tenant: TenantId, *, limit: int) -> tuple[SessionId, ...]:
        """Those whose turn on this server waits for a person, newest first."""
        ...

    async def close_requests(
        self, tenant: TenantId, session: SessionId, *, fingerprint: str, caller: str
    ) -> None:
        """Later SDK retries no longer match the ended requests with this body. Running ones stay open."""
        ...

    async def read_request(self, tenant: TenantId, turn: TurnId) -> TurnRequest | None:
        """HistoryDamaged: it is not as it was stored."""
        ...

    async def read_steps(self, tenant: TenantId, attempt: AttemptId) -> tuple[Step, ...]:
        """In the order of their journal. HistoryDamaged: one is missing, or not as it was stored."""
        ...


class QueueStore(Protocol):
    """Its rows also change with attempts: a commit settles what it took and turns steers that were not
    received into follow-ups; any other end returns its entries to the queue, and parks what failed too
    often."""

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
        """For an entry that cannot begin: it is not tried again until a person retries it."""
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
        """Deletes expired events and keys, at most `limit` at once. Returns how many."""
        ...

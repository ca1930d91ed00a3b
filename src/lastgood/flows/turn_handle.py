"""The handle of a submitted turn: its events, its outcome, and `leave`.

The run may be in this process, in another one, on a remote runtime, or over; callers see no difference.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from functools import partial

from lastgood.errors import LastgoodError, SessionNotFound, StoreError, StoreUnavailable, error_of
from lastgood.flows.attempt_run import Run
from lastgood.flows.dependencies import Dependencies
from lastgood.flows.event_feed import follow
from lastgood.flows.outages import outcome_unknown, through_outage
from lastgood.flows.running_attempts import RunningAttempts
from lastgood.flows.turn_outcome import Outcome
from lastgood.flows.verified_history import find_verified, had_effects
from lastgood.model.attempts import Attempt, AttemptStatus, Hold, Step
from lastgood.model.events import TERMINAL, EventKind, StoredEvent
from lastgood.model.ids import AttemptId, SessionId, TaskId, TenantId, TurnId
from lastgood.model.tasks import Task


@dataclass(frozen=True, slots=True)
class QueuedTurn:
    """A turn on a runtime that no worker has claimed yet, and the reason."""

    task: Task
    why: str


@dataclass(frozen=True, slots=True)
class TurnHandle:
    """One attempt at a turn, read from the store: any process may have it, and it may have ended."""

    _deps: Dependencies
    tenant: TenantId
    session: SessionId
    turn: TurnId
    attempt: AttemptId | None  # None: a task that nobody has claimed yet
    _after_event: int = 0  # where its events start
    replayed: bool = False

    async def events(self, *, from_begin: bool = True) -> AsyncGenerator[StoredEvent, None]:
        """Yields the events of the attempt until it ends. `from_begin=False` may skip those of its begin."""
        events = self._follow(self._after_event)
        async with aclosing(events):
            async for event in events:
                if event.attempt == self.attempt:
                    yield event

    async def outcome(self) -> Outcome:
        """Returns how it ended. Waiting changes nothing; a client that stops waiting calls `leave`.

        OutcomeUnknown: the store does not answer, and the turn may be committed.
        """
        try:
            return await self._stored_outcome()
        except StoreUnavailable as error:
            raise outcome_unknown(self.session, self.attempt) from error

    async def leave(self) -> None:
        """The client disconnected. What that means for the turn was decided when it began; a turn that this
        client only watches keeps running."""

    @property
    def task_id(self) -> TaskId | None:
        """Of a turn on a runtime."""
        return None

    async def stored(self) -> Attempt | QueuedTurn:
        """Returns the attempt as it is stored. The turn has begun by now, so no error may claim that nothing
        was changed."""
        return await self._stored_attempt()

    async def _stored_attempt(self) -> Attempt:
        assert self.attempt is not None, "only a task is without an attempt"
        read = partial(self._deps.store.get_attempt, self.tenant, self.attempt)
        try:
            attempt = await through_outage(read, self._deps.limits.outage_seconds)
        except StoreUnavailable as error:
            raise outcome_unknown(self.session, self.attempt) from error
        if attempt is None:
            raise SessionNotFound()
        return attempt

    @property
    def has_effects(self) -> bool:
        """Whether a tool that is not repeatable has run, if that is known when the outcome cannot be read."""
        return False

    @property
    def adopted(self) -> tuple[Step, ...]:
        """Finished steps of an earlier attempt, if they are known; no event of this one contains them."""
        return ()

    def call_when_ended(self, ended: Callable[[], None]) -> bool:
        """False: this request began no attempt, and nothing will be called."""
        return False

    def _follow(self, after: int, *, is_last: bool = False) -> AsyncGenerator[StoredEvent, None]:
        return follow(self._deps, self.tenant, self.session, after=after, until=self.attempt, is_last=is_last)

    async def _stored_outcome(self) -> Outcome:
        store, seconds, watched = self._deps.store, self._deps.limits.outage_seconds, self
        while True:
            attempt = await self._stored_attempt()
            if attempt.ended_at is not None or attempt.status is AttemptStatus.WAITING:
                break
            async with aclosing(watched.events()) as events:
                async for event in events:
                    # An attempt may wait, be answered and continue: follow it from here, not from its start
                    # again.
                    watched = replace(watched, _after_event=event.seq)
                    if event.kind in TERMINAL or event.kind is EventKind.ATTEMPT_WAITS:
                        break
        turn = await through_outage(lambda: find_verified(store, self.tenant, attempt.turn), seconds)
        if turn is not None:
            return Outcome(attempt.id, attempt.status, turn, _error_of(attempt))
        effects = await through_outage(lambda: had_effects(store, attempt), seconds)
        return Outcome(attempt.id, attempt.status, None, _error_of(attempt), effects)


@dataclass(frozen=True, slots=True)
class LocalTurnHandle(TurnHandle):
    """An attempt that runs in this process. Only `flows/begin.py` makes one; callers see a TurnHandle."""

    _live: RunningAttempts = field(kw_only=True)
    _run: Run = field(kw_only=True)
    _began: bool = field(kw_only=True)  # by this request; False: it attached

    async def events(self, *, from_begin: bool = True) -> AsyncGenerator[StoredEvent, None]:
        # Nothing is stored after the begin yet, so there is nothing to read before the first signal.
        is_last = not from_begin and self._run.outbox.is_untouched
        after = self._run.begun.session.last_event_seq if is_last else self._after_event
        events = self._follow(after, is_last=is_last)
        async with aclosing(events):
            async for event in events:
                if event.attempt == self.attempt:
                    yield event

    async def outcome(self) -> Outcome:
        return await asyncio.shield(self._run.done)

    async def leave(self) -> None:
        await self._live.leave(self._run)

    @property
    def has_effects(self) -> bool:
        return self._run.has_effects

    @property
    def adopted(self) -> tuple[Step, ...]:
        return tuple(self._run.adopted)

    def call_when_ended(self, ended: Callable[[], None]) -> bool:
        if self._began:
            self._run.done.add_done_callback(lambda _: ended())
        return self._began


@dataclass(frozen=True, slots=True)
class AttendedTurnHandle(TurnHandle):
    """An attempt that runs on another node, and commits only while a client waits for it."""

    _attending: asyncio.Task[None] = field(kw_only=True)
    _hold: Hold = field(kw_only=True)

    async def leave(self) -> None:
        """The node that runs it corrects this if its own client is there; so does another client here."""
        self._attending.cancel()
        await asyncio.wait({self._attending})
        with suppress(StoreError):
            await self._deps.store.set_orphaned(self._hold, True)


def _error_of(attempt: Attempt) -> LastgoodError | None:
    if attempt.error_code is None:
        return None
    return error_of(attempt.error_code, attempt.error_message or "")

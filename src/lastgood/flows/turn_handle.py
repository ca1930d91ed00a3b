"""What a caller gets for a turn it asked for: its events, its outcome, and a way to leave.

Knows no surface. The run may be in this process, in another one, or over: a caller cannot
tell, and need not.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial

from lastgood.errors import LastgoodError, SessionNotFound, StoreUnavailable, error_of
from lastgood.flows.dependencies import Dependencies
from lastgood.flows.event_feed import follow
from lastgood.flows.outages import outcome_unknown, through_outage
from lastgood.flows.run import Run
from lastgood.flows.running_attempts import RunningAttempts
from lastgood.flows.turn_outcome import Outcome
from lastgood.flows.verified_history import find_verified, had_effects
from lastgood.model.attempts import Attempt, AttemptStatus, Step
from lastgood.model.events import TERMINAL, EventKind, StoredEvent
from lastgood.model.ids import AttemptId, SessionId, TenantId, TurnId


@dataclass(frozen=True, slots=True)
class TurnHandle:
    """One attempt at a turn, and from which event on to watch it."""

    deps: Dependencies
    live: RunningAttempts
    tenant: TenantId
    session: SessionId
    turn: TurnId
    attempt: AttemptId
    after_event: int = 0
    run: Run | None = None  # None: another process has it, or it has ended
    replayed: bool = False
    began: bool = False  # by this request; False: it was there already

    async def events(self, *, from_begin: bool = True) -> AsyncGenerator[StoredEvent, None]:
        """The events of the attempt, to its end; or those after the ones that tell of its begin."""
        run, after = self.run, self.after_event
        is_last = not from_begin and run is not None and run.outbox.is_untouched
        if is_last:
            assert run is not None
            after = run.begun.session.last_event_seq
        events = follow(
            self.deps, self.tenant, self.session, after=after, until=self.attempt, is_last=is_last
        )
        async with aclosing(events):
            async for event in events:
                if event.attempt == self.attempt:
                    yield event

    async def outcome(self) -> Outcome:
        """How it ended. Waiting changes nothing; giving up waiting is `leave`.

        OutcomeUnknown: the store does not tell, and the turn may be committed.
        """
        if self.run is not None:
            return await asyncio.shield(self.run.done)
        try:
            return await self._stored_outcome()
        except StoreUnavailable as error:
            raise outcome_unknown(self.session, self.attempt) from error

    async def leave(self) -> None:
        """The client has gone. What that means for the turn was settled when it began."""
        if self.run is not None:
            await self.live.leave(self.run)

    async def stored(self) -> Attempt:
        """The attempt as it is stored. The turn has begun by now, so nobody may be told that nothing was
        changed."""
        read = partial(self.deps.store.get_attempt, self.tenant, self.attempt)
        try:
            attempt = await through_outage(read, self.deps.limits.outage_seconds)
        except StoreUnavailable as error:
            raise outcome_unknown(self.session, self.attempt) from error
        if attempt is None:
            raise SessionNotFound()
        return attempt

    @property
    def has_effects(self) -> bool:
        """As far as this process knows, for when not even the outcome can be read."""
        return self.run is not None and self.run.has_effects

    @property
    def adopted(self) -> tuple[Step, ...]:
        """Finished steps of an earlier try. Known only where the attempt runs, once it has loaded them."""
        return tuple(self.run.adopted) if self.run is not None else ()

    def call_when_ended(self, ended: Callable[[], None]) -> bool:
        """False: this request has begun no attempt whose end is seen here, and nothing will be called."""
        if not self.began or self.run is None:
            return False
        self.run.done.add_done_callback(lambda _: ended())
        return True

    async def _stored_outcome(self) -> Outcome:
        store, seconds, watched = self.deps.store, self.deps.limits.outage_seconds, self
        while True:
            attempt = await self.stored()
            if attempt.ended_at is not None or attempt.status is AttemptStatus.WAITING:
                break
            async with aclosing(watched.events()) as events:
                async for event in events:
                    # An attempt may wait, be answered and go on: from here, not from its start again.
                    watched = replace(watched, after_event=event.seq)
                    if event.kind in TERMINAL or event.kind is EventKind.ATTEMPT_WAITS:
                        break
        turn = await through_outage(lambda: find_verified(store, self.tenant, attempt.turn), seconds)
        if turn is not None:
            return Outcome(attempt.id, attempt.status, turn, _error_of(attempt))
        effects = await through_outage(lambda: had_effects(store, attempt), seconds)
        return Outcome(attempt.id, attempt.status, None, _error_of(attempt), effects)


def _error_of(attempt: Attempt) -> LastgoodError | None:
    if attempt.error_code is None:
        return None
    return error_of(attempt.error_code, attempt.error_message or "")

"""Recovery after the death of a process: ends its attempts, and tries durable turns again.

Both halves can be repeated and interrupted at any point: the database decides which attempt is dead, in
the statement that ends it, and durable turns are read from what is stored, never remembered.
"""

from __future__ import annotations

import asyncio
import logging

from lastgood.core.lifecycle import Move
from lastgood.core.recovery import MOST_DEATHS, GiveUp, Leave, TryAgain, is_due, recover
from lastgood.errors import (
    AgentNotFound,
    HistoryDamaged,
    LastgoodError,
    SessionBusy,
    StoreError,
    StoreUnavailable,
    TurnFailed,
)
from lastgood.flows.audit import nobody, unanswered_entry
from lastgood.flows.dependencies import Dependencies
from lastgood.flows.outages import INTERRUPTED
from lastgood.flows.queue import Queue
from lastgood.flows.retention import Retention
from lastgood.flows.running_attempts import RunningAttempts
from lastgood.flows.turns import Turns
from lastgood.model.attempts import Attempt, AttemptStatus, Interrupted, UnreadableAttempt

_PAGE = 100
#: How long a start may wait for durable turns to begin; their agents may come from slow URLs.
_START_SECONDS = 5.0

log = logging.getLogger(__name__)


class Recovery:
    """`retention`: sessions are not kept forever."""

    def __init__(
        self,
        deps: Dependencies,
        live: RunningAttempts,
        turns: Turns,
        queue: Queue,
        retention: Retention | None = None,
    ) -> None:
        self._deps = deps
        self._live = live
        self._turns = turns
        self._queue = queue
        self._retention = retention
        self._swept = deps.clock.monotonic()  # when the store last responded

    async def at_start(self) -> int:
        """On a store that only this process can use, whatever runs was left by a dead one."""
        return await self._end_abandoned(died=True) if self._deps.store.alone else 0

    async def _end_abandoned(self, *, died: bool) -> int:
        """Ends what runs according to the store, and not in this process, which has the store to itself."""
        ended = 0
        while True:
            before = frozenset(self._live.mine())
            found = await self._deps.store.running_attempts(len(before) + _PAGE)
            mine, earlier = before | self._live.mine(), ended
            for attempt in found:
                if attempt.id not in mine:
                    ended += await self._interrupt(attempt, died=died)
            if ended == earlier:
                return ended  # nothing is left, or only what a damaged row keeps from being ended

    async def retry_at_start(self) -> None:
        """Called before the first request, which would move the head and make durable turns start over."""
        try:
            async with asyncio.timeout(_START_SECONDS):
                await self.retry_durable()
        except (StoreError, TimeoutError) as error:
            log.warning("recovery of interrupted turns is retried later: %r", error)

    async def sweep(self) -> int:
        """Ends attempts past their lease or deadline, and those that an outage left unfinished."""
        await self._live.write_ends()
        ended = await self._end_abandoned(died=False) if self._deps.store.alone else 0
        expired = await self._deps.store.expired_attempts(_PAGE)
        now, limits = self._deps.clock.monotonic(), self._deps.limits
        # Leases that end during an outage say nothing about their holders. A process that could not reach
        # the store for as long as a lease cannot tell them from the dead.
        died = now - self._swept < limits.outage_seconds + limits.sweep_seconds
        self._swept = now
        for attempt in expired:
            try:
                ended += await self._interrupt(attempt, died=died, only_if_expired=True)
            except StoreError as error:
                # A process that was paused may hold on to its row; the others must not wait for that.
                log.warning("attempt %s could not be ended and is retried later: %s", attempt.id, error)
        return ended

    async def _interrupt(self, attempt: Attempt, *, died: bool, only_if_expired: bool = False) -> bool:
        ended = await self._end(attempt, died=died, only_if_expired=only_if_expired)
        if ended:
            why = "its process died" if died else "its lease or deadline ended"
            log.warning("attempt ended by recovery: %s", why, extra={"fields": _about(attempt)})
        return ended

    async def _end(self, attempt: Attempt, *, died: bool, only_if_expired: bool) -> bool:
        end = self._turns.end
        if attempt.status is AttemptStatus.WAITING:
            error: LastgoodError = TurnFailed("The question was not answered in time; nothing was committed")
            # Nobody answered, and that decided about the call.
            expired = unanswered_entry(attempt, "expired", nobody(self._deps.node))
            return await end(attempt, Move.FAIL, error, only_if_expired=only_if_expired, audit=expired)
        if not died:
            error = StoreUnavailable(INTERRUPTED)
            return await end(attempt, Move.INTERRUPT, error, only_if_expired=only_if_expired)
        error = TurnFailed("The server process that ran this turn died; nothing was committed")
        return await end(attempt, Move.INTERRUPT, error, only_if_expired=only_if_expired, died=True)

    async def retry_durable(self) -> None:
        left = 0  # these stay where they are; the others are gone from the list once they are tried
        full = True
        while full:
            page = await self._deps.store.interrupted_asks(_PAGE, deaths_below=MOST_DEATHS, skip=left)
            full = len(page) == _PAGE
            for found in page:
                try:
                    left += not await self._retry(found)
                except SessionBusy:
                    left += 1  # another turn of the session runs; the next sweep checks again
                except LastgoodError as error:
                    left += 1
                    log.warning("turn %s is recovered later: %s", found.attempt.turn, error)

    async def _retry(self, found: Interrupted | UnreadableAttempt) -> bool:
        """False: it is left."""
        if isinstance(found, UnreadableAttempt):
            # It can never be tried again; its client learns so from one more attempt.
            return await self._turns.fail_again(found.attempt, HistoryDamaged(found.damage))
        if not is_due(found.attempt, self._deps.clock.now()):
            return False
        session = await self._deps.store.get_session(found.attempt.tenant, found.attempt.session)
        if session is None:
            return False
        try:
            agent, _ = await self._turns.resolve(found.request.agent_key or session.agent_key)
            digest, model = agent.digest, found.request.model or session.model or agent.model
        except AgentNotFound:
            digest, model = None, ""
        match recover(found, digest=digest, model=model):
            case Leave(reason):
                log.debug("turn %s is not recovered: %s", found.attempt.turn, reason)
                return False
            case GiveUp(error):
                return await self._turns.fail_again(found.attempt, error)
            case TryAgain() as decided:
                log.info("interrupted turn is run again", extra={"fields": _about(found.attempt)})
                await self._turns.try_again(found.request, found.attempt, decided)
                # The queue behind it is durable, too, and the process that would begin it is dead.
                self._queue.drain(found.attempt.tenant, found.attempt.session)
                return True

    async def _tidy(self) -> None:
        """In batches, so that others can write in between. The next sweep handles the rest."""
        store, limits, now = self._deps.store, self._deps.limits, asyncio.get_running_loop().time
        ends = now() + limits.sweep_seconds
        ages = {"events_older_than": limits.event_seconds, "keys_older_than": limits.key_seconds}
        while await store.tidy(**ages, limit=_PAGE) and now() < ends:
            pass
        while await store.merge_usage(limit=_PAGE) == _PAGE and now() < ends:
            pass

    async def end_programs(self) -> None:
        """Of sessions that another process has deleted: it knows nothing of what runs here."""
        idle = self._deps.engine.idle_sessions()
        if not idle or self._deps.store.alone:
            return
        existing = await self._deps.store.existing_sessions(idle)
        for session in idle:
            if session not in existing:
                await self._deps.engine.forget(session)

    async def keep_sweeping(self, *, retries_durable: bool = True) -> None:
        """Sweeps at once and then again and again; a failed sweep is repeated."""
        limits = self._deps.limits
        while True:
            try:
                await self.sweep()
                if retries_durable:
                    await self.retry_durable()
                    await self._queue.sweep()
                if self._retention is not None:
                    await self._retention.step()
                await self.end_programs()
                await self._tidy()
            except StoreError as error:
                log.warning("the sweep failed and is retried: %s", error)
            except Exception:  # one row that cannot be read must not end all sweeps
                log.exception("the sweep failed and is retried")
            await asyncio.sleep(limits.sweep_seconds)


def _about(attempt: Attempt) -> dict[str, object]:
    return {
        "tenant": attempt.tenant,
        "session": attempt.session,
        "turn": attempt.turn,
        "attempt": attempt.id,
        "number": attempt.number,
    }

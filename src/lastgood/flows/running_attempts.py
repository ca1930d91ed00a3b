"""The attempts this process holds: started here, kept alive by a heartbeat, stopped here.

A lease that was not renewed counts as lost before it can end: a run stops itself
while nobody else may start one. A process that has its store to itself needs no lease:
nothing that happens to its clocks or its loop ends an attempt that it runs.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Iterator, Set
from contextlib import contextmanager, suppress
from typing import Any

from lastgood.core.lifecycle import Move
from lastgood.errors import AttemptLost, LastgoodError, StoreError, TurnCancelled, TurnFailed
from lastgood.flows.attempt_end import AttemptStop
from lastgood.flows.attempt_log import log_end
from lastgood.flows.attempt_run import Run, conduct, write_end
from lastgood.flows.dependencies import Dependencies
from lastgood.flows.leases import Beat, Leases
from lastgood.flows.outages import interrupted_by_outage, outcome_unknown
from lastgood.flows.turn_outcome import Outcome
from lastgood.model.attempts import Attempt, AttemptStatus, Hold, OnLeave
from lastgood.model.ids import AttemptId

log = logging.getLogger(__name__)

_STOPPED = AttemptStop(Move.INTERRUPT, TurnFailed("The server was stopped; the turn was interrupted"))
_STALLED = "The server stalled for longer than its lease; nothing was committed. Send the request again."
#: A timer may fire this much too early.
_INSTANT_SECONDS = 0.001
#: How often it is checked within the grace time whether a client has reconnected through another node.
_LOOKS = 10
#: How long stopped runs and begins that are under way may take to end.
_LAST_SECONDS = 10.0


class RunningAttempts:
    def __init__(self, deps: Dependencies) -> None:
        self._deps = deps
        self._runs: dict[AttemptId, Run] = {}
        self._expected: set[AttemptId] = set()  # a begin is under way whose run will be in the list
        self._unwritten: list[Run] = []  # they have ended, and the store does not know yet
        self.leases = Leases(deps.limits, deps.clock)
        self._tasks: set[asyncio.Task[Any]] = set()  # a task without a reference may be collected in mid-run
        self._pastimes: set[asyncio.Task[Any]] = set()  # those of them that may be cut off
        self._callbacks: list[Callable[[Outcome], None]] = []
        self.is_closing = False
        self._is_stopping = False  # what is closing has had its time

    def get(self, attempt: AttemptId) -> Run | None:
        return self._runs.get(attempt)

    @property
    def count(self) -> int:
        return len(self._runs)

    def on_ended(self, callback: Callable[[Outcome], None]) -> None:
        self._callbacks.append(callback)

    @property
    def lease_seconds(self) -> float:
        """For how long a begin takes its session: for good, if no other process could take it."""
        return math.inf if self._deps.store.alone else self._deps.limits.lease_seconds

    @contextmanager
    def expecting(self, attempt: AttemptId) -> Iterator[None]:
        """Between its begin in the store and its run here, an attempt is counted as ours."""
        self._expected.add(attempt)
        try:
            yield
        finally:
            self._expected.discard(attempt)

    def mine(self) -> Set[AttemptId]:
        return self._runs.keys() | self._expected

    def start(self, run: Run) -> None:
        self._runs[run.hold.attempt] = run
        if not self._deps.store.alone:
            run.lease = self.leases.take(run.hold, run.sent)
            self._watch_lease(run)
        self.spawn(self._conduct(run))
        if self._is_stopping:
            run.stop(_STOPPED)

    def spawn(self, work: Coroutine[Any, Any, Any], *, may_be_cut: bool = False) -> asyncio.Task[Any]:
        """`may_be_cut`: nothing is left half done where it stops."""
        task = asyncio.create_task(work)
        for tasks in (self._tasks, self._pastimes) if may_be_cut else (self._tasks,):
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        return task

    async def _conduct(self, run: Run) -> None:
        try:
            outcome = await conduct(run)
            # The hold ends before its end is published: a client that reads the end may begin at once.
            self._forget(run)
            run.done.set_result(outcome)
            _log_failure(run, outcome)
            for callback in self._callbacks:
                callback(outcome)
        except BaseException as error:
            self._forget(run)
            if not run.done.done():
                run.done.set_exception(error if isinstance(error, Exception) else _cut_off(run))
                run.done.exception()  # marks it as retrieved: nobody may be waiting
            raise

    def _forget(self, run: Run) -> None:
        self._runs.pop(run.hold.attempt, None)
        self.leases.drop(run.hold.attempt)
        if run.lease_timer is not None:
            run.lease_timer.cancel()
        if run.unwritten is not None:
            self._unwritten.append(run)

    async def write_ends(self) -> None:
        """Writes the ends that an outage delayed, so that their sessions need not wait for the leases."""
        for run in list(self._unwritten):
            await write_end(run)
            self._unwritten.remove(run)
            self._deps.signals.notify(run.hold.session)

    async def stop(self, run: Run, stop: AttemptStop) -> Outcome:
        run.stop(stop)
        return await asyncio.shield(run.done)

    async def leave(self, run: Run) -> None:
        """A client disconnected. What that means was decided when the turn began."""
        run.watchers -= 1
        if run.watchers > 0 or run.done.done():
            return
        match run.begin.ask.on_leave:
            case OnLeave.CONTINUE:
                return
            case OnLeave.CANCEL:
                await self.stop(
                    run,
                    AttemptStop(Move.CANCEL, TurnCancelled("The client disconnected; nothing was committed")),
                )
            case OnLeave.ORPHAN:
                await self._orphan(run)

    async def _orphan(self, run: Run) -> None:
        gone = AttemptStop(
            Move.CANCEL,
            TurnCancelled("The client disconnected and did not reconnect in time; nothing was committed"),
        )
        # It must not commit while orphaned: where that is not stored, it ends.
        try:
            is_stored = await run.write_presence()
        except StoreError:
            is_stored = False
        if not is_stored:
            run.stop(gone)
            return
        run.left += 1
        self.spawn(self._end_orphan(run, run.left, gone))

    async def _end_orphan(self, run: Run, left: int, gone: AttemptStop) -> None:
        """After the grace time, unless a client reconnected, here or through another node. One that leaves
        that node has the grace time, too."""
        now, grace = asyncio.get_running_loop().time, self._deps.limits.grace_seconds
        ends = now() + grace
        while now() < ends:
            await asyncio.wait({run.done}, timeout=grace / _LOOKS)
            if run.done.done() or run.watchers > 0 or run.left != left:
                return
            if not await self._is_orphaned(run.hold):
                ends = now() + grace
        run.stop(gone)

    async def _is_orphaned(self, hold: Hold) -> bool:
        try:
            attempt = await self._deps.store.get_attempt(hold.tenant, hold.attempt)
        except StoreError:
            return True
        return attempt is None or attempt.orphaned

    async def attach(self, run: Run) -> None:
        """The same request arrived again and waits for it now."""
        run.watchers += 1
        if run.begin.ask.on_leave is OnLeave.ORPHAN:
            try:
                await run.write_presence()
            except BaseException:
                run.watchers -= 1
                raise
            run.attended.set()

    def attend(self, attempt: Attempt) -> asyncio.Task[None]:
        """Keeps an attempt of another node attended until it ends, or until the task is cancelled. That node
        may notice only later that its own client has left, and would orphan the turn that ours waits for."""
        return self.spawn(self._attend(attempt), may_be_cut=True)

    async def _attend(self, attempt: Attempt) -> None:
        store = self._deps.store
        while True:
            await asyncio.sleep(self._deps.limits.poll_seconds)
            with suppress(StoreError):
                found = await store.get_attempt(attempt.tenant, attempt.id)
                if found is None or found.ended_at is not None:
                    return
                if found.orphaned:
                    await store.set_orphaned(found.hold, False)

    # -- heartbeat -------------------------------------------------------------

    async def keep_alive(self) -> None:
        """The heartbeat on this loop, for simulations. A server has it on a thread: `heartbeat.py`."""
        ticking = asyncio.create_task(self.leases.keep_ticking())
        try:
            while True:
                await self.leases.pause()
                try:
                    beat = await self.leases.beat(self._deps.store.renew_leases)
                    if beat is not None:
                        self.apply_heartbeat(beat)
                except Exception:  # leases end by themselves; later ones must still be renewed
                    log.exception("a heartbeat failed")
        finally:
            ticking.cancel()

    def _watch_lease(self, run: Run) -> None:
        """Stops the run by itself, with time for its tools to end, before its lease can end."""
        assert run.lease is not None
        # Looked at now: after a stall this timer comes before all that the heartbeat has handed over.
        left = self.leases.seconds_left(run.lease)
        if left > _INSTANT_SECONDS:
            run.lease_timer = asyncio.get_running_loop().call_later(left, self._watch_lease, run)
        elif self.leases.is_failing:
            run.stop(AttemptStop(Move.INTERRUPT, interrupted_by_outage(run.begin)))
        else:
            run.stop(AttemptStop(Move.INTERRUPT, AttemptLost(_STALLED)))

    def apply_heartbeat(self, beat: Beat) -> None:
        """Applies the result of a heartbeat, on the main loop."""
        for lease in beat.asked:
            run = self._runs.get(lease.hold.attempt)
            if run is None or run.hold != lease.hold:
                continue
            attempt = beat.held.get(lease.hold.attempt)
            if attempt is None:
                run.stop(AttemptStop(None, AttemptLost()))
                continue
            if attempt.cancel_asked:
                run.stop(AttemptStop(Move.CANCEL, TurnCancelled(), by_person=True))
            if not attempt.orphaned:
                run.attended.set()

    async def close(self, seconds: float) -> None:
        """Lets runs and titles finish for a while; the rest is interrupted, and found again by recovery."""
        self.is_closing = True
        await self._until(asyncio.get_running_loop().time() + seconds, self._tasks)
        self._is_stopping = True
        for run in list(self._runs.values()):
            run.stop(_STOPPED)
        # A begin that is under way may finish, and its turn is stopped at once: cancelled in
        # the middle, it could have taken a session that nobody holds.
        await self._until(asyncio.get_running_loop().time() + _LAST_SECONDS, self._tasks, self._pastimes)
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        with suppress(StoreError):
            await self.write_ends()

    async def _until(
        self, ends: float, tasks: Set[asyncio.Task[Any]], but: Set[asyncio.Task[Any]] = frozenset()
    ) -> None:
        """Until all have ended, those that come meanwhile, too; or until the time is over."""
        while (waiting := tasks - but) and (left := ends - asyncio.get_running_loop().time()) > 0:
            await asyncio.wait(waiting, timeout=left)


def _cut_off(run: Run) -> LastgoodError:
    """Its end is not stored: its lease will expire, and another process may try it again. Unless its commit
    was sent: then it may be in the history, and a client that sends it again would have it there twice."""
    if run.commit_is_unknown:
        return outcome_unknown(run.hold.session, run.hold.attempt)
    return AttemptLost("The server was stopped before the turn ended; send it again")


def _log_failure(run: Run, outcome: Outcome) -> None:
    if outcome.status not in (AttemptStatus.COMMITTED, AttemptStatus.WAITING):
        begun, effects = run.begun, outcome.has_effects
        log_end(run.hold, begun.turn, begun.number, outcome.status, outcome.error, has_effects=effects)

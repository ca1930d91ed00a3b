"""Deliberate defects of leases and outages; registered with all the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

from lastgood.core.lifecycle import Move
from lastgood.core.parking_policy import parking_of
from lastgood.errors import AttemptLost, OutcomeUnknown, ShuttingDown
from lastgood.flows import attempt_run as flow_run
from lastgood.flows import event_outbox as flow_outbox
from lastgood.flows import leases as flow_leases
from lastgood.flows import running_attempts as flow_running
from lastgood.flows.attempt_end import AttemptStop
from lastgood.flows.attempt_run import Run
from lastgood.flows.begin import Plan
from lastgood.flows.leases import Beat
from lastgood.flows.outages import interrupted_by_outage
from lastgood.flows.submission import Submission
from lastgood.flows.submit import Submitter
from lastgood.flows.turn_handle import TurnHandle
from lastgood.flows.turn_outcome import Outcome
from lastgood.model.attempts import AttemptStatus, Begin
from lastgood.store.sqlite.attempts import SqliteAttempts
from tests.faults.defects import defect, statement


@defect("a lease is renewed on the loop that it vouches for")
def _() -> Iterator[None]:
    def watch(self: flow_running.RunningAttempts, run: Run) -> None:
        """As if only what the loop has heard counted: an overdue timer stops the run."""
        seconds = self._deps.limits.lease_stop_seconds
        lost = AttemptStop(Move.INTERRUPT, interrupted_by_outage(run.begin))
        run.lease_timer = asyncio.get_running_loop().call_later(seconds, run.stop, lost)

    real = flow_running.RunningAttempts.apply_heartbeat

    def receive(self: flow_running.RunningAttempts, beat: Beat) -> None:
        real(self, beat)
        for run in self._runs.values():
            if run.hold.attempt in beat.held and run.lease_timer is not None:
                run.lease_timer.cancel()
                watch(self, run)

    with (
        patch.object(flow_running.RunningAttempts, "_watch_lease", watch),
        patch.object(flow_running.RunningAttempts, "apply_heartbeat", receive),
    ):
        yield


@defect("a wedged process keeps its sessions")
def _() -> Iterator[None]:
    real = flow_leases.Leases.beat

    async def beat(self: flow_leases.Leases, renew: Any) -> Beat | None:
        self._ticked = self._clock.monotonic()
        return await real(self, renew)

    with patch.object(flow_leases.Leases, "beat", beat):
        yield


@defect("a store error is a failure of the turn")
def _() -> Iterator[None]:
    async def once(work: Callable[[], Any], *_: Any) -> Any:
        return await work()

    async def at_once(self: Run, work: Callable[[], Any]) -> Any:
        return await work()

    with (
        patch.object(flow_outbox, "through_outage", once),
        patch.object(Run, "through_outage", at_once),
        patch.object(flow_run, "_stop_for", lambda run, error: AttemptStop(Move.FAIL, error)),
    ):
        yield


@defect("a committed turn is told as failed")
def _() -> Iterator[None]:
    def unreported(run: Run, stop: AttemptStop) -> Outcome:
        return Outcome(run.hold.attempt, AttemptStatus.INTERRUPTED, None, interrupted_by_outage(run.begin))

    with patch.object(flow_run, "_unwritten_outcome", unreported):
        yield


@defect("a commit that a stop cuts off is told as lost")
def _() -> Iterator[None]:
    with patch.object(flow_running, "_cut_off", lambda run: AttemptLost()):
        yield


@defect("an outage counts as a try")
def _() -> Iterator[None]:
    real = SqliteAttempts.finish_if_held

    async def finish(self: Any, hold: Any, status: AttemptStatus, *args: Any, **options: Any) -> bool:
        if status is AttemptStatus.INTERRUPTED:
            options |= {"died": True, "parking": parking_of(status, None, died=True)}
        return await real(self, hold, status, *args, **options)

    with patch.object(SqliteAttempts, "finish_if_held", finish):
        yield


@defect("a batch that is sent again is stored twice")
def _() -> Iterator[None]:
    with statement("touch_if_held", ("AND (:batch IS NULL OR batch < :batch)", "")):
        yield


@defect("a begin whose answer was lost is told as refused")
def _() -> Iterator[None]:
    async def begin(
        self: Submitter, begin: Begin, plan: Plan, submission: Submission | None = None
    ) -> TurnHandle:
        return await self._begin(begin, plan, submission, [])

    with patch.object(Submitter, "begin", begin):
        yield


@defect("a begin that a stop cuts off is told as refused")
def _() -> Iterator[None]:
    real = Submitter.begin

    async def begin(
        self: Submitter, begin: Begin, plan: Plan, submission: Submission | None = None
    ) -> TurnHandle:
        try:
            return await real(self, begin, plan, submission)
        except OutcomeUnknown:
            if self._live.is_closing:
                raise ShuttingDown() from None
            raise

    with patch.object(Submitter, "begin", begin):
        yield

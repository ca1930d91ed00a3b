"""The work of an attempt: runs the engine, journals each finished step, and enforces the timeouts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from lastgood.errors import TurnFailed, TurnTimeout
from lastgood.flows.attempt_work import AttemptWork
from lastgood.flows.audit import ruling_entry
from lastgood.flows.model_requests import is_last_answer
from lastgood.model.attempts import Step, StepKind
from lastgood.model.audit import AuditEntry
from lastgood.model.events import Event
from lastgood.model.sessions import TurnKind
from lastgood.model.usage import ModelAsked

if TYPE_CHECKING:
    from lastgood.flows.attempt_run import Run


#: A timer that is later than this was held up: the process was stopped, or its loop was busy.
_LATE_SECONDS = 1.0


class AttemptStopped(Exception):
    """The attempt must stop; `Run.stopped` has the reason."""


async def work(run: Run) -> list[Step]:
    if run.is_stopped():
        raise AttemptStopped
    if run.begin.ask.kind is not TurnKind.RUN:
        return []
    run.worker = asyncio.create_task(_drive(run))
    await _watch(run, run.worker)
    if run.is_stopped():
        # A tool that does not stop is left behind: its hold is ended next, so nothing it does counts.
        await asyncio.wait({run.worker}, timeout=run.deps.limits.stop_seconds)
        raise AttemptStopped
    if run.worker.cancelled():
        raise TurnFailed("A tool or model call cancelled itself; nothing was committed")
    return run.worker.result()


async def _watch(run: Run, worker: asyncio.Task[list[Step]]) -> None:
    """Waits until the work has ended, was stopped, or timed out. One timer, however much output there is."""
    loop, limits = asyncio.get_running_loop(), run.deps.limits
    ends = loop.time() + limits.turn_seconds
    run.last_sign = loop.time()
    while not worker.done() and not run.is_stopped():
        idle_ends = run.last_sign + limits.idle_seconds
        if ends > loop.time() > idle_ends + _LATE_SECONDS:
            # This process was stalled; output of the model has not been read yet.
            run.last_sign = loop.time()
            continue
        if loop.time() >= min(ends, idle_ends):
            text = (
                f"Turn exceeded its time limit of {limits.turn_seconds:g} s; nothing was committed"
                if loop.time() >= ends
                else f"No output from a model or tool for {limits.idle_seconds:g} s; nothing was committed"
            )
            run.time_out(TurnTimeout(text))
            return
        # Also after a stop: a tool may ignore its cancellation.
        ended: set[asyncio.Future[Any]] = {worker, run.halted}
        left = min(ends, idle_ends) - loop.time()
        await asyncio.wait(ended, timeout=left, return_when=asyncio.FIRST_COMPLETED)


async def _drive(run: Run) -> list[Step]:
    """Runs the engine, and journals each finished step before the engine continues."""
    assert run.agent is not None
    loop = asyncio.get_running_loop()
    steps = run.steps = list(run.adopted)

    async def emit(item: Event | Step | ModelAsked) -> None:
        run.last_sign = loop.time()
        if isinstance(item, ModelAsked):
            run.requests.asked(item.model)
            return
        if isinstance(item, Event):
            run.outbox.put(item)
            return
        steps.append(item)
        if item.kind is StepKind.MODEL:
            run.requests.answered(item.model)
        if not is_last_answer(item):
            await run.outbox.journal(item, _record_of(run, item))

    await run.deps.engine.run(AttemptWork(run, run.agent), emit)
    return steps


def _record_of(run: Run, step: Step) -> AuditEntry | None:
    if step.on_record is None:
        return None
    return ruling_entry(step.on_record, run.hold, run.begun.turn, run.begin.ask.caller, run.deps.node)

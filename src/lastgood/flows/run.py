"""One attempt, from its begin to its end: a pipeline of small steps over one record.

    load history → work (journal each step) → commit
                                            ↘ or end: failed, cancelled, interrupted, superseded; or wait

The work is a task of its own that can be stopped at any await. What the attempt
writes about itself is not: `conduct` is never cancelled from outside, so a
commit or an end that was begun is also heard out. If the process dies instead,
nothing was committed, and recovery ends the attempt.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lastgood.core.commit import plan_commit
from lastgood.core.history import History, mend, open_calls
from lastgood.core.intake import check_results
from lastgood.core.lifecycle import ATTEMPT, Move, after
from lastgood.core.recovery import has_effects
from lastgood.errors import (
    AttemptLost,
    LastgoodError,
    NeedsAnswer,
    OutcomeUnknown,
    StoreError,
    StoreUnavailable,
    TurnCancelled,
    TurnFailed,
    TurnTimeout,
)
from lastgood.flows.outbox import Outbox
from lastgood.flows.parts import Parts
from lastgood.flows.work import AttemptWork
from lastgood.model.agents import AgentSpec
from lastgood.model.attempts import (
    AttemptStatus,
    Begin,
    Begun,
    Commit,
    Committed,
    Hold,
    Step,
    StepKind,
)
from lastgood.model.events import Event, EventKind
from lastgood.model.ids import AttemptId, TurnId
from lastgood.model.sessions import Turn, TurnKind

log = logging.getLogger(__name__)

#: Pauses between tries of a write whose failure may pass, in seconds.
_PATIENCE = (0.05, 0.2, 0.5, 1.0)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended, or that it waits for a person."""

    attempt: AttemptId
    status: AttemptStatus
    turn: Turn | None = None
    error: LastgoodError | None = None
    has_effects: bool = False  # it committed nothing, but a tool that is not repeatable has run or may have


@dataclass(frozen=True, slots=True)
class Stop:
    """Why an attempt is stopped. No move: it is not ours any more, and nothing is written."""

    move: Move | None
    error: LastgoodError


class _Stopped(Exception):
    pass


@dataclass(slots=True)
class Run:
    """An attempt that this process holds."""

    parts: Parts
    begin: Begin
    begun: Begun
    agent: AgentSpec | None  # None: a turn without a model
    sent: float  # on the loop's clock: when the hold was asked for; its lease began after that
    answers: Mapping[str, str] = field(default_factory=dict)
    history: History = field(default_factory=History)
    adopted: tuple[Step, ...] = ()  # finished by an earlier attempt, or before this one waited
    steps: list[Step] | None = None  # all of them so far; None: not even the adopted ones are known
    stopped: Stop | None = None
    worker: asyncio.Task[list[Step]] | None = None
    watchers: int = 1  # requesters that are there
    left: int = 0  # how often the last of them has gone
    lease: asyncio.TimerHandle | None = None  # stops it before its lease can end
    last_sign: float = 0.0  # on the loop's clock: when the engine last did something
    presence: asyncio.Lock = field(
        default_factory=asyncio.Lock
    )  # whether somebody is there is written in order
    attended: asyncio.Event = field(default_factory=asyncio.Event)
    halted: asyncio.Future[None] = field(init=False)  # it was asked to stop
    done: asyncio.Future[Outcome] = field(init=False)
    outbox: Outbox = field(init=False)

    def __post_init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.done, self.halted = loop.create_future(), loop.create_future()
        self.outbox = Outbox(self.parts, self.hold, lambda error: self.stop(_stop_for(error)))

    @property
    def hold(self) -> Hold:
        return self.begun.hold

    @property
    def has_effects(self) -> bool:
        """Told from memory: what went wrong may be that the store cannot be read."""
        return self.begin.again if self.steps is None else has_effects(self.steps)

    def is_stopped(self) -> bool:
        return self.stopped is not None

    def stop(self, stop: Stop) -> None:
        """Asks it to end; `done` tells how it did. The first reason counts."""
        if self.stopped is None:
            self.stopped = stop
            self.halted.set_result(None)
            self.attended.set()
            if self.worker is not None:
                self.worker.cancel()


async def conduct(run: Run) -> Outcome:
    try:
        await _load(run)
        steps = await _work(run)
        outcome = await _commit(run, steps)
    except _Stopped:
        assert run.stopped is not None
        outcome = await _end(run, run.stopped)
    except NeedsAnswer as question:
        outcome = await _wait(run, question)
    except LastgoodError as error:
        outcome = await _end(run, _stop_for(error))
    except Exception:
        # What went wrong is for the log: its words may be somebody's, or hold a key.
        log.exception("attempt %s failed", run.hold.attempt)
        failed = TurnFailed(f"the turn failed inside Lastgood; the log says why, under {run.hold.attempt}")
        outcome = await _end(run, Stop(Move.FAIL, failed))
    run.parts.signals.tell(run.hold.session)
    return outcome


async def _load(run: Run) -> None:
    """Everything the attempt may see. What cannot be read whole fails the attempt, never shortens it."""
    if run.begin.ask.kind is TurnKind.RUN:
        run.history = await run.parts.histories.at(run.hold.tenant, run.begun.base)
        check_results(run.begin.ask.messages, open_calls(run.history.tail))
        before, now = run.history.agent, run.begin.agent_digest
        if before and before != now:
            changed = {"key": run.begin.agent_key, "from": before, "to": now}
            run.outbox.put(Event(EventKind.AGENT_CHANGED, run.hold.attempt, changed))
    if run.begin.again:
        run.adopted = await run.parts.store.read_steps(run.hold.tenant, run.hold.attempt)
    run.steps = list(run.adopted)


def _stop_for(error: LastgoodError) -> Stop:
    return Stop(None if isinstance(error, AttemptLost) else Move.FAIL, error)


# -- work ---------------------------------------------------------------------


async def _work(run: Run) -> list[Step]:
    if run.is_stopped():
        raise _Stopped
    if run.begin.ask.kind is not TurnKind.RUN:
        return []
    run.worker = asyncio.create_task(_drive(run))
    await _watch(run, run.worker)
    if run.is_stopped():
        # A tool that does not stop is left behind: its hold is ended next, so nothing it does counts.
        await asyncio.wait({run.worker}, timeout=run.parts.limits.stop_seconds)
        raise _Stopped
    if run.worker.cancelled():
        raise TurnFailed("a tool or a model cancelled itself; nothing was committed")
    return run.worker.result()


async def _watch(run: Run, worker: asyncio.Task[list[Step]]) -> None:
    """Until the work has ended, was stopped, or takes too long. One timer, however many signs of life."""
    loop, limits = asyncio.get_running_loop(), run.parts.limits
    ends = loop.time() + limits.turn_seconds
    run.last_sign = loop.time()
    while not worker.done() and not run.is_stopped():
        idle_ends = run.last_sign + limits.idle_seconds
        if loop.time() >= min(ends, idle_ends):
            text = (
                f"the turn took longer than {limits.turn_seconds:g} s; nothing was committed"
                if loop.time() >= ends
                else f"no sign of life for {limits.idle_seconds:g} s; nothing was committed"
            )
            run.stop(Stop(Move.FAIL, TurnTimeout(text)))
            return
        # On the stop, too: a tool may take no notice of being cancelled.
        ended: set[asyncio.Future[Any]] = {worker, run.halted}
        left = min(ends, idle_ends) - loop.time()
        await asyncio.wait(ended, timeout=left, return_when=asyncio.FIRST_COMPLETED)


async def _drive(run: Run) -> list[Step]:
    """Lets the engine work, and writes down each finished step before it goes on."""
    assert run.agent is not None
    loop = asyncio.get_running_loop()
    steps = run.steps = list(run.adopted)
    work = run.parts.engine.run(AttemptWork(run, run.agent))
    try:
        async for item in work:
            run.last_sign = loop.time()
            if isinstance(item, Event):
                run.outbox.put(item)
                continue
            steps.append(item)
            # The last answer is not journaled: the commit that follows at once stores it.
            if item.within or item.kind is not StepKind.MODEL or item.message.tool_calls:
                await run.outbox.journal(item)
        return steps
    finally:
        await work.aclose()


# -- the good end --------------------------------------------------------------


async def _commit(run: Run, steps: Sequence[Step]) -> Outcome:
    await run.outbox.close()
    plan = plan_commit(run.begin, run.begun, steps, run.parts.clock.now())
    events = (*run.outbox.take(), *_committed_events(run, plan.turn))
    while True:
        if run.is_stopped():
            raise _Stopped
        match await _commit_once(run, plan, events):
            case Committed.YES:
                if run.begin.ask.kind is TurnKind.RUN:
                    run.parts.histories.grow(run.history, plan.turn)
                return Outcome(run.hold.attempt, AttemptStatus.COMMITTED, plan.turn)
            case Committed.LOST:
                raise AttemptLost()
            case Committed.ORPHANED:
                # Nobody waits for this answer. It is kept until somebody asks
                # again or the grace time ends, which stops the run.
                await _until_attended(run)


async def _commit_once(run: Run, plan: Commit, events: Sequence[Event]) -> Committed:
    """Commits, and finds out what became of it: a lost answer is read back, never assumed."""
    store = run.parts.store
    asked_before = False
    for pause in (*_PATIENCE, None):
        try:
            answer = await store.commit_if_head(run.hold, plan, events)
            if answer is Committed.LOST and asked_before:
                # An earlier try of ours may be what moved the head.
                found = await store.find_turn(run.hold.tenant, plan.turn.id)
                # Another attempt at the same turn would be in the chain under the same id.
                ours = found is not None and found.attempt == run.hold.attempt
                return Committed.YES if ours else Committed.LOST
            return answer
        except StoreUnavailable as error:
            asked_before = asked_before or isinstance(error, OutcomeUnknown)
            if pause is None:
                if asked_before:
                    raise OutcomeUnknown() from error
                raise
        await asyncio.sleep(pause)
    raise AssertionError("unreachable")


async def _until_attended(run: Run) -> None:
    run.attended.clear()
    try:
        async with asyncio.timeout(run.parts.limits.poll_seconds):
            await run.attended.wait()
    except TimeoutError:
        return


def _committed_events(run: Run, turn: Turn) -> tuple[Event, ...]:
    data = {
        "turn": turn.id,
        "seq": turn.seq,
        "attempt": run.hold.attempt,
        "model": turn.model,
        "input_tokens": turn.usage.input_tokens,
        "output_tokens": turn.usage.output_tokens,
    }
    return (
        Event(EventKind.TURN_COMMITTED, run.hold.attempt, data),
        Event(EventKind.ATTEMPT_ENDED, run.hold.attempt, {"reason": "committed"}),
    )


# -- every other end -----------------------------------------------------------


async def _end(run: Run, stop: Stop) -> Outcome:
    """Writes the attempt's own row and nothing else."""
    await run.outbox.close()
    if stop.move is None:
        return await _as_stored(run, stop)
    status = after(AttemptStatus.RUNNING, stop.move)
    failed = failed_events(run.begun.turn, run.hold.attempt, status, stop.error, has_effects=run.has_effects)
    events = (*run.outbox.take(), *failed)
    for pause in (*_PATIENCE, None):
        try:
            ended = await run.parts.store.finish_if_held(run.hold, status, words_of(stop.error), events)
            if ended:
                return Outcome(run.hold.attempt, status, None, stop.error, run.has_effects)
            break
        except StoreError:
            if pause is None:
                break
        await asyncio.sleep(pause)
    return await _as_stored(run, stop)


async def _as_stored(run: Run, stop: Stop) -> Outcome:
    """Somebody else ended it, or an earlier write of ours did: the row tells, if it can be read."""
    try:
        attempt = await run.parts.store.get_attempt(run.hold.tenant, run.hold.attempt)
        if attempt is not None and attempt.status is AttemptStatus.COMMITTED:
            turn = await run.parts.store.find_turn(run.hold.tenant, attempt.turn)
            return Outcome(attempt.id, attempt.status, turn)
    except StoreError:
        attempt = None
    known = attempt is not None and attempt.ended_at is not None
    status = attempt.status if attempt is not None and known else AttemptStatus.INTERRUPTED
    error = TurnCancelled() if status is AttemptStatus.CANCELLED else stop.error
    return Outcome(run.hold.attempt, status, None, error, run.has_effects)


async def _wait(run: Run, asked: NeedsAnswer) -> Outcome:
    await run.outbox.close()
    data = {"attempt": run.hold.attempt, "question": asked.question}
    waits = Event(EventKind.ATTEMPT_WAITS, run.hold.attempt, data)
    try:
        held = await run.parts.store.wait_if_held(
            run.hold, asked.question, asked.seconds, (*run.outbox.take(), waits)
        )
    except StoreError as error:
        return await _end(run, _stop_for(error))
    if not held:
        return await _end(run, Stop(None, AttemptLost()))
    if run.stopped is not None and run.stopped.move in ATTEMPT[AttemptStatus.WAITING]:
        # Somebody cancelled it while it was about to wait; nobody would come to answer.
        return await _end(run, run.stopped)
    return Outcome(run.hold.attempt, AttemptStatus.WAITING, None, asked, run.has_effects)


def words_of(error: LastgoodError) -> tuple[str, str]:
    """What is written down of an error. No text may keep an attempt from ending."""
    return error.code, mend(error.message)


def failed_events(
    turn: TurnId, attempt: AttemptId, status: AttemptStatus, error: LastgoodError, *, has_effects: bool
) -> tuple[Event, ...]:
    code, message = words_of(error)
    data: dict[str, Any] = {"turn": turn, "attempt": attempt, "status": status.value}
    data |= {"code": code, "message": message}
    if has_effects:
        data["has_effects"] = True
    return (
        Event(EventKind.ATTEMPT_ERRED, attempt, {"code": code, "message": message}),
        Event(EventKind.TURN_FAILED, attempt, data),
        Event(EventKind.ATTEMPT_ENDED, attempt, {"reason": status.value}),
    )

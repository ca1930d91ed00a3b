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
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from lastgood.core.approval import shown
from lastgood.core.commit import plan_commit
from lastgood.core.history import History, mend, open_calls
from lastgood.core.input_checks import check_results
from lastgood.core.lifecycle import ATTEMPT, Move, after
from lastgood.core.queue_parking import parking_of
from lastgood.core.recovery import has_effects
from lastgood.errors import (
    AttemptLost,
    HistoryDamaged,
    LastgoodError,
    NeedsAnswer,
    OutcomeUnknown,
    StoreError,
    StoreFull,
    StoreUnavailable,
    TurnCancelled,
    TurnFailed,
    TurnTimeout,
)
from lastgood.flows.attempt_driver import AttemptStopped, work
from lastgood.flows.dependencies import Dependencies
from lastgood.flows.event_outbox import Outbox
from lastgood.flows.leases import Lease
from lastgood.flows.outages import interrupted_by_outage, outcome_unknown, through_outage
from lastgood.flows.turn_outcome import Outcome
from lastgood.flows.verified_history import find_verified
from lastgood.model.agents import AgentSpec
from lastgood.model.answers import Answer
from lastgood.model.attempts import (
    Attempt,
    AttemptStatus,
    Begin,
    Begun,
    Commit,
    Committed,
    Edit,
    Hold,
    Step,
)
from lastgood.model.events import (
    AgentChanged,
    AttemptCommitted,
    AttemptEnded,
    AttemptErred,
    AttemptFailed,
    AttemptWaits,
    Event,
)
from lastgood.model.ids import AttemptId, TurnId
from lastgood.model.sessions import Turn, TurnKind

log = logging.getLogger(__name__)

T = TypeVar("T")

#: How long the requester of an attempt waits for its end to be written. Recovery goes on trying.
_END_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class StopReason:
    """Why an attempt is stopped. No move: it is not ours any more, and nothing is written."""

    move: Move | None
    error: LastgoodError
    by_person: bool = False  # somebody cancelled it


@dataclass(frozen=True, slots=True)
class Ending:
    """What is written at an end without a commit."""

    status: AttemptStatus
    words: tuple[str, str]
    events: Sequence[Event]
    by_person: bool = False


@dataclass(slots=True)
class Run:
    """An attempt that this process holds."""

    deps: Dependencies
    begin: Begin
    begun: Begun
    agent: AgentSpec | None  # None: a turn without a model
    sent: float  # on the monotonic clock: when the hold was asked for; its lease began after that
    answers: Mapping[str, Answer] = field(default_factory=dict)
    history: History = field(default_factory=History)
    adopted: tuple[Step, ...] = ()  # finished by an earlier attempt, or before this one waited
    steps: list[Step] | None = None  # all of them so far; None: not even the adopted ones are known
    stopped: StopReason | None = None
    worker: asyncio.Task[list[Step]] | None = None
    watchers: int = 1  # requesters that are there
    left: int = 0  # how often the last of them has gone
    lease: Lease | None = None  # None: nobody else can take its session
    lease_timer: asyncio.TimerHandle | None = None  # stops it before its lease can end
    commit_is_unknown: bool = False  # one was sent, and whether it happened is not known
    unwritten: Ending | None = None  # its end could not be written yet
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
        self.outbox = Outbox(
            self.deps, self.hold, self.halted, lambda error: self.stop(_stop_for(self, error))
        )

    @property
    def hold(self) -> Hold:
        return self.begun.hold

    @property
    def has_effects(self) -> bool:
        """Told from memory: what went wrong may be that the store cannot be read."""
        return self.begin.again if self.steps is None else has_effects(self.steps)

    def is_stopped(self) -> bool:
        return self.stopped is not None

    async def through_outage(self, work: Callable[[], Awaitable[T]]) -> T:
        """Repeats what the store cannot do now, for as long as the attempt may hope for it."""
        return await through_outage(work, self.deps.limits.outage_seconds, self.halted)

    def time_out(self, error: TurnTimeout) -> None:
        self.stop(StopReason(Move.FAIL, error))

    def stop(self, stop: StopReason) -> None:
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
        steps = await work(run)
        outcome = await _commit(run, steps)
    except AttemptStopped:
        assert run.stopped is not None
        outcome = await _end(run, run.stopped)
    except NeedsAnswer as question:
        outcome = await _wait(run, question)
    except LastgoodError as error:
        outcome = await _end(run, run.stopped or _stop_for(run, error))
    except Exception:
        # What went wrong is for the log: its words may be somebody's, or hold a key.
        log.exception("attempt %s failed", run.hold.attempt)
        failed = TurnFailed(f"Internal error in Lastgood; see the server log for attempt {run.hold.attempt}")
        outcome = await _end(run, StopReason(Move.FAIL, failed))
    run.deps.signals.tell(run.hold.session)
    return outcome


async def _load(run: Run) -> None:
    """Everything the attempt may see. What cannot be read whole fails the attempt, never shortens it."""
    if run.begin.ask.kind is TurnKind.RUN:
        run.history = await run.through_outage(lambda: run.deps.histories.at(run.hold.tenant, run.begun.base))
        check_results(run.begin.ask.messages, open_calls(run.history.tail))
        before, now = run.history.agent, run.begin.agent_digest
        if before and before != now:
            run.outbox.put(Event(run.hold.attempt, AgentChanged(run.begin.agent_key, before, now)))
    if run.begin.again:
        run.adopted = await run.through_outage(
            lambda: run.deps.store.read_steps(run.hold.tenant, run.hold.attempt)
        )
    run.steps = list(run.adopted)


def _stop_for(run: Run, error: LastgoodError) -> StopReason:
    """A store that is unavailable for too long interrupts the turn, which is no fault of it."""
    if isinstance(error, AttemptLost):
        return StopReason(None, error)
    if isinstance(error, StoreUnavailable):
        return StopReason(
            Move.INTERRUPT, error if isinstance(error, StoreFull) else interrupted_by_outage(run.begin)
        )
    return StopReason(Move.FAIL, error)


# -- the good end --------------------------------------------------------------


async def _commit(run: Run, steps: Sequence[Step]) -> Outcome:
    await run.outbox.close()
    plan = plan_commit(run.begin, run.begun, steps, run.deps.clock.now())
    events = (*run.outbox.take(), *committed_events(run.hold.attempt, plan))
    while True:
        if run.is_stopped():
            raise AttemptStopped
        match await _commit_once(run, plan, events):
            case Committed.YES:
                if run.begin.ask.kind is TurnKind.RUN:
                    run.deps.histories.grow(run.history, plan.turn)
                return Outcome(run.hold.attempt, AttemptStatus.COMMITTED, plan.turn)
            case Committed.LOST:
                raise AttemptLost()
            case Committed.ORPHANED:
                # Nobody waits for this answer. It is kept until somebody asks
                # again or the grace time ends, which stops the run.
                await _until_attended(run)


async def _commit_once(run: Run, plan: Commit, events: Sequence[Event]) -> Committed:
    """Commits, and finds out what became of it: a lost answer is read back, never assumed."""
    store = run.deps.store

    async def once() -> Committed:
        # From before it is sent: whoever is cut off while it is under way does not know either.
        was_unknown, run.commit_is_unknown = run.commit_is_unknown, True
        try:
            answer = await store.commit_if_head(run.hold, plan, events)
        except OutcomeUnknown:
            raise
        except Exception:
            run.commit_is_unknown = was_unknown
            raise
        if answer is Committed.LOST and was_unknown:
            # An earlier try of ours may be what moved the head. Another attempt at the same
            # turn would be in the chain under the same id.
            found = await find_verified(store, run.hold.tenant, plan.turn.id)
            answer = Committed.YES if found is not None and found.attempt == run.hold.attempt else answer
        run.commit_is_unknown = False
        return answer

    return await run.through_outage(once)


async def _until_attended(run: Run) -> None:
    run.attended.clear()
    try:
        async with asyncio.timeout(run.deps.limits.poll_seconds):
            await run.attended.wait()
    except TimeoutError:
        return


def committed_events(attempt: AttemptId, plan: Commit) -> tuple[Event, ...]:
    turn, usage = plan.turn, plan.turn.usage
    edit = None if plan.replaces is None else Edit(turn.parent, plan.replaces)
    data = AttemptCommitted(
        turn.id, turn.seq, attempt, turn.model, usage.input_tokens, usage.output_tokens, edit
    )
    return Event(attempt, data), Event(attempt, AttemptEnded(AttemptStatus.COMMITTED.value))


# -- every other end -----------------------------------------------------------


async def _end(run: Run, stop: StopReason) -> Outcome:
    """Writes the attempt's own row and nothing else."""
    await run.outbox.close()
    if stop.move is None:
        return await _as_stored(run, stop)
    status = after(AttemptStatus.RUNNING, stop.move)
    failed = failed_events(run.begun.turn, run.hold.attempt, status, stop.error, has_effects=run.has_effects)
    events = (*run.outbox.take(), *failed)
    run.unwritten = Ending(status, words_of(stop.error), events, stop.by_person)
    try:
        if await through_outage(lambda: write_end(run), _read_back_seconds(run)):
            return Outcome(run.hold.attempt, status, None, stop.error, run.has_effects)
    except StoreUnavailable:
        return _unwritten_outcome(run, stop)
    except StoreError:
        log.exception("the end of attempt %s could not be written", run.hold.attempt)
    return await _as_stored(run, stop)


async def write_end(run: Run) -> bool:
    """False: it had ended before."""
    end = run.unwritten
    assert end is not None
    parking = parking_of(end.status, end.words[1], by_person=end.by_person)
    ended = await run.deps.store.finish_if_held(run.hold, end.status, end.words, end.events, parking=parking)
    run.unwritten, run.commit_is_unknown = None, run.commit_is_unknown and not ended
    return ended


def _read_back_seconds(run: Run) -> float:
    """What became of a commit is asked for until the lease ends."""
    return max(_END_SECONDS, run.deps.limits.stop_seconds) if run.commit_is_unknown else _END_SECONDS


async def _as_stored(run: Run, stop: StopReason) -> Outcome:
    """Somebody else ended it, or an earlier write of ours did: the row tells, if it can be read."""
    try:
        attempt, turn = await through_outage(lambda: _read_back(run), _read_back_seconds(run))
    except StoreError:
        return _unwritten_outcome(run, stop)
    except HistoryDamaged as damage:
        # It is committed, and nobody may be shown what is stored of it.
        return Outcome(run.hold.attempt, AttemptStatus.COMMITTED, None, damage, run.has_effects)
    if turn is not None:
        return Outcome(turn.attempt, AttemptStatus.COMMITTED, turn)
    known = attempt is not None and attempt.ended_at is not None
    status = attempt.status if attempt is not None and known else AttemptStatus.INTERRUPTED
    error = TurnCancelled() if status is AttemptStatus.CANCELLED else stop.error
    return Outcome(run.hold.attempt, status, None, error, run.has_effects)


async def _read_back(run: Run) -> tuple[Attempt | None, Turn | None]:
    """The turn, too: another node may have tried it again and committed it."""
    store, tenant = run.deps.store, run.hold.tenant
    attempt = await store.get_attempt(tenant, run.hold.attempt)
    return attempt, await find_verified(store, tenant, run.begun.turn)


def _unwritten_outcome(run: Run, stop: StopReason) -> Outcome:
    """The store is unavailable. A client that gets "failed" sends the turn again, so that must be true."""
    error = outcome_unknown(run.hold.session, run.hold.attempt) if run.commit_is_unknown else stop.error
    return Outcome(run.hold.attempt, AttemptStatus.INTERRUPTED, None, error, run.has_effects)


async def _wait(run: Run, asked: NeedsAnswer) -> Outcome:
    await run.outbox.close()
    waits = Event(run.hold.attempt, AttemptWaits(run.hold.attempt, shown(asked.question)))
    events, is_unknown = (*run.outbox.take(), waits), False

    async def once() -> bool:
        nonlocal is_unknown
        try:
            held = await run.deps.store.wait_if_held(run.hold, asked.question, asked.seconds, events)
        except OutcomeUnknown:
            is_unknown = True
            raise
        return held or (is_unknown and await _waits(run))

    try:
        held = await run.through_outage(once)
    except StoreError as error:
        return await _end(run, run.stopped or _stop_for(run, error))
    if not held:
        return await _end(run, StopReason(None, AttemptLost()))
    if run.stopped is not None and run.stopped.move in ATTEMPT[AttemptStatus.WAITING]:
        # Somebody cancelled it while it was about to wait; nobody would come to answer.
        return await _end(run, run.stopped)
    return Outcome(run.hold.attempt, AttemptStatus.WAITING, None, asked, run.has_effects)


async def _waits(run: Run) -> bool:
    """An earlier try, whose answer was lost, has put it to wait."""
    found = await run.deps.store.get_attempt(run.hold.tenant, run.hold.attempt)
    return found is not None and found.status is AttemptStatus.WAITING and found.fence == run.hold.fence


def words_of(error: LastgoodError) -> tuple[str, str]:
    """What is written down of an error. No text may keep an attempt from ending."""
    return error.code, mend(error.message)


def failed_events(
    turn: TurnId, attempt: AttemptId, status: AttemptStatus, error: LastgoodError, *, has_effects: bool
) -> tuple[Event, ...]:
    code, message = words_of(error)
    return (
        Event(attempt, AttemptErred(code, message)),
        Event(attempt, AttemptFailed(turn, status.value, code, message, attempt, has_effects)),
        Event(attempt, AttemptEnded(status.value)),
    )


def unclaimed_events(turn: TurnId, status: AttemptStatus, error: LastgoodError) -> tuple[Event, ...]:
    """Of a turn whose task ended in the queue: there is no attempt that could say so."""
    code, message = words_of(error)
    return (Event(None, AttemptFailed(turn, status.value, code, message)),)

"""One attempt, from its begin to its end: a pipeline of small steps over one record.

    load history → work (journal each step) → commit
                                            ↘ or end: failed, cancelled, interrupted, superseded; or wait

The work is a task of its own that can be stopped at any await. What the attempt writes about itself is not:
`conduct` is never cancelled from outside, so a commit or an end that was sent is always awaited. If the
process dies instead, nothing was committed, and recovery ends the attempt.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from lastgood.core.approval import shown
from lastgood.core.commit import plan_commit
from lastgood.core.history import History, open_calls
from lastgood.core.input_checks import check_results
from lastgood.core.lifecycle import ATTEMPT, Move, after
from lastgood.core.parking_policy import parking_of
from lastgood.core.recovery import approval_place, has_effects
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
from lastgood.flows.attempt_end import (
    AttemptStop,
    Ending,
    committed_events,
    failed_events,
    words_of,
)
from lastgood.flows.dependencies import Dependencies
from lastgood.flows.event_outbox import EventOutbox, numbered
from lastgood.flows.leases import Lease
from lastgood.flows.model_requests import ModelRequests
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
    CommitResult,
    Committed,
    Hold,
    Step,
)
from lastgood.model.events import (
    AgentChanged,
    AttemptWaits,
    Event,
    StoredEvent,
)
from lastgood.model.sessions import Turn, TurnKind
from lastgood.model.usage import AttemptUse

log = logging.getLogger(__name__)

T = TypeVar("T")

#: How long the client of an attempt waits for its end to be written. Recovery keeps trying.
_END_SECONDS = 2.0


@dataclass(slots=True)
class Run:
    """An attempt that this process holds."""

    deps: Dependencies
    begin: Begin
    begun: Begun
    agent: AgentSpec | None  # None: a turn without a model
    sent: float  # on the monotonic clock: when the hold was requested; its lease began after that
    answers: Mapping[str, Answer] = field(default_factory=dict)
    history: History = field(default_factory=History)
    waited_at: str | None = None  # the place of a call that had not begun when the adopted attempt ended
    asked: Mapping[str, Any] | None = None  # the question that it waits with
    adopted: tuple[Step, ...] = ()  # finished by an earlier attempt, or before this one waited
    steps: list[Step] | None = None  # all of them so far; None: not even the adopted ones are known
    stopped: AttemptStop | None = None
    worker: asyncio.Task[list[Step]] | None = None
    requests: ModelRequests = field(default_factory=ModelRequests)
    watchers: int = 1  # requesters that are there
    left: int = 0  # how often the last of them has gone
    lease: Lease | None = None  # None: nobody else can take its session
    lease_timer: asyncio.TimerHandle | None = None  # stops it before its lease can end
    commit_is_unknown: bool = False  # one was sent, and whether it happened is not known
    unwritten: Ending | None = None  # its end could not be written yet
    last_sign: float = 0.0  # on the loop's clock: when the engine last did something
    presence: asyncio.Lock = field(default_factory=asyncio.Lock)  # writes of `orphaned` happen in order
    attended: asyncio.Event = field(default_factory=asyncio.Event)
    halted: asyncio.Future[None] = field(init=False)  # set when it must stop
    done: asyncio.Future[Outcome] = field(init=False)
    outbox: EventOutbox = field(init=False)

    def __post_init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.done, self.halted = loop.create_future(), loop.create_future()
        self.outbox = EventOutbox(
            self.deps, self.hold, self.halted, lambda error: self.stop(_stop_for(self, error))
        )

    @property
    def hold(self) -> Hold:
        return self.begun.hold

    @property
    def has_effects(self) -> bool:
        """From memory, because the store may be unreadable."""
        if self.steps is None:
            return self.begin.again
        return has_effects(self.steps, approval_place(self.asked))

    def is_stopped(self) -> bool:
        return self.stopped is not None

    async def through_outage(self, work: Callable[[], Awaitable[T]]) -> T:
        """Retries a store call while the store is unavailable, as long as the lease lasts."""
        return await through_outage(work, self.deps.limits.outage_seconds, self.halted)

    async def write_presence(self) -> bool:
        """Stores whether a client is there. One after the other, and each what is true by then: a leave must
        not overtake an attach. False: the attempt is not held any more."""
        async with self.presence:
            return await self.deps.store.set_orphaned(self.hold, self.watchers == 0)

    def time_out(self, error: TurnTimeout) -> None:
        self.stop(AttemptStop(Move.FAIL, error))

    def stop(self, stop: AttemptStop) -> None:
        """Requests a stop; `done` has the outcome. The first reason counts."""
        if self.stopped is None:
            self.stopped = stop
            self.halted.set_result(None)
            self.attended.set()
            if self.worker is not None:
                self.worker.cancel()


async def conduct(run: Run) -> Outcome:
    stored: Sequence[StoredEvent] = ()
    try:
        await _load(run)
        steps = await work(run)
        outcome, stored = await _commit(run, steps)
    except AttemptStopped:
        assert run.stopped is not None
        outcome = await _end(run, run.stopped)
    except NeedsAnswer as question:
        outcome = await _wait(run, question)
    except LastgoodError as error:
        outcome = await _end(run, run.stopped or _stop_for(run, error))
    except Exception:
        # Details go to the log only: the text may contain messages of users or a key.
        log.exception("attempt %s failed", run.hold.attempt)
        failed = TurnFailed(f"Internal error in Lastgood; see the server log for attempt {run.hold.attempt}")
        outcome = await _end(run, AttemptStop(Move.FAIL, failed))
    run.deps.signals.notify(run.hold.session, stored)
    return outcome


async def _load(run: Run) -> None:
    """Loads the prompt. If any part cannot be read, the attempt fails; the prompt is never shortened."""
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
        run.waited_at = await run.through_outage(lambda: _waited_at(run))
    run.steps = list(run.adopted)


async def _waited_at(run: Run) -> str | None:
    if run.begin.continues is None:
        return None
    adopted = await run.deps.store.get_attempt(run.hold.tenant, run.begin.continues)
    return None if adopted is None else approval_place(adopted.unanswered)


def _stop_for(run: Run, error: LastgoodError) -> AttemptStop:
    """A store that is unavailable for too long interrupts the turn; the turn itself did not fail."""
    if isinstance(error, AttemptLost):
        return AttemptStop(None, error)
    if isinstance(error, StoreUnavailable):
        return AttemptStop(
            Move.INTERRUPT, error if isinstance(error, StoreFull) else interrupted_by_outage(run.begin)
        )
    return AttemptStop(Move.FAIL, error)


# -- the good end --------------------------------------------------------------


async def _commit(run: Run, steps: Sequence[Step]) -> tuple[Outcome, Sequence[StoredEvent]]:
    """Returns the last events, too, so that watchers in this process need not read them back."""
    await run.outbox.close()
    plan = plan_commit(run.begin, run.begun, steps, run.deps.clock.now())
    events = (*run.outbox.take(), *committed_events(run.hold.attempt, plan))
    while True:
        async with run.presence:
            pass  # a client has just left: the commit must find that written
        if run.is_stopped():
            raise AttemptStopped
        result = await _commit_once(run, plan, events)
        match result.outcome:
            case Committed.YES:
                if run.begin.ask.kind is TurnKind.RUN:
                    run.deps.histories.grow(run.history, plan.turn)
                stored = numbered(events, result.last_event, plan.turn.created_at)
                return Outcome(run.hold.attempt, AttemptStatus.COMMITTED, plan.turn), stored
            case Committed.LOST:
                raise AttemptLost()
            case Committed.ORPHANED:
                # No client is attached. The answer is kept until one attaches or the grace time ends, which
                # stops the run. Or a client has left another node, which knows nothing of the clients here.
                if run.watchers > 0:
                    await run.through_outage(run.write_presence)
                else:
                    await _until_attended(run)


async def _commit_once(run: Run, plan: Commit, events: Sequence[Event]) -> CommitResult:
    """Commits. A lost answer is read back, never assumed."""
    store = run.deps.store

    async def once() -> CommitResult:
        # Set before it is sent: if this task is cancelled during the commit, the outcome is unknown, too.
        was_unknown, run.commit_is_unknown = run.commit_is_unknown, True
        try:
            answer = await store.commit_if_head(run.hold, plan, events, use=_use(run))
        except OutcomeUnknown:
            raise
        except Exception:
            run.commit_is_unknown = was_unknown
            raise
        if answer.outcome is Committed.LOST and was_unknown:
            # An earlier try of ours may be what moved the head. Another attempt at the same
            # turn would be in the chain under the same id.
            found = await find_verified(store, run.hold.tenant, plan.turn.id)
            if found is not None and found.attempt == run.hold.attempt:
                answer = CommitResult(Committed.YES)
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


# -- every other end -----------------------------------------------------------


async def _end(run: Run, stop: AttemptStop) -> Outcome:
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
    ended = await run.deps.store.finish_if_held(
        run.hold, end.status, end.words, end.events, parking=parking, use=_use(run)
    )
    run.unwritten, run.commit_is_unknown = None, run.commit_is_unknown and not ended
    return ended


def _use(run: Run) -> AttemptUse:
    return run.requests.use(run.steps or (), run.deps.clock.monotonic() - run.sent)


def _read_back_seconds(run: Run) -> float:
    """Reads the outcome of a commit until the lease ends."""
    return max(_END_SECONDS, run.deps.limits.stop_seconds) if run.commit_is_unknown else _END_SECONDS


async def _as_stored(run: Run, stop: AttemptStop) -> Outcome:
    """Another process ended it, or an earlier write of ours did: reads its row, if possible."""
    try:
        attempt, turn = await through_outage(lambda: _read_back(run), _read_back_seconds(run))
    except StoreError:
        return _unwritten_outcome(run, stop)
    except HistoryDamaged as damage:
        # It is committed, but its stored turn is damaged.
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


def _unwritten_outcome(run: Run, stop: AttemptStop) -> Outcome:
    """The store is unavailable. A client that gets "failed" sends the turn again, so that must be true."""
    error = outcome_unknown(run.hold.session, run.hold.attempt) if run.commit_is_unknown else stop.error
    return Outcome(run.hold.attempt, AttemptStatus.INTERRUPTED, None, error, run.has_effects)


async def _wait(run: Run, asked: NeedsAnswer) -> Outcome:
    run.asked = asked.question
    await run.outbox.close()
    waits = Event(run.hold.attempt, AttemptWaits(run.hold.attempt, shown(asked.question)))
    events, is_unknown = (*run.outbox.take(), waits), False

    async def once() -> bool:
        nonlocal is_unknown
        try:
            held = await run.deps.store.wait_if_held(
                run.hold, asked.question, asked.seconds, events, _use(run)
            )
        except OutcomeUnknown:
            is_unknown = True
            raise
        return held or (is_unknown and await _waits(run))

    try:
        held = await run.through_outage(once)
    except StoreError as error:
        return await _end(run, run.stopped or _stop_for(run, error))
    if not held:
        return await _end(run, AttemptStop(None, AttemptLost()))
    if run.stopped is not None and run.stopped.move in ATTEMPT[AttemptStatus.WAITING]:
        # It was cancelled while it was about to wait; no answer would come.
        return await _end(run, run.stopped)
    return Outcome(run.hold.attempt, AttemptStatus.WAITING, None, asked, run.has_effects)


async def _waits(run: Run) -> bool:
    """An earlier try, whose answer was lost, has put it to wait."""
    found = await run.deps.store.get_attempt(run.hold.tenant, run.hold.attempt)
    return found is not None and found.status is AttemptStatus.WAITING and found.fence == run.hold.fence

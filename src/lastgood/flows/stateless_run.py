"""A run without a session: the history is the request's, and nothing is kept.

It ends with its client: closing the generator stops the engine. On a runtime it needs a session, because
only tasks of sessions are claimed; that one ends with its client, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from functools import partial

from lastgood.core.history import repair
from lastgood.core.input_checks import check_input
from lastgood.core.recovery import has_effects
from lastgood.errors import (
    InvalidRequest,
    LastgoodError,
    NeedsAnswer,
    SessionNotFound,
    StoreError,
    TurnFailed,
    TurnTimeout,
)
from lastgood.flows.audit import ruling_entry
from lastgood.flows.dependencies import Dependencies
from lastgood.flows.model_requests import ModelRequests
from lastgood.flows.notes import AgentNotes, at_once
from lastgood.flows.running_attempts import RunningAttempts
from lastgood.flows.sessions import Sessions
from lastgood.flows.submission import Reserve, Submission
from lastgood.flows.submit import Submitter
from lastgood.flows.task_start import TaskWishes
from lastgood.flows.turn_handle import TurnHandle
from lastgood.model.agents import AgentSpec
from lastgood.model.answers import Answer
from lastgood.model.attempts import Ask, AttemptStatus, Hold, OnLeave, Step, StepKind, said
from lastgood.model.call_options import CallOptions
from lastgood.model.events import Event
from lastgood.model.ids import SessionId, TenantId, TurnId
from lastgood.model.messages import Message
from lastgood.model.rules import RuleLayer, Setter
from lastgood.model.sessions import TurnKind, Usage
from lastgood.model.usage import AttemptUse, ModelAsked

log = logging.getLogger(__name__)

#: Items that a slow reader may be behind the engine.
_AHEAD = 16


@dataclass(frozen=True, slots=True)
class _Work:
    """The engine's view of a stateless run."""

    agent: AgentSpec
    hold: Hold
    turn: TurnId
    messages: tuple[Message, ...]
    options: CallOptions
    caller: str
    notes: AgentNotes
    number: int = 1
    steps: tuple[Step, ...] = ()
    working_dir: str | None = None
    earlier: tuple[Message, ...] = ()
    answers: Mapping[str, Answer] = field(default_factory=dict)
    waited_at: str | None = None
    can_ask: bool = False
    opens_session: bool = True
    has_chosen_model: bool = False
    is_followup: bool = False

    @property
    def model(self) -> str:
        return self.agent.model

    async def rules(self) -> tuple[RuleLayer, ...]:
        return ()

    async def steers(self) -> tuple[Step, ...]:
        return ()

    def own(self, steps: Sequence[Step]) -> tuple[Message, ...]:
        return repair((*self.messages, *said(steps)))


@dataclass(frozen=True, slots=True)
class StatelessRun:
    """`items` is what the engine emits; `steps` are those that have finished so far."""

    id: TurnId
    items: AsyncGenerator[Event | Step, None]
    steps: list[Step]

    @property
    def has_effects(self) -> bool:
        return has_effects(self.steps)


class StatelessRuns:
    def __init__(self, deps: Dependencies, live: RunningAttempts) -> None:
        self._deps = deps
        self._live = live

    def start(
        self,
        tenant: TenantId,
        agent: AgentSpec,
        messages: tuple[Message, ...],
        options: CallOptions,
        on_leave: OnLeave,
        user: str,
        caller: str,
    ) -> StatelessRun:
        """Begins when its first item is read. Its usage is counted for `user`, and tool calls that are denied
        are recorded. Nothing else is stored, so the run must be cancelled when its client disconnects: its
        result could not be read later."""
        assert on_leave is OnLeave.CANCEL, "a run that is not stored ends with its client"
        id, steps = self._deps.ids.turn(), list[Step]()
        hold = Hold(tenant, self._deps.ids.session(), self._deps.ids.attempt(), 0)
        notes = AgentNotes.of(self._deps.store, tenant, agent, at_once)
        work = _Work(agent, hold, id, messages, options, caller, notes)
        return StatelessRun(id, _counted(self._deps, self._live, work, user, steps), steps)


async def _counted(
    deps: Dependencies, live: RunningAttempts, work: _Work, user: str, steps: list[Step]
) -> AsyncGenerator[Event | Step, None]:
    """What it used is counted like that of an attempt, however it ends."""
    requests, began, status = ModelRequests(), deps.clock.monotonic(), AttemptStatus.CANCELLED
    try:
        async with aclosing(_collected(deps, work, requests, steps)) as items:
            async for item in items:
                yield item
        status = AttemptStatus.COMMITTED
    except LastgoodError:
        status = AttemptStatus.FAILED
        raise
    finally:
        if requests.last:
            used = sum((step.usage for step in steps), Usage())
            answers = sum(step.kind is StepKind.MODEL for step in steps)
            seconds = deps.clock.monotonic() - began
            use = AttemptUse(requests.last, used, answers, {**requests.open}, seconds)
            # Not awaited: its client has its answer, and may have left, which would cancel this.
            live.spawn(_recorded(deps.store.record_use(work.hold.tenant, user, work.agent.key, status, use)))


async def _recorded(recording: Awaitable[None]) -> None:
    try:
        await recording
    except StoreError as error:
        log.warning("the usage of a stateless run could not be stored: %s", error)


async def _collected(
    deps: Dependencies, work: _Work, requests: ModelRequests, steps: list[Step]
) -> AsyncGenerator[Event | Step, None]:
    agent, hold, messages = work.agent, work.hold, work.messages
    check_input(messages, TurnKind.RUN, deps.limits.input_bytes)
    if not repair(messages):
        # In a session, results alone may answer the previous turn; here there is no previous turn.
        raise InvalidRequest(
            "The tool results answer no tool call of this request; send the assistant message, too"
        )
    try:
        async with aclosing(_items(deps, work, requests)) as items:
            async for item in items:
                if isinstance(item, Step):
                    steps.append(item)
                yield item
    except LastgoodError as error:
        fields = {"code": error.code, "tenant": hold.tenant, "turn": work.turn, "agent": agent.key}
        log.warning("stateless turn failed", extra={"fields": fields})
        if not isinstance(error, NeedsAnswer):
            raise
        raise TurnFailed("This tool call needs human approval, which is not available on this API") from error
    finally:
        await deps.engine.forget(hold.session)


async def _items(
    deps: Dependencies, work: _Work, requests: ModelRequests
) -> AsyncGenerator[Event | Step, None]:
    """What the engine emits. It runs ahead of a slow reader by a few items, and stops with it."""
    items: asyncio.Queue[Event | Step | None] = asyncio.Queue()
    room = asyncio.Semaphore(_AHEAD)

    async def emit(item: Event | Step | ModelAsked) -> None:
        if isinstance(item, ModelAsked):
            requests.asked(item.model)
            return
        if isinstance(item, Step) and item.kind is StepKind.MODEL:
            requests.answered(item.model)
        if isinstance(item, Step) and item.on_record is not None:
            entry = ruling_entry(item.on_record, work.hold, work.turn, work.caller, deps.node)
            await deps.store.record(entry)
        await room.acquire()
        items.put_nowait(item)

    running = asyncio.create_task(deps.engine.run(work, emit))
    running.add_done_callback(lambda _: items.put_nowait(None))
    loop = asyncio.get_running_loop()
    ends = loop.time() + deps.limits.turn_seconds
    try:
        while True:
            try:
                async with asyncio.timeout_at(min(ends, loop.time() + deps.limits.idle_seconds)):
                    item = await items.get()
            except TimeoutError:
                raise TurnTimeout(
                    "Timed out waiting for output from the model or a tool; the turn was stopped"
                ) from None
            if item is None:
                running.result()  # raises what ended it
                return
            room.release()
            yield item
    finally:
        running.cancel()
        await asyncio.wait({running})


class EphemeralTurns:
    """Stateless requests to agents on runtimes."""

    def __init__(self, sessions: Sessions, submitter: Submitter) -> None:
        self._sessions = sessions
        self._submitter = submitter

    async def start(self, ask: Ask, setter: Setter, reserve: Reserve) -> TurnHandle:
        """The session of the ask is made now. It is gone when the handle is left, which the caller does in
        any case; if this process dies before, a sweep deletes it."""
        assert ask.on_leave is OnLeave.CANCEL, "what is not kept ends with its client"
        session = await self._sessions.create(ask.tenant, ask.agent_key or "", setter=setter)
        abandon = partial(self._abandon, ask.tenant, session.id)
        located = replace(ask, session=session.id, agent_key=None)
        try:
            return await self._submitter.submit(
                Submission(located, wishes=TaskWishes(abandon=abandon)), reserve
            )
        except BaseException:
            await abandon()
            raise

    async def _abandon(self, tenant: TenantId, session: SessionId) -> None:
        """A worker that holds its task learns with its next report that there is no such claim."""
        with suppress(SessionNotFound):
            await self._sessions.delete(tenant, session)

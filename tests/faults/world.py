"""A small world to judge: nodes on one store, and clients that write down what they were told.

The model is the scripted one: it logs every prompt it sees. The `ledger` tool's
only effect is a line in `ledger`. What clients were told, what the model saw and
what the store holds in the end is all that the checker gets.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from lastgood.agents.builtin import scripted_agent
from lastgood.agents.catalog import Catalog
from lastgood.engine.providers.scripted import Scripted
from lastgood.engine.tools.echo import ECHO
from lastgood.engine.tools.tool import Tool, ToolUse
from lastgood.errors import AttemptLost, InvalidRequest, LastgoodError, OutcomeUnknown, StoreUnavailable
from lastgood.flows.conversations import Conversations
from lastgood.flows.dependencies import FlowLimits
from lastgood.flows.submission import Submission
from lastgood.flows.turn_handle import TurnHandle
from lastgood.flows.turn_outcome import Outcome
from lastgood.model.agents import AgentSpec, OnUnknown
from lastgood.model.attempts import After, Ask, AttemptStatus, OnLeave
from lastgood.model.events import StoredEvent
from lastgood.model.ids import DEFAULT_TENANT, AttemptId, SessionId, TaskId, TurnId
from lastgood.model.messages import Message, user
from lastgood.model.sessions import Session, TurnKind
from lastgood.ports import Store
from lastgood.wiring import Lastgood, assemble
from tests.engines import Kit, toolsets

AGENT = "builtin/scripted"
OTHER_MODEL = "builtin/other"  # a second reference to the same scripted model, for overrides


@dataclass(slots=True)
class ClientCall:
    """One thing a client did, and what it was told. `outcome` is None while it has no answer."""

    what: str
    session: SessionId
    token: str = ""
    texts: tuple[str, ...] = ()
    key: str | None = None
    model: str | None = None
    durable: bool = False
    plain: bool = True
    is_retry: bool = False
    is_edit: bool = False
    after: TurnId | None = None  # of an edit: the turn that it goes on from
    replaces: TurnId | None = None  # of an edit: the head that it means, if it says so
    outcome: str | None = None  # committed, failed, cancelled, refused, unknown, done
    code: str = ""
    turn: TurnId | None = None
    attempt: AttemptId | None = None
    other: str = ""
    holder: str = ""  # of a refusal: the attempt that has the session
    events: list[tuple[int, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Resent:
    """What a client of the chat dialect sends before its new message, and the session that it was shown."""

    session: Session
    old: tuple[Message, ...]


class LoopClock:
    """Measures by the loop that the flows run on, so that a virtual clock is one here, too."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


class SeededIds:
    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def _next(self, prefix: str) -> str:
        return f"{prefix}_{self._random.getrandbits(128):032x}"

    def session(self) -> SessionId:
        return SessionId(self._next("ses"))

    def turn(self) -> TurnId:
        return TurnId(self._next("turn"))

    def attempt(self) -> AttemptId:
        return AttemptId(self._next("att"))

    def task(self) -> TaskId:
        return TaskId(self._next("task"))


@dataclass(slots=True)
class World:
    store: Store
    log: list[ClientCall] = field(default_factory=list)
    prompts: list[dict[str, Any]] = field(default_factory=list)
    ledger: list[dict[str, Any]] = field(default_factory=list)
    steers: list[str] = field(default_factory=list)  # texts that were said to running turns
    on_prompt: Callable[[dict[str, Any]], None] | None = None
    on_effect: Callable[[dict[str, Any]], None] | None = None
    on_call: Callable[[ClientCall], None] | None = None

    # -- nodes -------------------------------------------------------------------

    def kit(self) -> Kit:
        scripted = Scripted(self._saw)
        return Kit({AGENT: scripted, OTHER_MODEL: scripted}, [ECHO, *self._ledgers()])

    def _saw(self, record: dict[str, Any]) -> None:
        self.prompts.append(record)
        if self.on_prompt is not None:
            self.on_prompt(record)

    def _ledgers(self) -> Sequence[Tool]:
        return [self._ledger(policy) for policy in OnUnknown]

    def _ledger(self, policy: OnUnknown) -> Tool:
        async def run(use: ToolUse) -> str:
            line = {
                "key": use.key,
                "session": use.session,
                "attempt": use.attempt,
                "number": use.attempt_number,
                "text": use.arguments.get("text"),
            }
            self.ledger.append(line)
            if self.on_effect is not None:
                self.on_effect(line)
            await asyncio.sleep(0)
            return f"noted {use.arguments.get('text')}"

        return Tool(f"ledger-{policy.value}", "Writes a line outside.", {"type": "object"}, run, policy)

    def agent(self) -> AgentSpec:
        ledgers = (f"ledger-{policy.value}" for policy in OnUnknown)
        return replace(scripted_agent(), toolsets=toolsets("echo", *ledgers))

    def node(
        self,
        name: str,
        *,
        store: Store | None = None,
        engine: Any = None,
        limits: FlowLimits | None = None,
        seed: str = "",
    ) -> Lastgood:
        return assemble(
            store or self.store,
            engine or self.kit().engine(),
            Catalog([self.agent()]),
            limits=limits,
            clock=LoopClock(),
            ids=SeededIds(f"{name} {seed}") if seed else None,
            node=name,
        )

    # -- clients -----------------------------------------------------------------

    async def create(self, node: Lastgood, title: str = "") -> SessionId:
        session = await node.sessions.create(DEFAULT_TENANT, AGENT, title=title)
        self._report(self._noted(ClientCall("create", session.id, outcome="done", other=title)))
        return session.id

    def _noted(self, received: ClientCall) -> ClientCall:
        """Written down before it is tried: whoever dies now has asked for it all the same."""
        self.log.append(received)
        return self._report(received)

    def _report(self, received: ClientCall) -> ClientCall:
        if self.on_call is not None:
            self.on_call(received)
        return received

    async def ask(
        self,
        node: Lastgood,
        session: SessionId,
        text: str,
        token: str,
        *,
        more: Sequence[str] = (),
        key: str | None = None,
        model: str | None = None,
        durable: bool = False,
        on_leave: OnLeave = OnLeave.CONTINUE,
        is_retry: bool = False,
        watch: bool = False,
        kind: TurnKind = TurnKind.RUN,
        messages: Sequence[Message] | None = None,
        leave: asyncio.Event | None = None,
        after: After | None = None,
        expected_head: TurnId | None = None,
        resent: Resent | None = None,
    ) -> ClientCall:
        """`after`: an edit, unless that is the head by then. `resent`: it is found by comparing histories."""
        texts = (*more, f"{token} {text}" if kind is TurnKind.RUN else text)
        received = ClientCall(
            "ask",
            session,
            token,
            texts,
            key,
            model,
            durable or key is not None,
            key is None and not durable,
        )
        received.is_retry = is_retry
        received.is_edit, received.after = after is not None, after.turn if after else None
        received.replaces = resent.session.head.turn if resent and resent.session.head else expected_head
        self._noted(received)
        ask = Ask(
            tenant=DEFAULT_TENANT,
            session=session,
            messages=tuple(messages if messages is not None else map(user, texts)),
            model=model,
            kind=kind,
            key=key,
            fingerprint=f"{session} {texts} {model} {after}",
            caller="client",
            is_retry=is_retry,
            on_leave=on_leave,
            durable=received.durable,
            expected_head=received.replaces,
        )
        try:
            if resent is None:
                submitted = await node.submitter.submit(Submission(ask, after=after))
            else:
                submitted = await _submit_resent(node, ask, resent)
            received.attempt = submitted.attempt
            self._report(received)
            if watch:
                with suppress(StoreUnavailable):  # as in the API: the outcome is read before anything is sent
                    async for event in submitted.events():
                        received.events.append((event.seq, event.kind.value))
            if leave is not None:
                await leave.wait()
                await submitted.leave()
            outcome = await submitted.outcome()
        except OutcomeUnknown as error:
            received.outcome, received.code = "unknown", error.code
        except AttemptLost as error:
            # Its node was stopped and cut it off. Another one may try a durable turn again.
            received.outcome, received.code = "unknown", error.code
        except LastgoodError as error:
            received.outcome, received.code = "refused", error.code
        else:
            _note(received, outcome)
        return self._report(received)

    async def cancel(self, node: Lastgood, session: SessionId) -> ClientCall:
        received = self._noted(ClientCall("cancel", session))
        try:
            outcome = await node.turns.cancel(DEFAULT_TENANT, session)
        except OutcomeUnknown:
            received.outcome = "unknown"
        except LastgoodError as error:
            received.outcome, received.code = "refused", error.code
        else:
            received.attempt = outcome.attempt
            received.outcome = "done" if outcome.status is AttemptStatus.CANCELLED else "late"
        return self._report(received)

    async def do(self, what: str, session: SessionId, work: Any, other: str = "") -> ClientCall:
        """Any other call: `work` is its coroutine; `other` is what the checker needs to know of it."""
        received = self._noted(ClientCall(what, session, other=other))
        try:
            result = await work
        except OutcomeUnknown:
            received.outcome = "unknown"
        except LastgoodError as error:
            received.outcome, received.code = "refused", error.code
        else:
            received.outcome = "done"
            if what == "fork":
                received.other = result.id
        return self._report(received)


async def _submit_resent(node: Lastgood, ask: Ask, resent: Resent) -> TurnHandle:
    """As a chat request with a whole conversation is submitted that is to be reconciled."""
    conversations = Conversations(node.deps, node.sessions)
    try:
        place = await conversations.place(resent.session, (*resent.old, *ask.messages), reconciles=True)
    except InvalidRequest:
        if ask.key is None and not ask.is_retry:
            raise
        return await node.submitter.submit(Submission(ask))  # nothing new: it was done already
    return await node.submitter.submit(Submission(replace(ask, messages=place.messages, edit=place.edit)))


def _note(received: ClientCall, outcome: Outcome) -> None:
    received.turn = outcome.turn.id if outcome.turn else None
    received.attempt = outcome.attempt
    received.code = outcome.error.code if outcome.error else ""
    match outcome.status:
        case AttemptStatus.COMMITTED:
            received.outcome = "committed"
        case AttemptStatus.CANCELLED:
            received.outcome = "cancelled"
        case AttemptStatus.WAITING:
            received.outcome = "waiting"
        case _ if isinstance(outcome.error, OutcomeUnknown) or received.code in (
            "attempt_lost",
            "outcome_unknown",
        ):
            received.outcome = "unknown"
        case _:
            received.outcome = "failed"


def seen(events: Sequence[StoredEvent]) -> list[tuple[int, str]]:
    return [(event.seq, event.kind.value) for event in events]

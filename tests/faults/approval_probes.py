"""Stories about questions that wait for a person: an answer is for one question, once, and on the record."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from typing import Any

from lastgood.agents.catalog import Catalog
from lastgood.core.approval import Confirmation
from lastgood.core.session_rules import WantedRules
from lastgood.core.tool_ledger import ledger
from lastgood.engine.providers.provider import Chunk, ModelAnswer, ModelCall, Provider
from lastgood.engine.toolboxes import Toolboxes
from lastgood.engine.tools.program_tools import LiveProgram, Offer, SessionPlace
from lastgood.engine.tools.tool import Tool, ToolUse
from lastgood.errors import NothingPending
from lastgood.flows.approvals import Approver
from lastgood.flows.submission import Submission
from lastgood.model.agents import Permissions, ToolsetSpec
from lastgood.model.answers import Answer, AnswerAction
from lastgood.model.attempts import Ask, Attempt, AttemptStatus, Step, StepKind, ToolOutcome
from lastgood.model.audit import AuditEntry, AuditFilter, AuditKind
from lastgood.model.ids import DEFAULT_TENANT, SessionId
from lastgood.model.messages import Role, ToolCall, assistant, tool_result, user
from lastgood.model.rules import Setter
from lastgood.model.sessions import Usage
from lastgood.model.tokens import Scope
from lastgood.wiring import Lastgood, assemble
from tests.contract import builders
from tests.faults.faults import Faults, FaultyStore, Mode, faulty_engine
from tests.faults.probes import Stage, probe
from tests.faults.simulation import LIMITS
from tests.faults.world import AGENT, LoopClock

ADMIN = Setter(Scope.ADMIN, "tok_admin")
ANN = Approver(DEFAULT_TENANT, "tok_ann", "ann", Setter(Scope.APPROVE, "tok_ann"))
TOOL = "ledger-repeat"
CALL = f'!tool {TOOL} {{"text": "a"}}'
SLOW = "!slow 1\n!say one two three four five six"


async def waiting(stage: Stage, text: str) -> tuple[SessionId, Attempt]:
    """A session whose turn waits for an approval."""
    session = await stage.world.create(stage.node)
    await stage.node.sessions.set_permissions(DEFAULT_TENANT, session, WantedRules(ask=(TOOL,)), ADMIN)
    received = await stage.world.ask(stage.node, session, f"\n{text}", "tok1", durable=True)
    received.outcome, received.code = "unknown", ""  # what becomes of it is decided later
    (attempt,) = await stage.store.list_attempts(DEFAULT_TENANT, session)
    assert attempt.status is AttemptStatus.WAITING, f"it is {attempt.status}"
    return session, attempt


async def approve(node: Lastgood, session: SessionId) -> bool:
    """Whether this answer counted."""
    try:
        handle = await node.approvals.answer(session, Confirmation.APPROVE, ANN)
    except NothingPending:
        return False
    assert handle is not None
    await handle.outcome()
    return True


@probe
async def an_answer_is_for_the_question_that_was_read(stage: Stage) -> None:
    """Two calls of one response. Whoever read the first question has said nothing about the second one."""
    also = f'!also {TOOL} {{"text": "b"}}'
    session, attempt = await waiting(stage, f"{CALL}\n{also}\n!say done")
    assert attempt.question is not None
    assert await approve(stage.node, session)
    assert len(stage.world.ledger) == 1, f"{len(stage.world.ledger)} calls ran after one approval"
    said, place = Answer(AnswerAction.APPROVE), attempt.question["place"]
    try:
        late = await stage.other.turns.answer(DEFAULT_TENANT, session, attempt.id, said, place=place)
        await late.outcome()
    except NothingPending:
        pass
    assert len(stage.world.ledger) == 1, "a call ran that nobody approved"


@probe
async def two_answers_on_two_nodes_count_once(stage: Stage) -> None:
    """Both have read the question before one of them takes the turn up. Only one is on the record."""
    session, _ = await waiting(stage, f"{CALL}\n{SLOW}")

    async def late(point: str) -> Mode | None:
        if point == "store.resume_if_waiting":
            await asyncio.sleep(1)
        return None

    stage.faults.jitter = late
    answers = await asyncio.gather(approve(stage.node, session), approve(stage.other, session))
    assert sorted(answers) == [False, True], f"answers that counted: {sum(answers)}"
    assert len(stage.world.ledger) == 1, f"the call ran {len(stage.world.ledger)} times"
    records = await stage.store.list_audit(DEFAULT_TENANT, AuditFilter(subject=session), limit=10)
    approvals = [one for one in records if one.entry.actor == ANN.token]
    assert len(approvals) == 1, f"{len(approvals)} approvals are on the record"


@probe
async def a_rule_that_denies_by_now_beats_an_approval(stage: Stage) -> None:
    session, _ = await waiting(stage, f"{CALL}\n!say done")
    await stage.other.sessions.set_permissions(DEFAULT_TENANT, session, WantedRules(deny=(TOOL,)), ADMIN)
    await approve(stage.node, session)
    assert stage.world.ledger == [], "a call ran that a rule denies"


@probe
async def an_answer_is_for_the_turn_that_was_shown(stage: Stage) -> None:
    """The next turn comes to the same place with other arguments, and somebody still sees the old page."""
    session, _ = await waiting(stage, f"{CALL}\n!say done")
    (shown,) = await stage.node.approvals.pending(DEFAULT_TENANT, session, "")
    handle = await stage.node.approvals.answer(session, Confirmation.REJECT, ANN, question=shown.id)
    assert handle is not None
    await handle.outcome()
    received = await stage.world.ask(stage.node, session, f"\n{CALL}\n!say done", "tok2", durable=True)
    received.outcome, received.code = "unknown", ""
    try:
        late = await stage.other.approvals.answer(session, Confirmation.APPROVE, ANN, question=shown.id)
        assert late is not None
        await late.outcome()
    except NothingPending:
        pass
    assert stage.world.ledger == [], "a call ran whose arguments nobody had seen"


@probe
async def after_the_deadline_an_answer_is_too_late(stage: Stage) -> None:
    """The sweep that ends the attempt has not come yet."""
    begun = await builders.start(stage.store, builders.ask(await builders.session(stage.store)))
    await stage.store.wait_if_held(begun.hold, {}, -1.0, [])
    resumed = await stage.store.resume_if_waiting(begun.hold, "node", 60.0)
    assert resumed is None, "an answer counted after the deadline of its question"


class _OneId:
    """Makes the same call twice in one response, under one id."""

    async def stream(self, call: ModelCall) -> AsyncGenerator[Chunk | ModelAnswer, None]:
        if call.messages[-1].role is Role.TOOL:
            yield ModelAnswer(assistant("done"), Usage(1, 1))
        else:
            made = ToolCall("same", TOOL, '{"text": "a"}')
            yield ModelAnswer(assistant("", made, made), Usage(1, 1))


def asking_node(stage: Stage, providers: Mapping[str, Provider], **agent: Any) -> Lastgood:
    """A node whose agent's file asks before the tool."""
    faults = Faults()
    store: Any = FaultyStore(stage.store, faults)
    engine = faulty_engine(stage.world.kit().plus(providers, ()), faults)
    asks = replace(stage.world.agent(), permissions=Permissions(ask=(TOOL,)), **agent)
    return assemble(store, engine, Catalog([asks]), limits=LIMITS, clock=LoopClock(), node="asking")


async def say(node: Lastgood, text: str) -> SessionId:
    session = await node.sessions.create(DEFAULT_TENANT, AGENT)
    handle = await node.submitter.submit(Submission(Ask(DEFAULT_TENANT, session.id, (user(text),))))
    await handle.outcome()
    return session.id


@probe
async def an_approval_is_for_one_of_the_calls_of_a_response(stage: Stage) -> None:
    """Some model servers give all calls of a response one id."""
    node = asking_node(stage, {"builtin/one-id": _OneId()}, model="builtin/one-id")
    assert await approve(node, await say(node, "go"))
    assert len(stage.world.ledger) == 1, f"one approval admitted {len(stage.world.ledger)} calls"


@probe
async def an_approval_is_for_the_arguments_that_were_shown(stage: Stage) -> None:
    """The file of the agent changes meanwhile, so that the call would run with other arguments."""
    node = asking_node(stage, {})
    session = await say(node, f'!tool {TOOL} {{"text": "sk-proj-{"a1B2" * 12}"}}\n!say done')
    assert await approve(asking_node(stage, {}, redact_secrets=True), session)
    assert stage.world.ledger == [], "a call ran whose arguments nobody had seen"


@probe
async def an_approval_is_for_the_tool_that_was_shown(stage: Stage) -> None:
    """The file of the agent changes meanwhile, so that the same call would run another command."""
    session = await say(asking_node(stage, {}), f"{CALL}\n!say done")
    changed = tuple(replace(one, options={"cmd": "another"}) for one in stage.world.agent().toolsets)
    assert await approve(asking_node(stage, {}, toolsets=changed), session)
    assert stage.world.ledger == [], "a call ran whose tool had another definition when it was approved"


@probe
async def a_call_that_nobody_approved_has_not_begun(stage: Stage) -> None:
    node = asking_node(stage, {})
    session = await say(node, f'!tool ledger-fail {{"text": "a"}}\n!tool {TOOL} {{"text": "b"}}\n!say done')
    await node.turns.cancel(DEFAULT_TENANT, session)
    (attempt,) = await stage.store.list_attempts(DEFAULT_TENANT, session)
    steps = await stage.store.read_steps(DEFAULT_TENANT, attempt.id)
    outcomes = [one.outcome for one in ledger(attempt, steps)]
    assert outcomes == [ToolOutcome.DONE, ToolOutcome.DENIED], f"the ledger says {outcomes}"


class _OfItsSession:
    """A program that offers one tool, named after its session."""

    def __init__(self, session: str) -> None:
        self._session = session

    async def offer(self) -> Offer:
        async def run(use: ToolUse) -> str:
            return self._session

        return Offer((Tool(self._session, "", {"type": "object"}, run),))

    async def close(self) -> None:
        return


class _Live:
    def program(self, spec: ToolsetSpec, place: SessionPlace) -> LiveProgram:
        return _OfItsSession(place.session)

    async def close(self) -> None:
        return


@probe
async def a_session_has_the_tools_of_its_own_programs(stage: Stage) -> None:
    agent = replace(stage.world.agent(), toolsets=(ToolsetSpec("live"),))
    toolboxes = Toolboxes({}, {"live": _Live()}, None, None)
    for session in (SessionId("one"), SessionId("two")):
        toolbox = toolboxes.of(session, agent)
        await toolbox.ask_programs(agent, SessionPlace(DEFAULT_TENANT, session, None))
    for session in (SessionId("one"), SessionId("two")):
        names = set(toolboxes.of(session, agent).tools_of(agent))
        assert names == {session}, f"the session {session} is offered {names}"


@probe
async def a_denial_is_on_the_record(stage: Stage) -> None:
    node = asking_node(stage, {})
    session = await say(node, '!tool ledger-fail {"text": "a"}\n!say done')
    assert len(stage.world.ledger) == 1
    await node.sessions.set_permissions(DEFAULT_TENANT, session, WantedRules(deny=("ledger-fail",)), ADMIN)
    ask = Ask(
        DEFAULT_TENANT, session, (user('!tool ledger-fail {"text": "b"}\n!say done'),), caller="tok_ann"
    )
    await (await node.submitter.submit(Submission(ask))).outcome()
    denied = AuditFilter(AuditKind.CALL_DENIED, session)
    records = await stage.store.list_audit(DEFAULT_TENANT, denied, limit=10)
    said = [(one.entry.detail["arguments"], one.entry.detail["requested_by"]) for one in records]
    assert said == [('{"text": "b"}', "tok_ann")], f"of denied calls, the record has {said}"


@probe
async def a_denial_is_recorded_with_its_step(stage: Stage) -> None:
    """Its attempt has ended meanwhile, so the call has no result."""
    begun = await builders.start(stage.store, builders.ask(await builders.session(stage.store)))
    await stage.store.finish_if_held(begun.hold, AttemptStatus.CANCELLED, None, [])
    result = Step(StepKind.TOOL, tool_result("a", "error: no"), outcome=ToolOutcome.DENIED)
    denied = AuditEntry(begun.hold.tenant, AuditKind.CALL_DENIED, "", "", begun.hold.session)
    assert not await stage.store.journal_if_held(begun.hold, (result,), (), batch=1, audit=denied)
    records = await stage.store.list_audit(begun.hold.tenant, AuditFilter(), limit=10)
    assert not records, "a denial is on the record that the journal does not know"

"""Approvals: an answer is for the call that was shown; a call that nobody approved has not begun (I12)."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lastgood.core.approval import Confirmation
from lastgood.core.session_rules import WantedRules
from lastgood.core.tool_ledger import ledger
from lastgood.engine.providers.provider import Chunk, ModelAnswer, ModelCall
from lastgood.errors import Forbidden
from lastgood.flows.approvals import Approver
from lastgood.flows.audit import ARGUMENT_CHARACTERS, ruling_entry
from lastgood.model.agents import AgentSpec, Permissions, Safety
from lastgood.model.answers import Answer, AnswerAction
from lastgood.model.attempts import Attempt, AttemptStatus, CallRuling, Hold, ToolOutcome
from lastgood.model.audit import AuditFilter, AuditKind
from lastgood.model.events import AttemptFailed
from lastgood.model.hooks import HookEvent, HookKind, HookSpec
from lastgood.model.ids import DEFAULT_TENANT, AttemptId, SessionId, TurnId
from lastgood.model.messages import Message, Role, ToolCall, assistant
from lastgood.model.rules import Setter
from lastgood.model.sessions import Usage
from lastgood.model.tokens import Scope
from lastgood.wiring import Lastgood
from tests.faults.faults import Mode
from tests.flows.cluster import Cluster
from tests.flows.test_recovery import buried, dies_at, next_node, until_settled
from tests.flows.test_teams import results, task, team

pytestmark = pytest.mark.anyio

TOOL = "ledger-fail"
ASKED: dict[str, Any] = {"permissions": Permissions(ask=(TOOL,))}
APPROVED = Answer(AnswerAction.APPROVE)
CALL = f'!tool {TOOL} {{"text": "a"}}\n!say done'
DENIES = HookSpec(HookEvent.PRE_TOOL_USE, HookKind.COMMAND, "echo not today >&2; exit 2")


class OneId:
    """Calls the tool twice in one response, under one id."""

    def __init__(self, *arguments: str) -> None:
        self._calls = tuple(ToolCall("same", TOOL, one) for one in arguments)

    async def stream(self, call: ModelCall) -> AsyncGenerator[Chunk | ModelAnswer, None]:
        if call.messages[-1].role is Role.TOOL:
            yield ModelAnswer(assistant("done"), Usage(1, 1))
        else:
            yield ModelAnswer(Message(Role.ASSISTANT, "", self._calls), Usage(1, 1))


async def waits(
    cluster: Cluster, node: Lastgood, text: str = CALL, key: str = "builtin/scripted", **ask: Any
) -> tuple[SessionId, Attempt]:
    session = await cluster.session(node, key)
    outcome = await cluster.say(node, session, text, **ask)
    assert outcome.status is AttemptStatus.WAITING, outcome.error
    return session, await cluster.attempt(outcome.attempt)


async def approve(cluster: Cluster, node: Lastgood, session: SessionId, attempt: Attempt) -> Attempt:
    """Returns the attempt after the answer."""
    await cluster.outcome(node, await node.turns.answer(DEFAULT_TENANT, session, attempt.id, APPROVED))
    return await cluster.attempt(attempt.id)


def effects(cluster: Cluster) -> list[str]:
    return [line["text"] for line in cluster.world.ledger]


async def outcomes(cluster: Cluster, attempt: Attempt) -> list[ToolOutcome | None]:
    steps = await cluster.backend.store.read_steps(DEFAULT_TENANT, attempt.id)
    return [one.outcome for one in ledger(attempt, steps)]


@pytest.mark.parametrize("second", ["b", "a"], ids=["other arguments", "the same arguments"])
async def test_of_two_calls_with_one_id_an_approval_admits_one(cluster: Cluster, second: str) -> None:
    model = OneId('{"text": "a"}', f'{{"text": "{second}"}}')
    agent = cluster.agent(model="builtin/twice", **ASKED)
    node = await cluster.node(agents=[agent], providers={"builtin/twice": model})
    session, attempt = await waits(cluster, node, "go")
    again = await approve(cluster, node, session, attempt)
    assert effects(cluster) == ["a"]
    assert again.status is AttemptStatus.WAITING
    ended = await approve(cluster, node, session, again)
    assert ended.status is AttemptStatus.COMMITTED
    assert effects(cluster) == ["a", second]
    (turn,) = await cluster.turns(session)
    assert len({call.id for call in turn.messages[1].tool_calls}) == 2


async def test_an_approval_does_not_count_for_other_arguments(cluster: Cluster) -> None:
    """The agent's file changes while a person decides, and the call would run with other arguments."""
    secret = "sk-proj-" + "a1B2" * 12
    text = f'!tool {TOOL} {{"text": "{secret}"}}\n!say done'
    node = await cluster.node("before", agents=[cluster.agent(**ASKED)])
    session, attempt = await waits(cluster, node, text)
    await cluster.stop(node)
    node = await cluster.node("after", agents=[cluster.agent(**ASKED, redact_secrets=True)])
    again = await approve(cluster, node, session, attempt)
    assert effects(cluster) == []
    assert again.question is not None
    assert secret not in again.question["arguments"]
    ended = await approve(cluster, node, session, again)
    assert ended.status is AttemptStatus.COMMITTED
    assert len(effects(cluster)) == 1


async def had_effects(cluster: Cluster, session: SessionId) -> bool:
    """As clients learn it at the end."""
    events = await cluster.backend.store.read_events(DEFAULT_TENANT, session, after=0)
    (failed,) = [event.data for event in events if isinstance(event.data, AttemptFailed)]
    return failed.has_effects


# -- a question that nobody answers -------------------------------------------------------------------------


async def expires(cluster: Cluster, node: Lastgood, session: SessionId, attempt: Attempt) -> Attempt:
    await cluster.backend.execute(f"UPDATE attempts SET deadline = 1 WHERE id = '{attempt.id}'")
    await node.recovery.sweep()
    await cluster.until_free(session)
    return await cluster.attempt(attempt.id)


async def is_cancelled(cluster: Cluster, node: Lastgood, session: SessionId, attempt: Attempt) -> Attempt:
    await node.turns.cancel(DEFAULT_TENANT, session)
    return await cluster.attempt(attempt.id)


@pytest.mark.parametrize("end", [expires, is_cancelled], ids=["expired", "cancelled"])
async def test_a_call_that_nobody_approved_is_denied_and_a_retry_asks_again(
    cluster: Cluster, end: Callable[..., Awaitable[Attempt]]
) -> None:
    node = await cluster.node(agents=[cluster.agent(**ASKED)])
    text = f'!tool {TOOL} {{"text": "a"}}\n!also {TOOL} {{"text": "b"}}\n!say done'
    session, attempt = await waits(cluster, node, text)
    ended = await end(cluster, node, session, attempt)
    assert ended.question is None
    assert await outcomes(cluster, ended) == [ToolOutcome.DENIED, ToolOutcome.DENIED]
    continued = await node.turns.continue_from(DEFAULT_TENANT, session, attempt.id)
    outcome = await cluster.outcome(node, continued)
    assert (outcome.status, outcome.has_effects) == (AttemptStatus.WAITING, False)
    again = await cluster.attempt(outcome.attempt)
    assert again.question is not None
    assert attempt.question is not None
    assert again.question["place"] == attempt.question["place"]
    again = await approve(cluster, node, session, again)
    assert effects(cluster) == ["a"]
    await approve(cluster, node, session, again)
    assert effects(cluster) == ["a", "b"]
    (turn,) = await cluster.turns(session)
    assert results(turn) == ["noted a", "noted b"]


async def test_a_turn_that_waited_in_vain_has_no_effects(cluster: Cluster) -> None:
    node = await cluster.node(agents=[cluster.agent(**ASKED)])
    session = await cluster.session(node)
    handle = await cluster.submit(node, session, CALL)
    waiting = await cluster.outcome(node, handle)
    assert (waiting.status, waiting.has_effects) == (AttemptStatus.WAITING, False)
    await expires(cluster, node, session, await cluster.attempt(waiting.attempt))
    assert not await had_effects(cluster, session)


async def test_I42_a_question_that_nobody_answers_is_in_the_audit_record(cluster: Cluster) -> None:
    node = await cluster.node("here", agents=[cluster.agent(**ASKED)])
    session, attempt = await waits(cluster, node)
    await expires(cluster, node, session, attempt)
    store = cluster.backend.store
    (record,) = await store.list_audit(DEFAULT_TENANT, AuditFilter(subject=session), limit=9)
    entry = record.entry
    assert (entry.kind, entry.actor, entry.user, entry.machine) == (AuditKind.APPROVAL, "", "", "here")
    assert (entry.detail["decision"], entry.detail["tool"]) == ("expired", TOOL)
    assert entry.detail["attempt"] == attempt.id


async def test_I42_a_question_that_a_cancel_withdraws_is_in_the_audit_record(cluster: Cluster) -> None:
    node = await cluster.node(agents=[cluster.agent(**ASKED)])
    session, attempt = await waits(cluster, node)
    await node.turns.cancel(DEFAULT_TENANT, session, Setter(Scope.SESSION, "tok_ann", "ann", "192.0.2.1"))
    (record,) = await cluster.backend.store.list_audit(DEFAULT_TENANT, AuditFilter(), limit=9)
    entry = record.entry
    assert (entry.kind, entry.actor, entry.user) == (AuditKind.APPROVAL, "tok_ann", "ann")
    assert (entry.detail["decision"], entry.detail["attempt"]) == ("cancelled", attempt.id)


@pytest.mark.parametrize(
    ("agent", "why"),
    [
        ({"permissions": Permissions(deny=(TOOL,))}, "the rule"),
        ({"hooks": (DENIES,)}, "a hook denied"),
    ],
)
async def test_I42_a_call_that_is_denied_is_in_the_audit_record(
    cluster: Cluster, tmp_path: Path, agent: dict[str, Any], why: str
) -> None:
    node = await cluster.node("here", agents=[cluster.agent(**agent)], work_dirs=tmp_path / "work")
    session = await cluster.session(node)
    outcome = await cluster.say(node, session, CALL, caller="tok_ann")
    assert outcome.status is AttemptStatus.COMMITTED
    assert outcome.attempt is not None
    (record,) = await cluster.backend.store.list_audit(DEFAULT_TENANT, AuditFilter(subject=session), limit=9)
    entry, detail = record.entry, record.entry.detail
    assert (entry.kind, entry.actor, entry.machine) == (AuditKind.CALL_DENIED, "", "here")
    assert (detail["tool"], detail["arguments"], detail["decision"]) == (TOOL, '{"text": "a"}', "deny")
    assert (detail["attempt"], detail["requested_by"]) == (outcome.attempt, "tok_ann")
    assert why in detail["said"]
    (effect,) = ledger(
        await cluster.attempt(outcome.attempt),
        await cluster.backend.store.read_steps(DEFAULT_TENANT, outcome.attempt),
    )
    assert detail["key"] == effect.key


def test_I40_the_record_of_a_denied_call_has_so_much_of_its_arguments() -> None:
    """The record is kept for good, and no person slows such calls down."""
    hold = Hold(DEFAULT_TENANT, SessionId("s"), AttemptId("a"), 1)
    cut = "x" * 10_000 + " [… 40,000 characters omitted …]"
    for length, kept in ((ARGUMENT_CHARACTERS, None), (50_000, cut)):
        arguments = "x" * length
        denied = CallRuling(ToolCall("c", TOOL, arguments), "1:c", "root", "a rule denies it")
        entry = ruling_entry(denied, hold, TurnId("t"), "tok_ann", "here")
        assert entry.detail["arguments"] == (kept or arguments)


async def test_a_call_that_ran_before_the_one_that_waited_keeps_its_effects(cluster: Cluster) -> None:
    asked = Permissions(ask=("ledger-ask",))
    node = await cluster.node(agents=[cluster.agent(permissions=asked)])
    text = f'!tool {TOOL} {{"text": "a"}}\n!also ledger-ask {{"text": "b"}}\n!say done'
    session, attempt = await waits(cluster, node, text)
    ended = await expires(cluster, node, session, attempt)
    assert await outcomes(cluster, ended) == [ToolOutcome.DONE, ToolOutcome.DENIED]
    assert await had_effects(cluster, session)


async def test_a_call_that_was_approved_and_began_is_unknown_after_a_death(cluster: Cluster) -> None:
    """The counterpart: here nobody knows."""
    node = await cluster.node("dead", agents=[cluster.agent(**ASKED)])
    session, attempt = await waits(cluster, node, CALL)
    died = dies_at(cluster, node, "a")
    await node.turns.answer(DEFAULT_TENANT, session, attempt.id, APPROVED)
    await buried(cluster, node, died)
    await next_node(cluster, agents=[cluster.agent(**ASKED)])
    await until_settled(cluster, session, 1)
    assert await outcomes(cluster, await cluster.attempt(attempt.id)) == [ToolOutcome.UNKNOWN]


async def test_a_sub_agents_call_that_nobody_approved_lets_no_later_call_seem_begun(cluster: Cluster) -> None:
    def asks(agent: AgentSpec) -> AgentSpec:
        return replace(agent, permissions=Permissions(ask=(TOOL,)))

    plain = team(cluster)
    agent = replace(plain, members={name: asks(one) for name, one in plain.members.items()})
    node = await cluster.node(agents=[agent])
    inner = f'!tool {TOOL} {{"text": "in"}}\n!say inner'
    text = task("helper", inner, f'!also {TOOL} {{"text": "out"}}', "!say done")
    session, attempt = await waits(cluster, node, text, "team")
    ended = await expires(cluster, node, session, attempt)
    assert (await outcomes(cluster, ended))[1:] == [ToolOutcome.DENIED, ToolOutcome.DENIED]
    continued = await node.turns.continue_from(DEFAULT_TENANT, session, attempt.id)
    outcome = await cluster.outcome(node, continued)
    assert outcome.status is AttemptStatus.WAITING
    await approve(cluster, node, session, await cluster.attempt(outcome.attempt))
    assert effects(cluster) == ["in", "out"]


# -- tasks for other agents ---------------------------------------------------------------------------------

GIVEN = task("helper", f'!tool {TOOL} {{"text": "in"}}\n!say inner', "!say done")


def asks_for_tasks(cluster: Cluster, **more: Any) -> AgentSpec:
    return team(cluster, permissions=Permissions(ask=("transfer_task",), **more))


async def test_a_rule_denies_a_task(cluster: Cluster) -> None:
    agent = team(cluster, permissions=Permissions(deny=("transfer_task:agent=helper",)))
    node = await cluster.node(agents=[agent])
    turn = await cluster.good(node, await cluster.session(node, "team"), GIVEN)
    (denied,) = results(turn)
    assert "transfer_task is not allowed" in denied
    assert effects(cluster) == []


async def test_a_rule_asks_before_a_task_and_once(cluster: Cluster) -> None:
    """The approved task waits for approval inside, and is taken up again from there."""
    plain = asks_for_tasks(cluster)
    asking = {name: replace(one, permissions=Permissions(ask=(TOOL,))) for name, one in plain.members.items()}
    node = await cluster.node(agents=[replace(plain, members=asking)])
    session, attempt = await waits(cluster, node, GIVEN, "team")
    assert attempt.question is not None
    assert attempt.question["tool"] == "transfer_task"
    inside = await approve(cluster, node, session, attempt)
    assert inside.question is not None
    assert inside.question["tool"] == TOOL
    ended = await approve(cluster, node, session, inside)
    assert ended.status is AttemptStatus.COMMITTED
    assert effects(cluster) == ["in"]


async def test_a_task_that_a_person_rejects_is_not_given(cluster: Cluster) -> None:
    node = await cluster.node(agents=[asks_for_tasks(cluster)])
    session, attempt = await waits(cluster, node, GIVEN, "team")
    rejected = Answer(AnswerAction.REJECT, "do it yourself")
    await cluster.outcome(node, await node.turns.answer(DEFAULT_TENANT, session, attempt.id, rejected))
    (turn,) = await cluster.turns(session)
    assert "do it yourself" in results(turn)[0]
    assert effects(cluster) == []


async def test_a_hook_asks_before_a_task(cluster: Cluster, tmp_path: Path) -> None:
    says = {"hook_specific_output": {"permission_decision": "ask", "permission_decision_reason": "hm"}}
    hook = HookSpec(HookEvent.PRE_TOOL_USE, HookKind.COMMAND, f"echo '{json.dumps(says)}'")
    agent = team(cluster, hooks=(hook,))
    node = await cluster.node(agents=[agent], work_dirs=tmp_path / "work")
    session, attempt = await waits(cluster, node, GIVEN, "team")
    assert attempt.question is not None
    assert attempt.question["tool"] == "transfer_task"
    ended = await approve(cluster, node, session, attempt)
    assert ended.status is AttemptStatus.COMMITTED
    assert effects(cluster) == ["in"]


# -- docker-agent's words for "and from now on" -------------------------------------------------------------


@pytest.mark.parametrize(
    ("server", "expected"),
    [(Safety.AUTONOMOUS, Safety.BALANCED), (Safety.STRICT, Safety.STRICT)],
    ids=["the server allows more", "the server allows less"],
)
async def test_an_approval_sets_the_mode_and_never_above_that_of_the_server(
    cluster: Cluster, server: Safety, expected: Safety
) -> None:
    node = await cluster.node(agents=[cluster.agent(**ASKED)], safety=server)
    node.approvals._sessions.ceiling = server
    session, _ = await waits(cluster, node)
    by = Approver(DEFAULT_TENANT, "tok", "ann", Setter(Scope.APPROVE, "tok", "ann"))
    handle = await node.approvals.answer(session, Confirmation.APPROVE_SAFER, by)
    assert handle is not None
    assert (await cluster.outcome(node, handle)).status is AttemptStatus.COMMITTED
    assert effects(cluster) == ["a"]
    (layer,) = (await cluster.get(session)).rules
    assert (layer.safety, layer.permissions) == (expected, Permissions())


async def test_an_always_that_a_stronger_scope_forbids_changes_nothing(cluster: Cluster) -> None:
    """Else its giver would read an error, and the call would run."""
    node = await cluster.node(agents=[cluster.agent()])
    session = await cluster.session(node)
    admin, ann = Setter(Scope.ADMIN, "tok_admin"), Setter(Scope.APPROVE, "tok_ann")
    await node.sessions.set_permissions(DEFAULT_TENANT, session, WantedRules(ask=(TOOL,)), admin)
    assert (await cluster.say(node, session, CALL)).status is AttemptStatus.WAITING
    by = Approver(DEFAULT_TENANT, "tok_ann", "ann", ann)
    with pytest.raises(Forbidden, match="was set with the scope `admin`"):
        await node.approvals.answer(session, Confirmation.APPROVE_TOOL, by)
    assert len(await node.approvals.pending(DEFAULT_TENANT, session, "")) == 1
    assert cluster.world.ledger == []
    kinds = [
        one.entry.kind
        for one in await cluster.backend.store.list_audit(DEFAULT_TENANT, AuditFilter(), limit=9)
    ]
    assert kinds == [AuditKind.RULES_CHANGED]


async def test_an_answer_counts_although_its_rule_could_not_be_added(cluster: Cluster) -> None:
    """Its giver would read an error, although the call runs. The next call is asked for again."""
    node = await cluster.node(agents=[cluster.agent(**ASKED)])
    session, _ = await waits(cluster, node)
    cluster.strike(node, "store.set_rules_if_unchanged", Mode.RAISE, always=True)
    by = Approver(DEFAULT_TENANT, "tok_ann", "ann", Setter(Scope.APPROVE, "tok_ann"))
    handle = await node.approvals.answer(session, Confirmation.APPROVE_TOOL, by)
    assert handle is not None
    assert (await cluster.outcome(node, handle)).status is AttemptStatus.COMMITTED
    assert len(cluster.world.ledger) == 1
    assert (await cluster.say(node, session, CALL)).status is AttemptStatus.WAITING

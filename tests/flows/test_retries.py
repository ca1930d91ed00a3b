"""A marked retry goes on after the finished steps; a plain repeat starts from the last good turn."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lastgood.core.lifecycle import Move
from lastgood.engine.tools.tool import Tool, ToolUse
from lastgood.errors import TurnFailed
from lastgood.flows.refused_requests import RefusedRequests
from lastgood.model.agents import OnUnknown
from lastgood.model.attempts import AttemptStatus, OnLeave
from lastgood.model.events import AttemptFailed, AttemptStarted
from lastgood.model.ids import DEFAULT_TENANT
from lastgood.model.messages import user
from lastgood.model.queue import NewQueued, QueueKind
from lastgood.wiring import Lastgood
from tests.faults.faults import Mode
from tests.flows.cluster import Cluster, Gate, eventually, gate_tool
from tests.present import present

pytestmark = pytest.mark.anyio

KEYED: dict[str, Any] = {"key": "k", "durable": True}
SDK: dict[str, Any] = {"on_leave": OnLeave.ORPHAN, "caller": "sdk"}
#: How a request is sent, and how it is sent again.
MARKED = [pytest.param(KEYED, KEYED, id="key"), pytest.param(SDK, SDK | {"is_retry": True}, id="sdk")]
FAILS_ONCE = "pay\n!tool pay {}\n!say paid\n!fail before 1"
FAILS = "pay\n!tool pay {}\n!say paid\n!fail before"


class Payments:
    """A tool with an effect outside, counted there."""

    def __init__(self, policy: OnUnknown = OnUnknown.FAIL, gate: Gate | None = None) -> None:
        self.made: list[str] = []
        self._gate = gate
        self.tool = Tool("pay", "Pays.", {"type": "object"}, self._pay, on_unknown=policy)

    async def _pay(self, use: ToolUse) -> str:
        self.made.append(use.attempt)
        if self._gate is not None:
            await self._gate()
        return "paid"


async def moved(cluster: Cluster, node: Lastgood, payments: Payments, where_to: str) -> Lastgood:
    if where_to == "the same node":
        return node
    if where_to == "another node":
        return await cluster.node("other", tools=[payments.tool])
    await cluster.stop(node)
    await cluster.reopen()
    return await cluster.node("restarted", tools=[payments.tool], alone=True)


# -- adopting -----------------------------------------------------------------------------------


@pytest.mark.parametrize("where_to", ["the same node", "another node", "after a restart"])
@pytest.mark.parametrize(("first", "again"), MARKED)
async def test_I33_a_marked_retry_of_a_failed_turn_runs_no_finished_tool_again(
    cluster: Cluster, first: dict[str, Any], again: dict[str, Any], where_to: str
) -> None:
    payments = Payments()
    node = await cluster.node(tools=[payments.tool])
    session = await cluster.session(node)
    failed = await cluster.say(node, session, FAILS_ONCE, **first)
    assert (failed.status, len(payments.made)) == (AttemptStatus.FAILED, 1)
    node = await moved(cluster, node, payments, where_to)
    turn = await cluster.good(node, session, FAILS_ONCE, **again)
    assert len(payments.made) == 1
    assert [message.content for message in turn.messages] == [FAILS_ONCE, "", "paid", "paid"]
    one, two = await cluster.attempts(session)
    assert (two.turn, two.continues, two.number) == (one.turn, one.id, 2)
    assert two.decision["recovery"] == turn.decision["recovery"] == "continues after 2 finished steps"
    events = await cluster.backend.store.read_events(DEFAULT_TENANT, session, after=0)
    started = [event.data for event in events if isinstance(event.data, AttemptStarted)]
    assert started[-1].continues == one.id
    assert started[-1].decision == two.decision["recovery"]


async def test_M2_1_a_plain_repeat_starts_from_the_last_good_turn(cluster: Cluster) -> None:
    payments = Payments()
    node = await cluster.node(tools=[payments.tool])
    session = await cluster.session(node)
    await cluster.good(node, session, "hello", **SDK)
    await cluster.say(node, session, FAILS, **SDK)
    seen = len(cluster.world.prompts)
    await cluster.say(node, session, FAILS, **SDK)
    assert len(payments.made) == 2
    prompt = [
        message["content"] for message in cluster.world.prompts[seen]["prompt"] if message["role"] != "system"
    ]
    assert prompt == ["hello", "You said: hello", FAILS]
    assert (await cluster.attempts(session))[-1].continues is None


@pytest.mark.parametrize(("first", "again"), MARKED)
async def test_a_retry_starts_from_its_input_once_the_session_has_moved_on(
    cluster: Cluster, first: dict[str, Any], again: dict[str, Any]
) -> None:
    payments = Payments()
    node = await cluster.node(tools=[payments.tool])
    session = await cluster.session(node)
    failed = await cluster.say(node, session, FAILS_ONCE, **first)
    await cluster.good(node, session, "in between")
    turn = await cluster.good(node, session, FAILS_ONCE, **again)
    assert (turn.seq, len(payments.made)) == (2, 2)
    newest = (await cluster.attempts(session))[-1]
    assert (newest.continues, newest.number) == (None, 2)
    assert newest.turn == (await cluster.attempt(failed.attempt)).turn
    assert newest.decision["recovery"] == "the head of the session changed, so it restarts from its input"


async def test_a_retry_starts_from_its_input_once_its_agent_has_changed(cluster: Cluster) -> None:
    payments = Payments()
    node = await cluster.node(tools=[payments.tool])
    session = await cluster.session(node)
    await cluster.say(node, session, FAILS_ONCE, **KEYED)
    changed = cluster.agent(tools=["pay"], digest="another")
    node = await cluster.node("changed", agents=[changed], tools=[payments.tool])
    await cluster.good(node, session, FAILS_ONCE, **KEYED)
    newest = (await cluster.attempts(session))[-1]
    assert (newest.continues, len(payments.made)) == (None, 2)
    assert newest.decision["recovery"] == "the agent definition changed, so it restarts from its input"


@pytest.mark.parametrize(
    ("policy", "times"), [(OnUnknown.REPEAT, 2), (OnUnknown.FAIL, 1)], ids=["repeatable", "fail"]
)
@pytest.mark.parametrize(("first", "again"), MARKED)
async def test_I33_a_call_without_a_result_is_decided_by_its_tool_in_a_retry_too(
    cluster: Cluster, policy: OnUnknown, times: int, first: dict[str, Any], again: dict[str, Any]
) -> None:
    gate = Gate()
    payments = Payments(policy, gate)
    node = await cluster.node(tools=[payments.tool])
    session = await cluster.session(node)
    text = "pay\n!tool pay {}\n!say paid"
    started = await cluster.submit(node, session, text, **(first | {"durable": False}))
    await gate.until_reached()
    await cluster.stop(node)
    assert (await cluster.attempt(started.attempt)).status is AttemptStatus.INTERRUPTED
    await cluster.reopen()
    gate.open()
    node = await cluster.node("next", tools=[payments.tool], alone=True)
    turn = await cluster.good(node, session, text, **again)
    assert (len(payments.made), turn.id) == (times, started.turn)


async def test_I33_retries_of_one_failed_turn_on_many_nodes_run_its_tool_once(cluster: Cluster) -> None:
    payments = Payments()
    nodes = [await cluster.node(name, tools=[payments.tool]) for name in ("a", "b")]
    session = await cluster.session(nodes[0])
    await cluster.say(nodes[0], session, FAILS_ONCE, **KEYED)
    received = await asyncio.gather(
        *(cluster.good(nodes[n % 2], session, FAILS_ONCE, **KEYED) for n in range(8))
    )
    assert len({turn.id for turn in received}) == 1
    assert len(payments.made) == 1


async def test_I33_a_follow_up_that_failed_runs_no_finished_tool_again(cluster: Cluster) -> None:
    """The server tries it again by itself: that is a retry of the same turn, too."""
    payments = Payments()
    node = await cluster.node(tools=[payments.tool])
    session = await cluster.session(node)
    new = NewQueued(DEFAULT_TENANT, session, node.deps.ids.turn(), QueueKind.FOLLOWUP, (user(FAILS_ONCE),))
    await node.queue.put(new)

    async def committed() -> bool:
        return (await cluster.get(session)).turns == 1

    await eventually(committed)
    assert len(payments.made) == 1
    one, two = await cluster.attempts(session)
    assert (one.status, two.continues) == (AttemptStatus.FAILED, one.id)


async def test_a_retry_that_fails_again_keeps_what_was_finished(cluster: Cluster) -> None:
    payments = Payments()
    node = await cluster.node(tools=[payments.tool])
    session = await cluster.session(node)
    for _ in range(3):
        outcome = await cluster.say(node, session, FAILS, **KEYED)
        assert (outcome.status, outcome.has_effects) == (AttemptStatus.FAILED, True)
    assert len(payments.made) == 1
    attempts = await cluster.attempts(session)
    assert [one.continues for one in attempts] == [None, attempts[0].id, attempts[1].id]


# -- what its caller is told ----------------------------------------------------------------------


@pytest.mark.parametrize("where_to", ["the same node", "another node", "after a restart"])
@pytest.mark.parametrize("policy", OnUnknown)
async def test_I21_a_failed_turn_says_whether_a_tool_that_is_not_repeatable_ran(
    cluster: Cluster, policy: OnUnknown, where_to: str
) -> None:
    payments = Payments(policy)
    node = await cluster.node(tools=[payments.tool])
    session = await cluster.session(node)
    submitted = await cluster.submit(node, session, FAILS)
    expected = policy is not OnUnknown.REPEAT
    assert (await cluster.outcome(node, submitted)).has_effects is expected
    node = await moved(cluster, node, payments, where_to)
    stored = await node.turns.handle(
        DEFAULT_TENANT, session, submitted.turn, present(submitted.attempt)
    ).outcome()
    assert (stored.status, stored.has_effects) == (AttemptStatus.FAILED, expected)
    events = await cluster.backend.store.read_events(DEFAULT_TENANT, session, after=0)
    (failed,) = [event.data for event in events if isinstance(event.data, AttemptFailed)]
    assert failed.has_effects is expected


async def test_I21_a_call_that_was_denied_has_no_effect(cluster: Cluster) -> None:
    node = await cluster.node()
    session = await cluster.session(node)
    outcome = await cluster.say(node, session, FAILS)
    assert (outcome.status, outcome.has_effects) == (AttemptStatus.FAILED, False)


async def test_I21_a_tool_that_was_cut_off_may_have_had_its_effect(cluster: Cluster) -> None:
    """Its process died: whoever ends the attempt says so, too."""
    gate = Gate()
    node = await cluster.node(tools=[gate_tool(gate)])
    other = await cluster.node("other")
    session = await cluster.session(node)
    started = await cluster.submit(node, session, "!tool gate {}")
    await gate.until_reached()
    await cluster.kill(node)
    attempt = await cluster.attempt(started.attempt)
    assert await other.turns.end(attempt, Move.INTERRUPT, TurnFailed())
    found = await cluster.outcome(
        other, other.turns.handle(DEFAULT_TENANT, session, started.turn, present(started.attempt))
    )
    assert (found.status, found.has_effects) == (AttemptStatus.INTERRUPTED, True)
    events = await cluster.backend.store.read_events(DEFAULT_TENANT, session, after=0)
    assert [
        data.has_effects for data in (event.data for event in events) if isinstance(data, AttemptFailed)
    ] == [True]


# -- which turn a retry without a key means --------------------------------------------------------------


@pytest.mark.parametrize("between", [1, 5])
@pytest.mark.parametrize("where_to", ["the same node", "another node"])
async def test_I21_a_retry_is_matched_although_other_turns_were_committed_in_between(
    cluster: Cluster, node: Lastgood, between: int, where_to: str
) -> None:
    session = await cluster.session(node)
    first = await cluster.good(node, session, "hello", **SDK)
    for number in range(between):
        await cluster.good(node, session, f"in between {number}", **SDK)
    asked_on = node if where_to == "the same node" else await cluster.node("other")
    again = await cluster.submit(asked_on, session, "hello", is_retry=True, **SDK)
    assert (again.turn, again.replayed) == (first.id, True)
    assert (await cluster.get(session)).turns == 1 + between


@pytest.mark.parametrize("has_history", [False, True])
async def test_I21_history_in_the_body_makes_a_retry_known_for_longer(
    cluster: Cluster, node: Lastgood, monkeypatch: pytest.MonkeyPatch, has_history: bool
) -> None:
    monkeypatch.setattr("lastgood.core.admission.RETRY_SECONDS", -1.0)
    session = await cluster.session(node)
    first = await cluster.good(node, session, "hello", **SDK)
    again = await cluster.submit(node, session, "hello", is_retry=True, has_history=has_history, **SDK)
    assert (again.turn == first.id) is has_history


@pytest.mark.parametrize("where_to", ["the same node", "another node"])
async def test_I21_the_retry_of_a_rejected_request_never_gets_an_older_turn(
    cluster: Cluster, node: Lastgood, where_to: str
) -> None:
    session = await cluster.session(node, conversation="name")
    sent = SDK | {"fingerprint": "print"}
    first = await cluster.good(node, session, "yes", **sent)
    refused = RefusedRequests(node.deps)
    await refused.remember(DEFAULT_TENANT, "name", fingerprint="print", caller="sdk")
    asked_on = node if where_to == "the same node" else await cluster.node("other")
    second = await cluster.good(asked_on, session, "yes", is_retry=True, **sent)
    assert second.id != first.id
    # From now on a retry means that one.
    third = await cluster.submit(node, session, "yes", is_retry=True, **sent)
    assert (third.turn, third.replayed) == (second.id, True)


async def test_I21_a_refusal_is_remembered_here_when_the_store_is_away(
    cluster: Cluster, node: Lastgood
) -> None:
    await cluster.session(node, conversation="name")
    remembers = RefusedRequests(node.deps)
    body: dict[str, Any] = {"fingerprint": "print", "caller": "sdk"}
    cluster.strike(node, "store.close_requests", Mode.RAISE)
    await remembers.remember(DEFAULT_TENANT, "name", **body)
    assert remembers.was_refused(DEFAULT_TENANT, "name", **body)
    assert not remembers.was_refused(DEFAULT_TENANT, "name", **(body | {"caller": "other"}))
    remembers.forget(DEFAULT_TENANT, "name", **body)
    assert not remembers.was_refused(DEFAULT_TENANT, "name", **body)

"""I20: one key is one turn, on any node, across restarts."""

from __future__ import annotations

import asyncio

import pytest

from lastgood.errors import AgentNotFound, IdempotencyMismatch, InvalidRequest, ModelUnknown, SessionNotFound
from lastgood.model.attempts import AttemptStatus
from lastgood.model.events import EventKind
from lastgood.model.ids import DEFAULT_TENANT, SessionId, TenantId
from lastgood.wiring import Lastgood
from tests.contract.conftest import dump
from tests.faults.faults import Mode
from tests.faults.world import World
from tests.flows.cluster import Cluster, Gate, gate_tool

pytestmark = pytest.mark.anyio

anywhere = pytest.mark.parametrize("where_to", ["the same node", "another node", "after a restart"])


async def moved(cluster: Cluster, node: Lastgood, where_to: str) -> Lastgood:
    if where_to == "the same node":
        return node
    if where_to == "another node":
        return await cluster.node("other")
    await cluster.stop(node)
    await cluster.reopen()
    return await cluster.node("restarted", alone=True)


@pytest.mark.parametrize("where_to", ["the same node", "another node"])
async def test_I20_a_running_request_is_attached_to(cluster: Cluster, where_to: str) -> None:
    """Streaming or waiting: both see the one attempt there is, from its first event."""
    gate = Gate()
    node = await cluster.node(tools=[gate_tool(gate)])
    again_on = await cluster.node("other", tools=[gate_tool(gate)]) if where_to == "another node" else node
    session = await cluster.session(node)
    first = await cluster.submit(node, session, "!tool gate {}\n!say done", key="k")
    await gate.until_reached()
    second = await cluster.submit(again_on, session, "!tool gate {}\n!say done", key="k")
    assert (second.attempt, second.turn, second.replayed) == (first.attempt, first.turn, False)
    gate.open()
    seen = [event async for event in second.events()]
    assert seen == [event async for event in first.events()]
    assert (seen[0].kind, seen[-2].kind) == (EventKind.ATTEMPT_STARTED, EventKind.TURN_COMMITTED)
    for asked, submitted in ((node, first), (again_on, second)):
        assert (await cluster.outcome(asked, submitted)).status is AttemptStatus.COMMITTED
    assert len(await cluster.attempts(session)) == 1
    assert len(cluster.world.prompts) == 2


@anywhere
async def test_I20_a_committed_request_is_replayed(cluster: Cluster, world: World, where_to: str) -> None:
    node = await cluster.node()
    session = await cluster.session(node)
    turn = await cluster.good(node, session, "hello", key="k")
    await cluster.good(node, session, "something else")
    node = await moved(cluster, node, where_to)
    again = await cluster.submit(node, session, "hello", key="k")
    assert again.replayed
    outcome = await cluster.outcome(node, again)
    assert outcome.turn == (await cluster.turns(session))[0]
    assert outcome.turn is not None
    assert (outcome.status, outcome.turn.id) == (AttemptStatus.COMMITTED, turn.id)
    events = [event async for event in again.events()]
    assert events[-2].kind is EventKind.TURN_COMMITTED
    assert len(world.prompts) == 2


@anywhere
async def test_I20_a_cancelled_request_is_replayed(cluster: Cluster, where_to: str) -> None:
    gate = Gate()
    node = await cluster.node(tools=[gate_tool(gate)])
    session = await cluster.session(node)
    first = await cluster.submit(node, session, "!tool gate {}", key="k")
    await gate.until_reached()
    await node.turns.cancel(DEFAULT_TENANT, session)
    node = await moved(cluster, node, where_to)
    again = await cluster.submit(node, session, "!tool gate {}", key="k")
    assert (again.attempt, again.replayed) == (first.attempt, True)
    outcome = await cluster.outcome(node, again)
    assert (outcome.status, outcome.turn) == (AttemptStatus.CANCELLED, None)
    assert outcome.error is not None
    assert outcome.error.code == "turn_cancelled"
    assert len(cluster.world.prompts) == 1


@anywhere
async def test_I20_a_failed_request_is_tried_again_as_the_same_turn(cluster: Cluster, where_to: str) -> None:
    node = await cluster.node()
    session = await cluster.session(node)
    text = "hello\n!fail after 1"
    failed = await cluster.submit(node, session, text, key="k")
    assert (await cluster.outcome(node, failed)).status is AttemptStatus.FAILED
    node = await moved(cluster, node, where_to)
    again = await cluster.submit(node, session, text, key="k")
    assert (again.turn, again.replayed) == (failed.turn, False)
    assert again.attempt != failed.attempt
    outcome = await cluster.outcome(node, again)
    assert outcome.turn is not None
    assert (outcome.turn.id, outcome.turn.seq) == (failed.turn, 1)
    assert [(one.number, one.status.value) for one in await cluster.attempts(session)] == [
        (1, "failed"),
        (2, "committed"),
    ]
    replayed = await cluster.submit(node, session, text, key="k")
    assert (replayed.attempt, replayed.replayed) == (again.attempt, True)


async def test_I20_an_interrupted_request_is_tried_again_as_the_same_turn(cluster: Cluster) -> None:
    """Not promised, so recovery leaves it; its key does not."""
    gate = Gate()
    node = await cluster.node(tools=[gate_tool(gate)])
    session = await cluster.session(node)
    first = await cluster.submit(node, session, "!tool gate {}", key="k")
    await gate.until_reached()
    await cluster.stop(node)
    assert (await cluster.attempt(first.attempt)).status is AttemptStatus.INTERRUPTED
    await cluster.reopen()
    gate.open()
    node = await cluster.node("next", tools=[gate_tool(gate)], alone=True)
    again = await cluster.submit(node, session, "!tool gate {}", key="k")
    assert again.turn == first.turn
    assert (await cluster.outcome(node, again)).status is AttemptStatus.COMMITTED
    assert [one.number for one in await cluster.attempts(session)] == [1, 2]


@pytest.mark.parametrize("first", ["hello", "hello\n!fail after"])
async def test_I20_another_body_under_the_same_key_is_refused(
    cluster: Cluster, node: Lastgood, first: str
) -> None:
    session = await cluster.session(node)
    other = await cluster.session(node)
    await cluster.say(node, session, first, key="k", fingerprint="one")
    await cluster.quiet(node)
    before = await dump(cluster.backend)
    with pytest.raises(IdempotencyMismatch):
        await cluster.submit(node, session, "another body", key="k", fingerprint="two")
    with pytest.raises(IdempotencyMismatch):
        await cluster.submit(node, other, first, key="k", fingerprint="one")
    assert await dump(cluster.backend) == before
    assert len(cluster.world.prompts) == 1


async def test_I20_what_was_refused_before_it_began_has_not_used_its_key(
    cluster: Cluster, node: Lastgood
) -> None:
    gate = Gate()
    busy = await cluster.node("busy", tools=[gate_tool(gate)])
    session = await cluster.session(node)
    with pytest.raises(InvalidRequest):
        await cluster.submit(node, session, " ", key="k", fingerprint="blank")
    with pytest.raises(ModelUnknown):
        await cluster.submit(node, session, "hello", key="k", fingerprint="model", model="nobody/knows")
    with pytest.raises(AgentNotFound):
        await cluster.submit(node, session, "hello", key="k", fingerprint="agent", agent_key="gone")
    with pytest.raises(SessionNotFound):
        await cluster.submit(node, SessionId("ses_unknown"), "hello", key="k", fingerprint="session")
    cluster.strike(node, "store.begin_if_free", Mode.RAISE)
    with pytest.raises(Exception, match="nothing was changed"):
        await cluster.submit(node, session, "hello", key="k", fingerprint="store")
    running = await cluster.submit(busy, session, "!tool gate {}")
    await gate.until_reached()
    with pytest.raises(Exception, match="is running"):
        await cluster.submit(node, session, "hello", key="k", fingerprint="busy")
    gate.open()
    await cluster.outcome(busy, running)
    assert await cluster.backend.rows("SELECT key FROM requests WHERE key IS NOT NULL") == []
    await cluster.good(node, session, "hello", key="k", fingerprint="at last")


async def test_I20_keys_are_per_tenant(cluster: Cluster, node: Lastgood) -> None:
    turns = []
    for name in ("one", "two"):
        tenant = TenantId(name)
        session = await cluster.session(node, tenant=tenant)
        outcome = await cluster.say(
            node, session, f"hello {name}", key="k", tenant=tenant, fingerprint="same"
        )
        assert outcome.turn is not None
        turns.append(outcome.turn)
    assert turns[0].id != turns[1].id
    assert [turn.messages[0].content for turn in turns] == ["hello one", "hello two"]


async def test_I20_a_key_of_a_deleted_session_is_free_again(cluster: Cluster, node: Lastgood) -> None:
    session = await cluster.session(node)
    await cluster.good(node, session, "hello", key="k")
    await cluster.quiet(node)
    await node.sessions.delete(DEFAULT_TENANT, session)
    with pytest.raises(SessionNotFound):
        await cluster.submit(node, session, "hello", key="k")
    await cluster.good(node, await cluster.session(node), "another", key="k")


async def test_I20_many_at_once_are_one_turn(cluster: Cluster, world: World) -> None:
    nodes = [await cluster.node(name) for name in ("a", "b")]
    session = await world.create(nodes[0])
    received = await asyncio.gather(
        *(world.ask(nodes[n % 2], session, "hello", "tok1", key="k") for n in range(10))
    )
    assert {one.outcome for one in received} == {"committed"}
    assert len({one.turn for one in received}) == 1
    assert len(world.prompts) == 1

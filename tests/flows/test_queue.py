"""What waits for a session is begun as soon as it can be, by nodes that never sweep; on real stores."""

from __future__ import annotations

from typing import Any

import pytest

from lastgood.core.parking_policy import HELD_AFTER_CANCEL
from lastgood.errors import Conflict
from lastgood.flows.retention import Retention
from lastgood.model.attempts import AttemptStatus, OnLeave
from lastgood.model.ids import DEFAULT_TENANT, SessionId
from lastgood.model.messages import user
from lastgood.model.queue import NewQueued, Queued, QueueKind
from lastgood.wiring import Lastgood
from tests.flows.cluster import Cluster, Gate, TitleModel, eventually, gate_tool

pytestmark = pytest.mark.anyio


async def put(node: Lastgood, session: SessionId, kind: QueueKind, text: str) -> Queued:
    new = NewQueued(DEFAULT_TENANT, session, node.deps.ids.turn(), kind, (user(text),))
    item, known = await node.queue.put(new)
    assert not known
    assert isinstance(item, Queued)
    return item


async def queue(cluster: Cluster, session: SessionId) -> tuple[Queued, ...]:
    return await cluster.backend.store.read_queue(DEFAULT_TENANT, session)


async def said(cluster: Cluster, session: SessionId) -> list[list[str]]:
    """What the user said in each turn."""
    return [
        [message.content for message in turn.messages if message.role == "user"]
        for turn in await cluster.turns(session)
    ]


async def until_said(cluster: Cluster, session: SessionId, *turns: list[str]) -> None:
    async def all_said() -> bool:
        return await said(cluster, session) == list(turns) and not await queue(cluster, session)

    await eventually(all_said)


async def at_gate(cluster: Cluster, text: str, **ask: Any) -> tuple[Lastgood, SessionId, Gate]:
    """A node that does not sweep, in the middle of a turn."""
    gate = Gate()
    node = await cluster.node(tools=[gate_tool(gate)], alive=False)
    session = await cluster.session(node)
    await cluster.submit(node, session, f"!tool gate {{}}\n{text}", **ask)
    await gate.until_reached()
    return node, session, gate


async def test_an_unread_steer_runs_when_its_turn_has_ended(cluster: Cluster) -> None:
    gate = Gate()
    node = await cluster.node(alive=False, providers={"slow": TitleModel("said", gate)})
    session = await cluster.session(node)
    await cluster.submit(node, session, "first", model="slow/model")
    await gate.until_reached()
    await put(node, session, QueueKind.STEER, "too late")
    gate.open()
    await until_said(cluster, session, ["first"], ["too late"])


async def test_a_steer_of_a_turn_that_failed_runs_at_once(cluster: Cluster) -> None:
    node, session, gate = await at_gate(cluster, "!fail before")
    await put(node, session, QueueKind.STEER, "steer\n!fail before 1")
    gate.open()
    await until_said(cluster, session, ["steer\n!fail before 1"])


async def test_after_a_cancel_by_a_user_the_queue_is_held_until_continued_or_dropped(
    cluster: Cluster,
) -> None:
    node, session, _ = await at_gate(cluster, "!say one")
    for kind, text in (
        (QueueKind.STEER, "steered"),
        (QueueKind.FOLLOWUP, "dropped"),
        (QueueKind.FOLLOWUP, "kept"),
    ):
        await put(node, session, kind, text)
    await node.turns.cancel(DEFAULT_TENANT, session)
    steered, dropped, kept = await queue(cluster, session)
    assert {item.parked for item in (steered, dropped, kept)} == {HELD_AFTER_CANCEL}
    assert {item.kind for item in (steered, dropped, kept)} == {QueueKind.FOLLOWUP}
    await node.queue.sweep()
    await node.queue.drop(DEFAULT_TENANT, session, dropped.number)
    await cluster.outcome(node, await cluster.submit(node, session, "said since"))
    await node.queue.retry(DEFAULT_TENANT, session, kept.number)
    await eventually(lambda: _has_said(cluster, session, ["said since"], ["kept"]))
    await node.queue.retry(DEFAULT_TENANT, session, steered.number)
    await until_said(cluster, session, ["said since"], ["kept"], ["steered"])


async def test_a_client_that_disconnects_does_not_hold_the_queue(cluster: Cluster) -> None:
    gate = Gate()
    node = await cluster.node(tools=[gate_tool(gate)], alive=False)
    session = await cluster.session(node)
    submitted = await cluster.submit(node, session, "!tool gate {}\n!say one", on_leave=OnLeave.CANCEL)
    await gate.until_reached()
    await put(node, session, QueueKind.FOLLOWUP, "two")
    await submitted.leave()
    await until_said(cluster, session, ["two"])


async def _has_said(cluster: Cluster, session: SessionId, *turns: list[str]) -> bool:
    return await said(cluster, session) == list(turns)


async def test_the_queue_behind_a_durable_turn_runs_when_that_has_ended(cluster: Cluster) -> None:
    """The process that took it in is dead, and the one that pays its debts begins it as well."""
    node, session, _ = await at_gate(cluster, "!say one", durable=True)
    await put(node, session, QueueKind.FOLLOWUP, "two")
    (attempt,) = await cluster.attempts(session)
    await cluster.kill(node)
    await cluster.reopen()
    gate = Gate()
    gate.open()
    other = await cluster.node("other", alone=True, alive=False, tools=[gate_tool(gate)])
    assert await cluster.backend.store.finish_if_held(attempt.hold, AttemptStatus.INTERRUPTED, None, ())
    await other.recovery.retry_durable()
    await until_said(cluster, session, ["!tool gate {}\n!say one"], ["two"])


async def test_steps_with_a_dropped_steer_are_not_adopted(cluster: Cluster) -> None:
    """Else its turn would be owed for ever: what it claims is not there any more."""
    node, session, gate = await at_gate(cluster, "!say one", durable=True)
    steer = await put(node, session, QueueKind.STEER, "!tool gate {}\n!say steered")
    gate.reached.clear()
    gate.open()
    gate.opened.clear()
    await gate.until_reached()
    (attempt,) = await cluster.attempts(session)
    await cluster.kill(node)
    await cluster.reopen()
    again = Gate()
    again.open()
    other = await cluster.node("other", alone=True, alive=False, tools=[gate_tool(again)])
    assert await cluster.backend.store.finish_if_held(attempt.hold, AttemptStatus.INTERRUPTED, None, ())
    await other.queue.drop(DEFAULT_TENANT, session, steer.number)
    with pytest.raises(Conflict, match="deleted since"):
        await other.turns.continue_from(DEFAULT_TENANT, session, attempt.id)
    await other.recovery.retry_durable()
    await until_said(cluster, session, ["!tool gate {}\n!say one"])
    (_, last) = await cluster.attempts(session)
    assert (last.continues, last.number) == (None, 2)
    assert "was removed" in last.decision["recovery"]


async def test_a_parked_follow_up_that_cannot_be_continued_now_stays_parked(cluster: Cluster) -> None:
    gate = Gate()
    node = await cluster.node(tools=[gate_tool(gate)], alive=False)
    session = await cluster.session(node)
    item = await put(node, session, QueueKind.FOLLOWUP, "bad\n!fail before")

    async def parked() -> bool:
        return any(one.parked for one in await queue(cluster, session))

    await eventually(parked)
    first, last = await cluster.attempts(session)
    await cluster.until_free(session)
    busy = await cluster.submit(node, session, "!tool gate {}\n!say busy")
    await gate.until_reached()
    with pytest.raises(Conflict):
        await node.turns.continue_from(DEFAULT_TENANT, session, last.id)
    (kept,) = await queue(cluster, session)
    assert (kept.number, kept.parked is not None, first.turn) == (item.number, True, item.turn)
    await node.turns.cancel(DEFAULT_TENANT, session)
    await cluster.outcome(node, busy)


async def test_a_session_with_a_durable_turn_is_kept_however_old_it_is(cluster: Cluster) -> None:
    """A server that was down for long deletes nothing that it is about to run."""
    node = await cluster.node(alive=False)
    owing, parked, idle = [await cluster.session(node) for _ in range(3)]
    store = cluster.backend.store
    for session in (owing, parked):
        new = NewQueued(DEFAULT_TENANT, session, node.deps.ids.turn(), QueueKind.FOLLOWUP, (user("later"),))
        await store.enqueue(new, most=1)
    (item,) = await queue(cluster, parked)
    assert await store.park_queued(DEFAULT_TENANT, parked, item.number, "nobody came")
    assert await Retention(node.deps, node.sessions, seconds=-1.0).step() == 2
    page = await store.list_sessions(DEFAULT_TENANT, limit=10)
    assert [session.id for session in page.sessions] == [owing]
    assert idle != owing

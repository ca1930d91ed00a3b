"""The end of a process: what runs may finish for a while, and nobody is left holding a session (I12)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from lastgood.errors import ShuttingDown
from lastgood.model.attempts import AttemptStatus
from lastgood.wiring import Lastgood
from tests.contract import builders
from tests.faults.faults import Mode
from tests.flows.cluster import Cluster, Gate, gate_tool
from tests.polls import eventually

pytestmark = pytest.mark.anyio


def hold_begins(cluster: Cluster, node: Lastgood) -> Gate:
    """Every begin waits at this gate, on its way to the store."""
    gate = Gate()

    async def wait(point: str) -> Mode | None:
        if point == "store.begin_if_free":
            await gate()
        return None

    cluster.faults(node).jitter = wait
    return gate


async def closing(node: Lastgood, seconds: float) -> asyncio.Task[None]:
    task = asyncio.create_task(node.live.close(seconds))
    while not node.live.is_closing:
        await asyncio.sleep(0)
    return task


async def test_a_begin_that_is_under_way_at_the_end_is_not_cut_off(cluster: Cluster) -> None:
    """It has perhaps taken the session already: it is heard out, and what it began is ended in order."""
    node = await cluster.node()
    session = await cluster.session(node, title="mine")
    gate = hold_begins(cluster, node)
    asking = asyncio.create_task(cluster.submit(node, session, "!slow 1\n!say never", durable=True))
    await gate.until_reached()
    ending = await closing(node, 0.0)
    gate.open()
    await ending
    outcome = await cluster.outcome(node, await asking)
    assert outcome.status is AttemptStatus.INTERRUPTED
    assert (await cluster.get(session)).attempt is None, "it waits for no lease"
    assert [one.status for one in await cluster.attempts(session)] == [AttemptStatus.INTERRUPTED]


async def test_a_begin_that_the_end_cancels_before_it_ran_is_an_error_and_no_lost_connection(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await cluster.node()
    session = await cluster.session(node, title="mine")
    spawn = node.live.spawn

    def cancelled_at_once(work: Coroutine[Any, Any, Any], *, may_be_cut: bool = False) -> asyncio.Task[Any]:
        task = spawn(work, may_be_cut=may_be_cut)
        task.cancel()
        return task

    monkeypatch.setattr(node.live, "spawn", cancelled_at_once)
    with pytest.raises(ShuttingDown):
        await cluster.submit(node, session, "!say never")
    monkeypatch.undo()
    assert await cluster.attempts(session) == ()


async def test_what_begins_within_the_grace_time_may_finish_within_it(cluster: Cluster) -> None:
    gate = Gate()
    node = await cluster.node(tools=[gate_tool(gate)])
    first, second = [await cluster.session(node, title="mine") for _ in range(2)]
    running = await cluster.submit(node, first, "!tool gate\n!say one")
    await gate.until_reached()
    begins = hold_begins(cluster, node)
    asking = asyncio.create_task(cluster.submit(node, second, "!slow 0.01\n!say one two three"))
    await begins.until_reached()
    ending = await closing(node, 10.0)
    gate.open()
    assert (await cluster.outcome(node, running)).status is AttemptStatus.COMMITTED
    begins.open()
    assert (await cluster.outcome(node, await asking)).status is AttemptStatus.COMMITTED
    await ending


async def test_a_queue_that_waits_for_another_nodes_turn_does_not_keep_a_node_from_ending(
    cluster: Cluster,
) -> None:
    gate = Gate()
    busy = await cluster.node("busy", tools=[gate_tool(gate)])
    node = await cluster.node("node")
    session = await cluster.session(busy, title="mine")
    await cluster.submit(busy, session, "!tool gate\n!say one")
    await gate.until_reached()
    await node.queue.put(builders.said(await cluster.get(session)))
    await eventually(lambda: node.deps.signals.has_subscribers(session))
    async with asyncio.timeout(30.0):
        await node.live.close(60.0)
    gate.open()
    await cluster.until_free(session)

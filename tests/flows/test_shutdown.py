"""The end of a process: what runs may finish for a while, and nobody is left holding a session (I12)."""

from __future__ import annotations

import asyncio

import pytest

from lastgood.model.attempts import AttemptStatus
from lastgood.wiring import Lastgood
from tests.contract import given
from tests.faults.faults import Mode
from tests.flows.house import Gate, House, gate_tool

pytestmark = pytest.mark.anyio


def hold_begins(house: House, node: Lastgood) -> Gate:
    """Every begin waits at this gate, on its way to the store."""
    gate = Gate()

    async def wait(point: str) -> Mode | None:
        if point == "store.begin_if_free":
            await gate()
        return None

    house.faults(node).jitter = wait
    return gate


async def closing(node: Lastgood, seconds: float) -> asyncio.Task[None]:
    task = asyncio.create_task(node.live.close(seconds))
    while not node.live.is_closing:
        await asyncio.sleep(0)
    return task


async def test_a_begin_that_is_under_way_at_the_end_is_not_cut_off(house: House) -> None:
    """It has perhaps taken the session already: it is heard out, and what it began is ended in order."""
    node = await house.node()
    session = await house.session(node, title="mine")
    gate = hold_begins(house, node)
    asking = asyncio.create_task(house.submit(node, session, "!slow 1\n!say never", durable=True))
    await gate.until_reached()
    ending = await closing(node, 0.0)
    gate.open()
    await ending
    outcome = await house.outcome(node, await asking)
    assert outcome.status is AttemptStatus.INTERRUPTED
    assert (await house.get(session)).attempt is None, "it waits for no lease"
    assert [one.status for one in await house.attempts(session)] == [AttemptStatus.INTERRUPTED]


async def test_what_begins_within_the_grace_time_may_finish_within_it(house: House) -> None:
    gate = Gate()
    node = await house.node(tools=[gate_tool(gate)])
    first, second = [await house.session(node, title="mine") for _ in range(2)]
    running = await house.submit(node, first, "!tool gate\n!say one")
    await gate.until_reached()
    begins = hold_begins(house, node)
    asking = asyncio.create_task(house.submit(node, second, "!slow 0.01\n!say one two three"))
    await begins.until_reached()
    ending = await closing(node, 10.0)
    gate.open()
    assert (await house.outcome(node, running)).status is AttemptStatus.COMMITTED
    begins.open()
    assert (await house.outcome(node, await asking)).status is AttemptStatus.COMMITTED
    await ending


async def test_a_queue_that_waits_for_another_nodes_turn_does_not_keep_a_node_from_ending(
    house: House,
) -> None:
    gate = Gate()
    busy = await house.node("busy", tools=[gate_tool(gate)])
    node = await house.node("node")
    session = await house.session(busy, title="mine")
    await house.submit(busy, session, "!tool gate\n!say one")
    await gate.until_reached()
    await node.queue.put(given.said(await house.get(session)))
    while not node.deps.signals.has_subscribers(session):
        await asyncio.sleep(0.001)
    async with asyncio.timeout(5.0):
        await node.live.close(60.0)
    gate.open()
    await house.until_free(session)

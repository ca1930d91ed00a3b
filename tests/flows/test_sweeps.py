"""The sweep: what cannot be ended now keeps nothing else from being ended (I12)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from lastgood.flows import recovery
from lastgood.model.attempts import AttemptStatus
from tests.faults.faults import Mode
from tests.flows.cluster import LIMITS, Cluster, Gate, eventually, gate_tool

pytestmark = pytest.mark.anyio


async def test_an_attempt_that_cannot_be_ended_does_not_keep_the_others(cluster: Cluster) -> None:
    gate = Gate()
    dying = await cluster.node("dying", tools=[gate_tool(gate)], alive=False)
    sessions = [await cluster.session(dying, title="mine") for _ in range(2)]
    for session in sessions:
        await cluster.submit(dying, session, "!tool gate\n!say never")
    await gate.until_reached()
    await cluster.kill(dying, lease_ends=True)
    node = await cluster.node("node", alive=False)
    expired = cluster.backend.store.expired_attempts

    async def both() -> bool:
        return len(await expired(10)) == 2

    await eventually(both)
    cluster.strike(node, "store.finish_if_held", Mode.RAISE)
    assert await node.recovery.sweep() == 1
    assert await node.recovery.sweep() == 1
    for session in sessions:
        assert [one.status for one in await cluster.attempts(session)] == [AttemptStatus.INTERRUPTED]


async def test_one_sweep_tidies_up_all_that_is_old_in_pieces(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "_PAGE", 1)
    node = await cluster.node(
        "node", alive=False, limits=replace(LIMITS, event_seconds=-1.0, sweep_seconds=3600.0)
    )
    sessions = [await cluster.session(node, title="mine") for _ in range(3)]
    for session in sessions:
        await cluster.say(node, session, "hello")
    sweeping = asyncio.create_task(node.recovery.keep_sweeping())

    async def tidied() -> bool:
        return all([(await cluster.get(session)).events_dropped > 0 for session in sessions])

    try:
        await eventually(tidied)
    finally:
        sweeping.cancel()
        await asyncio.wait({sweeping})

"""The sweep: what cannot be ended now keeps nothing else from being ended (I12)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from lastgood.flows import recovery
from lastgood.model.attempts import AttemptStatus
from tests.faults.faults import Mode
from tests.flows.house import LIMITS, SHORT_LEASE, Gate, House, eventually, gate_tool

pytestmark = pytest.mark.anyio


async def test_an_attempt_that_cannot_be_ended_does_not_keep_the_others(house: House) -> None:
    gate = Gate()
    dying = await house.node("dying", tools=[gate_tool(gate)], limits=SHORT_LEASE, alive=False)
    sessions = [await house.session(dying, title="mine") for _ in range(2)]
    for session in sessions:
        await house.submit(dying, session, "!tool gate\n!say never")
    await gate.until_reached()
    await house.kill(dying)
    node = await house.node("node", alive=False)
    expired = house.backend.store.expired_attempts

    async def both() -> bool:
        return len(await expired(10)) == 2

    await eventually(both)
    house.strike(node, "store.finish_if_held", Mode.RAISE)
    assert await node.recovery.sweep() == 1
    assert await node.recovery.sweep() == 1
    for session in sessions:
        assert [one.status for one in await house.attempts(session)] == [AttemptStatus.INTERRUPTED]


async def test_one_sweep_tidies_up_all_that_is_old_in_pieces(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "_PAGE", 1)
    node = await house.node(
        "node", alive=False, limits=replace(LIMITS, event_seconds=-1.0, sweep_seconds=3600.0)
    )
    sessions = [await house.session(node, title="mine") for _ in range(3)]
    for session in sessions:
        await house.say(node, session, "hello")
    sweeping = asyncio.create_task(node.recovery.keep_sweeping())

    async def tidied() -> bool:
        return all([(await house.get(session)).events_dropped > 0 for session in sessions])

    try:
        await eventually(tidied)
    finally:
        sweeping.cancel()
        await asyncio.wait({sweeping})

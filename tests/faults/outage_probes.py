"""Stories about outages of the store and stalls of the loop: what they cost, and what clients are told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from lastgood.model.attempts import AttemptStatus
from lastgood.model.ids import DEFAULT_TENANT
from tests.faults.faults import Mode
from tests.faults.probes import Stage, probe
from tests.faults.simulation import LIMITS
from tests.faults.virtual_loop import VirtualLoop

TOOLS = '\n!tool ledger-fail {"text": "f"}\n!slow 0.5\n!say one two three four'


def out(**modes: Mode) -> Callable[[str], Awaitable[Mode | None]]:
    """These calls of the store fail, or all of them, if none is named."""

    async def jitter(point: str) -> Mode | None:
        kind, _, name = point.partition(".")
        return None if kind != "store" else modes.get(name) if modes else Mode.RAISE

    return jitter


@probe
async def an_outage_that_is_shorter_than_the_lease_costs_no_attempt(stage: Stage) -> None:
    """I12: wherever it falls in the turn, it costs time."""
    stage.alive(stage.node)
    for number in range(8):
        session = await stage.world.create(stage.node)
        asked = asyncio.create_task(
            stage.world.ask(stage.node, session, TOOLS, f"tok{number}", durable=True, watch=True)
        )
        await asyncio.sleep(0.05 + 0.3 * number)
        stage.faults.jitter = out()
        await asyncio.sleep(5.0)
        stage.faults.jitter = None
        received = await asked
        assert received.outcome == "committed", f"{received.outcome} {received.code}"
        tries = await stage.store.list_attempts(DEFAULT_TENANT, session)
        assert len(tries) == 1, f"it took {len(tries)} attempts"


@probe
async def a_batch_whose_answer_is_lost_is_stored_once(stage: Stage) -> None:
    """I22: events are numbered once, and a step is in the journal once."""
    for number, point in enumerate(("journal_if_held", "append_events_if_held")):
        session = await stage.world.create(stage.node)
        stage.faults.point, stage.faults.mode = f"store.{point}", Mode.LOST
        stage.faults.hit = stage.faults.hits[stage.faults.point] + 1
        received = await stage.world.ask(stage.node, session, TOOLS, f"tok{number}", watch=True)
        assert received.outcome == "committed", f"{received.outcome} {received.code}"
        assert received.attempt is not None
        steps = await stage.store.read_steps(DEFAULT_TENANT, received.attempt)
        assert len(steps) == 2, f"{len(steps)} steps of a call and its result"
        kinds = [kind for _, kind in received.events]
        assert len([kind for kind in kinds if kind == "tool_called"]) == 1, f"{kinds}"


@probe
async def a_commit_that_cannot_be_read_back_is_unknown(stage: Stage) -> None:
    """I16: whoever is told that a turn failed sends it again."""
    session = await stage.world.create(stage.node)
    gone: dict[str, Any] = dict.fromkeys(("finish_if_held", "get_attempt", "find_turn"), Mode.RAISE)
    stage.faults.jitter = out(commit_if_head=Mode.LOST, **gone)
    received = await stage.world.ask(stage.node, session, "hello", "tok1")
    stage.faults.jitter = None
    assert received.code == "outcome_unknown", (
        f"a committed turn was told as {received.outcome} {received.code}"
    )


@probe
async def a_commit_that_a_stop_cuts_off_is_unknown(stage: Stage) -> None:
    """I16: the database has committed it, and the process ends before it hears so."""
    session = await stage.world.create(stage.node)
    stage.faults.point, stage.faults.mode = "store.commit_if_head", Mode.LATE
    asked = asyncio.create_task(stage.world.ask(stage.node, session, "hello", "tok1"))
    await asyncio.sleep(1)
    await stage.node.live.close(0)
    received = await asked
    assert received.code == "outcome_unknown", (
        f"a committed turn was told as {received.outcome} {received.code}"
    )


@probe
async def a_stall_of_the_loop_costs_no_lease_that_was_renewed_meanwhile(stage: Stage) -> None:
    """I11: the timer of the lease is overdue when the loop runs again, and fires before all else."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    session = await stage.world.create(stage.node)
    asked = asyncio.create_task(stage.world.ask(stage.node, session, "\n!slow 5\n!say one two", "tok1"))
    await asyncio.sleep(1)
    for _ in range(6):
        # Nothing else runs on this loop meanwhile; the heartbeat has a thread of its own.
        loop.hold_up(LIMITS.heartbeat_seconds)
        assert await stage.node.live.leases.beat(stage.store.renew_leases) is not None
    stage.alive(stage.node)
    received = await asked
    assert received.outcome == "committed", f"{received.outcome} {received.code}"


@probe
async def a_loop_that_is_wedged_renews_nothing(stage: Stage) -> None:
    """I12: a process that does nothing any more must lose its sessions."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    session = await stage.world.create(stage.node)
    asked = asyncio.create_task(stage.world.ask(stage.node, session, "\n!slow 5\n!say one two", "tok1"))
    await asyncio.sleep(1)
    loop.hold_up(LIMITS.wedged_seconds + 1)
    assert await stage.node.live.leases.beat(stage.store.renew_leases) is None, "it renewed its leases"
    await stage.other.recovery.sweep()
    received = await asked
    assert received.outcome != "committed"


@probe
async def outages_are_no_tries(stage: Stage) -> None:
    """I12: a promised turn is not given up, however often the store was away for longer than a lease."""
    stage.alive(stage.node)
    session = await stage.world.create(stage.node)
    asked = asyncio.create_task(
        stage.world.ask(stage.node, session, "\n!slow 6\n!say one two three", "tok1", durable=True)
    )
    for _ in range(5):
        await asyncio.sleep(LIMITS.sweep_seconds + 2)
        stage.faults.jitter = out()
        await asyncio.sleep(2 * LIMITS.lease_seconds)
        stage.faults.jitter = None
    await asyncio.sleep(60)
    await asked
    tries = await stage.store.list_attempts(DEFAULT_TENANT, session)
    assert tries[-1].status is AttemptStatus.COMMITTED, f"given up after {len(tries)} attempts"
    assert len(tries) > 3, f"only {len(tries)} attempts met an outage"


@probe
async def a_begin_whose_answer_is_lost_is_unknown(stage: Stage) -> None:
    """I18: its lease may have ended before it could be looked for, and a durable turn is then tried again."""
    begins: list[str] = []

    async def jitter(point: str) -> Mode | None:
        if point == "store.begin_if_free":
            begins.append(point)
            return Mode.LOST if len(begins) == 1 else Mode.STALL
        return Mode.RAISE if point in ("store.read_steps", "store.finish_if_held") else None

    session = await stage.world.create(stage.node)
    stage.faults.jitter = jitter
    asked = asyncio.create_task(stage.world.ask(stage.node, session, "hello", "tok1", key="key 1"))
    await asyncio.sleep(LIMITS.lease_seconds + 1)
    await stage.other.recovery.sweep()  # the lease has ended; who is owed the turn is looked at later
    received = await asked
    stage.faults.jitter = None
    assert received.outcome == "unknown", (
        f"a turn that has begun was told as {received.outcome} {received.code}"
    )


@probe
async def a_begin_cut_off_by_a_stop_is_reported(stage: Stage) -> None:
    """I18: recovery tries a durable turn again if it has begun; any other one comes to nothing."""
    for durable, code in ((True, "outcome_unknown"), (False, "shutting_down")):
        node = stage.make_node(f"stopped {code}", stage.faults)
        session = await stage.world.create(node)
        stage.faults.point, stage.faults.mode = "store.begin_if_free", Mode.LATE
        stage.faults.hit = stage.faults.hits[stage.faults.point] + 1
        asked = asyncio.create_task(stage.world.ask(node, session, "hello", f"tok {code}", durable=durable))
        await asyncio.sleep(1)
        await node.live.close(0)
        received = await asked
        assert received.code == code, f"told {received.outcome} {received.code}"

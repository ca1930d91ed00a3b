"""Stories about what was said for later: every steer and follow-up becomes part of one turn, once."""

from __future__ import annotations

import asyncio

from lastgood.core.commit import plan_commit
from lastgood.model.attempts import AttemptStatus, Begun, Committed, Step, StepKind
from lastgood.model.events import AttemptFailed, Event
from lastgood.model.ids import DEFAULT_TENANT, SessionId, TurnId
from lastgood.model.messages import user
from lastgood.model.queue import NewQueued, Queued, QueueKind
from lastgood.wiring import Lastgood
from tests.faults.faults import Mode
from tests.faults.probes import Stage, answer, committed_event, probe
from tests.faults.simulation import LIMITS


async def put(node: Lastgood, session: SessionId, text: str, kind: QueueKind = QueueKind.FOLLOWUP) -> Queued:
    new = NewQueued(DEFAULT_TENANT, session, TurnId(f"turn-{text[:20]}"), kind, (user(text),))
    item, _ = await node.queue.put(new)
    assert isinstance(item, Queued)
    return item


async def said(node: Lastgood, session: SessionId) -> list[str]:
    """What the user has said, in the history."""
    whole = await node.sessions.read(DEFAULT_TENANT, session)
    messages = [message for turn in whole.turns for message in turn.messages]
    return [message.content for message in messages if message.role == "user"]


async def is_empty(node: Lastgood, session: SessionId) -> bool:
    return not await node.queue.read(DEFAULT_TENANT, session)


async def until_quiet() -> None:
    await asyncio.sleep(LIMITS.lease_seconds + 3 * LIMITS.sweep_seconds)


@probe
async def followups_of_two_nodes_run_once_and_in_order(stage: Stage) -> None:
    """Both nodes look at the queue at any time; taking one is part of its begin."""
    session = await stage.world.create(stage.node)
    first = asyncio.create_task(stage.world.ask(stage.node, session, "\n!slow 1\n!say one two", "tok1"))
    await asyncio.sleep(0.5)
    for number in range(6):
        await put((stage.node, stage.other)[number % 2], session, f"later {number}")
    for node in (stage.node, stage.other):
        stage.alive(node)
    await first
    await until_quiet()
    assert (await said(stage.node, session))[1:] == [f"later {number}" for number in range(6)]
    assert await is_empty(stage.node, session), "something was left in the queue"


@probe
async def a_followup_survives_its_process(stage: Stage) -> None:
    session = await stage.world.create(stage.node)
    await put(stage.node, session, "\n!slow 1\n!say one two")
    await asyncio.sleep(0.5)
    stage.faults.dead = True
    stage.alive(stage.other)
    await until_quiet()
    await until_quiet()
    assert await said(stage.other, session) == ["\n!slow 1\n!say one two"], "a follow-up was lost, or doubled"
    assert await is_empty(stage.other, session)


@probe
async def a_followup_that_fails_twice_parks_and_lets_others_pass(stage: Stage) -> None:
    session = await stage.world.create(stage.node)
    await put(stage.node, session, "\n!fail before")
    await put(stage.node, session, "next")
    await until_quiet()
    assert await said(stage.node, session) == ["next"]
    (parked,) = await stage.node.deps.store.read_queue(DEFAULT_TENANT, session)
    assert (parked.failures, bool(parked.parked)) == (2, True), "it was not parked after two failures"
    attempts = await stage.node.sessions.attempts(DEFAULT_TENANT, session)
    assert [attempt.status for attempt in attempts].count(AttemptStatus.FAILED) == 2


@probe
async def a_steer_is_consumed_by_the_commit_and_by_nothing_else(stage: Stage) -> None:
    """Heard, then its attempt fails: it is a follow-up. Heard, then its attempt commits: it is gone."""
    session = await stage.world.create(stage.node)
    _, begun = await stage.begin(session, 1)
    assert isinstance(begun, Begun)
    item = await put(stage.node, session, "to the left", QueueKind.STEER)
    steer = Step(StepKind.STEER, user("to the left"), queued=item.number)
    assert await stage.store.journal_if_held(begun.hold, (steer,), ())
    hold = begun.hold
    failure = AttemptFailed(begun.turn, AttemptStatus.FAILED.value, "turn_failed", "failed", hold.attempt)
    failed = Event(hold.attempt, failure)
    await stage.store.finish_if_held(begun.hold, AttemptStatus.FAILED, ("turn_failed", "failed"), (failed,))
    (back,) = await stage.node.deps.store.read_queue(DEFAULT_TENANT, session)
    assert (back.kind, back.attempt) == (QueueKind.FOLLOWUP, None), "a steer was lost with its attempt"
    await stage.store.drop_queued(DEFAULT_TENANT, session, back.number)

    begin, begun = await stage.begin(session, 2)
    assert isinstance(begun, Begun)
    item = await put(stage.node, session, "to the right", QueueKind.STEER)
    late = await put(stage.node, session, "too late", QueueKind.STEER)
    steer = Step(StepKind.STEER, user("to the right"), queued=item.number)
    assert await stage.store.journal_if_held(begun.hold, (steer,), ())
    plan = plan_commit(begin, begun, [steer, answer()], 0.0)
    committed = committed_event(plan)
    assert (await stage.store.commit_if_head(begun.hold, plan, (committed,))).outcome is Committed.YES
    left = await stage.store.read_queue(DEFAULT_TENANT, session)
    assert [(found.number, found.kind) for found in left] == [(late.number, QueueKind.FOLLOWUP)]


@probe
async def a_steer_in_adopted_steps_is_not_said_again(stage: Stage) -> None:
    """The holder dies after it has heard; who goes on with its steps has the steer, and nobody else."""
    session = await stage.world.create(stage.node)
    text = '\n!tool ledger-repeat {"text": "a"}\n!say done'
    stage.faults.point, stage.faults.mode, stage.faults.hit = "tool.end", Mode.STALL, 1
    stage.faults.stall_seconds = 3
    dying = asyncio.create_task(stage.world.ask(stage.node, session, text, "tok1", key="k"))
    await asyncio.sleep(1)
    steer = '\n!tool ledger-fail {"text": "b"}\n!say steered'
    stage.world.steers.append(steer)
    await put(stage.node, session, steer, QueueKind.STEER)
    stage.faults.hit, stage.faults.stall_seconds = 2, 10_000
    await asyncio.sleep(5)
    stage.faults.dead = True
    stage.alive(stage.other)
    await until_quiet()
    dying.cancel()
    received = await stage.world.ask(stage.other, session, text, "tok1", key="k")
    assert received.outcome == "committed"
    await until_quiet()
    assert (await said(stage.other, session))[1:] == [steer], "a steer was lost, or said twice"
    assert [line["text"] for line in stage.world.ledger] == ["a", "b"]
    assert await is_empty(stage.other, session), "a steer that is in a turn still waits"

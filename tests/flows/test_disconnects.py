"""Who may leave: what becomes of a turn whose requester has gone, and of the same request sent again."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from lastgood.errors import SessionBusy
from lastgood.flows.turn_handle import TurnHandle
from lastgood.model.attempts import AttemptStatus, OnLeave
from lastgood.model.ids import SessionId
from lastgood.wiring import Lastgood
from tests.faults.faults import Mode
from tests.flows.house import LIMITS, Gate, House, eventually, gate_tool

pytestmark = pytest.mark.anyio

HELD = "!tool gate {}\n!say done"
LONG_GRACE = replace(LIMITS, grace_seconds=30.0)
HALF_A_SECOND = replace(LIMITS, grace_seconds=0.5)


async def held(house: House, gate: Gate, name: str = "node", **fields: Any) -> Lastgood:
    return await house.node(name, tools=[gate_tool(gate)], **fields)


async def started(
    house: House, node: Lastgood, gate: Gate, session: SessionId, on_leave: OnLeave, **fields: Any
) -> TurnHandle:
    submitted = await house.submit(node, session, HELD, on_leave=on_leave, caller="sdk", **fields)
    await gate.until_reached()
    return submitted


@pytest.mark.parametrize("on_leave", list(OnLeave))
async def test_a_turn_whose_requester_stays_commits(house: House, on_leave: OnLeave) -> None:
    gate = Gate()
    node = await held(house, gate)
    session = await house.session(node)
    running = await started(house, node, gate, session, on_leave)
    gate.open()
    assert (await house.outcome(node, running)).status is AttemptStatus.COMMITTED


async def test_CONTINUE_goes_on_and_commits(house: House) -> None:
    gate = Gate()
    node = await held(house, gate)
    session = await house.session(node)
    running = await started(house, node, gate, session, OnLeave.CONTINUE)
    await running.leave()
    with pytest.raises(SessionBusy):
        await house.submit(node, session, "me")
    gate.open()
    assert (await house.outcome(node, running)).status is AttemptStatus.COMMITTED


async def test_CANCEL_ends_at_once(house: House) -> None:
    gate = Gate()
    node = await held(house, gate)
    session = await house.session(node)
    running = await started(house, node, gate, session, OnLeave.CANCEL)
    await running.leave()
    assert (await house.attempt(running.attempt)).status is AttemptStatus.CANCELLED
    await house.good(node, session, "me")
    assert house.last_prompt == [("user", "me")]


@pytest.mark.parametrize("worked", [True, False], ids=["the answer was there", "still working"])
async def test_ORPHAN_is_cancelled_when_the_grace_time_is_over(house: House, worked: bool) -> None:
    gate = Gate()
    node = await held(house, gate)
    session = await house.session(node)
    running = await started(house, node, gate, session, OnLeave.ORPHAN)
    await running.leave()
    assert (await house.attempt(running.attempt)).orphaned
    if worked:
        gate.open()
    outcome = await house.outcome(node, running)
    assert (outcome.status, outcome.turn) == (AttemptStatus.CANCELLED, None)
    assert (await house.get(session)).turns == 0
    await house.good(node, session, "me")
    assert house.last_prompt == [("user", "me")]


async def test_ORPHAN_is_taken_up_by_the_same_request_and_commits_once(house: House) -> None:
    gate = Gate()
    node = await held(house, gate, limits=LONG_GRACE)
    session = await house.session(node)
    running = await started(house, node, gate, session, OnLeave.ORPHAN)
    await running.leave()
    gate.open()
    await house.until_prompted(2)
    again = await house.submit(node, session, HELD, on_leave=OnLeave.ORPHAN, caller="sdk", is_retry=True)
    assert again.attempt == running.attempt
    assert (await house.outcome(node, again)).status is AttemptStatus.COMMITTED
    assert len(house.world.prompts) == 2
    assert len(await house.attempts(session)) == 1


async def test_ORPHAN_is_taken_up_on_another_node(house: House) -> None:
    gate = Gate()
    node, other = await held(house, gate, limits=LONG_GRACE), await held(house, gate, "other")
    session = await house.session(node)
    running = await started(house, node, gate, session, OnLeave.ORPHAN)
    await running.leave()
    again = await house.submit(other, session, HELD, on_leave=OnLeave.ORPHAN, caller="sdk", is_retry=True)
    assert again.attempt == running.attempt
    assert not (await house.attempt(running.attempt)).orphaned
    gate.open()
    assert (await house.outcome(other, again)).status is AttemptStatus.COMMITTED
    assert len(await house.attempts(session)) == 1


async def test_ORPHAN_that_was_taken_up_on_another_node_outlives_its_grace_time(house: House) -> None:
    gate = Gate()
    node, other = await held(house, gate, limits=HALF_A_SECOND), await held(house, gate, "other")
    session = await house.session(node)
    running = await started(house, node, gate, session, OnLeave.ORPHAN)
    await running.leave()
    again = await house.submit(other, session, HELD, on_leave=OnLeave.ORPHAN, caller="sdk", is_retry=True)
    await asyncio.wait({house.run_of(running).done}, timeout=1.0)
    gate.open()
    assert (await house.outcome(other, again)).status is AttemptStatus.COMMITTED


async def test_ORPHAN_has_its_whole_grace_time_each_time_it_is_left(house: House) -> None:
    gate = Gate()
    node = await held(house, gate, limits=HALF_A_SECOND)
    session = await house.session(node)
    running = await started(house, node, gate, session, OnLeave.ORPHAN)
    await running.leave()
    await asyncio.wait({house.run_of(running).done}, timeout=0.3)
    again = await house.submit(node, session, HELD, on_leave=OnLeave.ORPHAN, caller="sdk", is_retry=True)
    assert again.attempt == running.attempt
    await again.leave()
    left = asyncio.get_running_loop().time()
    await house.outcome(node, again)
    assert asyncio.get_running_loop().time() - left > 0.4


async def test_ORPHAN_gives_way_to_another_request(house: House) -> None:
    gate = Gate()
    node = await held(house, gate, limits=LONG_GRACE)
    session = await house.session(node)
    running = await started(house, node, gate, session, OnLeave.ORPHAN)
    with pytest.raises(SessionBusy):
        await house.submit(node, session, "another", on_leave=OnLeave.ORPHAN)
    await running.leave()
    await house.good(node, session, "another", on_leave=OnLeave.ORPHAN)
    assert (await house.attempt(running.attempt)).status is AttemptStatus.SUPERSEDED
    assert house.last_prompt == [("user", "another")]
    assert (await house.outcome(node, running)).turn is None
    gate.open()
    assert (await house.get(session)).turns == 1


async def test_ORPHAN_gives_way_on_another_node_too(house: House) -> None:
    gate = Gate()
    node, other = await held(house, gate, limits=LONG_GRACE), await held(house, gate, "other")
    session = await house.session(node)
    running = await started(house, node, gate, session, OnLeave.ORPHAN)
    await running.leave()
    await house.good(other, session, "another")
    assert (await house.attempt(running.attempt)).status is AttemptStatus.SUPERSEDED
    gate.open()
    assert (await house.outcome(node, running)).turn is None
    assert [turn.messages[0].content for turn in await house.turns(session)] == ["another"]


async def test_ORPHAN_is_cancelled_when_that_could_not_be_written_down(house: House) -> None:
    gate = Gate()
    node = await held(house, gate, limits=LONG_GRACE)
    session = await house.session(node)
    running = await started(house, node, gate, session, OnLeave.ORPHAN)
    house.strike(node, "store.set_orphaned", Mode.RAISE)
    await running.leave()
    assert (await house.outcome(node, running)).status is AttemptStatus.CANCELLED


@pytest.mark.parametrize("on_leave", [OnLeave.ORPHAN, OnLeave.CANCEL])
async def test_the_last_of_several_requesters_decides(house: House, on_leave: OnLeave) -> None:
    gate = Gate()
    node = await held(house, gate)
    session = await house.session(node)
    key = {"key": "k"} if on_leave is OnLeave.CANCEL else {"is_retry": True}
    first = await started(house, node, gate, session, on_leave, **key)
    second = await house.submit(node, session, HELD, on_leave=on_leave, caller="sdk", **key)
    assert second.attempt == first.attempt
    await first.leave()
    attempt = await house.attempt(first.attempt)
    assert (attempt.status, attempt.orphaned) == (AttemptStatus.RUNNING, False)
    await second.leave()
    assert (await house.outcome(node, first)).status is AttemptStatus.CANCELLED


# -- a caller that is cancelled in the middle of asking -----------------------------


async def cut_off(house: House, node: Lastgood, session: SessionId, on_leave: OnLeave) -> None:
    """The caller is gone while the begin is on its way to the database."""
    faults = house.faults(node)
    at, go = asyncio.Event(), asyncio.Event()

    async def stall(point: str) -> Mode | None:
        if point == "store.begin_if_free":
            at.set()
            await go.wait()
        return None

    faults.jitter = stall
    caller = asyncio.create_task(house.submit(node, session, "cut off", on_leave=on_leave))
    await at.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    faults.jitter = None
    go.set()

    async def ended() -> bool:
        attempts = await house.attempts(session)
        return bool(attempts) and attempts[0].ended_at is not None

    await eventually(ended)


async def test_a_caller_cancelled_in_the_middle_of_asking_leaves_nothing_half_done(
    house: House, node: Lastgood
) -> None:
    session = await house.session(node)
    await cut_off(house, node, session, OnLeave.CONTINUE)
    assert (await house.get(session)).turns == 1
    await house.good(node, session, "me")
    assert house.last_prompt == [("user", "cut off"), ("assistant", "You said: cut off"), ("user", "me")]


@pytest.mark.parametrize("on_leave", [OnLeave.ORPHAN, OnLeave.CANCEL])
async def test_a_caller_cancelled_in_the_middle_of_asking_has_left(
    house: House, node: Lastgood, on_leave: OnLeave
) -> None:
    """An orphan never commits: also when its requester went away before it began."""
    session = await house.session(node)
    await cut_off(house, node, session, on_leave)
    assert (await house.get(session)).turns == 0


# -- an SDK's own retry of what was committed just now --------------------------------


@pytest.mark.parametrize("on", ["node", "other"])
async def test_a_retry_of_what_was_committed_just_now_is_a_replay(house: House, on: str) -> None:
    nodes = {"node": await house.node(), "other": await house.node("other")}
    session = await house.session(nodes["node"])
    first = await house.good(nodes["node"], session, "hello", on_leave=OnLeave.ORPHAN, caller="sdk")
    retry = {"on_leave": OnLeave.ORPHAN, "caller": "sdk", "is_retry": True}
    again = await house.submit(nodes[on], session, "hello", **retry)
    assert again.replayed
    outcome = await house.outcome(nodes[on], again)
    assert outcome.turn is not None
    assert (outcome.status, outcome.turn.id) == (AttemptStatus.COMMITTED, first.id)
    assert len(house.world.prompts) == 1


@pytest.mark.parametrize(
    "different",
    [{"caller": "another"}, {"fingerprint": "another body"}, {"is_retry": False}],
    ids=["caller", "body", "no retry"],
)
async def test_what_only_looks_like_a_retry_runs(
    house: House, node: Lastgood, different: dict[str, Any]
) -> None:
    session = await house.session(node)
    first = await house.good(node, session, "hello", on_leave=OnLeave.ORPHAN, caller="sdk")
    retry: dict[str, Any] = {"on_leave": OnLeave.ORPHAN, "caller": "sdk", "is_retry": True} | different
    second = await house.good(node, session, "hello", **retry)
    assert second.id != first.id
    assert len(house.world.prompts) == 2


async def test_a_retry_of_a_failed_turn_runs(house: House, node: Lastgood) -> None:
    session = await house.session(node)
    text = "hello\n!fail after"
    failed = await house.say(node, session, text, on_leave=OnLeave.ORPHAN, caller="sdk")
    again = await house.say(node, session, text, on_leave=OnLeave.ORPHAN, caller="sdk", is_retry=True)
    assert failed.attempt != again.attempt
    assert len(house.world.prompts) == 2


async def test_a_retry_after_the_retry_time_is_meant(
    house: House, node: Lastgood, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lastgood.core.admission.RETRY_SECONDS", -1.0)
    session = await house.session(node)
    first = await house.good(node, session, "hello", on_leave=OnLeave.ORPHAN, caller="sdk")
    again = await house.good(node, session, "hello", on_leave=OnLeave.ORPHAN, caller="sdk", is_retry=True)
    assert again.id != first.id

"""Who may leave: what becomes of a turn whose requester has gone, and of the same request sent again."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from lastgood.errors import SessionBusy
from lastgood.flows.dependencies import FlowLimits
from lastgood.flows.turn_handle import TurnHandle
from lastgood.model.attempts import AttemptStatus, Hold, OnLeave
from lastgood.model.ids import SessionId
from lastgood.wiring import Lastgood
from tests.faults.faults import Mode
from tests.flows.cluster import LIMITS, Cluster, Gate, eventually, gate_tool
from tests.polls import a_few_rounds

pytestmark = pytest.mark.anyio

HELD = "!tool gate {}\n!say done"
LONG_GRACE = replace(LIMITS, grace_seconds=30.0)
HALF_A_SECOND = replace(LIMITS, grace_seconds=0.5)


async def held(cluster: Cluster, gate: Gate, name: str = "node", **fields: Any) -> Lastgood:
    return await cluster.node(name, tools=[gate_tool(gate)], **fields)


async def started(
    cluster: Cluster, node: Lastgood, gate: Gate, session: SessionId, on_leave: OnLeave, **fields: Any
) -> TurnHandle:
    submitted = await cluster.submit(node, session, HELD, on_leave=on_leave, caller="sdk", **fields)
    await gate.until_reached()
    return submitted


def set_limits(node: Lastgood, limits: FlowLimits) -> None:
    object.__setattr__(node.deps, "limits", limits)


async def past_the_grace_time(cluster: Cluster, node: Lastgood, gate: Gate) -> None:
    """Until a turn was cancelled whose client has left later than all others."""
    left = await started(cluster, node, gate, await cluster.session(node), OnLeave.ORPHAN)
    await left.leave()
    assert (await cluster.outcome(node, left)).status is AttemptStatus.CANCELLED


@pytest.mark.parametrize("on_leave", list(OnLeave))
async def test_a_turn_whose_requester_stays_commits(cluster: Cluster, on_leave: OnLeave) -> None:
    gate = Gate()
    node = await held(cluster, gate)
    session = await cluster.session(node)
    running = await started(cluster, node, gate, session, on_leave)
    gate.open()
    assert (await cluster.outcome(node, running)).status is AttemptStatus.COMMITTED


async def test_CONTINUE_keeps_running_and_commits(cluster: Cluster) -> None:
    gate = Gate()
    node = await held(cluster, gate)
    session = await cluster.session(node)
    running = await started(cluster, node, gate, session, OnLeave.CONTINUE)
    await running.leave()
    with pytest.raises(SessionBusy):
        await cluster.submit(node, session, "me")
    gate.open()
    assert (await cluster.outcome(node, running)).status is AttemptStatus.COMMITTED


async def test_CANCEL_ends_at_once(cluster: Cluster) -> None:
    gate = Gate()
    node = await held(cluster, gate)
    session = await cluster.session(node)
    running = await started(cluster, node, gate, session, OnLeave.CANCEL)
    await running.leave()
    assert (await cluster.attempt(running.attempt)).status is AttemptStatus.CANCELLED
    await cluster.good(node, session, "me")
    assert cluster.last_prompt == [("user", "me")]


@pytest.mark.parametrize("worked", [True, False], ids=["the answer was there", "still working"])
async def test_ORPHAN_is_cancelled_when_the_grace_time_is_over(cluster: Cluster, worked: bool) -> None:
    gate = Gate()
    node = await held(cluster, gate)
    session = await cluster.session(node)
    running = await started(cluster, node, gate, session, OnLeave.ORPHAN)
    await running.leave()
    assert (await cluster.attempt(running.attempt)).orphaned
    if worked:
        gate.open()
    outcome = await cluster.outcome(node, running)
    assert (outcome.status, outcome.turn) == (AttemptStatus.CANCELLED, None)
    assert (await cluster.get(session)).turns == 0
    await cluster.good(node, session, "me")
    assert cluster.last_prompt == [("user", "me")]


async def test_ORPHAN_is_taken_up_by_the_same_request_and_commits_once(cluster: Cluster) -> None:
    gate = Gate()
    node = await held(cluster, gate, limits=LONG_GRACE)
    session = await cluster.session(node)
    running = await started(cluster, node, gate, session, OnLeave.ORPHAN)
    await running.leave()
    gate.open()
    await cluster.until_prompted(2)
    again = await cluster.submit(node, session, HELD, on_leave=OnLeave.ORPHAN, caller="sdk", is_retry=True)
    assert again.attempt == running.attempt
    assert (await cluster.outcome(node, again)).status is AttemptStatus.COMMITTED
    assert len(cluster.world.prompts) == 2
    assert len(await cluster.attempts(session)) == 1


async def test_ORPHAN_is_taken_up_on_another_node(cluster: Cluster) -> None:
    gate = Gate()
    node, other = await held(cluster, gate, limits=LONG_GRACE), await held(cluster, gate, "other")
    session = await cluster.session(node)
    running = await started(cluster, node, gate, session, OnLeave.ORPHAN)
    await running.leave()
    again = await cluster.submit(other, session, HELD, on_leave=OnLeave.ORPHAN, caller="sdk", is_retry=True)
    assert again.attempt == running.attempt
    assert not (await cluster.attempt(running.attempt)).orphaned
    gate.open()
    assert (await cluster.outcome(other, again)).status is AttemptStatus.COMMITTED
    assert len(await cluster.attempts(session)) == 1


async def test_ORPHAN_that_was_taken_up_on_another_node_outlives_its_grace_time(cluster: Cluster) -> None:
    gate = Gate()
    node, other = await held(cluster, gate, limits=HALF_A_SECOND), await held(cluster, gate, "other")
    session = await cluster.session(node)
    running = await started(cluster, node, gate, session, OnLeave.ORPHAN)
    await running.leave()
    again = await cluster.submit(other, session, HELD, on_leave=OnLeave.ORPHAN, caller="sdk", is_retry=True)
    await past_the_grace_time(cluster, node, gate)
    gate.open()
    assert (await cluster.outcome(other, again)).status is AttemptStatus.COMMITTED


async def test_I21_ORPHAN_that_is_left_only_after_another_node_took_it_up_commits(cluster: Cluster) -> None:
    """A proxy, or a network that drops packets, may report late that the first client has gone."""
    gate = Gate()
    node, other = await held(cluster, gate, limits=HALF_A_SECOND), await held(cluster, gate, "other")
    session = await cluster.session(node)
    running = await started(cluster, node, gate, session, OnLeave.ORPHAN)
    again = await cluster.submit(other, session, HELD, on_leave=OnLeave.ORPHAN, caller="sdk", is_retry=True)
    assert again.attempt == running.attempt
    await running.leave()
    gate.open()
    assert (await cluster.outcome(other, again)).status is AttemptStatus.COMMITTED
    assert len(await cluster.attempts(session)) == 1


async def test_I21_ORPHAN_does_not_commit_while_it_is_written_that_its_client_left(cluster: Cluster) -> None:
    gate, at, go = Gate(), asyncio.Event(), asyncio.Event()
    node = await held(cluster, gate, limits=HALF_A_SECOND)
    session = await cluster.session(node)
    running = await started(cluster, node, gate, session, OnLeave.ORPHAN)

    async def stall(point: str) -> Mode | None:
        if point == "store.set_orphaned":
            at.set()
            await go.wait()
        return None

    cluster.faults(node).jitter = stall
    leaving = asyncio.create_task(running.leave())
    await at.wait()
    gate.open()
    await cluster.until_prompted(2)
    await a_few_rounds()
    go.set()
    await leaving
    assert (await cluster.outcome(node, running)).status is AttemptStatus.CANCELLED


async def test_ORPHAN_that_a_client_of_another_node_left_too_is_cancelled(cluster: Cluster) -> None:
    gate = Gate()
    node, other = await held(cluster, gate, limits=HALF_A_SECOND), await held(cluster, gate, "other")
    session = await cluster.session(node)
    running = await started(cluster, node, gate, session, OnLeave.ORPHAN)
    again = await cluster.submit(other, session, HELD, on_leave=OnLeave.ORPHAN, caller="sdk", is_retry=True)
    await again.leave()
    await running.leave()
    assert (await cluster.outcome(node, running)).status is AttemptStatus.CANCELLED


async def test_ORPHAN_has_its_whole_grace_time_each_time_it_is_left(cluster: Cluster) -> None:
    gate = Gate()
    node = await held(cluster, gate, limits=HALF_A_SECOND)
    session = await cluster.session(node)
    running = await started(cluster, node, gate, session, OnLeave.ORPHAN)
    await running.leave()
    again = await cluster.submit(node, session, HELD, on_leave=OnLeave.ORPHAN, caller="sdk", is_retry=True)
    assert again.attempt == running.attempt
    set_limits(node, LONG_GRACE)
    await again.leave()
    await a_few_rounds()  # its timer is set
    set_limits(node, HALF_A_SECOND)
    await past_the_grace_time(cluster, node, gate)
    assert not cluster.run_of(running).done.done()


async def test_I21_ORPHAN_that_another_node_took_up_and_left_again_is_cancelled(cluster: Cluster) -> None:
    gate = Gate()
    node, other = await held(cluster, gate, limits=HALF_A_SECOND), await held(cluster, gate, "other")
    session = await cluster.session(node)
    running = await started(cluster, node, gate, session, OnLeave.ORPHAN)
    await running.leave()
    again = await cluster.submit(other, session, HELD, on_leave=OnLeave.ORPHAN, caller="sdk", is_retry=True)
    assert not (await cluster.attempt(running.attempt)).orphaned
    await again.leave()
    assert (await cluster.attempt(running.attempt)).orphaned
    gate.open()
    assert (await cluster.outcome(node, running)).status is AttemptStatus.CANCELLED


async def test_I21_a_client_that_leaves_another_node_leaves_the_one_that_stayed(cluster: Cluster) -> None:
    gate = Gate()
    node, other = await held(cluster, gate, limits=LONG_GRACE), await held(cluster, gate, "other")
    session = await cluster.session(node)
    running = await started(cluster, node, gate, session, OnLeave.ORPHAN)
    again = await cluster.submit(other, session, HELD, on_leave=OnLeave.ORPHAN, caller="sdk", is_retry=True)
    await again.leave()
    gate.open()
    assert (await cluster.outcome(node, running)).status is AttemptStatus.COMMITTED


async def test_ORPHAN_gives_way_to_another_request(cluster: Cluster) -> None:
    gate = Gate()
    node = await held(cluster, gate, limits=LONG_GRACE)
    session = await cluster.session(node)
    running = await started(cluster, node, gate, session, OnLeave.ORPHAN)
    with pytest.raises(SessionBusy):
        await cluster.submit(node, session, "another", on_leave=OnLeave.ORPHAN)
    await running.leave()
    await cluster.good(node, session, "another", on_leave=OnLeave.ORPHAN)
    assert (await cluster.attempt(running.attempt)).status is AttemptStatus.SUPERSEDED
    assert cluster.last_prompt == [("user", "another")]
    assert (await cluster.outcome(node, running)).turn is None
    gate.open()
    assert (await cluster.get(session)).turns == 1


async def test_ORPHAN_gives_way_on_another_node_too(cluster: Cluster) -> None:
    gate = Gate()
    node, other = await held(cluster, gate, limits=LONG_GRACE), await held(cluster, gate, "other")
    session = await cluster.session(node)
    running = await started(cluster, node, gate, session, OnLeave.ORPHAN)
    await running.leave()
    await cluster.good(other, session, "another")
    assert (await cluster.attempt(running.attempt)).status is AttemptStatus.SUPERSEDED
    gate.open()
    assert (await cluster.outcome(node, running)).turn is None
    assert [turn.messages[0].content for turn in await cluster.turns(session)] == ["another"]


async def test_ORPHAN_is_cancelled_when_that_could_not_be_written_down(cluster: Cluster) -> None:
    gate = Gate()
    node = await held(cluster, gate, limits=LONG_GRACE)
    session = await cluster.session(node)
    running = await started(cluster, node, gate, session, OnLeave.ORPHAN)
    cluster.strike(node, "store.set_orphaned", Mode.RAISE)
    await running.leave()
    assert (await cluster.outcome(node, running)).status is AttemptStatus.CANCELLED


async def test_ORPHAN_is_cancelled_when_the_write_changed_nothing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    node = await held(cluster, gate, limits=LONG_GRACE)
    session = await cluster.session(node)
    running = await started(cluster, node, gate, session, OnLeave.ORPHAN)

    async def nothing(hold: Hold, orphaned: bool) -> bool:
        return False

    monkeypatch.setattr(node.deps.store, "set_orphaned", nothing, raising=False)
    await running.leave()
    assert (await cluster.outcome(node, running)).status is AttemptStatus.CANCELLED


@pytest.mark.parametrize("on_leave", [OnLeave.ORPHAN, OnLeave.CANCEL])
async def test_the_last_of_several_requesters_decides(cluster: Cluster, on_leave: OnLeave) -> None:
    gate = Gate()
    node = await held(cluster, gate)
    session = await cluster.session(node)
    key = {"key": "k"} if on_leave is OnLeave.CANCEL else {"is_retry": True}
    first = await started(cluster, node, gate, session, on_leave, **key)
    second = await cluster.submit(node, session, HELD, on_leave=on_leave, caller="sdk", **key)
    assert second.attempt == first.attempt
    await first.leave()
    attempt = await cluster.attempt(first.attempt)
    assert (attempt.status, attempt.orphaned) == (AttemptStatus.RUNNING, False)
    await second.leave()
    assert (await cluster.outcome(node, first)).status is AttemptStatus.CANCELLED


# -- a caller that is cancelled in the middle of asking -----------------------------


async def cut_off(cluster: Cluster, node: Lastgood, session: SessionId, on_leave: OnLeave) -> None:
    """The caller is gone while the begin is on its way to the database."""
    faults = cluster.faults(node)
    at, go = asyncio.Event(), asyncio.Event()

    async def stall(point: str) -> Mode | None:
        if point == "store.begin_if_free":
            at.set()
            await go.wait()
        return None

    faults.jitter = stall
    caller = asyncio.create_task(cluster.submit(node, session, "cut off", on_leave=on_leave))
    await at.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    faults.jitter = None
    go.set()

    async def ended() -> bool:
        attempts = await cluster.attempts(session)
        return bool(attempts) and attempts[0].ended_at is not None

    await eventually(ended)


async def test_a_caller_cancelled_in_the_middle_of_asking_leaves_nothing_half_done(
    cluster: Cluster, node: Lastgood
) -> None:
    session = await cluster.session(node)
    await cut_off(cluster, node, session, OnLeave.CONTINUE)
    assert (await cluster.get(session)).turns == 1
    await cluster.good(node, session, "me")
    assert cluster.last_prompt == [("user", "cut off"), ("assistant", "You said: cut off"), ("user", "me")]


@pytest.mark.parametrize("on_leave", [OnLeave.ORPHAN, OnLeave.CANCEL])
async def test_a_caller_cancelled_in_the_middle_of_asking_has_left(
    cluster: Cluster, node: Lastgood, on_leave: OnLeave
) -> None:
    """An orphan never commits: also when its requester went away before it began."""
    session = await cluster.session(node)
    await cut_off(cluster, node, session, on_leave)
    assert (await cluster.get(session)).turns == 0


async def test_I21_a_commit_does_not_overtake_that_its_client_has_left(
    cluster: Cluster, node: Lastgood
) -> None:
    """The write that makes it an orphan is slow. Whoever left before the commit was sent is gone."""
    session, faults = await cluster.session(node), cluster.faults(node)
    leaves, commits, go = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def stall(point: str) -> Mode | None:
        if point == "store.set_orphaned" and not leaves.is_set():
            leaves.set()
            await go.wait()
        if point == "store.journal_if_held":
            await leaves.wait()
        if point == "store.commit_if_head":
            commits.set()
        return None

    faults.jitter = stall
    handle = await cluster.submit(node, session, "hello", on_leave=OnLeave.ORPHAN)
    leaving = asyncio.create_task(handle.leave())
    with suppress(TimeoutError):
        async with asyncio.timeout(1):
            await commits.wait()
    assert not commits.is_set(), "it commits although its client has left"
    go.set()
    await leaving
    assert (await cluster.outcome(node, handle)).status is AttemptStatus.CANCELLED
    assert (await cluster.get(session)).turns == 0


# -- an SDK's own retry of what was committed just now --------------------------------


@pytest.mark.parametrize("on", ["node", "other"])
async def test_a_retry_of_what_was_committed_just_now_is_a_replay(cluster: Cluster, on: str) -> None:
    nodes = {"node": await cluster.node(), "other": await cluster.node("other")}
    session = await cluster.session(nodes["node"])
    first = await cluster.good(nodes["node"], session, "hello", on_leave=OnLeave.ORPHAN, caller="sdk")
    retry = {"on_leave": OnLeave.ORPHAN, "caller": "sdk", "is_retry": True}
    again = await cluster.submit(nodes[on], session, "hello", **retry)
    assert again.replayed
    outcome = await cluster.outcome(nodes[on], again)
    assert outcome.turn is not None
    assert (outcome.status, outcome.turn.id) == (AttemptStatus.COMMITTED, first.id)
    assert len(cluster.world.prompts) == 1


@pytest.mark.parametrize(
    "different",
    [{"caller": "another"}, {"fingerprint": "another body"}, {"is_retry": False}],
    ids=["caller", "body", "no retry"],
)
async def test_what_only_looks_like_a_retry_runs(
    cluster: Cluster, node: Lastgood, different: dict[str, Any]
) -> None:
    session = await cluster.session(node)
    first = await cluster.good(node, session, "hello", on_leave=OnLeave.ORPHAN, caller="sdk")
    retry: dict[str, Any] = {"on_leave": OnLeave.ORPHAN, "caller": "sdk", "is_retry": True} | different
    second = await cluster.good(node, session, "hello", **retry)
    assert second.id != first.id
    assert len(cluster.world.prompts) == 2


async def test_a_retry_of_a_failed_turn_runs(cluster: Cluster, node: Lastgood) -> None:
    session = await cluster.session(node)
    text = "hello\n!fail after"
    failed = await cluster.say(node, session, text, on_leave=OnLeave.ORPHAN, caller="sdk")
    again = await cluster.say(node, session, text, on_leave=OnLeave.ORPHAN, caller="sdk", is_retry=True)
    assert failed.attempt != again.attempt
    assert len(cluster.world.prompts) == 2


async def test_a_retry_after_the_retry_time_is_meant(
    cluster: Cluster, node: Lastgood, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lastgood.core.admission.RETRY_SECONDS", -1.0)
    session = await cluster.session(node)
    first = await cluster.good(node, session, "hello", on_leave=OnLeave.ORPHAN, caller="sdk")
    again = await cluster.good(node, session, "hello", on_leave=OnLeave.ORPHAN, caller="sdk", is_retry=True)
    assert again.id != first.id

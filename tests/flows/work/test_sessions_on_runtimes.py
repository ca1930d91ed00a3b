"""A session whose agent lives on a runtime is a session like any other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

import pytest

from lastgood.core.parking_policy import HELD_AFTER_CANCEL
from lastgood.errors import (
    AgentNotFound,
    Conflict,
    IdempotencyMismatch,
    InvalidRequest,
    NothingPending,
    QueueFull,
    RuntimeOffline,
    SessionBusy,
    SessionNotFound,
    StaleClaim,
    StaleHead,
    TaskNotFound,
    TooManyRequests,
)
from lastgood.flows.retention import Retention
from lastgood.flows.retries import MOST_TRIES
from lastgood.flows.submission import NOT_LOCATED, Conversation, Submission
from lastgood.flows.task_queue import QueuedTask
from lastgood.flows.turn_handle import QueuedTurn, TurnHandle
from lastgood.model.attempts import After, Ask, Attempt, AttemptStatus, OnLeave
from lastgood.model.call_options import CallOptions
from lastgood.model.events import TERMINAL, AttemptFailed, EventKind, StoredEvent, TextStreamed
from lastgood.model.ids import DEFAULT_TENANT, SessionId, TaskId, TurnId
from lastgood.model.messages import Image, assistant, user, user_parts
from lastgood.model.queue import NewQueued, QueueKind
from lastgood.model.rules import Setter
from lastgood.model.runtimes import AgentBinding, OnOffline, OnQueued
from lastgood.model.sessions import SessionStatus, TurnKind, Usage
from lastgood.model.tasks import TaskMessage, TaskStatus
from lastgood.model.tokens import Scope
from tests.flows.cluster import PATIENCE_SECONDS, eventually
from tests.flows.work.site import AGENT, Machine, Site

pytestmark = pytest.mark.anyio

ANN = Setter(Scope.SESSION, "tok", "ann")


async def bound(site: Site, **fields: Any) -> tuple[Machine, SessionId]:
    """A machine that the agent is bound to, and a session of that agent."""
    machine = await site.machine(**fields)
    await site.bind(machine)
    return machine, (await site.node.sessions.create(site.tenant, AGENT, setter=ANN)).id


def ask(session: SessionId, text: str, **fields: Any) -> Ask:
    known: dict[str, Any] = {"fingerprint": text, "caller": "tok", "owner": "ann"}
    known["messages"] = (user(text),)
    return Ask(DEFAULT_TENANT, session, **known | fields)


async def submit(
    site: Site, session: SessionId, text: str, after: After | None = None, **fields: Any
) -> TurnHandle:
    return await site.node.submitter.submit(Submission(ask(session, text, **fields), after))


async def outcome(handle: TurnHandle) -> Any:
    async with asyncio.timeout(PATIENCE_SECONDS):
        return await handle.outcome()


async def say(site: Site, machine: Machine, session: SessionId, text: str, answer: str, **fields: Any) -> Any:
    handle = await submit(site, session, text, **fields)
    await machine.complete(await machine.claim(), answer)
    return await outcome(handle)


async def events_of(handle: TurnHandle) -> list[StoredEvent]:
    async with asyncio.timeout(PATIENCE_SECONDS):
        return [event async for event in handle.events()]


def task_of(handle: TurnHandle) -> TaskId:
    assert handle.task_id is not None
    return handle.task_id


async def follow_up(site: Site, session: SessionId, text: str, **fields: Any) -> tuple[Any, bool]:
    new = NewQueued(
        site.tenant, session, site.node.deps.ids.turn(), QueueKind.FOLLOWUP, (user(text),), fingerprint=text
    )
    return await site.node.queue.put(replace(new, **fields), "ann")


# -- the submit pipeline ---------------------------------------------------------------------


async def test_the_first_turn_after_a_binding_is_a_task_whichever_node_made_the_binding(site: Site) -> None:
    machine, store = await site.machine(), site.node.deps.store
    session = (await site.node.sessions.create(site.tenant, AGENT, setter=ANN)).id
    here = await submit(site, session, "here")
    assert (await outcome(here)).status is AttemptStatus.COMMITTED
    assert here.task_id is None
    # Written past this node's flows, as another node does it.
    await store.bind_agent(AgentBinding(site.tenant, AGENT, machine.id, bound_by="ann"), OnQueued.KEEP)
    assert (await submit(site, session, "there")).task_id is not None


async def test_a_turn_of_a_bound_agent_is_queued_and_committed_by_its_worker(site: Site) -> None:
    machine, session = await bound(site)
    handle = await submit(site, session, "fix it")
    queued = await handle.stored()
    assert isinstance(queued, QueuedTurn)
    assert (handle.attempt, queued.task.status) == (None, TaskStatus.QUEUED)
    assert "waits for runtime" in queued.why
    found = await site.session(session)
    assert (found.status, found.runtime_id, found.owner) == (SessionStatus.QUEUED, machine.id, "ann")
    sent = await machine.claim()
    assert sent.content["prompt"] == "fix it"
    running = await handle.stored()
    assert isinstance(running, Attempt)
    assert running.task == task_of(handle)
    await machine.complete(sent, "fixed", usage=Usage(3, 4, 0.0))
    ended = await outcome(handle)
    assert ended.status is AttemptStatus.COMMITTED
    assert [message.content for message in ended.turn.messages] == ["fix it", "fixed"]
    assert (ended.turn.id, ended.turn.usage) == (handle.turn, Usage(3, 4, 0.0))
    assert (await site.session(session)).title == "fix it"


async def test_a_busy_session_refuses_the_next_turn_whether_it_is_queued_or_running(site: Site) -> None:
    machine, session = await bound(site)
    first = await submit(site, session, "one")
    with pytest.raises(SessionBusy) as queued:
        await submit(site, session, "two")
    assert queued.value.detail["task"] == first.task_id
    sent = await machine.claim()
    with pytest.raises(SessionBusy):
        await submit(site, session, "two")
    await machine.complete(sent, "done")
    await say(site, machine, session, "two", "done")
    assert await site.said(session) == ["one", "done", "two", "done"]


async def test_I20_the_same_key_attaches_replays_and_tries_a_failed_turn_again(site: Site) -> None:
    machine, session = await bound(site)
    first = await submit(site, session, "one", key="k")
    again = await submit(site, session, "one", key="k")
    assert (again.turn, again.task_id, again.replayed) == (first.turn, first.task_id, False)
    await machine.fail(await machine.claim(), "cli_protocol")
    assert (await outcome(first)).status is AttemptStatus.FAILED
    third = await submit(site, session, "one", key="k")
    assert (third.turn, third.task_id == first.task_id) == (first.turn, False)
    await machine.complete(await machine.claim(), "good")
    replayed = await submit(site, session, "one", key="k")
    assert replayed.replayed
    assert (await outcome(replayed)).turn.id == first.turn
    with pytest.raises(IdempotencyMismatch):
        await submit(site, session, "another", key="k")
    assert await site.said(session) == ["one", "good"]


async def test_I20_two_equal_requests_at_once_are_one_task(site: Site) -> None:
    machine, session = await bound(site)
    handles = await asyncio.gather(*(submit(site, session, "one", key="k") for _ in range(5)))
    assert len({handle.task_id for handle in handles}) == 1
    await machine.complete(await machine.claim(), "good")
    assert {(await outcome(handle)).turn.id for handle in handles} == {handles[0].turn}


async def test_a_key_that_was_used_by_a_turn_of_this_server_is_replayed_after_the_agent_was_bound(
    site: Site,
) -> None:
    session = (await site.node.sessions.create(site.tenant, AGENT, setter=ANN)).id
    local = await submit(site, session, "one", key="k")
    assert (await outcome(local)).status is AttemptStatus.COMMITTED
    await site.bind(await site.machine())
    again = await submit(site, session, "one", key="k")
    assert (again.replayed, again.turn) == (True, local.turn)


async def test_nothing_is_stored_for_what_is_refused(site: Site) -> None:
    machine, session = await bound(site)
    refused: list[tuple[dict[str, Any], type[Exception]]] = [
        ({"messages": (user_parts("see", Image("https://example.com/a.png")),)}, InvalidRequest),
        ({"messages": (user(" \n"),)}, InvalidRequest),
        ({"options": CallOptions(tools=({"type": "function", "function": {"name": "f"}},))}, InvalidRequest),
        ({"options": CallOptions(response_format={"type": "json_object"})}, InvalidRequest),
        ({"expected_head": TurnId("turn_gone")}, StaleHead),
    ]
    for fields, error in refused:
        with pytest.raises(error):
            await site.node.submitter.submit(Submission(replace(ask(session, "one"), **fields)))
    assert await site.store.open_tasks(site.tenant, session) == ()
    assert not await machine.claims()


async def test_an_agent_that_must_not_wait_for_its_runtime_is_refused_before_anything_is_written(
    site: Site,
) -> None:
    machine = await site.machine()
    await site.bind(machine, offline=OnOffline.FAIL)
    session = (await site.node.sessions.create(site.tenant, AGENT, setter=ANN)).id
    await site.work.runtimes.deregister(site.tenant, machine.worker, machine.owner, machine.epoch)
    with pytest.raises(RuntimeOffline):
        await submit(site, session, "one")
    assert (await site.session(session)).runtime_id is None


# -- the handle ------------------------------------------------------------------------------


async def test_I24_a_caller_follows_its_task_through_ended_claims_to_one_end(hasty: Site) -> None:
    """The first claim is given back, the second one loses its lease: nobody is told that the turn failed."""
    machine, session = await bound(hasty)
    handle = await submit(hasty, session, "one")
    watching = asyncio.create_task(events_of(handle))
    waiting = asyncio.create_task(outcome(handle))
    first = await machine.claim()
    await hasty.work.claims.give_back([first])
    second = await machine.claim()
    third = await machine.claim_again()
    assert not waiting.done()
    await machine.complete(third, "done at last")
    events = await watching
    assert [event.kind for event in events if event.kind in TERMINAL] == [EventKind.TURN_COMMITTED]
    started = [event.attempt for event in events if event.kind is EventKind.ATTEMPT_STARTED]
    assert started == [sent.claimed.attempt.id for sent in (first, second, third)]
    assert events[-1].kind is EventKind.ATTEMPT_ENDED
    assert (await waiting).turn.messages[-1].content == "done at last"
    await hasty.check_ends(session)


async def test_a_task_that_ends_in_the_queue_ends_its_stream_and_its_outcome(site: Site) -> None:
    _, session = await bound(site)
    handle = await submit(site, session, "one")
    watching = asyncio.create_task(events_of(handle))
    ended = await site.node.turns.cancel(site.tenant, session)
    assert (ended.status, ended.attempt, ended.task) == (AttemptStatus.CANCELLED, None, handle.task_id)
    (event,) = [one for one in await watching if one.kind in TERMINAL]
    assert isinstance(event.data, AttemptFailed)
    assert (event.attempt, event.data.turn) == (None, handle.turn)
    assert (await outcome(handle)).status is AttemptStatus.CANCELLED
    assert (await site.session(session)).status is SessionStatus.IDLE


async def test_text_is_streamed_while_the_run_lasts(site: Site) -> None:
    machine, session = await bound(site)
    handle = await submit(site, session, "one")
    sent = await machine.claim()
    stream = handle.events()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await site.work.reports.messages(
            machine.key(sent), [TaskMessage(1, {"type": "text", "content": "half"})]
        )
        async for event in stream:
            if event.kind is EventKind.TEXT_STREAMED:
                break
    assert event.data == TextStreamed("half")
    await stream.aclose()
    await machine.complete(sent, "half and half")
    await handle.leave()
    assert (await outcome(handle)).status is AttemptStatus.COMMITTED


async def test_a_run_that_called_a_tool_and_failed_must_not_be_sent_again(site: Site) -> None:
    machine, session = await bound(site)
    handle = await submit(site, session, "one")
    sent = await machine.claim()
    called = TaskMessage(1, {"type": "tool_use", "tool": "Bash", "input": {"command": "rm x"}})
    await site.work.reports.messages(machine.key(sent), [called])
    await machine.fail(sent, "cli_failed", tool_calls=1)
    ended = await outcome(handle)
    assert (ended.status, ended.has_effects) == (AttemptStatus.FAILED, True)


async def test_a_tool_call_after_hundreds_of_messages_is_not_forgotten(site: Site) -> None:
    """Nor once its activity is gone: the client would send the turn again, and its tool would run again."""
    machine, session = await bound(site)
    handle = await submit(site, session, "one")
    sent = await machine.claim()
    said = [TaskMessage(seq, {"type": "thinking", "content": "hm"}) for seq in range(1, 600)]
    await site.work.reports.messages(machine.key(sent), said)
    called = TaskMessage(600, {"type": "tool_use", "tool": "Bash"})
    await site.work.reports.messages(machine.key(sent), [called])
    await site.cancel((await site.store.open_tasks(site.tenant, session))[0].id)
    await site.cluster.backend.execute("DELETE FROM task_messages")
    assert (await outcome(handle)).has_effects


async def test_any_node_serves_the_outcome_and_a_restart_leaves_a_running_task_alone(site: Site) -> None:
    machine, session = await bound(site)
    handle = await submit(site, session, "one")
    sent = await machine.claim()
    if site.cluster.is_sqlite:
        await site.cluster.kill(site.node)
        await site.cluster.reopen()
    other = await site.cluster.node("other", alone=True, agents=[site.cluster.agent(AGENT)])
    await other.recovery.sweep()
    await other.recovery.retry_durable()
    found = await other.deps.store.get_attempt(site.tenant, sent.claimed.attempt.id)
    assert found is not None
    assert found.status is AttemptStatus.RUNNING
    site.node = other
    await machine.complete(sent, "done")
    assert (await outcome(replace(handle, _deps=other.deps))).status is AttemptStatus.COMMITTED


# -- one queue -------------------------------------------------------------------------------


async def test_follow_ups_are_tasks_in_one_order_and_each_runs_once(site: Site) -> None:
    machine, session = await bound(site)
    first = await submit(site, session, "one")
    sent = await machine.claim()
    entries = [(await follow_up(site, session, text))[0] for text in ("two", "three")]
    assert all(isinstance(entry, QueuedTask) for entry in entries)
    listed = await site.node.queue.read(site.tenant, session)
    assert [(entry.number, entry.messages[0].content) for entry in listed] == [
        (entries[0].number, "two"),
        (entries[1].number, "three"),
    ]
    assert "waits for task" in entries[1].why
    await machine.complete(sent, "1")
    for answer in ("2", "3"):
        await machine.complete(await machine.claim(), answer)
    assert await site.said(session) == ["one", "1", "two", "2", "three", "3"]
    assert (await outcome(first)).turn.id == first.turn
    assert await site.node.queue.read(site.tenant, session) == ()


async def test_a_follow_up_with_a_key_is_there_once_and_the_queue_is_bounded(site: Site) -> None:
    _, session = await bound(site)
    entry, known = await follow_up(site, session, "one", key="k")
    again, known_again = await follow_up(site, session, "one", key="k")
    assert (known, known_again, again.task.id) == (False, True, entry.task.id)
    with pytest.raises(IdempotencyMismatch):
        await follow_up(site, session, "other", key="k")
    for number in range(19):
        await follow_up(site, session, str(number))
    with pytest.raises(QueueFull):
        await follow_up(site, session, "one too many")


async def test_after_a_persons_cancel_queued_tasks_are_held_until_they_are_continued_or_dropped(
    site: Site,
) -> None:
    machine, session = await bound(site)
    handle = await submit(site, session, "one")
    sent = await machine.claim()
    for text in ("two", "three"):
        await follow_up(site, session, text)
    ended = await site.node.turns.cancel(site.tenant, session)
    assert (ended.status, ended.attempt) == (AttemptStatus.CANCELLED, sent.claimed.attempt.id)
    assert (await outcome(handle)).status is AttemptStatus.CANCELLED
    two, three = await site.node.queue.read(site.tenant, session)
    assert isinstance(two, QueuedTask)
    assert isinstance(three, QueuedTask)
    assert (two.task.held, three.task.held) == (True, True)
    assert "held after the cancel" in two.why
    assert not await machine.claims()
    await site.node.queue.drop(site.tenant, session, two.number)
    await site.node.queue.retry(site.tenant, session, three.number)
    await machine.complete(await machine.claim(), "3")
    assert await site.said(session) == ["three", "3"]
    with pytest.raises(StaleClaim):
        await machine.complete(sent, "too late")
    assert await site.said(session) == ["three", "3"]


async def test_a_steer_needs_a_runtime_that_takes_it(site: Site) -> None:
    machine, session = await bound(site)
    await submit(site, session, "one")
    steer = NewQueued(site.tenant, session, site.node.deps.ids.turn(), QueueKind.STEER, (user("also"),))
    with pytest.raises(NothingPending):
        await site.node.queue.put(steer, "ann")
    await machine.claim()
    with pytest.raises(Conflict, match="does not accept messages while a turn runs"):
        await site.node.queue.put(steer, "ann")


async def test_a_steer_is_handed_to_the_worker_and_part_of_the_turn_once_it_was_delivered(site: Site) -> None:
    machine, session = await bound(site, steerable=True)
    await submit(site, session, "one")
    sent = await machine.claim()
    steer = NewQueued(site.tenant, session, site.node.deps.ids.turn(), QueueKind.STEER, (user("also"),))
    await site.node.queue.put(steer, "ann")
    (received,) = (await machine.start(sent))["steers"]
    assert received["text"] == "also"
    await machine.complete(sent, "done", delivered=(received["id"],))
    assert await site.said(session) == ["one", "also", "done"]
    assert await site.node.queue.read(site.tenant, session) == ()


async def test_an_unread_steer_is_delivered_exactly_once_after_the_run(site: Site) -> None:
    machine, session = await bound(site, steerable=True)
    await submit(site, session, "one")
    sent = await machine.claim()
    steer = NewQueued(site.tenant, session, site.node.deps.ids.turn(), QueueKind.STEER, (user("also"),))
    await site.node.queue.put(steer, "ann")
    await machine.complete(sent, "done")
    sent = (await eventually(machine.claims))[0]
    assert sent.content["prompt"] == "also"
    await machine.complete(sent, "that, too")
    assert await site.said(session) == ["one", "done", "also", "that, too"]
    await site.node.queue.sweep()
    assert not await machine.claims()
    assert await site.store.read_queue(site.tenant, session) == ()


async def test_a_steer_of_a_cancelled_run_is_held_like_everything_else(site: Site) -> None:
    machine, session = await bound(site, steerable=True)
    await submit(site, session, "one")
    await machine.claim()
    steer = NewQueued(site.tenant, session, site.node.deps.ids.turn(), QueueKind.STEER, (user("also"),))
    await site.node.queue.put(steer, "ann")
    await site.node.turns.cancel(site.tenant, session)
    (entry,) = await site.store.read_queue(site.tenant, session)
    assert (entry.kind, entry.parked) == (QueueKind.FOLLOWUP, HELD_AFTER_CANCEL)
    assert not await machine.claims()
    await site.node.queue.retry(site.tenant, session, entry.number)
    sent = (await eventually(machine.claims))[0]
    assert sent.content["prompt"] == "also"


async def test_a_follow_up_from_before_the_agent_was_bound_becomes_a_task_once(site: Site) -> None:
    """Also if the process that hands it over dies between the two writes."""
    session = (await site.node.sessions.create(site.tenant, AGENT, setter=ANN)).id
    new = NewQueued(site.tenant, session, site.node.deps.ids.turn(), QueueKind.FOLLOWUP, (user("later"),))
    item = await site.store.enqueue(new, most=5)
    machine = await site.machine()
    await site.bind(machine)
    handle = await site.node.turns.run_queued(replace(item, number=item.number + 1000))
    assert len(await site.store.read_queue(site.tenant, session)) == 1, "what died did not take it"
    await site.node.queue.sweep()

    async def taken() -> bool:
        return not await site.store.read_queue(site.tenant, session)

    await eventually(taken)
    (task,) = await site.store.open_tasks(site.tenant, session)
    assert (task.turn, task.id) == (new.turn, handle.task_id)
    await machine.complete(await machine.claim(), "done")
    assert await site.said(session) == ["later", "done"]


# -- cancel, continue, edit, reset, append, rebind, fork, delete -----------------------------


async def test_a_cancel_never_waits_for_its_worker(site: Site) -> None:
    machine, session = await bound(site)
    handle = await submit(site, session, "one")
    sent = await machine.claim()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await site.node.turns.cancel(site.tenant, session)
    assert (await site.session(session)).status is SessionStatus.IDLE
    await say(site, machine, session, "two", "2")
    assert (await machine.beat(sent)).cancel == (handle.task_id,)
    with pytest.raises(StaleClaim):
        await machine.complete(sent, "too late")
    assert await site.said(session) == ["two", "2"]
    with pytest.raises(NothingPending):
        await site.node.turns.cancel(site.tenant, session)


async def test_an_attempt_of_a_runtime_is_continued_as_a_new_task_of_the_same_turn(site: Site) -> None:
    machine, session = await bound(site)
    handle = await submit(site, session, "one")
    sent = await machine.claim()
    await machine.fail(sent, "cli_protocol")
    again = await site.node.turns.continue_from(site.tenant, session, sent.claimed.attempt.id, owner="ann")
    assert (again.turn, again.task_id == handle.task_id) == (handle.turn, False)
    with pytest.raises(SessionBusy):
        await site.node.turns.continue_from(site.tenant, session, sent.claimed.attempt.id, owner="ann")
    await machine.complete(await machine.claim(), "done")
    assert (await outcome(again)).turn.id == handle.turn
    with pytest.raises(Conflict):
        await site.node.turns.continue_from(site.tenant, session, sent.claimed.attempt.id, owner="ann")


async def test_an_edit_is_a_task_whose_base_is_an_earlier_turn(site: Site) -> None:
    machine, session = await bound(site)
    first = (await say(site, machine, session, "one", "1")).turn
    await say(site, machine, session, "two", "2")
    handle = await submit(site, session, "other", After(first.id))
    sent = await machine.claim()
    assert sent.claimed.attempt.base == first.id
    await machine.complete(sent, "another")
    assert (await outcome(handle)).turn.parent == first.id
    assert await site.said(session) == ["one", "1", "other", "another"]
    assert len(await site.node.sessions.branches(site.tenant, session)) == 1


@pytest.mark.parametrize("moves", ["reset", "append", "fork", "edit"])
async def test_I27_a_native_session_that_has_seen_other_turns_is_not_resumed(site: Site, moves: str) -> None:
    machine, session = await bound(site)
    handle = await submit(site, session, "one")
    await machine.complete(await machine.claim(), "1", native_session="native")
    first = (await outcome(handle)).turn
    after: After | None = None
    expected = "replay"
    if moves == "reset":
        await submit(site, session, "", messages=(), kind=TurnKind.RESET)
        await eventually(lambda: _is_idle(site, session))
        expected = "fresh"
    elif moves == "append":
        await submit(site, session, "by the way", kind=TurnKind.APPEND)
        await eventually(lambda: _is_idle(site, session))
        expected = "native"  # behind the head: it is told what it has missed
    elif moves == "fork":
        forked = await site.node.sessions.fork(site.tenant, session, setter=ANN)
        assert forked.runtime_id == machine.id
        session = forked.id
    else:
        await say(site, machine, session, "two", "2")
        after = After(None)
        expected = "fresh"
    await submit(site, session, "next", after)
    resume = (await machine.claim()).content["resume"]
    assert resume["decision"] == expected, resume
    if expected == "native":
        assert [line["content"] for line in resume["catch_up"]] == ["by the way"]
    if moves == "fork":
        assert resume["rejected"] == []
        assert [line["content"] for line in resume["transcript"]] == ["one", "1"]
    assert first is not None


async def _is_idle(site: Site, session: SessionId) -> bool:
    return (await site.session(session)).status is SessionStatus.IDLE


async def test_what_changes_a_session_waits_for_its_tasks(site: Site) -> None:
    _, session = await bound(site)
    await submit(site, session, "one")
    node = site.node
    refused: list[Callable[[], Any]] = [
        lambda: submit(site, session, "x", kind=TurnKind.APPEND),
        lambda: submit(site, session, "", messages=(), kind=TurnKind.RESET),
        lambda: node.sessions.rebind(site.tenant, session, "other"),
        lambda: node.sessions.set_model(site.tenant, session, None),
    ]
    for change in refused:
        with pytest.raises(SessionBusy):
            await change()


async def test_a_session_is_rebound_to_an_agent_of_this_server_and_back(site: Site) -> None:
    machine, session = await bound(site)
    await say(site, machine, session, "one", "1")
    await site.work.runtimes.unbind(site.tenant, AGENT, "ann")
    assert (await outcome(await submit(site, session, "two\n!say 2"))).turn is not None
    await site.bind(machine)
    handle = await submit(site, session, "three")
    sent = await machine.claim()
    assert [line["content"] for line in sent.content["resume"]["transcript"]][:2] == ["one", "1"]
    await machine.complete(sent, "3")
    assert (await outcome(handle)).turn.seq == 3


async def test_a_session_that_is_bound_alone_beats_its_agent(site: Site) -> None:
    machine, session = await bound(site)
    other = await site.machine("desk")
    await site.work.runtimes.pin(site.tenant, session, other.id, OnQueued.KEEP, "ann")
    await say(site, other, session, "one", "1")
    assert not await machine.claims()
    assert (await site.session(session)).runtime_pinned


async def test_I15_a_session_that_is_deleted_while_a_worker_holds_it_never_comes_back(site: Site) -> None:
    machine, session = await bound(site)
    handle = await submit(site, session, "one")
    waiting = asyncio.create_task(outcome(handle))
    sent = await machine.claim()
    await site.node.sessions.delete(site.tenant, session)
    with pytest.raises(SessionNotFound):
        await waiting
    with pytest.raises(TaskNotFound):
        await machine.complete(sent, "too late")
    assert handle.task_id in (await machine.beat(sent)).lost
    assert await site.store.get_session(site.tenant, session) is None
    assert not await machine.claims()


# -- conversations ---------------------------------------------------------------------------


def said_in(name: str, *texts: str, **fields: Any) -> Submission:
    body = tuple(user(text) if number % 2 == 0 else assistant(text) for number, text in enumerate(texts))
    known: dict[str, Any] = {
        "agent_key": AGENT,
        "fingerprint": repr(texts),
        "caller": "tok",
        "owner": "ann",
        "over_chat": True,
        "on_leave": OnLeave.ORPHAN,
    }
    setter = Setter(Scope.CHAT, "tok", fields.get("owner", "ann"))
    asked = Ask(DEFAULT_TENANT, NOT_LOCATED, (), **known | fields)
    return Submission(asked, conversation=Conversation(name, body, setter=setter))


async def test_a_conversation_reaches_published_agents_only_and_does_not_wait_for_a_closed_laptop(
    site: Site,
) -> None:
    machine = await site.machine()
    await site.bind(machine)
    with pytest.raises(AgentNotFound):
        await site.node.submitter.submit(said_in("refused", "hello"))
    assert await site.node.deps.store.find_conversation(site.tenant, "refused") is None
    await site.bind(machine, published=True)
    handle = await site.node.submitter.submit(said_in("c", "hello", owner="bea"))
    await machine.complete(await machine.claim(), "hi")
    assert (await outcome(handle)).turn.messages[-1].content == "hi"
    await site.work.runtimes.deregister(site.tenant, machine.worker, machine.owner, machine.epoch)
    with pytest.raises(RuntimeOffline):
        await site.node.submitter.submit(said_in("c", "hello", "hi", "again", owner="bea"))


async def test_above_the_rate_limit_repeats_of_another_user_look_like_an_unknown_session(
    site: Site,
) -> None:
    _, session = await bound(site)

    def reached() -> NoReturn:
        raise TooManyRequests()

    first = await submit(site, session, "hello", key="k")
    for owner, id in (("bea", session), ("ann", SessionId("nobody"))):
        with pytest.raises(TooManyRequests):
            await site.node.submitter.submit(Submission(ask(id, "hello", key="k", owner=owner)), reached)
    again = await site.node.submitter.submit(Submission(ask(session, "hello", key="k")), reached)
    assert again.task_id == first.task_id


async def test_I21_an_sdk_retry_of_a_conversation_attaches_to_its_task(site: Site) -> None:
    machine = await site.machine()
    await site.bind(machine, published=True)
    first = await site.node.submitter.submit(said_in("c", "hello"))
    await first.leave()
    retry = await site.node.submitter.submit(said_in("c", "hello", is_retry=True))
    assert (retry.task_id, retry.turn) == (first.task_id, first.turn)
    with pytest.raises(SessionBusy):
        await site.node.submitter.submit(said_in("c", "something else"))
    await machine.complete(await machine.claim(), "hi")
    assert (await outcome(retry)).turn.id == first.turn
    late = await site.node.submitter.submit(said_in("c", "hello", is_retry=True))
    assert (late.replayed, late.turn) == (True, first.turn)


async def test_a_conversation_of_another_user_on_a_private_runtime_is_not_found(site: Site) -> None:
    machine = await site.machine()
    await site.bind(machine, published=True)
    handle = await site.node.submitter.submit(said_in("c", "hello"))
    await machine.complete(await machine.claim(), "hi")
    await outcome(handle)
    with pytest.raises(SessionNotFound):
        await site.node.submitter.submit(said_in("c", "what did she say?", owner="bea"))
    await site.work.runtimes.share(site.tenant, machine.id, ["bea"], "ann")
    shared = await site.node.submitter.submit(said_in("c", "hello", "hi", "and now?", owner="bea"))
    assert shared.session == handle.session


async def test_a_session_with_a_task_that_waits_is_kept_however_old_it_is(site: Site) -> None:
    _, owing = await bound(site)
    idle = (await site.node.sessions.create(site.tenant, AGENT, setter=ANN)).id
    await submit(site, owing, "one")
    assert await Retention(site.node.deps, site.node.sessions, seconds=-1.0).step() == 1
    assert await site.store.get_session(site.tenant, idle) is None
    assert (await site.session(owing)).status is SessionStatus.QUEUED


async def test_a_conversation_on_a_runtime_that_changes_on_each_try_is_tried_a_few_times(site: Site) -> None:
    machine = await site.machine()
    await site.bind(machine, published=True)
    first = await site.node.submitter.submit(said_in("c", "hello"))
    await machine.complete(await machine.claim(), "hi")
    assert (await outcome(first)).status is AttemptStatus.COMMITTED
    session = await site.node.deps.store.find_conversation(site.tenant, "c")
    assert session is not None
    writes: list[str] = []

    async def jitter(point: str) -> None:
        if point == "store.enqueue_task":
            writes.append(point)
            appended = Ask(site.tenant, session.id, (user("meanwhile"),), kind=TurnKind.APPEND)
            await outcome(await site.node.submitter.submit(Submission(appended)))

    site.cluster.faults(site.node).jitter = jitter
    retry = said_in("c", "hello", "hi", "more", is_retry=True)
    assert retry.conversation is not None
    retry = replace(retry, conversation=replace(retry.conversation, reconciles=True))
    with pytest.raises(SessionBusy, match=f"stayed busy through {MOST_TRIES} tries"):
        await site.node.submitter.submit(retry)
    assert len(writes) == MOST_TRIES // 2, "an SDK's retry reads before each write, and reading counts, too"

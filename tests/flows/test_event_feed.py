"""Watching a session: the exact suffix, or one explicit resync (I22), and always an end (I24)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from itertools import pairwise

import pytest

from lastgood.engine.providers.provider import Chunk, ModelAnswer, ModelCall
from lastgood.flows.event_feed import follow
from lastgood.flows.turn_handle import TurnHandle
from lastgood.model.events import EventKind, StoredEvent, TextStreamed
from lastgood.model.ids import DEFAULT_TENANT, AttemptId, SessionId
from lastgood.model.messages import assistant
from lastgood.model.sessions import Usage
from lastgood.wiring import Lastgood
from tests.flows.cluster import LIMITS, PATIENCE_SECONDS, Cluster, Gate, eventually, gate_tool

pytestmark = pytest.mark.anyio


async def watched(
    node: Lastgood, session: SessionId, *, after: int = 0, until: AttemptId | None = None
) -> list[StoredEvent]:
    async with asyncio.timeout(PATIENCE_SECONDS):
        return [event async for event in follow(node.deps, DEFAULT_TENANT, session, after=after, until=until)]


async def tidied(cluster: Cluster, node: Lastgood, session: SessionId) -> int:
    """Deletes the session's events; returns the number of the last one. While a sweep of the node does the
    same, this one does nothing."""

    async def dropped() -> int:
        await node.deps.store.tidy(events_older_than=-1.0, keys_older_than=1e9)
        return (await cluster.get(session)).events_dropped

    found: int = await eventually(dropped)
    return found


async def test_I22_a_watcher_that_comes_back_gets_exactly_what_it_missed(
    cluster: Cluster, node: Lastgood
) -> None:
    session = await cluster.session(node, title="named")
    await cluster.good(node, session, "one")
    last = await cluster.submit(node, session, "two")
    whole = await watched(node, session, until=last.attempt)
    assert [b.seq - a.seq for a, b in pairwise(whole)] == [1] * (len(whole) - 1)
    for event in whole:
        rest = await watched(node, session, after=event.seq, until=last.attempt)
        assert rest == [later for later in whole if later.seq > event.seq]


async def test_I22_a_watcher_whose_events_are_gone_gets_one_resync(cluster: Cluster, node: Lastgood) -> None:
    session = await cluster.session(node, title="named")
    await cluster.good(node, session, "one")
    seen = (await node.deps.store.read_events(DEFAULT_TENANT, session, after=0))[0]
    dropped = await tidied(cluster, node, session)
    assert dropped > seen.seq
    last = await cluster.submit(node, session, "two")
    events = await watched(node, session, after=seen.seq, until=last.attempt)
    assert [event.kind for event in events].count(EventKind.RESYNC) == 1
    assert (events[0].kind, events[0].seq) == (EventKind.RESYNC, dropped)
    assert events[1].seq == dropped + 1
    # Who had seen everything has missed nothing.
    rest = await watched(node, session, after=dropped, until=last.attempt)
    assert [event.kind for event in rest] == [event.kind for event in events[1:]]


async def test_I22_a_number_that_was_never_given_is_answered_with_a_resync(cluster: Cluster) -> None:
    gate = Gate()
    node = await cluster.node(tools=[gate_tool(gate)])
    session = await cluster.session(node, title="named")
    await cluster.good(node, session, "one")
    now = (await cluster.get(session)).last_event_seq
    last = await cluster.submit(node, session, "!tool gate\n!say two")
    events = follow(node.deps, DEFAULT_TENANT, session, after=now + 10**9, until=last.attempt)
    async with aclosing(events), asyncio.timeout(PATIENCE_SECONDS):
        assert (await anext(events)).kind is EventKind.RESYNC
        gate.open()
        assert [event.kind async for event in events][-1] is EventKind.ATTEMPT_ENDED


async def test_numbers_that_were_skipped_are_no_loss(cluster: Cluster, node: Lastgood) -> None:
    """An interruption leaps; nothing was stored there, so nothing is missed."""
    gate = Gate()
    dying = await cluster.node("dying", tools=[gate_tool(gate)])
    session = await cluster.session(dying, title="named")
    await cluster.submit(dying, session, "!tool gate\n!say never")
    await gate.until_reached()
    before = (await cluster.get(session)).last_event_seq
    await dying.live.close(0)
    last = await cluster.submit(node, session, "two")
    events = await watched(node, session, after=before, until=last.attempt)
    assert EventKind.RESYNC not in {event.kind for event in events}
    assert events[-1].seq > before + 1000


async def test_I24_watching_what_has_ended_ends_also_when_its_events_are_gone(
    cluster: Cluster, node: Lastgood
) -> None:
    session = await cluster.session(node, title="named")
    submitted = await cluster.submit(node, session, "one")
    await cluster.outcome(node, submitted)
    await tidied(cluster, node, session)
    events = await watched(node, session, until=submitted.attempt)
    assert [event.kind for event in events] == [EventKind.RESYNC]


async def test_I23_watchers_that_leave_or_are_slow_change_nothing(cluster: Cluster, node: Lastgood) -> None:
    session = await cluster.session(node, title="named")
    submitted = await cluster.submit(node, session, "!say a b c d e")
    slow = follow(node.deps, DEFAULT_TENANT, session, until=submitted.attempt)
    first = await anext(slow)
    gone = asyncio.create_task(watched(node, session))
    whole = await watched(node, session, until=submitted.attempt)
    gone.cancel()
    assert whole[-2].kind is EventKind.TURN_COMMITTED
    assert [first, *[event async for event in slow]] == whole
    assert not node.deps.signals._subscriptions or await eventually(lambda: _nobody_listens(node))


async def _nobody_listens(node: Lastgood) -> bool:
    return not node.deps.signals._subscriptions


async def test_a_watcher_of_a_deleted_session_is_let_go(cluster: Cluster, node: Lastgood) -> None:
    session = await cluster.session(node, title="named")
    await cluster.good(node, session, "one")
    watching = asyncio.create_task(watched(node, session))
    await node.sessions.delete(DEFAULT_TENANT, session)
    await asyncio.wait_for(watching, PATIENCE_SECONDS)


# -- handed over instead of read back ---------------------------------------------------


class Speaker:
    """A model that says each word when it is told to, and ends when it is told nothing."""

    def __init__(self) -> None:
        self.words: asyncio.Queue[str] = asyncio.Queue()

    async def stream(self, call: ModelCall) -> AsyncGenerator[Chunk | ModelAnswer, None]:
        said = ""
        while word := await self.words.get():
            said += word
            yield Chunk(word)
        yield ModelAnswer(assistant(said), Usage())


async def speaking(cluster: Cluster, speaker: Speaker) -> tuple[Lastgood, TurnHandle]:
    """A turn whose model waits for its words. Its watchers look for themselves only if they must."""
    node = await cluster.node(
        providers={"test/speaker": speaker},
        agents=[cluster.agent(model="test/speaker")],
        limits=replace(LIMITS, poll_seconds=PATIENCE_SECONDS),
    )
    session = await cluster.session(node, title="named")
    return node, await cluster.submit(node, session, "speak")


async def stored(cluster: Cluster, submitted: TurnHandle) -> list[StoredEvent]:
    """What the table holds of the attempt after its begin."""
    found = await cluster.backend.store.read_events(DEFAULT_TENANT, submitted.session, after=0)
    begun = cluster.run_of(submitted).begun.session.last_event_seq
    return [event for event in found if event.attempt == submitted.attempt and event.seq > begun]


async def test_I22_watchers_that_keep_up_read_nothing_from_the_database(cluster: Cluster) -> None:
    speaker = Speaker()
    node, submitted = await speaking(cluster, speaker)
    events = submitted.events(from_begin=False)
    seen = []
    async with aclosing(events), asyncio.timeout(PATIENCE_SECONDS):
        for word in ("one ", "two ", "three "):
            speaker.words.put_nowait(word)
            seen.append(await anext(events))
            assert seen == await stored(cluster, submitted)  # with its number, and stored before it is shown
        assert cluster.faults(node).hits["store.read_events"] == 0
        speaker.words.put_nowait("")
        seen += [event async for event in events]
    assert seen == await stored(cluster, submitted)
    assert seen[-1].kind is EventKind.ATTEMPT_ENDED


async def test_I23_slow_watchers_read_the_table_and_miss_no_event(cluster: Cluster) -> None:
    """However much is stored meanwhile, it holds one batch at most; and nobody else waits for it."""
    speaker = Speaker()
    node, submitted = await speaking(cluster, speaker)
    slow, quick = (submitted.events(from_begin=False) for _ in range(2))
    async with aclosing(slow), aclosing(quick), asyncio.timeout(PATIENCE_SECONDS):
        firsts = [asyncio.ensure_future(anext(events)) for events in (slow, quick)]
        speaker.words.put_nowait("one ")
        seen, _ = await asyncio.gather(*firsts)
        for number, word in enumerate(("two ", "three ", "four "), 2):
            speaker.words.put_nowait(word)
            assert (await anext(quick)).data == TextStreamed(word)
            await cluster.until_received(submitted.session, EventKind.TEXT_STREAMED, number)
        assert cluster.faults(node).hits["store.read_events"] == 0
        (one,) = (one for one in node.deps.signals._subscriptions[submitted.session] if one._is_notified)
        assert one._handed == ()
        speaker.words.put_nowait("")
        assert [seen, *[event async for event in slow]] == await stored(cluster, submitted)
    assert cluster.faults(node).hits["store.read_events"] > 0


async def test_I22_only_what_comes_next_by_its_number_is_taken_from_hand_to_hand(cluster: Cluster) -> None:
    """Something else was stored between: then the table tells what. What was seen is not shown again."""
    speaker = Speaker()
    node, submitted = await speaking(cluster, speaker)
    events = submitted.events(from_begin=False)
    async with aclosing(events), asyncio.timeout(PATIENCE_SECONDS):
        first = asyncio.ensure_future(anext(events))
        speaker.words.put_nowait("one ")
        one = await first
        second = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        node.deps.signals.notify(submitted.session, [replace(one, seq=one.seq + 2)])
        await eventually(lambda: _has_read(cluster, node))
        node.deps.signals.notify(submitted.session, [one])
        await asyncio.sleep(0)
        assert not second.done()
        speaker.words.put_nowait("two ")
        two = await second
        speaker.words.put_nowait("")
        assert [one, two, *[event async for event in events]] == await stored(cluster, submitted)


async def _has_read(cluster: Cluster, node: Lastgood) -> bool:
    return cluster.faults(node).hits["store.read_events"] > 0


async def test_I22_late_watchers_miss_no_event(cluster: Cluster) -> None:
    """Also while nothing more is said, so that nobody tells it to look."""
    speaker = Speaker()
    _node, submitted = await speaking(cluster, speaker)
    speaker.words.put_nowait("one ")
    await cluster.until_received(submitted.session, EventKind.TEXT_STREAMED)
    events = submitted.events(from_begin=False)
    seen: list[StoredEvent] = []
    async with aclosing(events), asyncio.timeout(PATIENCE_SECONDS):
        while not seen or seen[-1].kind is not EventKind.TEXT_STREAMED:
            seen.append(await anext(events))
        speaker.words.put_nowait("")
        seen += [event async for event in events]
    received = await stored(cluster, submitted)
    assert seen[-len(received) :] == received

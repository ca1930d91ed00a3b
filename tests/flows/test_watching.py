"""Watching a session: the exact suffix, or one explicit resync (I22), and always an end (I24)."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from lastgood.flows.watch import follow
from lastgood.model.events import TERMINAL, EventKind, StoredEvent
from lastgood.model.ids import DEFAULT_TENANT, AttemptId, SessionId
from lastgood.wiring import Lastgood
from tests.flows.house import PATIENCE_SECONDS, Gate, House, eventually, gate_tool

pytestmark = pytest.mark.anyio


async def watched(
    node: Lastgood, session: SessionId, *, after: int = 0, until: AttemptId | None = None
) -> list[StoredEvent]:
    async with asyncio.timeout(PATIENCE_SECONDS):
        return [
            event async for event in follow(node.parts, DEFAULT_TENANT, session, after=after, until=until)
        ]


async def tidied(node: Lastgood) -> None:
    await node.parts.store.tidy(events_older_than=-1.0, keys_older_than=1e9)


async def test_I22_a_watcher_that_comes_back_gets_exactly_what_it_missed(
    house: House, node: Lastgood
) -> None:
    session = await house.session(node, title="named")
    await house.good(node, session, "one")
    last = await house.submit(node, session, "two")
    whole = await watched(node, session, until=last.attempt)
    assert [b.seq - a.seq for a, b in pairwise(whole)] == [1] * (len(whole) - 1)
    for event in whole:
        rest = await watched(node, session, after=event.seq, until=last.attempt)
        assert rest == [later for later in whole if later.seq > event.seq]


async def test_I22_a_watcher_whose_events_are_gone_is_told_once(house: House, node: Lastgood) -> None:
    session = await house.session(node, title="named")
    await house.good(node, session, "one")
    seen = (await node.parts.store.read_events(DEFAULT_TENANT, session, after=0))[0]
    await tidied(node)
    dropped = (await house.get(session)).events_dropped
    assert dropped > seen.seq
    last = await house.submit(node, session, "two")
    events = await watched(node, session, after=seen.seq, until=last.attempt)
    assert [event.kind for event in events].count(EventKind.RESYNC) == 1
    assert (events[0].kind, events[0].seq) == (EventKind.RESYNC, dropped)
    assert events[1].seq == dropped + 1
    # Who had seen everything has missed nothing.
    rest = await watched(node, session, after=dropped, until=last.attempt)
    assert [event.kind for event in rest] == [event.kind for event in events[1:]]


async def test_I22_a_number_that_was_never_given_is_answered_with_a_resync(
    house: House, node: Lastgood
) -> None:
    session = await house.session(node, title="named")
    await house.good(node, session, "one")
    now = (await house.get(session)).last_event_seq
    last = await house.submit(node, session, "two")
    events = await watched(node, session, after=now + 10**9, until=last.attempt)
    assert events[0].kind is EventKind.RESYNC
    assert (events[-2].kind in TERMINAL, events[-1].kind) == (True, EventKind.ATTEMPT_ENDED)


async def test_numbers_that_were_skipped_are_no_loss(house: House, node: Lastgood) -> None:
    """An interruption leaps; nothing was stored there, so nothing is missed."""
    gate = Gate()
    dying = await house.node("dying", tools=[gate_tool(gate)])
    session = await house.session(dying, title="named")
    await house.submit(dying, session, "!tool gate\n!say never")
    await gate.until_reached()
    before = (await house.get(session)).last_event_seq
    await dying.live.close(0)
    last = await house.submit(node, session, "two")
    events = await watched(node, session, after=before, until=last.attempt)
    assert EventKind.RESYNC not in {event.kind for event in events}
    assert events[-1].seq > before + 1000


async def test_I24_watching_what_has_ended_ends_also_when_its_events_are_gone(
    house: House, node: Lastgood
) -> None:
    session = await house.session(node, title="named")
    submitted = await house.submit(node, session, "one")
    await house.outcome(node, submitted)
    await tidied(node)
    events = await watched(node, session, until=submitted.attempt)
    assert [event.kind for event in events] == [EventKind.RESYNC]


async def test_I23_watchers_that_leave_or_are_slow_change_nothing(house: House, node: Lastgood) -> None:
    session = await house.session(node, title="named")
    submitted = await house.submit(node, session, "!say a b c d e")
    slow = follow(node.parts, DEFAULT_TENANT, session, until=submitted.attempt)
    first = await anext(slow)
    gone = asyncio.create_task(watched(node, session))
    whole = await watched(node, session, until=submitted.attempt)
    gone.cancel()
    assert whole[-2].kind is EventKind.TURN_COMMITTED
    assert [first, *[event async for event in slow]] == whole
    assert not node.parts.signals._waiting or await eventually(lambda: _nobody_listens(node))


async def _nobody_listens(node: Lastgood) -> bool:
    return not node.parts.signals._waiting


async def test_a_watcher_of_a_deleted_session_is_let_go(house: House, node: Lastgood) -> None:
    session = await house.session(node, title="named")
    await house.good(node, session, "one")
    watching = asyncio.create_task(watched(node, session))
    await node.sessions.delete(DEFAULT_TENANT, session)
    await asyncio.wait_for(watching, PATIENCE_SECONDS)

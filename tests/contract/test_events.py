"""Events: numbered by the store, stored under the hold, never numbered again (I22)."""

import sys
from types import FrameType

import pytest

from lastgood.flows.event_outbox import numbered
from lastgood.model.attempts import AttemptStatus, CommitResult, Committed
from lastgood.model.events import AttemptWaits, Event, EventKind, TextStreamed
from lastgood.model.ids import SessionId
from lastgood.model.sessions import TitleBy
from lastgood.ports import Store
from tests.contract import builders
from tests.contract.builders import STRANGER, TENANT, events, eventually
from tests.contract.conftest import Backend, dump

pytestmark = pytest.mark.anyio


async def numbers(store: Store, session: SessionId, after: int = 0) -> list[int]:
    return [event.seq for event in await store.read_events(TENANT, session, after=after)]


async def test_I22_numbers_are_dense_within_an_attempt_whatever_writes_them(store: Store) -> None:
    session = await builders.session(store)
    tried = await builders.start(store, builders.ask(session), events("1"))
    hold = tried.hold
    assert await store.append_events_if_held(hold, events("2", "3")) == 3
    await store.journal_if_held(hold, [builders.answer("a")], events("4"))
    assert await store.append_events_if_held(hold, []) == 4
    await store.set_title(TENANT, session.id, "t", TitleBy.US, events("5"))
    await store.wait_if_held(hold, {}, 60, events("6"))
    resumed = await store.resume_if_waiting(hold, "node", 60)
    assert resumed is not None
    assert (await store.commit_if_head(resumed, tried.plan(), events("7", "8"))).outcome is Committed.YES
    failed = await builders.start(store, builders.ask(session), events("9"))
    await store.finish_if_held(failed.hold, AttemptStatus.FAILED, None, events("10"))

    found = await store.read_events(TENANT, session.id, after=0)
    assert [event.seq for event in found] == list(range(1, 11))
    assert [event.data for event in found] == [TextStreamed(str(seq)) for seq in range(1, 11)]
    assert (await builders.again(store, session)).last_event_seq == 10


async def test_I22_a_commit_returns_what_its_watchers_would_read(store: Store) -> None:
    session = await builders.session(store)
    tried = await builders.start(store, builders.ask(session), events("1"))
    last, plan = events("2", "3"), tried.plan()
    # Another client's event gets a number in between: only the store knows the last one.
    await store.set_title(TENANT, session.id, "t", TitleBy.US, events("title"))
    result = await store.commit_if_head(tried.hold, plan, last)
    assert result == CommitResult(Committed.YES, 4)
    stored = await store.read_events(TENANT, session.id, after=2)
    assert list(stored) == list(numbered(last, result.last_event, plan.turn.created_at))


async def test_an_event_comes_back_as_it_went_in(store: Store) -> None:
    session = await builders.session(store)
    tried = await builders.start(store, builders.ask(session))
    question = {"text": "é 🧭 \x00", "list": [1, 2.5, None, True], "nested": {"a": {}}}
    data = AttemptWaits(tried.hold.attempt, question)
    await store.append_events_if_held(tried.hold, [Event(tried.hold.attempt, data)])
    (found,) = await store.read_events(TENANT, session.id, after=0)
    assert (found.kind, found.attempt, found.data) == (EventKind.ATTEMPT_WAITS, tried.hold.attempt, data)
    assert found.created_at > 1_600_000_000


async def test_I22_a_watcher_reads_exactly_what_it_has_missed(store: Store) -> None:
    session = await builders.session(store)
    tried = await builders.start(store, builders.ask(session))
    await store.append_events_if_held(tried.hold, events(*map(str, range(20))))
    for after in (0, 1, 7, 19, 20, 21):
        assert await numbers(store, session.id, after) == list(range(after + 1, 21))
    page = await store.read_events(TENANT, session.id, after=5, limit=3)
    assert [event.seq for event in page] == [6, 7, 8]


async def test_a_large_batch_keeps_its_order(store: Store) -> None:
    session = await builders.session(store)
    tried = await builders.start(store, builders.ask(session))
    texts = [str(number) for number in range(700)]
    assert await store.append_events_if_held(tried.hold, events(*texts)) == 700
    found = [
        *await store.read_events(TENANT, session.id, after=0),
        *await store.read_events(TENANT, session.id, after=500),
    ]
    assert [event.data for event in found] == [*map(TextStreamed, texts)]


async def test_I22_numbers_of_sessions_do_not_touch(store: Store) -> None:
    one, other = await builders.session(store), await builders.session(store)
    await builders.start(store, builders.ask(one), events("a", "b"))
    await builders.start(store, builders.ask(other), events("c"))
    assert await numbers(store, one.id) == [1, 2]
    assert await numbers(store, other.id) == [1]


async def test_I10_events_are_stored_only_under_the_hold(backend: Backend) -> None:
    store = backend.store
    session = await builders.session(store)
    tried = await builders.start(store, builders.ask(session), events("a"))
    await store.finish_if_held(tried.hold, AttemptStatus.FAILED, None, events("b"))
    before = await dump(backend)
    assert await store.append_events_if_held(tried.hold, events("late")) is None
    assert not await store.journal_if_held(tried.hold, [], events("late"))
    assert not await store.finish_if_held(tried.hold, AttemptStatus.FAILED, None, events("late"))
    assert await dump(backend) == before


async def test_I22_numbers_leap_when_an_attempt_is_interrupted(store: Store) -> None:
    """A power cut may take the last events after a watcher has seen them: their numbers stay used."""
    session = await builders.session(store)
    tried = await builders.start(store, builders.ask(session), events("a", "b"))
    await store.finish_if_held(tried.hold, AttemptStatus.INTERRUPTED, None, events("end"))
    first, second, end = await numbers(store, session.id)
    assert (first, second) == (1, 2)
    assert end > 1_000_000
    await builders.start(store, builders.ask(session), events("next"))
    assert await numbers(store, session.id, end) == [end + 1]


async def test_I22_numbers_are_not_used_again_after_tidying(store: Store) -> None:
    session = await builders.session(store)
    tried = await builders.start(store, builders.ask(session), events("a", "b"))
    await store.finish_if_held(tried.hold, AttemptStatus.FAILED, None, events("c"))
    assert await store.tidy(events_older_than=3600, keys_older_than=3600) == 0
    assert await numbers(store, session.id) == [1, 2, 3]

    async def tidied() -> bool:
        await store.tidy(events_older_than=0, keys_older_than=3600)
        return not await numbers(store, session.id)

    await eventually(tidied)
    await builders.start(store, builders.ask(session), events("d"))
    assert await numbers(store, session.id) == [4]


async def test_tidying_leaves_the_events_of_a_running_attempt(store: Store) -> None:
    session = await builders.session(store)
    old = await builders.start(store, builders.ask(session), events("old"))
    await store.finish_if_held(old.hold, AttemptStatus.FAILED, None, [])
    await builders.start(store, builders.ask(session), events("new"))

    async def tidied() -> bool:
        await store.tidy(events_older_than=0, keys_older_than=3600)
        return await numbers(store, session.id) == [2]

    await eventually(tidied)
    assert await store.tidy(events_older_than=0, keys_older_than=3600) == 0


async def test_tidying_changes_no_history(backend: Backend) -> None:
    store = backend.store
    session = await builders.session(store)
    await builders.talk(store, session, 2)
    turns = (await dump(backend))["turns"]
    await eventually(lambda: store.tidy(events_older_than=0, keys_older_than=0))
    assert (await dump(backend))["turns"] == turns
    assert len(await store.list_attempts(TENANT, session.id)) == 2


async def test_tidying_takes_small_bites(store: Store) -> None:
    session = await builders.session(store)
    await builders.talk(store, session, 5)

    async def left() -> int:
        await store.tidy(events_older_than=3600, keys_older_than=0, limit=2)
        return sum(
            [
                await store.read_request(TENANT, attempt.turn) is not None
                for attempt in await store.list_attempts(TENANT, session.id)
            ]
        )

    seen: list[int] = []

    async def done() -> bool:
        seen.append(await left())
        return seen[-1] == 0

    await eventually(done)
    assert all(before - after <= 2 for before, after in zip([5, *seen], seen, strict=False))


async def test_I35_events_are_read_within_their_tenant(store: Store) -> None:
    session = await builders.session(store)
    await builders.start(store, builders.ask(session), events("a"))
    assert await store.read_events(STRANGER, session.id, after=0) == ()
    assert await store.read_events(TENANT, SessionId("unknown"), after=0) == ()


async def test_I1_a_page_that_ends_early_does_not_hold_later_reads_at_its_moment(store: Store) -> None:
    """Whoever keeps frames, as debuggers and error reports do, keeps their variables: here an open cursor."""
    session = await builders.session(store)
    tried = await builders.start(store, builders.ask(session), events(*("x" * 400_000 for _ in range(6))))
    frames: list[FrameType] = []
    sys.setprofile(lambda frame, kind, value: frames.append(frame))
    try:
        page = await store.read_events(TENANT, session.id, after=0)
    finally:
        sys.setprofile(None)
    assert 0 < len(page) < 6 or page[-1].seq == 6  # only SQLite cuts pages by their size
    await store.append_events_if_held(tried.hold, events("later"))
    other = await builders.session(store)
    assert await store.get_session(TENANT, other.id) is not None
    assert (await numbers(store, session.id, after=6)) == [7]
    assert frames

"""Leases: at most one holder, judged by database time."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lastgood.model.attempts import AttemptStatus, Committed, Hold, Interrupted
from lastgood.model.ids import AttemptId
from lastgood.ports import Store
from lastgood.store.sqlite import open_sqlite
from tests.contract import builders
from tests.contract.builders import TENANT, eventually
from tests.contract.conftest import Backend, dump

pytestmark = pytest.mark.anyio

SHORT = 0.05


async def expired(store: Store) -> list[AttemptId]:
    return [attempt.id for attempt in await store.expired_attempts(100)]


async def test_I9_fences_rise_with_every_holder(store: Store) -> None:
    session = await builders.session(store)
    fences = [session.fence]
    for status in (AttemptStatus.FAILED, AttemptStatus.INTERRUPTED, AttemptStatus.CANCELLED):
        tried = await builders.start(store, builders.ask(session))
        fences.append(tried.hold.fence)
        await store.wait_if_held(tried.hold, {}, 60, [])
        resumed = await store.resume_if_waiting(tried.hold, "node", 60)
        assert resumed is not None
        fences.append(resumed.fence)
        await store.finish_if_held(resumed, status, None, [])
        await builders.commit(store, session)
    fences.append((await builders.again(store, session)).fence)
    assert fences[:-1] == sorted(set(fences[:-1]))
    assert fences[-1] > fences[-2]


async def test_I11_a_lease_ends_by_itself(store: Store) -> None:
    session = await builders.session(store)
    tried = await builders.start(store, builders.ask(session), lease_seconds=SHORT)
    await eventually(lambda: expired(store))
    standing = await builders.refused(store, builders.ask(session))
    assert standing.lease_expired
    assert standing.holder is not None
    assert standing.holder.id == tried.hold.attempt
    # Only a sweep or the next request ends it: until then it is held.
    assert standing.holder.status is AttemptStatus.RUNNING


async def test_I12_an_expired_attempt_is_ended_and_the_session_continues(store: Store) -> None:
    session = await builders.session(store)
    dead = await builders.start(store, builders.ask(session), lease_seconds=SHORT)
    await eventually(lambda: expired(store))
    assert await store.finish_if_held(dead.hold, AttemptStatus.INTERRUPTED, None, [], only_if_expired=True)
    assert await expired(store) == []
    await builders.commit(store, session)
    assert (await store.commit_if_head(dead.hold, dead.plan(), [])).outcome is Committed.LOST


async def test_a_sweep_never_ends_an_attempt_that_lives(backend: Backend) -> None:
    store = backend.store
    tried = await builders.start(store, builders.ask(await builders.session(store)))
    before = await dump(backend)
    ended = await store.finish_if_held(
        tried.hold, AttemptStatus.INTERRUPTED, None, builders.events("x"), only_if_expired=True
    )
    assert not ended
    assert await dump(backend) == before
    assert await expired(store) == []


async def test_a_renewed_lease_is_kept(store: Store) -> None:
    session = await builders.session(store)
    tried = await builders.start(store, builders.ask(session), lease_seconds=SHORT)
    await eventually(lambda: expired(store))
    # Late, but nobody has taken the session: the hold still stands.
    renewed = await store.renew_leases([tried.hold], 60)
    assert renewed[tried.hold.attempt].hold == tried.hold
    assert await expired(store) == []
    assert not await store.finish_if_held(
        tried.hold, AttemptStatus.INTERRUPTED, None, [], only_if_expired=True
    )
    assert not (await builders.refused(store, builders.ask(session))).lease_expired


async def test_I11_a_lost_lease_cannot_be_renewed(store: Store) -> None:
    lost = await builders.start(store, builders.ask(await builders.session(store)))
    kept = await builders.start(store, builders.ask(await builders.session(store)))
    await store.finish_if_held(lost.hold, AttemptStatus.INTERRUPTED, None, [])
    stale = Hold(TENANT, kept.hold.session, kept.hold.attempt, kept.hold.fence - 1)
    renewed = await store.renew_leases([lost.hold, kept.hold], 60)
    assert list(renewed) == [kept.hold.attempt]
    assert await store.renew_leases([stale], 60) == {}
    assert await store.renew_leases([], 60) == {}


async def test_I12_a_waiting_attempt_expires_by_its_deadline_alone(store: Store) -> None:
    session = await builders.session(store)
    patient = await builders.start(store, builders.ask(session), lease_seconds=SHORT)
    await store.wait_if_held(patient.hold, {}, 60, [])
    other = await builders.start(store, builders.ask(await builders.session(store)), lease_seconds=SHORT)
    # The other lease began later, so by now the waiting one's would be over too.
    await eventually(lambda: expired(store))
    assert await expired(store) == [other.hold.attempt]
    assert not (await builders.refused(store, builders.ask(session))).lease_expired
    assert not await store.finish_if_held(patient.hold, AttemptStatus.FAILED, None, [], only_if_expired=True)

    asked = await builders.start(store, builders.ask(await builders.session(store)))
    await store.wait_if_held(asked.hold, {}, SHORT, [])

    async def over() -> bool:
        return asked.hold.attempt in await expired(store)

    await eventually(over)
    assert await store.finish_if_held(asked.hold, AttemptStatus.FAILED, None, [], only_if_expired=True)


async def test_running_attempts_are_those_with_a_lease(store: Store) -> None:
    running = await builders.start(store, builders.ask(await builders.session(store)))
    waiting = await builders.start(store, builders.ask(await builders.session(store)))
    await store.wait_if_held(waiting.hold, {}, 60, [])
    failed = await builders.start(store, builders.ask(await builders.session(store)))
    await store.finish_if_held(failed.hold, AttemptStatus.FAILED, None, [])
    await builders.commit(store, await builders.session(store))
    assert [attempt.id for attempt in await store.running_attempts(10)] == [running.hold.attempt]


async def test_limits_are_kept(store: Store) -> None:
    for _ in range(3):
        await builders.start(store, builders.ask(await builders.session(store)), lease_seconds=-1.0)
        promised = await builders.start(store, builders.ask(await builders.session(store), durable=True))
        await store.finish_if_held(promised.hold, AttemptStatus.INTERRUPTED, None, [])
    assert len(await store.expired_attempts(2)) == 2
    assert len(await store.running_attempts(2)) == 2
    assert len(await store.interrupted_asks(2, deaths_below=3)) == 2


async def test_durable_requests_that_were_interrupted_are_found_with_their_steps(store: Store) -> None:
    session = await builders.session(store)
    turn = await builders.commit(store, session)
    tried = await builders.start(store, builders.ask(session, durable=True))
    steps = (builders.answer("one"), builders.result("1", "two"))
    await store.journal_if_held(tried.hold, steps, [])
    assert await store.interrupted_asks(10, deaths_below=3) == ()
    await store.finish_if_held(tried.hold, AttemptStatus.INTERRUPTED, None, [])
    (found,) = await store.interrupted_asks(10, deaths_below=3)
    assert isinstance(found, Interrupted)
    assert found.attempt == await store.get_attempt(TENANT, tried.hold.attempt)
    assert found.request == await store.read_request(TENANT, tried.begin.turn)
    assert (found.steps, found.head) == (steps, turn.id)


async def test_only_the_newest_try_of_a_durable_request_counts(store: Store) -> None:
    session = await builders.session(store)
    first = await builders.start(store, builders.ask(session, durable=True))
    await store.finish_if_held(first.hold, AttemptStatus.INTERRUPTED, None, [])
    second = await builders.start(store, first.begin.ask, turn=first.begin.turn, again=True)
    assert await store.interrupted_asks(10, deaths_below=3) == ()  # it is being tried
    await store.finish_if_held(second.hold, AttemptStatus.INTERRUPTED, None, [])
    (found,) = await store.interrupted_asks(10, deaths_below=3)
    assert (found.attempt.id, found.attempt.number) == (second.hold.attempt, 2)
    third = await builders.start(store, first.begin.ask, turn=first.begin.turn, again=True)
    await store.finish_if_held(third.hold, AttemptStatus.FAILED, None, [])
    assert await store.interrupted_asks(10, deaths_below=3) == ()


@pytest.mark.parametrize("status", [AttemptStatus.FAILED, AttemptStatus.CANCELLED, AttemptStatus.SUPERSEDED])
async def test_an_ask_that_has_its_outcome_is_not_tried_again(store: Store, status: AttemptStatus) -> None:
    tried = await builders.start(store, builders.ask(await builders.session(store), durable=True))
    await store.finish_if_held(tried.hold, status, None, [])
    await builders.commit(store, await builders.session(store), durable=True)
    assert await store.interrupted_asks(10, deaths_below=3) == ()


async def test_a_plain_request_and_a_busy_session_are_not_changed(store: Store) -> None:
    plain = await builders.start(store, builders.ask(await builders.session(store)))
    await store.finish_if_held(plain.hold, AttemptStatus.INTERRUPTED, None, [])
    session = await builders.session(store)
    promised = await builders.start(store, builders.ask(session, durable=True))
    await store.finish_if_held(promised.hold, AttemptStatus.INTERRUPTED, None, [])
    other = await builders.start(store, builders.ask(session))
    assert await store.interrupted_asks(10, deaths_below=3) == ()
    await store.finish_if_held(other.hold, AttemptStatus.FAILED, None, [])
    assert len(await store.interrupted_asks(10, deaths_below=3)) == 1


# --- a clock moved by hand (SQLite) ------------------------------------------------------------------------


class Hands:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def hands() -> Hands:
    return Hands()


@pytest.fixture
async def clocked(tmp_path: Path, hands: Hands) -> AsyncIterator[Store]:
    store = open_sqlite(tmp_path / "clocked.db", inline=True, clock=hands)
    yield store
    await store.close()


async def test_I11_a_lease_holds_to_its_last_moment_and_not_longer(clocked: Store, hands: Hands) -> None:
    tried = await builders.start(clocked, builders.ask(await builders.session(clocked)), lease_seconds=15.0)
    hands.now += 15.0
    assert await expired(clocked) == []
    assert not await clocked.finish_if_held(
        tried.hold, AttemptStatus.INTERRUPTED, None, [], only_if_expired=True
    )
    hands.now += 0.001
    assert await expired(clocked) == [tried.hold.attempt]
    assert await clocked.finish_if_held(tried.hold, AttemptStatus.INTERRUPTED, None, [], only_if_expired=True)


async def test_I11_a_renewed_lease_counts_from_its_renewal(clocked: Store, hands: Hands) -> None:
    tried = await builders.start(clocked, builders.ask(await builders.session(clocked)), lease_seconds=15.0)
    for _ in range(10):
        hands.now += 14.0
        assert await clocked.renew_leases([tried.hold], 15.0)
        assert await expired(clocked) == []
    hands.now += 16.0
    assert await expired(clocked) == [tried.hold.attempt]


async def test_I12_a_question_waits_exactly_as_long_as_it_may(clocked: Store, hands: Hands) -> None:
    tried = await builders.start(clocked, builders.ask(await builders.session(clocked)), lease_seconds=15.0)
    await clocked.wait_if_held(tried.hold, {}, 3600.0, [])
    attempt = await clocked.get_attempt(TENANT, tried.hold.attempt)
    assert attempt is not None
    assert attempt.deadline == hands.now + 3600.0
    hands.now += 3600.0
    assert await expired(clocked) == []
    hands.now += 1.0
    assert await expired(clocked) == [tried.hold.attempt]
    # An answer that comes before the sweep is too late all the same.
    assert await clocked.resume_if_waiting(tried.hold, "node", 15.0) is None
    assert await expired(clocked) == [tried.hold.attempt]
    hands.now -= 1.0
    assert await clocked.resume_if_waiting(tried.hold, "node", 15.0) is not None
    assert await expired(clocked) == []


async def test_I5_a_clock_that_goes_back_orders_nothing(clocked: Store, hands: Hands) -> None:
    session = await builders.session(clocked)
    made = []
    for _ in range(3):
        made.append(await builders.commit(clocked, session))
        hands.now -= 1000.0
    assert list(await clocked.read_turns(TENANT, made[-1].id)) == made
    others = [(await builders.session(clocked)).id for _ in range(2)]
    page = await clocked.list_sessions(TENANT, limit=10)
    assert [each.id for each in page.sessions] == [*others[::-1], session.id]

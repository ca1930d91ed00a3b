"""The queue and attempts: entries are taken, journaled, settled, returned and parked with them."""

from dataclasses import replace
from typing import Any

import pytest

from lastgood.core.parking_policy import parking_of
from lastgood.model.attempts import AttemptStatus, Committed
from lastgood.model.ids import AttemptId, TurnId
from lastgood.model.queue import Queued, QueueKind
from lastgood.model.sessions import Session
from lastgood.ports import Store
from tests.contract import builders
from tests.contract.builders import TENANT
from tests.contract.conftest import Backend, dump

pytestmark = pytest.mark.anyio

DIED = "The server process died during 3 attempts"

ENDS = [
    AttemptStatus.FAILED,
    AttemptStatus.CANCELLED,
    AttemptStatus.INTERRUPTED,
    AttemptStatus.SUPERSEDED,
]


async def settled(backend: Backend, row: Queued) -> bool:
    ((count,),) = await backend.rows(
        f"SELECT count(*) FROM queued WHERE n = {row.number} AND settled_at IS NOT NULL"
    )
    return bool(count)


def free(row: Queued) -> Queued:
    return replace(row, kind=QueueKind.FOLLOWUP, attempt=None, is_journaled=False)


# --- taken -------------------------------------------------------------------------------------------------


async def test_a_begin_takes_the_followup_it_is_the_turn_of(store: Store) -> None:
    session = await builders.session(store)
    row, other = [await builders.followup(store, session) for _ in range(2)]
    tried = await builders.take(store, session, row)
    assert await builders.queue(store, session) == [replace(row, attempt=tried.hold.attempt), other]
    request = await store.read_request(TENANT, row.turn)
    assert request is not None
    assert request.messages == row.messages


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("why", ["taken", "parked", "settled", "elsewhere", "other turn", "unknown"])
async def test_I13_a_followup_that_does_not_wait_any_more_begins_nothing(
    backend: Backend, why: str, again: bool
) -> None:
    store = backend.store
    session, other = await builders.session(store), await builders.session(store)
    row = await builders.followup(store, session)
    if again:
        tried = await builders.take(store, session, row)
        assert await store.finish_if_held(tried.hold, AttemptStatus.INTERRUPTED, None, [])
    fields: dict[str, Any] = {"turn": row.turn, "takes": row.number, "again": again}
    to = session
    match why:
        case "taken":
            sql = f"UPDATE queued SET attempt_id = 'somebody' WHERE n = {row.number}"
            await backend.execute(sql)
        case "parked":
            await store.park_queued(TENANT, session.id, row.number, "why")
        case "settled":
            await store.drop_queued(TENANT, session.id, row.number)
        case "elsewhere":
            to = other
        case "other turn":
            fields["turn"] = (await builders.followup(store, session)).turn
        case "unknown":
            fields["takes"] = row.number + 1000
        case _:
            raise AssertionError(why)
    before = await dump(backend)
    standing = await builders.refused(store, builders.ask(to), builders.events("x"), **fields)
    assert standing.session == await builders.again(store, to)
    assert standing.holder is None
    assert await dump(backend) == before


async def test_a_followup_is_taken_only_with_a_session_that_is_free(backend: Backend) -> None:
    store = backend.store
    session = await builders.session(store)
    row = await builders.followup(store, session)
    tried = await builders.start(store, builders.ask(session))
    before = await dump(backend)
    standing = await builders.refused(store, builders.ask(session), turn=row.turn, takes=row.number)
    assert standing.holder is not None
    assert standing.holder.hold == tried.hold
    assert await dump(backend) == before


async def interrupted_with_steers(store: Store) -> tuple[Session, builders.Try, list[Queued]]:
    """An attempt with two steers in its journal whose holder died."""
    session = await builders.session(store)
    tried = await builders.start(store, builders.ask(session))
    steers = [await builders.steer(store, session) for _ in range(2)]
    await builders.journal_steers(store, tried.hold, *steers)
    assert await store.finish_if_held(tried.hold, AttemptStatus.INTERRUPTED, None, [])
    assert await builders.queue(store, session) == [free(row) for row in steers]
    return session, tried, steers


def once_more(tried: builders.Try, steers: list[Queued], **fields: Any) -> dict[str, Any]:
    adopted = {"turn": tried.begin.turn, "again": True, "continues": tried.hold.attempt}
    return adopted | {"reclaims": tuple(row.number for row in steers)} | fields


@pytest.mark.parametrize("parked", [False, True])
async def test_I3_adopting_steps_reclaims_their_steers(backend: Backend, parked: bool) -> None:
    store = backend.store
    session, tried, steers = await interrupted_with_steers(store)
    if parked:
        assert await store.park_queued(TENANT, session.id, steers[0].number, "why")
    again = await builders.start(store, builders.ask(session), **once_more(tried, steers))
    held = [replace(row, attempt=again.hold.attempt, is_journaled=True) for row in steers]
    assert [replace(row, parked=None) for row in await builders.queue(store, session)] == held
    assert await store.steers_of(again.hold) == ()
    assert (await store.commit_if_head(again.hold, again.plan(), [])).outcome is Committed.YES
    assert await builders.queue(store, session) == []
    for row in steers:
        assert await settled(backend, row)


@pytest.mark.parametrize("why", ["settled", "taken", "unknown"])
async def test_I13_a_steer_that_is_somewhere_else_by_now_begins_nothing(backend: Backend, why: str) -> None:
    """Half of what it would take is there; it takes nothing."""
    store = backend.store
    session, tried, steers = await interrupted_with_steers(store)
    match why:
        case "settled":
            await store.drop_queued(TENANT, session.id, steers[1].number)
        case "taken":
            await backend.execute(f"UPDATE queued SET attempt_id = 'other' WHERE n = {steers[1].number}")
        case "unknown":
            steers[1] = replace(steers[1], number=steers[1].number + 1000)
        case _:
            raise AssertionError(why)
    before = await dump(backend)
    standing = await builders.refused(store, builders.ask(session), **once_more(tried, steers))
    assert standing.prior is not None
    assert await dump(backend) == before


async def test_a_followup_and_its_steers_are_consumed_together(store: Store) -> None:
    session = await builders.session(store)
    row = await builders.followup(store, session)
    tried = await builders.take(store, session, row)
    steer = await builders.steer(store, session)
    await builders.journal_steers(store, tried.hold, steer)
    assert await store.finish_if_held(tried.hold, AttemptStatus.INTERRUPTED, None, [])
    again = await builders.start(
        store,
        builders.ask(session),
        **once_more(tried, [steer], takes=row.number, attempt=AttemptId("again")),
    )
    assert await builders.queue(store, session) == [
        replace(row, attempt=again.hold.attempt),
        replace(steer, attempt=again.hold.attempt, is_journaled=True),
    ]


# --- committed ---------------------------------------------------------------------------------------------


async def test_a_commit_settles_its_steers_and_keeps_the_others(backend: Backend) -> None:
    store = backend.store
    session, other = await builders.session(store), await builders.session(store)
    row, later = [await builders.followup(store, session) for _ in range(2)]
    tried = await builders.take(store, session, row)
    elsewhere = await builders.start(store, builders.ask(other))
    journaled, late = [await builders.steer(store, session) for _ in range(2)]
    foreign = await builders.steer(store, other)
    last = await builders.followup(store, session)
    await builders.journal_steers(store, tried.hold, journaled)
    assert (await store.commit_if_head(tried.hold, tried.plan(), [])).outcome is Committed.YES
    # In their old places, as something to be run.
    assert await builders.queue(store, session) == [later, free(late), last]
    assert [await settled(backend, each) for each in (row, journaled, late)] == [True, True, False]
    assert await store.steers_of(tried.hold) == ()
    assert await store.steers_of(elsewhere.hold) == (foreign,)


@pytest.mark.parametrize("why", ["fence", "orphaned", "head"])
async def test_I10_a_commit_that_does_not_happen_settles_nothing(backend: Backend, why: str) -> None:
    store = backend.store
    session = await builders.session(store)
    await builders.commit(store, session)
    row = await builders.followup(store, session)
    tried = await builders.take(store, session, row)
    journaled, _ = [await builders.steer(store, session) for _ in range(2)]
    await builders.journal_steers(store, tried.hold, journaled)
    hold, plan = tried.hold, tried.plan()
    match why:
        case "fence":
            hold = replace(hold, fence=hold.fence + 1)
        case "orphaned":
            await store.set_orphaned(hold, True)
        case "head":
            plan = replace(plan, turn=replace(plan.turn, parent=TurnId("another")))
        case _:
            raise AssertionError(why)
    before = await dump(backend)
    assert (await store.commit_if_head(hold, plan, [])).outcome is not Committed.YES
    assert await dump(backend) == before


# --- ended otherwise ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("end", ENDS)
async def test_steers_of_an_attempt_that_ends_are_turns_of_their_own(
    store: Store, end: AttemptStatus, waits: bool
) -> None:
    session = await builders.session(store)
    tried = await builders.start(store, builders.ask(session))
    journaled, late = [await builders.steer(store, session) for _ in range(2)]
    await builders.journal_steers(store, tried.hold, journaled)
    if waits:
        await store.wait_if_held(tried.hold, {"q": 1}, 60, [])
    assert await store.finish_if_held(tried.hold, end, ("code", "why"), [])
    assert await builders.queue(store, session) == [free(journaled), free(late)]


async def fail(
    store: Store,
    session: Session,
    row: Queued,
    end: AttemptStatus,
    *,
    died: bool = False,
    **fields: Any,
) -> Queued:
    """One try of a follow-up that ends without a commit; the row after it."""
    tried = await builders.take(store, session, row, **fields)
    why = ("code", f"why {tried.begun.number}\0")
    parking = parking_of(end, why[1], died=died)
    assert await store.finish_if_held(tried.hold, end, why, [], died=died, parking=parking)
    return await builders.unsettled(store, row)


async def die(store: Store, session: Session, row: Queued, *, again: bool = True) -> Queued:
    return await fail(store, session, row, AttemptStatus.INTERRUPTED, died=True, again=again)


async def test_a_followup_that_fails_twice_parks_and_says_why(store: Store) -> None:
    session = await builders.session(store)
    row = await builders.followup(store, session)
    assert await fail(store, session, row, AttemptStatus.FAILED) == replace(row, failures=1)
    parked = await fail(store, session, row, AttemptStatus.FAILED, again=True)
    assert (parked.failures, parked.attempt) == (2, None)
    assert parked.parked is not None
    assert parked.parked[:-1] == "why 2"
    assert await store.waiting_queues(9) == ()
    assert await store.unpark_queued(TENANT, session.id, row.number)
    assert await builders.unsettled(store, row) == row
    assert (await fail(store, session, row, AttemptStatus.FAILED, again=True)).parked is None


async def test_a_followup_that_fails_without_output_is_parked(store: Store) -> None:
    session = await builders.session(store)
    row = await builders.followup(store, session)
    for again in (False, True):
        tried = await builders.take(store, session, row, again=again)
        parking = parking_of(AttemptStatus.FAILED, None)
        assert await store.finish_if_held(tried.hold, AttemptStatus.FAILED, None, [], parking=parking)
    assert (await builders.unsettled(store, row)).parked


async def test_a_followup_that_is_cancelled_parks_at_once(store: Store) -> None:
    session = await builders.session(store)
    row = await builders.followup(store, session)
    found = await fail(store, session, row, AttemptStatus.CANCELLED)
    assert found == replace(row, parked="The turn was cancelled")


async def test_a_followup_that_makes_room_waits_again(store: Store) -> None:
    session = await builders.session(store)
    row = await builders.followup(store, session)
    for again in (False, True, True, True):
        assert await fail(store, session, row, AttemptStatus.SUPERSEDED, again=again) == row


async def test_a_followup_whose_server_died_three_times_parks(store: Store) -> None:
    session = await builders.session(store)
    row = await builders.followup(store, session)
    for again in (False, True):
        assert await die(store, session, row, again=again) == row
    found = await die(store, session, row)
    assert found == replace(row, parked=DIED)


async def test_I12_a_followup_whose_attempts_were_interrupted_otherwise_does_not_park(store: Store) -> None:
    """An outage of the store or a restart says nothing about the turn."""
    session = await builders.session(store)
    row = await builders.followup(store, session)
    assert await die(store, session, row, again=False) == row
    assert await die(store, session, row) == row
    for _ in range(5):
        assert await fail(store, session, row, AttemptStatus.INTERRUPTED, again=True) == row
    found = await die(store, session, row)
    assert found == replace(row, parked=DIED)


async def test_a_death_is_no_failure_and_a_failure_no_death(store: Store) -> None:
    session = await builders.session(store)
    row = await builders.followup(store, session)
    await fail(store, session, row, AttemptStatus.FAILED)
    for _ in range(2):
        assert await die(store, session, row) == replace(row, failures=1)
    found = await die(store, session, row)
    assert found == replace(row, failures=1, parked=DIED)


async def test_what_ends_one_attempt_does_not_touch_the_queue_of_another(store: Store) -> None:
    session, other = await builders.session(store), await builders.session(store)
    own, waits = [await builders.followup(store, session) for _ in range(2)]
    tried = await builders.take(store, session, own)
    await builders.start(store, builders.ask(other))
    rows = [await builders.steer(store, other), await builders.followup(store, other)]
    assert await store.finish_if_held(tried.hold, AttemptStatus.FAILED, ("code", "why"), [])
    assert await builders.queue(store, other) == rows
    assert await builders.queue(store, session) == [replace(own, failures=1), waits]


@pytest.mark.parametrize("end", ENDS)
async def test_I10_an_end_that_comes_too_late_gives_nothing_back(
    backend: Backend, end: AttemptStatus
) -> None:
    store = backend.store
    session = await builders.session(store)
    tried = await builders.take(store, session, await builders.followup(store, session))
    await builders.steer(store, session)
    before = await dump(backend)
    late = replace(tried.hold, fence=tried.hold.fence + 1)
    assert not await store.finish_if_held(late, end, None, builders.events("x"))
    assert not await store.finish_if_held(tried.hold, end, None, [], only_if_expired=True)
    assert await dump(backend) == before


async def test_a_turn_of_which_nothing_is_queued_does_not_look_at_the_queue(backend: Backend) -> None:
    """Most turns: for them the queue costs nothing, whatever was before them."""
    store = backend.store
    session = await builders.session(store)
    tried = await builders.take(store, session, await builders.followup(store, session))
    assert (await store.commit_if_head(tried.hold, tried.plan(), [])).outcome is Committed.YES
    await backend.execute("ALTER TABLE queued RENAME TO taken_away")
    try:
        await builders.commit(store, session)
        for end in ENDS:
            tried = await builders.start(store, builders.ask(session))
            assert await store.journal_if_held(tried.hold, [builders.answer("one")], builders.events("x"))
            assert await store.finish_if_held(tried.hold, end, ("code", "why"), [])
    finally:
        await backend.execute("ALTER TABLE taken_away RENAME TO queued")

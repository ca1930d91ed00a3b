"""Attempts: who may begin, what is written only under the hold, and every way to end."""

import itertools
from dataclasses import replace
from typing import Any

import pytest

from lastgood.core.lifecycle import ATTEMPT, is_final
from lastgood.model.attempts import (
    NO_SUCH_HEAD,
    Ask,
    AttemptStatus,
    BeginConflict,
    Committed,
    Expected,
    OnLeave,
)
from lastgood.model.events import AttemptWaits, Event, EventKind
from lastgood.model.ids import AttemptId, SessionId, TurnId
from lastgood.model.messages import ToolCall, assistant, user
from lastgood.model.sessions import Session, SessionStatus, TurnKind
from lastgood.ports import Store
from tests.contract import builders
from tests.contract.builders import STRANGER, TENANT
from tests.contract.conftest import Backend, dump

pytestmark = pytest.mark.anyio

ENDS = [AttemptStatus.FAILED, AttemptStatus.CANCELLED, AttemptStatus.INTERRUPTED, AttemptStatus.SUPERSEDED]


async def status_of(store: Store, attempt: AttemptId) -> AttemptStatus:
    found = await store.get_attempt(TENANT, attempt)
    assert found is not None
    return found.status


# --- begin -------------------------------------------------------------------------------------------------


async def test_a_free_session_is_held_by_the_first_begin(store: Store) -> None:
    session = await builders.session(store, model="session/model")
    turn = await builders.commit(store, session)
    tried = await builders.start(store, builders.ask(session, user("next")))
    begun = tried.begun
    assert (begun.turn, begun.number, begun.base) == (tried.begin.turn, 1, turn.head)
    assert begun.model == "session/model"
    assert begun.session == await builders.again(store, session)
    assert (begun.session.status, begun.session.attempt) == (SessionStatus.RUNNING, tried.hold.attempt)
    assert begun.session.fence == begun.hold.fence

    attempt = await store.get_attempt(TENANT, tried.hold.attempt)
    assert attempt is not None
    assert attempt.hold == begun.hold
    assert (attempt.status, attempt.turn, attempt.base) == (AttemptStatus.RUNNING, begun.turn, turn.id)
    assert (attempt.agent_key, attempt.agent_digest) == ("agent", "digest")
    assert (attempt.decision, attempt.model) == ({"agent": "exact"}, "session/model")
    assert (attempt.orphaned, attempt.cancel_asked, attempt.question) == (False, False, None)
    assert attempt.ended_at is None


async def test_the_request_is_stored_as_it_was_asked(store: Store) -> None:
    session = await builders.session(store)
    asked = builders.ask(
        session,
        user("one 🧭"),
        assistant("", ToolCall("1", "read", "{}")),
        model="other/model",
        agent_key="other",
        kind=TurnKind.APPEND,
        key="key",
        fingerprint="print",
        caller="caller",
        on_leave=OnLeave.ORPHAN,
        durable=True,
    )
    tried = await builders.start(store, asked)
    request = await store.read_request(TENANT, tried.begin.turn)
    assert request is not None
    for field in (
        "tenant",
        "session",
        "messages",
        "model",
        "agent_key",
        "kind",
        "key",
        "fingerprint",
        "caller",
    ):
        assert getattr(request, field) == getattr(asked, field)
    assert (request.turn, request.on_leave, request.durable) == (tried.begin.turn, OnLeave.ORPHAN, True)


@pytest.mark.parametrize(
    ("asked", "of_session", "runs_on"),
    [
        ("ask/model", "session/model", "ask/model"),
        (None, "session/model", "session/model"),
        (None, None, "default/model"),
    ],
)
async def test_M3_3_the_model_is_the_asked_one_else_the_sessions_else_the_agents(
    store: Store, asked: str | None, of_session: str | None, runs_on: str
) -> None:
    session = await builders.session(store, model=of_session)
    assert (await builders.start(store, builders.ask(session, model=asked))).begun.model == runs_on


async def test_I13_M3_1_a_held_session_is_busy_and_the_second_request_changes_nothing(
    backend: Backend,
) -> None:
    store = backend.store
    session = await builders.session(store)
    first = await builders.start(store, builders.ask(session, fingerprint="first", caller="somebody"))
    before = await dump(backend)
    standing = await builders.refused(store, builders.ask(session, key="key"), builders.events("x"))
    assert await dump(backend) == before
    assert standing.session == await builders.again(store, session)
    assert standing.holder == await store.get_attempt(TENANT, first.hold.attempt)
    assert (standing.lease_expired, standing.prior, standing.prior_attempt) == (False, None, None)


async def test_M2_5_other_sessions_continue(store: Store) -> None:
    await builders.start(store, builders.ask(await builders.session(store)))
    await builders.start(store, builders.ask(await builders.session(store)))


async def test_an_unknown_session_cannot_begin(backend: Backend) -> None:
    session = await builders.session(backend.store)
    before = await dump(backend)
    unknown = Ask(TENANT, SessionId("unknown"), (user("x"),), key="key")
    assert await builders.refused(backend.store, unknown, builders.events("x")) == BeginConflict(None)
    assert await dump(backend) == before
    assert await builders.again(backend.store, session) == session


async def test_an_expected_head_is_compared_where_the_session_is_taken(backend: Backend) -> None:
    store = backend.store
    session = await builders.session(store)
    first = await builders.commit(store, session)
    second = await builders.commit(store, session)
    before = await dump(backend)
    standing = await builders.refused(
        store, builders.ask(session, expected_head=first.id), builders.events("x")
    )
    assert standing.holder is None
    assert await dump(backend) == before
    await builders.start(store, builders.ask(session, expected_head=second.id))


async def test_an_expected_head_of_an_empty_session_is_refused(store: Store) -> None:
    session = await builders.session(store)
    await builders.refused(store, builders.ask(session, expected_head=TurnId("some")))


@pytest.mark.parametrize(
    ("expected", "begins"), [("second", True), ("first", False), ("none yet", False), ("no such", False)]
)
async def test_the_head_that_a_begin_expects_is_compared_where_the_session_is_taken(
    backend: Backend, expected: str, begins: bool
) -> None:
    store = backend.store
    session = await builders.session(store)
    first, second = await builders.talk(store, session, 2)
    heads = {"first": Expected(first.id), "second": Expected(second.id), "none yet": Expected(None)}
    condition = heads.get(expected, NO_SUCH_HEAD)
    before = await dump(backend)
    if begins:
        await builders.start(store, builders.ask(session), expected=condition)
    else:
        await builders.refused(store, builders.ask(session), builders.events("x"), expected=condition)
        assert await dump(backend) == before


async def test_an_empty_session_begins_if_none_is_expected(store: Store) -> None:
    await builders.start(store, builders.ask(await builders.session(store), is_first=True))


BODY: dict[str, Any] = {"fingerprint": "print", "caller": "caller"}


async def prior_of(store: Store, session: Session, **fields: Any) -> BeginConflict:
    """What an SDK's retry with this body finds."""
    return await store.look_up(builders.ask(session, is_retry=True, **(BODY | fields)))


async def test_I21_a_retry_finds_the_newest_request_with_its_body(store: Store) -> None:
    session = await builders.session(store)
    for fields in (BODY | {"caller": "other"}, BODY | {"fingerprint": "other"}, BODY):
        await builders.commit(store, session, on_leave=OnLeave.ORPHAN, **fields)
    turn = await builders.commit(store, session, on_leave=OnLeave.ORPHAN, **BODY)
    await builders.commit(store, session, on_leave=OnLeave.ORPHAN, fingerprint="newer", caller="caller")
    await builders.commit(store, session, on_leave=OnLeave.CONTINUE, **BODY)
    standing = await prior_of(store, session)
    assert standing.prior == await store.read_request(TENANT, turn.id)
    assert standing.prior_attempt == await store.get_attempt(TENANT, turn.attempt)
    assert 0 <= standing.prior_age_seconds < 10
    first = standing.prior_age_seconds

    async def older() -> bool:
        return (await prior_of(store, session)).prior_age_seconds > first

    await builders.eventually(older)
    for fields in ({"caller": "nobody"}, {"fingerprint": "nothing"}):
        assert (await prior_of(store, session, **fields)).prior is None


async def test_I21_a_retry_finds_what_failed_or_runs_too(store: Store) -> None:
    session = await builders.session(store)
    await builders.commit(store, session, on_leave=OnLeave.ORPHAN, **BODY)
    tried = await builders.start(store, builders.ask(session, on_leave=OnLeave.ORPHAN, **BODY))
    standing = await prior_of(store, session)
    assert standing.prior_attempt == standing.holder == await store.get_attempt(TENANT, tried.hold.attempt)
    assert standing.prior_age_seconds == 0
    await store.finish_if_held(tried.hold, AttemptStatus.FAILED, None, [])
    standing = await prior_of(store, session)
    assert standing.prior is not None
    assert standing.prior.turn == tried.begin.turn
    # A later try of an older turn is newer than a turn that was begun before it.
    await builders.commit(store, session, on_leave=OnLeave.ORPHAN, **BODY)
    again = await builders.start(store, builders.ask(session), turn=tried.begin.turn, again=True)
    assert (await prior_of(store, session)).prior_attempt == await store.get_attempt(
        TENANT, again.hold.attempt
    )


async def test_I21_a_retry_finds_nothing_in_an_empty_session_or_in_another(store: Store) -> None:
    one, other = await builders.session(store), await builders.session(store)
    await builders.commit(store, one, on_leave=OnLeave.ORPHAN, **BODY)
    assert (await prior_of(store, other)).prior is None


async def test_I21_closed_requests_are_not_found_and_running_ones_stay_open(store: Store) -> None:
    session, other = await builders.session(store), await builders.session(store)
    for to, fields in ((session, BODY), (session, BODY | {"fingerprint": "other"}), (other, BODY)):
        await builders.commit(store, to, on_leave=OnLeave.ORPHAN, **fields)
    await store.close_requests(STRANGER, session.id, **BODY)
    assert (await prior_of(store, session)).prior is not None
    await store.close_requests(TENANT, session.id, **BODY)
    assert (await prior_of(store, session)).prior is None
    for to, fields in ((session, {"fingerprint": "other"}), (other, {})):
        assert (await prior_of(store, to, **fields)).prior is not None
    running = await builders.start(store, builders.ask(session, on_leave=OnLeave.ORPHAN, **BODY))
    await store.close_requests(TENANT, session.id, **BODY)
    assert (await prior_of(store, session)).prior_attempt is not None
    await store.finish_if_held(running.hold, AttemptStatus.FAILED, None, [])
    await store.close_requests(TENANT, session.id, **BODY)
    assert (await prior_of(store, session)).prior is None


async def test_I33_a_try_that_adopts_steps_begins_only_after_the_try_it_was_decided_on(store: Store) -> None:
    """Two nodes retry: the slower one would adopt fewer steps than are finished by then."""
    session = await builders.session(store)
    first = await builders.start(store, builders.ask(session))
    await store.journal_if_held(first.hold, [builders.answer("one")], [])
    await store.finish_if_held(first.hold, AttemptStatus.FAILED, None, [])
    again: dict[str, Any] = {"turn": first.begin.turn, "again": True, "continues": first.hold.attempt}
    second = await builders.start(store, builders.ask(session), **again, follows=1)
    await store.finish_if_held(second.hold, AttemptStatus.FAILED, None, [])
    standing = await builders.refused(store, builders.ask(session), **again, follows=1)
    assert standing.holder is None
    assert standing.prior_attempt == await store.get_attempt(TENANT, second.hold.attempt)
    third = await builders.start(store, builders.ask(session), **again, follows=2)
    assert third.begun.number == 3
    assert [step.message.content for step in await store.read_steps(TENANT, third.hold.attempt)] == ["one"]


@pytest.mark.parametrize("status", ENDS)
async def test_a_turn_that_failed_is_tried_again_under_its_own_id(
    store: Store, status: AttemptStatus
) -> None:
    session = await builders.session(store)
    first = await builders.start(store, builders.ask(session))
    await store.finish_if_held(first.hold, status, None, [])
    second = await builders.start(store, first.begin.ask, turn=first.begin.turn, again=True)
    assert (second.begun.turn, second.begun.number) == (first.begin.turn, 2)
    assert (await store.commit_if_head(second.hold, second.plan(), [])).outcome is Committed.YES
    assert [attempt.number for attempt in await store.list_attempts(TENANT, session.id)] == [1, 2]


async def test_I3_a_turn_that_was_committed_meanwhile_takes_no_further_attempt(backend: Backend) -> None:
    store = backend.store
    session = await builders.session(store)
    turn = await builders.commit(store, session)
    before = await dump(backend)
    standing = await builders.refused(
        store, builders.ask(session), builders.events("x"), turn=turn.id, again=True
    )
    assert await dump(backend) == before
    assert standing.holder is None
    assert standing.prior is not None
    assert standing.prior.turn == turn.id
    assert standing.prior_attempt is not None
    assert standing.prior_attempt.status is AttemptStatus.COMMITTED


async def test_I3_a_turn_id_is_requested_once(backend: Backend) -> None:
    store = backend.store
    session = await builders.session(store)
    turn = await builders.commit(store, session)
    before = await dump(backend)
    await builders.refused(store, builders.ask(session), builders.events("x"), turn=turn.id)
    assert await dump(backend) == before


# --- steps -------------------------------------------------------------------------------------------------


async def test_steps_come_back_in_order(store: Store) -> None:
    tried = await builders.start(store, builders.ask(await builders.session(store)))
    steps = (builders.answer("one"), builders.result("1", "two é"), builders.answer("three"))
    assert await store.journal_if_held(tried.hold, steps[:1], [])
    assert await store.journal_if_held(tried.hold, steps[1:], builders.events("x"))
    assert await store.read_steps(TENANT, tried.hold.attempt) == steps


@pytest.mark.parametrize(
    "wrong", [{"fence": 7}, {"attempt": AttemptId("other")}, {"session": SessionId("other")}]
)
async def test_I10_steps_and_events_are_written_only_under_the_hold(
    backend: Backend, wrong: dict[str, Any]
) -> None:
    store = backend.store
    tried = await builders.start(store, builders.ask(await builders.session(store)))
    before = await dump(backend)
    hold = replace(tried.hold, **wrong)
    assert not await store.journal_if_held(hold, [builders.answer("x")], builders.events("x"))
    assert await store.append_events_if_held(hold, builders.events("x")) is None
    assert not await store.wait_if_held(hold, {}, 60, builders.events("x"))
    assert not await store.finish_if_held(hold, AttemptStatus.FAILED, None, builders.events("x"))
    assert await store.renew_leases([hold], 60) == {}
    assert await dump(backend) == before


async def test_I33_a_new_try_adopts_the_finished_steps_of_another(store: Store) -> None:
    session = await builders.session(store)
    first = await builders.start(store, builders.ask(session, durable=True))
    steps = (builders.answer("one"), builders.result("1", "two"))
    await store.journal_if_held(first.hold, steps, [])
    await store.finish_if_held(first.hold, AttemptStatus.INTERRUPTED, None, [])
    second = await builders.start(
        store, first.begin.ask, turn=first.begin.turn, again=True, continues=first.hold.attempt
    )
    assert await store.read_steps(TENANT, second.hold.attempt) == steps
    attempt = await store.get_attempt(TENANT, second.hold.attempt)
    assert attempt is not None
    assert attempt.continues == first.hold.attempt
    await store.journal_if_held(second.hold, [builders.answer("three")], [])
    assert len(await store.read_steps(TENANT, second.hold.attempt)) == 3
    assert await store.read_steps(TENANT, first.hold.attempt) == steps


# --- ends --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ENDS)
async def test_I2_an_attempt_without_success_leaves_the_history_unchanged(
    backend: Backend, status: AttemptStatus
) -> None:
    store = backend.store
    session = await builders.session(store)
    await builders.talk(store, session, 2)
    before, turns = await builders.again(store, session), (await dump(backend))["turns"]
    tried = await builders.start(store, builders.ask(session, model="other/model"))
    await store.journal_if_held(tried.hold, [builders.answer("half")], builders.events("half"))
    assert await store.finish_if_held(tried.hold, status, ("code", "why"), builders.events("end"))

    after = await builders.again(store, session)
    assert (after.head, after.usage, after.model) == (before.head, before.usage, before.model)
    assert (after.status, after.attempt) == (SessionStatus.IDLE, None)
    assert (await dump(backend))["turns"] == turns
    attempt = await store.get_attempt(TENANT, tried.hold.attempt)
    assert attempt is not None
    assert (attempt.status, attempt.error_code, attempt.error_message) == (status, "code", "why")
    assert attempt.ended_at is not None
    await builders.commit(store, session)


async def brought_to(store: Store, status: AttemptStatus) -> builders.Try:
    tried = await builders.start(store, builders.ask(await builders.session(store)))
    if status is AttemptStatus.COMMITTED:
        assert (await store.commit_if_head(tried.hold, tried.plan(), [])).outcome is Committed.YES
    elif status is AttemptStatus.WAITING:
        assert await store.wait_if_held(tried.hold, {"ask": "?"}, 60, [])
    elif status is not AttemptStatus.RUNNING:
        assert await store.finish_if_held(tried.hold, status, None, [])
    assert await status_of(store, tried.hold.attempt) is status
    return tried


@pytest.mark.parametrize(("status", "end"), list(itertools.product(AttemptStatus, ENDS)))
async def test_I14_an_attempt_ends_as_the_table_says(
    backend: Backend, status: AttemptStatus, end: AttemptStatus
) -> None:
    store = backend.store
    tried = await brought_to(store, status)
    if end in ATTEMPT[status].values():
        assert await store.finish_if_held(tried.hold, end, None, builders.events("x"))
        assert await status_of(store, tried.hold.attempt) is end
    elif is_final(status):
        before = await dump(backend)
        assert not await store.finish_if_held(tried.hold, end, ("late", "late"), builders.events("x"))
        assert await dump(backend) == before


@pytest.mark.parametrize("status", [status for status in AttemptStatus if is_final(status)])
async def test_I14_an_attempt_that_has_ended_writes_nothing_any_more(
    backend: Backend, status: AttemptStatus
) -> None:
    store = backend.store
    tried = await brought_to(store, status)
    before = await dump(backend)
    assert (
        await store.commit_if_head(tried.hold, tried.plan(), builders.events("x"))
    ).outcome is Committed.LOST
    assert not await store.journal_if_held(tried.hold, [builders.answer("x")], builders.events("x"))
    assert await store.append_events_if_held(tried.hold, builders.events("x")) is None
    assert not await store.wait_if_held(tried.hold, {}, 60, builders.events("x"))
    assert await store.resume_if_waiting(tried.hold, "node", 60) is None
    assert not await store.set_orphaned(tried.hold, True)
    assert not await store.ask_cancel(tried.hold)
    assert await store.renew_leases([tried.hold], 60) == {}
    assert await dump(backend) == before


async def test_exactly_one_attempt_of_a_session_is_live(store: Store) -> None:
    session = await builders.session(store)
    for status in ENDS:
        tried = await builders.start(store, builders.ask(session))
        await builders.refused(store, builders.ask(session))
        live = [each for each in await store.list_attempts(TENANT, session.id) if not is_final(each.status)]
        assert [attempt.id for attempt in live] == [tried.hold.attempt]
        await store.finish_if_held(tried.hold, status, None, [])
    assert all(is_final(attempt.status) for attempt in await store.list_attempts(TENANT, session.id))


async def test_attempts_are_listed_in_the_order_of_their_fences(store: Store) -> None:
    session = await builders.session(store)
    begun = []
    for _ in range(4):
        tried = await builders.start(store, builders.ask(session))
        begun.append(tried.hold.attempt)
        await store.finish_if_held(tried.hold, AttemptStatus.FAILED, None, [])
    listed = await store.list_attempts(TENANT, session.id)
    assert [attempt.id for attempt in listed] == begun
    assert await store.list_attempts(TENANT, session.id, after=listed[0].fence, limit=2) == listed[1:3]
    assert await store.list_attempts(TENANT, session.id, after=listed[-1].fence) == ()


async def test_the_newest_attempt_of_a_turn(store: Store) -> None:
    session = await builders.session(store)
    tried = await builders.start(store, builders.ask(session))
    await store.finish_if_held(tried.hold, AttemptStatus.FAILED, None, [])
    first = await store.newest_attempt(TENANT, tried.begin.turn)
    assert first is not None
    assert (first.id, first.number) == (tried.hold.attempt, 1)
    assert await store.newest_attempt(STRANGER, tried.begin.turn) is None
    assert await store.newest_attempt(TENANT, TurnId("turn_nobody")) is None


# --- waiting -----------------------------------------------------------------------------------------------


async def test_a_waiting_attempt_keeps_its_session_busy_and_shows_its_question(store: Store) -> None:
    session = await builders.session(store)
    tried = await builders.start(store, builders.ask(session))
    asked = [Event(tried.hold.attempt, AttemptWaits(tried.hold.attempt, {}))]
    assert await store.wait_if_held(tried.hold, {"question": ["é?"]}, 60, asked)
    assert (await builders.again(store, session)).status is SessionStatus.WAITING
    standing = await builders.refused(store, builders.ask(session))
    assert standing.holder is not None
    assert standing.holder.status is AttemptStatus.WAITING
    assert standing.holder.question == {"question": ["é?"]}
    assert standing.holder.deadline is not None
    assert standing.holder.ended_at is None
    assert not standing.lease_expired
    assert [event.kind for event in await store.read_events(TENANT, session.id, after=0)] == [
        EventKind.ATTEMPT_WAITS
    ]


async def test_I10_a_resumed_attempt_has_a_new_fence_and_the_old_one_is_dead(backend: Backend) -> None:
    store = backend.store
    session = await builders.session(store)
    tried = await builders.start(store, builders.ask(session))
    old = tried.hold
    await store.wait_if_held(old, {"q": 1}, 60, [])
    new = await store.resume_if_waiting(old, "other node", 60)
    assert new is not None
    assert new == replace(old, fence=new.fence)
    assert new.fence > old.fence
    attempt = await store.get_attempt(TENANT, old.attempt)
    assert attempt is not None
    assert (attempt.hold, attempt.status) == (new, AttemptStatus.RUNNING)
    assert (attempt.question, attempt.deadline) == (None, None)
    assert (await builders.again(store, session)).status is SessionStatus.RUNNING

    before = await dump(backend)
    assert (await store.commit_if_head(old, tried.plan(), [])).outcome is Committed.LOST
    assert not await store.journal_if_held(old, [builders.answer("x")], [])
    assert not await store.finish_if_held(old, AttemptStatus.FAILED, None, [])
    assert await store.resume_if_waiting(old, "node", 60) is None
    assert not await store.ask_cancel(old)
    assert not await store.set_orphaned(old, True)
    assert await dump(backend) == before
    assert (await store.commit_if_head(new, tried.plan(), [])).outcome is Committed.YES


async def test_an_attempt_that_does_not_wait_cannot_be_resumed(backend: Backend) -> None:
    store = backend.store
    tried = await builders.start(store, builders.ask(await builders.session(store)))
    before = await dump(backend)
    assert await store.resume_if_waiting(tried.hold, "node", 60) is None
    assert await dump(backend) == before


async def test_a_waiting_attempt_has_no_lease_to_renew(store: Store) -> None:
    tried = await builders.start(store, builders.ask(await builders.session(store)))
    await store.wait_if_held(tried.hold, {}, 60, [])
    assert await store.renew_leases([tried.hold], 60) == {}


async def test_I14_only_a_running_attempt_commits(backend: Backend) -> None:
    """The table has no such move: who waits must be resumed, under a new fence, first."""
    store = backend.store
    tried = await brought_to(store, AttemptStatus.WAITING)
    before = await dump(backend)
    assert (
        await store.commit_if_head(tried.hold, tried.plan(), builders.events("x"))
    ).outcome is Committed.LOST
    assert await dump(backend) == before


async def test_a_waiter_cannot_wait_twice(backend: Backend) -> None:
    store = backend.store
    tried = await brought_to(store, AttemptStatus.WAITING)
    before = await dump(backend)
    assert not await store.wait_if_held(tried.hold, {"another": "?"}, 60, builders.events("x"))
    assert await dump(backend) == before


# --- orphans and cancels -----------------------------------------------------------------------------------


async def test_I21_an_orphan_commits_only_after_a_client_returns(backend: Backend) -> None:
    store = backend.store
    session = await builders.session(store)
    tried = await builders.start(store, builders.ask(session, on_leave=OnLeave.ORPHAN))
    assert await store.set_orphaned(tried.hold, True)
    before = await dump(backend)
    assert (
        await store.commit_if_head(tried.hold, tried.plan(), builders.events("x"))
    ).outcome is Committed.ORPHANED
    assert await dump(backend) == before
    standing = await builders.refused(store, builders.ask(session))
    assert standing.holder is not None
    assert standing.holder.orphaned

    assert await store.set_orphaned(tried.hold, False)
    assert (await store.commit_if_head(tried.hold, tried.plan(), [])).outcome is Committed.YES


async def test_an_orphan_that_lost_its_hold_is_lost(store: Store) -> None:
    tried = await builders.start(store, builders.ask(await builders.session(store)))
    await store.set_orphaned(tried.hold, True)
    await store.finish_if_held(tried.hold, AttemptStatus.SUPERSEDED, None, [])
    assert (await store.commit_if_head(tried.hold, tried.plan(), [])).outcome is Committed.LOST


async def test_a_cancel_is_seen_when_the_lease_is_renewed(store: Store) -> None:
    tried = await builders.start(store, builders.ask(await builders.session(store)))
    renewed = await store.renew_leases([tried.hold], 60)
    assert not renewed[tried.hold.attempt].cancel_asked
    assert await store.ask_cancel(tried.hold)
    renewed = await store.renew_leases([tried.hold], 60)
    assert renewed[tried.hold.attempt].cancel_asked
    assert renewed[tried.hold.attempt].status is AttemptStatus.RUNNING


async def test_unknown_things_are_not_there(store: Store) -> None:
    assert await store.get_attempt(TENANT, AttemptId("unknown")) is None
    assert await store.read_request(TENANT, TurnId("unknown")) is None
    assert await store.read_steps(TENANT, AttemptId("unknown")) == ()
    assert await store.list_attempts(TENANT, SessionId("unknown")) == ()


# --- failures ----------------------------------------------------------------------------------------------


async def test_failures_of_a_tenant_are_listed_newest_first(store: Store) -> None:
    failed: list[AttemptId] = []
    for status in (*ENDS, AttemptStatus.FAILED):
        tried = await builders.start(store, builders.ask(await builders.session(store)))
        await store.finish_if_held(tried.hold, status, ("code", "why"), builders.events("end"))
        if status in (AttemptStatus.FAILED, AttemptStatus.INTERRUPTED):
            failed.insert(0, tried.hold.attempt)
    await builders.commit(store, await builders.session(store))
    theirs = await builders.start(store, builders.ask(await builders.session(store, STRANGER)))
    await store.finish_if_held(theirs.hold, AttemptStatus.FAILED, None, [])
    assert [one.id for one in await store.failures(TENANT, age_seconds=60, limit=10)] == failed
    assert [one.id for one in await store.failures(TENANT, age_seconds=60, limit=1)] == failed[:1]
    assert await store.failures(TENANT, age_seconds=-60, limit=10) == ()


async def test_sessions_and_their_newest_attempts_are_read_together(store: Store) -> None:
    sessions = [await builders.session(store) for _ in range(3)]
    for session in sessions[:2]:
        failed = await builders.start(store, builders.ask(session))
        await store.finish_if_held(failed.hold, AttemptStatus.FAILED, ("code", "why"), builders.events("end"))
    running = await builders.start(store, builders.ask(sessions[1]))
    theirs = await builders.session(store, STRANGER)
    await builders.start(store, builders.ask(theirs))
    wanted = [*(one.id for one in sessions), theirs.id, SessionId("unknown")]
    found = await store.sessions_of_ids(TENANT, wanted)
    assert set(found) == {one.id for one in sessions}
    assert found[sessions[2].id] == await store.get_session(TENANT, sessions[2].id)
    newest = await store.newest_attempts(TENANT, wanted)
    assert {id: one.status for id, one in newest.items()} == {
        sessions[0].id: AttemptStatus.FAILED,
        sessions[1].id: AttemptStatus.RUNNING,
    }
    assert newest[sessions[1].id].id == running.hold.attempt
    assert await store.sessions_of_ids(TENANT, []) == {}
    assert await store.newest_attempts(TENANT, []) == {}


async def test_sessions_that_wait_for_a_person_are_listed(store: Store) -> None:
    sessions = [await builders.session(store) for _ in range(3)]
    tries = [await builders.start(store, builders.ask(session)) for session in sessions]
    for tried in tries[:2]:
        assert await store.wait_if_held(tried.hold, {"q": 1}, 60, [])
    assert await store.waiting_sessions(TENANT, limit=10) == (sessions[1].id, sessions[0].id)
    assert await store.resume_if_waiting(tries[1].hold, "node", 60) is not None
    assert await store.waiting_sessions(TENANT, limit=10) == (sessions[0].id,)

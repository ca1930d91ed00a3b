"""Whether a turn may start, and who of two requests is meant."""

import itertools
from dataclasses import replace

import pytest

from lastgood.core.admission import (
    RETRY_SECONDS,
    RETRY_WITH_HISTORY_SECONDS,
    Admission,
    Admitted,
    Attach,
    Busy,
    Displace,
    Rejected,
    Replay,
    admit,
)
from lastgood.core.lifecycle import ATTEMPT, Move
from lastgood.errors import IdempotencyMismatch, SessionNotFound, StaleHead
from lastgood.model.attempts import Ask, Attempt, AttemptStatus, BeginConflict, Edit, OnLeave
from lastgood.model.ids import AttemptId, SessionId, TurnId
from lastgood.model.sessions import Head
from tests.core.builders import HEAD, ask, attempt, request, session, standing

KEYED = ask(key="key")
PRIOR = request(key="key")
OTHER = attempt(id=AttemptId("other"), turn=TurnId("other-turn"))
ENDED = (AttemptStatus.FAILED, AttemptStatus.INTERRUPTED, AttemptStatus.SUPERSEDED)
LIVE = (AttemptStatus.RUNNING, AttemptStatus.WAITING)


def refusal(decision: Admission) -> type[Exception]:
    assert isinstance(decision, Rejected)
    return type(decision.error)


def test_an_unknown_session_is_refused() -> None:
    assert refusal(admit(ask(), BeginConflict(None))) is SessionNotFound


def test_a_free_session_admits() -> None:
    assert admit(ask(), standing()) == Admitted()


@pytest.mark.parametrize("status", LIVE)
def test_M2_5_M3_1_a_held_session_is_busy(status: AttemptStatus) -> None:
    holder = attempt(status)
    assert admit(ask(), standing(holder=holder)) == Busy(holder)


@pytest.mark.parametrize("status", [AttemptStatus.COMMITTED, AttemptStatus.CANCELLED])
@pytest.mark.parametrize("holder", [None, OTHER])
def test_I20_known_outcome_is_replayed(status: AttemptStatus, holder: Attempt | None) -> None:
    known = attempt(status)
    found = standing(prior=PRIOR, prior_attempt=known, holder=holder)
    assert admit(KEYED, found) == Replay(known)


def test_I20_a_replay_does_not_ask_for_the_head_it_moved_itself() -> None:
    known = attempt(AttemptStatus.COMMITTED)
    again = ask(key="key", expected_head=TurnId("before"))
    assert admit(again, standing(prior=PRIOR, prior_attempt=known)) == Replay(known)


@pytest.mark.parametrize("status", LIVE)
def test_I20_a_running_try_of_the_same_request_is_attached_to(status: AttemptStatus) -> None:
    running = attempt(status)
    found = standing(prior=PRIOR, prior_attempt=running, holder=running)
    assert admit(KEYED, found) == Attach(running)


@pytest.mark.parametrize("status", ENDED)
def test_I20_a_request_that_failed_is_the_same_turn_tried_again(status: AttemptStatus) -> None:
    found = standing(prior=PRIOR, prior_attempt=attempt(status))
    assert admit(KEYED, found) == Admitted(PRIOR.turn)


@pytest.mark.parametrize("status", ENDED)
def test_a_failed_request_is_tried_again_only_when_the_session_is_free(status: AttemptStatus) -> None:
    found = standing(prior=PRIOR, prior_attempt=attempt(status), holder=OTHER)
    assert admit(KEYED, found) == Busy(OTHER)


def test_a_try_whose_holder_died_is_ended_and_tried_again() -> None:
    dead = attempt()
    found = standing(prior=PRIOR, prior_attempt=dead, holder=dead, lease_expired=True)
    assert admit(KEYED, found) == Admitted(PRIOR.turn, Displace(dead, Move.INTERRUPT))


@pytest.mark.parametrize("status", AttemptStatus)
@pytest.mark.parametrize(
    "prior", [request(key="key", fingerprint="else"), request(key="key", session=SessionId("elsewhere"))]
)
def test_I20_a_key_used_for_another_request_is_refused(status: AttemptStatus, prior: object) -> None:
    assert refusal(admit(KEYED, standing(prior=prior, prior_attempt=attempt(status)))) is IdempotencyMismatch


@pytest.mark.parametrize(
    ("expected", "head", "refused"),
    [
        (None, HEAD, False),
        (None, None, False),
        (HEAD.turn, HEAD, False),
        (HEAD.turn, None, True),
        (TurnId("older"), HEAD, True),
    ],
)
def test_a_head_that_moved_on_is_refused(expected: TurnId | None, head: object, refused: bool) -> None:
    decision = admit(ask(expected_head=expected), standing(session=session(head=head)))
    if refused:
        assert refusal(decision) is StaleHead
    else:
        assert decision == Admitted()


def test_if_none_match_is_rejected_after_the_first_turn() -> None:
    assert refusal(admit(ask(is_first=True), standing())) is StaleHead
    assert admit(ask(is_first=True), standing(session=session(head=None))) == Admitted()


def test_a_stale_request_gets_the_head() -> None:
    decision = admit(ask(expected_head=TurnId("older")), standing())
    assert isinstance(decision, Rejected)
    assert decision.error.detail == {"head": HEAD.turn}


@pytest.mark.parametrize("status", ENDED)
def test_a_failed_request_whose_head_moved_on_is_refused_too(status: AttemptStatus) -> None:
    """Admitting it would loop: the store refuses to begin at another head, now and for ever."""
    again = ask(key="key", expected_head=TurnId("older"))
    assert refusal(admit(again, standing(prior=PRIOR, prior_attempt=attempt(status)))) is StaleHead


def test_a_dead_holder_is_ended_as_interrupted() -> None:
    holder = attempt(orphaned=True)
    found = standing(holder=holder, lease_expired=True)
    assert admit(ask(), found) == Admitted(None, Displace(holder, Move.INTERRUPT))


def test_M2_1_an_orphan_makes_room_for_the_next_request() -> None:
    holder = attempt(orphaned=True)
    found = standing(holder=holder)
    assert admit(ask(), found) == Admitted(None, Displace(holder, Move.SUPERSEDE))


RETRY = ask(is_retry=True)
FULL_RETRY = ask(is_retry=True, has_history=True)
FIRST = request(on_leave=OnLeave.ORPHAN)


@pytest.mark.parametrize("orphaned", [False, True])
@pytest.mark.parametrize("retry", [RETRY, FULL_RETRY])
def test_I21_an_sdk_retry_attaches_to_its_first_try(retry: Ask, orphaned: bool) -> None:
    holder = attempt(orphaned=orphaned)
    assert admit(retry, standing(holder=holder, prior=FIRST, prior_attempt=holder)) == Attach(holder)


NOT_ITS_FIRST = [
    None,
    request(on_leave=OnLeave.CONTINUE),
    request(on_leave=OnLeave.CANCEL),
    request(on_leave=OnLeave.ORPHAN, caller="somebody else"),
    request(on_leave=OnLeave.ORPHAN, fingerprint="else"),
]


@pytest.mark.parametrize("first", NOT_ITS_FIRST)
def test_I21_a_retry_needs_the_same_caller_and_request(first: object) -> None:
    holder = attempt()
    found = standing(holder=holder, prior=first, prior_attempt=holder if first else None)
    assert admit(RETRY, found) == Busy(holder)


COMMITTED = attempt(AttemptStatus.COMMITTED, turn=TurnId("some-turn"))
AGES = [(RETRY, RETRY_SECONDS), (FULL_RETRY, RETRY_WITH_HISTORY_SECONDS)]


@pytest.mark.parametrize(("retry", "age"), [(RETRY, 0.0), *AGES])
def test_I21_a_retry_of_a_committed_turn_gets_its_outcome(retry: Ask, age: float) -> None:
    """Whether it is the head or others were committed since then."""
    found = standing(prior=FIRST, prior_attempt=COMMITTED, prior_age_seconds=age)
    assert admit(retry, found) == Replay(COMMITTED)
    assert admit(replace(retry, expected_head=TurnId("before")), found) == Replay(COMMITTED)
    assert admit(retry, replace(found, holder=OTHER)) == Replay(COMMITTED)


@pytest.mark.parametrize("status", [AttemptStatus.COMMITTED, AttemptStatus.FAILED, AttemptStatus.INTERRUPTED])
@pytest.mark.parametrize(
    ("retry", "first", "age"),
    [
        *((retry, FIRST, age + 0.001) for retry, age in AGES),
        *((RETRY, first, 0.0) for first in NOT_ITS_FIRST),
    ],
)
def test_I21_a_repeated_message_is_a_new_turn(
    retry: Ask, first: object, age: float, status: AttemptStatus
) -> None:
    tried = attempt(status) if first else None
    assert admit(retry, standing(prior=first, prior_attempt=tried, prior_age_seconds=age)) == Admitted()


@pytest.mark.parametrize("status", [AttemptStatus.FAILED, AttemptStatus.INTERRUPTED])
def test_I21_a_retry_of_what_failed_is_the_same_turn_tried_again(status: AttemptStatus) -> None:
    found = standing(prior=FIRST, prior_attempt=attempt(status), prior_age_seconds=RETRY_SECONDS)
    assert admit(RETRY, found) == Admitted(FIRST.turn)
    assert admit(RETRY, replace(found, holder=OTHER)) == Busy(OTHER)


@pytest.mark.parametrize("status", [AttemptStatus.CANCELLED, AttemptStatus.SUPERSEDED])
def test_I21_a_retry_of_what_was_ended_on_purpose_is_a_new_turn(status: AttemptStatus) -> None:
    assert admit(RETRY, standing(prior=FIRST, prior_attempt=attempt(status))) == Admitted()


def test_I21_a_retry_of_a_dead_first_try_is_the_same_turn_tried_again() -> None:
    dead = attempt()
    found = standing(holder=dead, prior=FIRST, prior_attempt=dead, lease_expired=True)
    assert admit(RETRY, found) == Admitted(FIRST.turn, Displace(dead, Move.INTERRUPT))


@pytest.mark.parametrize("status", [AttemptStatus.FAILED, AttemptStatus.INTERRUPTED])
def test_I21_a_retried_edit_of_another_head_is_a_new_turn(status: AttemptStatus) -> None:
    edit = Edit(None, TurnId("before"))
    found = standing(prior=replace(FIRST, edit=edit), prior_attempt=attempt(status))
    now = replace(RETRY, edit=Edit(None, HEAD.turn))
    assert admit(now, found) == Admitted()
    committed = replace(found, prior_attempt=COMMITTED)
    assert admit(now, committed) == Replay(COMMITTED)


@pytest.mark.parametrize(
    ("holder_is", "orphaned", "keyed", "retry"),
    list(itertools.product(("running", "waiting", "dead"), (False, True), (False, True), (False, True))),
)
def test_displacing_is_a_legal_move(holder_is: str, orphaned: bool, keyed: bool, retry: bool) -> None:
    status = AttemptStatus.WAITING if holder_is == "waiting" else AttemptStatus.RUNNING
    holder = attempt(status, orphaned=orphaned)
    found = standing(
        holder=holder,
        lease_expired=holder_is == "dead",
        prior=PRIOR if keyed else FIRST if retry else None,
        prior_attempt=attempt(AttemptStatus.FAILED) if keyed or retry else None,
    )
    decision = admit(ask(key="key" if keyed else None, is_retry=retry), found)
    if isinstance(decision, Admitted):
        assert decision.displace is not None
        assert decision.displace.move in ATTEMPT[holder.status]


# -- edits --------------------------------------------------------------------------


def test_an_edit_begins_only_at_the_head_that_it_replaces() -> None:
    edit = ask(edit=Edit(TurnId("earlier"), HEAD.turn))
    assert admit(edit, standing(session=session(head=HEAD))) == Admitted()
    assert (
        refusal(admit(edit, standing(session=session(head=Head(TurnId("other"), HEAD.seq, b"")))))
        is StaleHead
    )
    assert refusal(admit(edit, standing(session=session(head=None)))) is StaleHead


EDIT = Edit(TurnId("earlier"), HEAD.turn)


@pytest.mark.parametrize("now", [None, Edit(None, HEAD.turn), Edit(TurnId("earlier"), TurnId("newer"))])
def test_a_key_of_an_edit_is_retried_as_that_edit_or_not_at_all(now: Edit | None) -> None:
    failed = attempt(AttemptStatus.FAILED, ended_at=1.0)
    found = standing(session=session(head=HEAD), prior=request(key="k", edit=EDIT), prior_attempt=failed)
    assert refusal(admit(ask(key="k", edit=now), found)) is StaleHead
    assert admit(ask(key="k", edit=EDIT), found) == Admitted(again=request().turn)


def test_a_key_of_an_append_is_not_retried_as_an_edit() -> None:
    failed = attempt(AttemptStatus.FAILED, ended_at=1.0)
    found = standing(session=session(head=HEAD), prior=request(key="k"), prior_attempt=failed)
    assert refusal(admit(ask(key="k", edit=EDIT), found)) is StaleHead

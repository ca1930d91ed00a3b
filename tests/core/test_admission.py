"""Whether a turn may start, and who of two requests is meant."""

import itertools
from dataclasses import replace

import pytest

from lastgood.core.admission import (
    RETRY_SECONDS,
    Admission,
    Admitted,
    Attach,
    Busy,
    Displace,
    Refused,
    Replay,
    admit,
)
from lastgood.core.lifecycle import ATTEMPT, Move
from lastgood.errors import IdempotencyMismatch, SessionNotFound, StaleHead
from lastgood.model.attempts import Ask, Attempt, AttemptStatus, Edit, OnLeave, Standing
from lastgood.model.ids import AttemptId, SessionId, TurnId
from lastgood.model.sessions import Head
from tests.core.given import HEAD, ask, attempt, request, session, standing

KEYED = ask(key="key")
PRIOR = request(key="key")
OTHER = attempt(id=AttemptId("other"), turn=TurnId("other-turn"))
ENDED = (AttemptStatus.FAILED, AttemptStatus.INTERRUPTED, AttemptStatus.SUPERSEDED)
LIVE = (AttemptStatus.RUNNING, AttemptStatus.WAITING)


def refusal(decision: Admission) -> type[Exception]:
    assert isinstance(decision, Refused)
    return type(decision.error)


def test_an_unknown_session_is_refused() -> None:
    assert refusal(admit(ask(), Standing(None))) is SessionNotFound


def test_a_free_session_admits() -> None:
    assert admit(ask(), standing()) == Admitted()


@pytest.mark.parametrize("status", LIVE)
def test_M2_5_M3_1_a_held_session_is_busy(status: AttemptStatus) -> None:
    holder = attempt(status)
    assert admit(ask(), standing(holder=holder, holder_request=request(fingerprint="else"))) == Busy(holder)


@pytest.mark.parametrize("holder_request", [None, request()])
def test_a_plain_repetition_without_a_key_is_busy(holder_request: object) -> None:
    holder = attempt()
    assert admit(ask(), standing(holder=holder, holder_request=holder_request)) == Busy(holder)


@pytest.mark.parametrize("status", [AttemptStatus.COMMITTED, AttemptStatus.CANCELLED])
@pytest.mark.parametrize("holder", [None, OTHER])
def test_I20_a_known_outcome_is_told_again(status: AttemptStatus, holder: Attempt | None) -> None:
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
    found = standing(prior=PRIOR, prior_attempt=running, holder=running, holder_request=PRIOR)
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
    found = standing(prior=PRIOR, prior_attempt=dead, holder=dead, holder_request=PRIOR, lease_expired=True)
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


def test_who_means_to_be_first_is_refused_where_somebody_was_faster() -> None:
    assert refusal(admit(ask(is_first=True), standing())) is StaleHead
    assert admit(ask(is_first=True), standing(session=session(head=None))) == Admitted()


def test_a_stale_request_is_told_the_head() -> None:
    decision = admit(ask(expected_head=TurnId("older")), standing())
    assert isinstance(decision, Refused)
    assert decision.error.detail == {"head": HEAD.turn}


@pytest.mark.parametrize("status", ENDED)
def test_a_failed_request_whose_head_moved_on_is_refused_too(status: AttemptStatus) -> None:
    """Admitting it would loop: the store refuses to begin at another head, now and for ever."""
    again = ask(key="key", expected_head=TurnId("older"))
    assert refusal(admit(again, standing(prior=PRIOR, prior_attempt=attempt(status)))) is StaleHead


def test_a_dead_holder_is_ended_as_interrupted() -> None:
    holder = attempt(orphaned=True)
    found = standing(holder=holder, holder_request=request(), lease_expired=True)
    assert admit(ask(), found) == Admitted(None, Displace(holder, Move.INTERRUPT))


def test_M2_1_an_orphan_makes_room_for_the_next_request() -> None:
    holder = attempt(orphaned=True)
    found = standing(holder=holder, holder_request=request(fingerprint="else"))
    assert admit(ask(), found) == Admitted(None, Displace(holder, Move.SUPERSEDE))


RETRY = ask(is_retry=True)
FIRST = request(on_leave=OnLeave.ORPHAN)


@pytest.mark.parametrize("orphaned", [False, True])
def test_I21_an_sdk_retry_attaches_to_its_first_try(orphaned: bool) -> None:
    holder = attempt(orphaned=orphaned)
    assert admit(RETRY, standing(holder=holder, holder_request=FIRST)) == Attach(holder)


@pytest.mark.parametrize(
    ("retry", "first"),
    [
        (ask(), FIRST),
        (RETRY, None),
        (RETRY, request(on_leave=OnLeave.CONTINUE)),
        (RETRY, request(on_leave=OnLeave.CANCEL)),
        (RETRY, request(on_leave=OnLeave.ORPHAN, caller="somebody else")),
        (RETRY, request(on_leave=OnLeave.ORPHAN, fingerprint="else")),
    ],
)
def test_I21_a_retry_needs_the_same_caller_and_request(retry: Ask, first: object) -> None:
    holder = attempt()
    assert admit(retry, standing(holder=holder, holder_request=first)) == Busy(holder)


LAST = attempt(AttemptStatus.COMMITTED, turn=HEAD.turn)


@pytest.mark.parametrize("age", [0.0, RETRY_SECONDS])
def test_I21_a_retry_of_what_was_committed_just_now_is_told_its_outcome(age: float) -> None:
    found = standing(head_request=FIRST, head_attempt=LAST, head_age_seconds=age)
    assert admit(RETRY, found) == Replay(LAST)
    # It moved the head itself, or another turn runs by now: the answer is the same.
    assert admit(replace(RETRY, expected_head=TurnId("before")), found) == Replay(LAST)
    assert admit(RETRY, replace(found, holder=OTHER)) == Replay(LAST)


@pytest.mark.parametrize(
    ("retry", "first", "age"),
    [
        (ask(), FIRST, 0.0),
        (RETRY, FIRST, RETRY_SECONDS + 0.001),
        (RETRY, None, 0.0),
        (RETRY, request(on_leave=OnLeave.CONTINUE), 0.0),
        (RETRY, request(on_leave=OnLeave.ORPHAN, caller="somebody else"), 0.0),
        (RETRY, request(on_leave=OnLeave.ORPHAN, fingerprint="else"), 0.0),
    ],
)
def test_I21_the_same_words_said_again_are_meant(retry: Ask, first: object, age: float) -> None:
    found = standing(head_request=first, head_attempt=LAST, head_age_seconds=age)
    assert admit(retry, found) == Admitted()


@pytest.mark.parametrize(
    ("holder_is", "orphaned", "keyed", "retry"),
    list(itertools.product(("running", "waiting", "dead"), (False, True), (False, True), (False, True))),
)
def test_whoever_is_displaced_is_displaced_by_a_legal_move(
    holder_is: str, orphaned: bool, keyed: bool, retry: bool
) -> None:
    status = AttemptStatus.WAITING if holder_is == "waiting" else AttemptStatus.RUNNING
    holder = attempt(status, orphaned=orphaned)
    found = standing(
        holder=holder,
        holder_request=FIRST,
        lease_expired=holder_is == "dead",
        prior=PRIOR if keyed else None,
        prior_attempt=attempt(AttemptStatus.FAILED) if keyed else None,
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
def test_a_key_that_stands_for_an_edit_is_tried_again_as_that_edit_or_not_at_all(now: Edit | None) -> None:
    failed = attempt(AttemptStatus.FAILED, ended_at=1.0)
    found = standing(session=session(head=HEAD), prior=request(key="k", edit=EDIT), prior_attempt=failed)
    assert refusal(admit(ask(key="k", edit=now), found)) is StaleHead
    assert admit(ask(key="k", edit=EDIT), found) == Admitted(again=request().turn)


def test_a_key_that_stands_for_an_append_is_not_tried_again_as_an_edit() -> None:
    failed = attempt(AttemptStatus.FAILED, ended_at=1.0)
    found = standing(session=session(head=HEAD), prior=request(key="k"), prior_attempt=failed)
    assert refusal(admit(ask(key="k", edit=EDIT), found)) is StaleHead

"""Every legal move, and that there is no other."""

import itertools

import pytest

from lastgood.core.lifecycle import ATTEMPT, IllegalMove, Move, after, is_final
from lastgood.model.attempts import AttemptStatus

FINAL = {
    AttemptStatus.COMMITTED,
    AttemptStatus.FAILED,
    AttemptStatus.CANCELLED,
    AttemptStatus.INTERRUPTED,
    AttemptStatus.SUPERSEDED,
}


def test_every_state_has_a_row_and_every_move_leads_to_a_state() -> None:
    assert set(ATTEMPT) == set(AttemptStatus)
    assert {target for moves in ATTEMPT.values() for target in moves.values()} <= set(AttemptStatus)
    assert {move for moves in ATTEMPT.values() for move in moves} == set(Move)


def test_I14_final_states_have_no_moves() -> None:
    assert {status for status in AttemptStatus if is_final(status)} == FINAL


@pytest.mark.parametrize("status", AttemptStatus)
def test_every_state_can_be_reached_from_running(status: AttemptStatus) -> None:
    reached = {AttemptStatus.RUNNING}
    while more := {target for known in reached for target in ATTEMPT[known].values()} - reached:
        reached |= more
    assert status in reached


@pytest.mark.parametrize("status", sorted(set(AttemptStatus) - FINAL))
def test_I8_every_open_state_can_come_to_an_end(status: AttemptStatus) -> None:
    assert FINAL & set(ATTEMPT[status].values())


@pytest.mark.parametrize(("status", "move"), list(itertools.product(AttemptStatus, Move)))
def test_a_move_is_in_the_table_or_illegal(status: AttemptStatus, move: Move) -> None:
    if move in ATTEMPT[status]:
        assert after(status, move) is ATTEMPT[status][move]
    else:
        with pytest.raises(IllegalMove, match=f"{status} cannot {move}"):
            after(status, move)


def test_one_move_always_leads_to_the_same_state() -> None:
    for move in Move:
        assert len({moves[move] for moves in ATTEMPT.values() if move in moves}) == 1


def test_only_a_running_attempt_commits() -> None:
    assert [status for status, moves in ATTEMPT.items() if Move.COMMIT in moves] == [AttemptStatus.RUNNING]

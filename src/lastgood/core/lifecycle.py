"""Every legal move of an attempt, in one table. An illegal move is a missing row.

An attempt is `running` while a node works on it and `waiting` while a question to a person is pending: then
there is no lease, but the session stays busy. The other five states are final and never change: an
acknowledged cancel is never followed by a commit, and a late report of a dead holder has no legal move.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from lastgood.model.attempts import AttemptStatus


class Move(StrEnum):
    COMMIT = "commit"
    FAIL = "fail"
    CANCEL = "cancel"
    INTERRUPT = "interrupt"  # its holder died
    SUPERSEDE = "supersede"  # another request took the place of an orphan
    WAIT = "wait"
    RESUME = "resume"


_S = AttemptStatus

ATTEMPT: Mapping[AttemptStatus, Mapping[Move, AttemptStatus]] = {
    _S.RUNNING: {
        Move.COMMIT: _S.COMMITTED,
        Move.FAIL: _S.FAILED,
        Move.CANCEL: _S.CANCELLED,
        Move.INTERRUPT: _S.INTERRUPTED,
        Move.SUPERSEDE: _S.SUPERSEDED,
        Move.WAIT: _S.WAITING,
    },
    _S.WAITING: {
        Move.RESUME: _S.RUNNING,
        Move.CANCEL: _S.CANCELLED,
        Move.FAIL: _S.FAILED,  # nobody answered by the deadline
        Move.SUPERSEDE: _S.SUPERSEDED,  # an orphan can wait, too
    },
    _S.COMMITTED: {},
    _S.FAILED: {},
    _S.CANCELLED: {},
    _S.INTERRUPTED: {},
    _S.SUPERSEDED: {},
}


class IllegalMove(ValueError):
    """There is no such row in the lifecycle table."""


def after(status: AttemptStatus, move: Move) -> AttemptStatus:
    try:
        return ATTEMPT[status][move]
    except KeyError:
        raise IllegalMove(f"an attempt that is {status} cannot {move}") from None


def is_final(status: AttemptStatus) -> bool:
    return not ATTEMPT[status]

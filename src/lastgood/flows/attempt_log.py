"""One log line for each attempt that ends without a commit, wherever it ran.

With the code of the error and never its text, which may contain messages of users.
"""

from __future__ import annotations

import logging

from lastgood.errors import LastgoodError
from lastgood.model.attempts import Attempt, AttemptStatus, Hold
from lastgood.model.ids import TurnId

log = logging.getLogger(__name__)

_BY_PERSON = frozenset({AttemptStatus.CANCELLED, AttemptStatus.SUPERSEDED})


def log_end(
    hold: Hold,
    turn: TurnId,
    number: int,
    status: AttemptStatus,
    error: LastgoodError | None,
    *,
    has_effects: bool,
    **more: object,
) -> None:
    fields = {
        "status": status.value,
        "code": error.code if error else None,
        "tenant": hold.tenant,
        "session": hold.session,
        "turn": turn,
        "attempt": hold.attempt,
        "number": number,
        "has_effects": has_effects,
        **more,
    }
    level = logging.INFO if status in _BY_PERSON else logging.WARNING
    log.log(level, "turn not committed", extra={"fields": fields})


def log_claim_end(
    attempt: Attempt, status: AttemptStatus, error: LastgoodError, *, has_effects: bool, **more: object
) -> None:
    """Of an attempt that a worker has, or had."""
    log_end(
        attempt.hold,
        attempt.turn,
        attempt.number,
        status,
        error,
        has_effects=has_effects,
        task=attempt.task,
        **more,
    )

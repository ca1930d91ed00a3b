"""What a check reads of every row, the same for both databases.

Reads rows of all tenants as they are stored, and reports what is wrong with each: it cannot be read, does not
match its checksum, or refers to something that does not exist. Turns are returned with their neighbours; the
hash chain verifies them.
"""

from __future__ import annotations

from collections.abc import Callable

from lastgood.errors import HistoryDamaged
from lastgood.model.attempts import AttemptStatus
from lastgood.model.ids import TurnId
from lastgood.model.sessions import Head
from lastgood.model.stored_rows import StoredRow, StoredTable, StoredTurn
from lastgood.store.queue_rows import to_queued
from lastgood.store.rows import Row, to_attempt, to_branch, to_request, to_steps, to_turn
from lastgood.store.session_rows import to_session
from lastgood.store.work_row_checks import GONE, check_claim, check_pointer, check_snapshot, check_task


def check_turn(row: Row) -> StoredTurn:
    tenant, parent_tenant, parent, seq, hash, is_reached, segment, *turn = row
    whole = isinstance(seq, int) and isinstance(hash, bytes)
    head = Head(TurnId(str(parent)), seq, hash) if parent is not None and whole else None
    return StoredTurn(str(tenant), to_turn(turn), head, parent_tenant, bool(is_reached), str(segment))


def check_branch(row: Row) -> StoredRow:
    session_tenant, old_tenant, seq, new_tenant, tenant, session, *plain = row
    branch = to_branch(plain)

    def found(problem: str = "") -> StoredRow:
        return StoredRow(str(tenant), str(session), f"branch {branch.number}", problem)

    if session_tenant != tenant:
        return found(GONE)
    if old_tenant != tenant or seq != branch.seq:
        return found(f"its head, turn {branch.head}, does not match the recorded sequence number")
    if new_tenant != tenant:
        return found(f"the turn that replaced it, {branch.replaced_by}, does not exist")
    return found()


def check_session(row: Row) -> StoredRow:
    head_tenant, seq, hash, origin, origin_tenant, is_held, *plain = row
    id, tenant = str(plain[0]), str(plain[1])

    def found(problem: str = "") -> StoredRow:
        return StoredRow(tenant, id, "its row", problem)

    try:
        session = to_session(plain)
    except HistoryDamaged:
        return found("it cannot be read")
    if session.head is not None:
        if head_tenant != tenant:
            return found(f"its head, turn {session.head.turn}, does not exist")
        if (seq, hash) != (session.head.seq, session.head.hash):
            return found(f"its head does not match the stored turn {session.head.turn}")
    if origin is not None and origin_tenant != tenant:
        return found(f"the turn that it was forked from, {origin}, does not exist")
    if session.attempt is not None and not is_held:
        return found(f"the attempt that holds it, {session.attempt}, is not running")
    return found()


def check_attempt(row: Row) -> StoredRow:
    session_tenant, holder, has_turn, has_task, is_claimed, *plain = row
    id, tenant, session = str(plain[0]), str(plain[1]), str(plain[2])

    def found(problem: str = "") -> StoredRow:
        return StoredRow(tenant, session, f"attempt {id}", problem)

    try:
        attempt = to_attempt(plain)
    except HistoryDamaged:
        return found("it cannot be read")
    if session_tenant != tenant:
        return found(GONE)
    if attempt.task is not None and not has_task:
        return found(f"its task, {attempt.task}, does not exist")
    if attempt.task is not None and attempt.ended_at is None and not is_claimed:
        return found(f"it has not ended, but is not the claim of its task, {attempt.task}")
    if attempt.ended_at is None and holder != attempt.id:
        return found("it has not ended, but does not hold its session")
    if attempt.status is AttemptStatus.COMMITTED and not has_turn:
        return found(f"it is committed, but its turn {attempt.turn} does not exist")
    return found()


class CheckSteps:
    """Steps come in the order of their journals; each has to be the next one of its attempt."""

    def __init__(self) -> None:
        self._attempt: object = None
        self._number = 0

    def __call__(self, row: Row) -> StoredRow:
        tenant, session, *plain = row
        attempt, n = plain[0], plain[1]
        self._number = self._number + 1 if attempt == self._attempt else 1
        self._attempt = attempt
        what = f"step {n} of attempt {attempt}"
        if tenant is None:
            return StoredRow("", "", what, "its attempt does not exist")
        try:
            # Judged as the first of a journal, so that one that is missing is reported once.
            to_steps([(session, attempt, 1, *plain[2:])])
        except (HistoryDamaged, ValueError, TypeError, KeyError):
            return StoredRow(tenant, session, what, "it does not match its checksum")
        if n != self._number:
            self._number = n if isinstance(n, int) else self._number
            return StoredRow(tenant, session, what, "the previous step is missing")
        return StoredRow(tenant, session, what)


def check_request(row: Row) -> StoredRow:
    session_tenant, has_turn, *plain = row
    turn, tenant, session = str(plain[0]), str(plain[1]), str(plain[2])

    def found(problem: str = "") -> StoredRow:
        return StoredRow(tenant, session, f"the request for turn {turn}", problem)

    try:
        request = to_request(plain)
    except (HistoryDamaged, ValueError, TypeError, KeyError):
        return found("it does not match its checksum")
    if session_tenant != tenant:
        return found(GONE)
    if (request.messages is None) != bool(has_turn):
        return found(
            "its turn is committed, but its input was not removed" if has_turn else "its input is missing"
        )
    return found()


def check_queued(row: Row) -> StoredRow:
    session_tenant, *plain = row
    number, tenant, session = plain[0], str(plain[1]), str(plain[2])
    what = f"queue entry {number}"
    try:
        is_damaged = to_queued(plain).is_damaged
    except (ValueError, TypeError, KeyError):
        is_damaged = True
    problem = "it does not match its checksum" if is_damaged else ""
    return StoredRow(tenant, session, what, problem or ("" if session_tenant == tenant else GONE))


def checks_of(table: StoredTable) -> Callable[[Row], StoredRow | StoredTurn]:
    match table:
        case StoredTable.SESSIONS:
            return check_session
        case StoredTable.TURNS:
            return check_turn
        case StoredTable.BRANCHES:
            return check_branch
        case StoredTable.ATTEMPTS:
            return check_attempt
        case StoredTable.STEPS:
            return CheckSteps()
        case StoredTable.REQUESTS:
            return check_request
        case StoredTable.QUEUED:
            return check_queued
        case StoredTable.TASKS:
            return check_task
        case StoredTable.CLAIMS:
            return check_claim
        case StoredTable.POINTERS:
            return check_pointer
        case StoredTable.SNAPSHOTS:
            return check_snapshot

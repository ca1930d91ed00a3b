"""Decides which native session a task resumes on its runtime.

A native session belongs to the runtime that made it. Candidates are therefore filtered by the task's runtime
first; only then does the newest win. In A → B → A, the session of A is found although B's is newer.
The task's own runtime decides, not the agent's current one: tasks queued before a move still resume.

Each native session is judged by its newest pointers. It is rejected if it was retired, if it failed to resume
twice in a row, or if it diverged: it has seen a turn that is not part of the history this attempt continues.
If none is left, the runtime gets the committed transcript (`replay`) unless there is none (`fresh`).

The working directory is judged apart from the session, because files survive a change of runtime.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lastgood.model.ids import TaskId, TurnId
from lastgood.model.runtimes import OnAgentChange, OnDirty, RuntimeIdentity
from lastgood.model.tasks import Pointer, PointerOutcome

#: A native session that failed to resume this often, without a committed turn in between, is poisoned.
MOST_FAILED_RESUMES = 2
#: So many rejected native sessions are recorded with a decision; the others are counted. An agent may leave
#: one behind with each turn, and each decision is stored with its task, its attempt, an event and the audit.
MOST_RECORDED = 20


_AGENT_CHANGED = "the agent's definition has changed since"


@dataclass(frozen=True, slots=True)
class ResumePolicy:
    """What the binding of the agent says about native sessions that can be resumed, but must be disclosed."""

    agent_changed: OnAgentChange = OnAgentChange.DISCLOSE
    dirty: OnDirty = OnDirty.DISCLOSE


@dataclass(frozen=True, slots=True)
class ResumeRequest:
    """`history` holds the committed turns that the attempt continues, oldest first, since the last reset."""

    runtime: RuntimeIdentity
    agent_digest: str
    history: Sequence[TurnId]
    was_reset: bool = False  # earlier turns exist, and prompts no longer contain them
    fresh: bool = False  # neither native session nor working directory; also for a rerun
    rerun_of: TaskId | None = None
    policy: ResumePolicy = ResumePolicy()


@dataclass(frozen=True, slots=True)
class RejectedPointer:
    native_session: str
    runtime: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class ResumeDir:
    """`is_local`: the path is on the claiming worker's machine. Elsewhere, or if it `is_outdated`, a snapshot
    is restored, or its absence is disclosed."""

    path: str
    worker: str
    is_local: bool
    is_outdated: bool = False  # turns that the native session has not seen worked in another directory

    @property
    def lacks_files(self) -> bool:
        return self.is_outdated or not self.is_local


@dataclass(frozen=True, slots=True)
class NativeResume:
    """`catch_up_after`: the native session has not seen the turns after this one."""

    native_session: str
    reason: str
    work_dir: ResumeDir | None
    is_behind: bool = False
    catch_up_after: TurnId | None = None
    is_dirty: bool = False  # it holds a prompt whose turn was not committed
    disclosures: tuple[str, ...] = ()
    rejected: tuple[RejectedPointer, ...] = ()


@dataclass(frozen=True, slots=True)
class TranscriptReplay:
    reason: str
    work_dir: ResumeDir | None
    rejected: tuple[RejectedPointer, ...] = ()


@dataclass(frozen=True, slots=True)
class FreshStart:
    reason: str
    work_dir: ResumeDir | None
    rejected: tuple[RejectedPointer, ...] = ()


ResumeDecision = NativeResume | TranscriptReplay | FreshStart

_KINDS = {NativeResume: "native", TranscriptReplay: "replay", FreshStart: "fresh"}


def decide_resume(request: ResumeRequest, pointers: Iterable[Pointer]) -> ResumeDecision:
    """`pointers`: all of the task's scope and agent, in any order."""
    if request.fresh:
        return FreshStart("a fresh start was requested", None)
    newest_first = sorted(pointers, key=lambda pointer: pointer.number, reverse=True)
    # A rerun uses only the sessions of its source task, but their later state counts: one that has seen other
    # turns since, or was poisoned, must not be resumed from an older row.
    source = [one for one in newest_first if request.rerun_of in (None, one.task)]
    work_dir = _work_dir(request, source)
    candidates = {_session_key(one) for one in source}
    rejected: list[RejectedPointer] = []
    for pointer, older in _sessions([one for one in newest_first if _session_key(one) in candidates]):
        objection = _objection(request, pointer, older)
        if objection is None:
            return _native(request, pointer, _own_dir(request, pointer, source) or work_dir, tuple(rejected))
        rejected.append(RejectedPointer(pointer.native_session or "", _runtime_id(pointer), objection))
    return _without_session(request, work_dir, tuple(rejected))


def as_record(decision: ResumeDecision) -> dict[str, Any]:
    """The decision as it is stored with the attempt, returned in the claim and shown to people."""
    record: dict[str, Any] = {
        "decision": _KINDS[type(decision)],
        "reason": decision.reason,
        "rejected": [
            {"native_session": one.native_session, "runtime_id": one.runtime, "reason": one.reason}
            for one in decision.rejected[:MOST_RECORDED]
        ],
    }
    if (more := len(decision.rejected) - MOST_RECORDED) > 0:
        record["rejected_more"] = more
    if decision.work_dir is not None:
        record["work_dir"] = {"path": decision.work_dir.path, "worker": decision.work_dir.worker}
        if decision.work_dir.is_outdated:
            record["work_dir"]["is_outdated"] = True
    if isinstance(decision, NativeResume):
        record["native_session"] = decision.native_session
        record["disclosures"] = list(decision.disclosures)
        if decision.is_behind:
            record["catch_up_after"] = decision.catch_up_after
        if decision.is_dirty:
            record["is_dirty"] = True
    return record


# -- candidates ----------------------------------------------------------------------------


def _sessions(newest_first: Sequence[Pointer]) -> list[tuple[Pointer, list[Pointer]]]:
    """Each native session's newest pointer with its older ones, by the newest. The same id on another runtime
    is another session: CLIs number their sessions by themselves."""
    sessions: dict[tuple[str | None, str | None], list[Pointer]] = {}
    for pointer in newest_first:
        if pointer.native_session is not None:
            sessions.setdefault(_session_key(pointer), []).append(pointer)
    return [(rows[0], rows) for rows in sessions.values()]


def _session_key(pointer: Pointer) -> tuple[str | None, str | None]:
    return pointer.native_session, _runtime_id(pointer)


def _objection(request: ResumeRequest, newest: Pointer, rows: Sequence[Pointer]) -> str | None:
    """Returns why this native session must not be resumed, or None."""
    if newest.runtime is None:
        return "it was recorded without a runtime"
    if (difference := _difference(newest.runtime, request.runtime)) is not None:
        return difference
    if retired := next((row.retired for row in rows if row.retired is not None), None):
        return f"it was retired: {retired}"
    if _failed_resumes(rows) >= MOST_FAILED_RESUMES:
        return f"it failed to resume {MOST_FAILED_RESUMES} times in a row"
    if _has_diverged(request, newest):
        return "it has seen turns that are not part of this history"
    if newest.is_dirty and request.policy.dirty is OnDirty.REPLAY:
        return "it holds a prompt whose turn was not committed"
    if (
        newest.agent_digest != request.agent_digest
        and request.policy.agent_changed is not OnAgentChange.DISCLOSE
    ):
        return _AGENT_CHANGED
    return None


def _difference(made_by: RuntimeIdentity, runtime: RuntimeIdentity) -> str | None:
    if made_by.id != runtime.id:
        return f"it belongs to runtime {made_by.id}"
    if made_by.provider != runtime.provider:
        return f"it belongs to provider {made_by.provider}"
    if made_by.account != runtime.account:
        return f"it belongs to account {made_by.account or '(none)'}"
    if made_by.format != runtime.format:
        return f"it has the session format {made_by.format or '(none)'}"
    return None


def _failed_resumes(newest_first: Sequence[Pointer]) -> int:
    """How often it failed to resume since its last good turn. An ordinary failure of a run that did resume
    ends the count: the session was readable."""
    count = 0
    for row in newest_first:
        if row.outcome is PointerOutcome.RESUME_FAILED:
            count += 1
        elif row.outcome is not PointerOutcome.UNCOUNTED:
            break
    return count


def _has_diverged(request: ResumeRequest, pointer: Pointer) -> bool:
    """Edits, forks and resets leave native sessions behind that have seen other turns."""
    seen = pointer.base if pointer.through is None else pointer.through
    if seen is None:
        return request.was_reset  # it may hold a prompt from before the reset
    return seen not in request.history


# -- decisions -----------------------------------------------------------------------------


def _native(
    request: ResumeRequest,
    pointer: Pointer,
    work_dir: ResumeDir | None,
    rejected: tuple[RejectedPointer, ...],
) -> NativeResume:
    assert pointer.native_session is not None
    head = request.history[-1] if request.history else None
    is_behind = pointer.through != head
    disclosures = []
    state = "last turn committed"
    if pointer.is_dirty:
        state = "it holds a prompt whose turn was not committed"
        disclosures.append(state)
    if is_behind:
        state = "behind the session's newest turn"
        disclosures.insert(0, "it has not seen the newest turns, which are sent along")
    if pointer.agent_digest != request.agent_digest:
        disclosures.append(_AGENT_CHANGED)
    reason = f"same runtime; {state}"
    if request.rerun_of is not None:
        reason = f"rerun of {request.rerun_of}: {reason}"
    return NativeResume(
        pointer.native_session,
        reason,
        work_dir,
        is_behind,
        pointer.through if is_behind else None,
        pointer.is_dirty,
        tuple(disclosures),
        rejected,
    )


def _without_session(
    request: ResumeRequest, work_dir: ResumeDir | None, rejected: tuple[RejectedPointer, ...]
) -> TranscriptReplay | FreshStart:
    if request.policy.agent_changed is OnAgentChange.FRESH and any(
        one.reason == _AGENT_CHANGED for one in rejected
    ):
        return FreshStart(_AGENT_CHANGED, None, rejected)
    if rejected:
        reason = f"native session {rejected[0].native_session} cannot be resumed: {rejected[0].reason}"
    elif request.rerun_of is not None:
        reason = f"task {request.rerun_of} recorded no native session"
    else:
        reason = "no native session is known"
    return (TranscriptReplay if request.history else FreshStart)(reason, work_dir, rejected)


def _work_dir(request: ResumeRequest, newest_first: Sequence[Pointer]) -> ResumeDir | None:
    """The newest one, whichever runtime and machine it is on (M4.3)."""
    newest = next((pointer for pointer in newest_first if pointer.work_dir is not None), None)
    return None if newest is None else _as_work_dir(request, newest)


def _own_dir(request: ResumeRequest, pointer: Pointer, source: Sequence[Pointer]) -> ResumeDir | None:
    """The one that the native session has worked in: some CLIs find their sessions only there."""
    if pointer.work_dir is None or request.rerun_of not in (None, pointer.task):
        return None
    in_history = (
        one for one in source if one.outcome is PointerOutcome.COMMITTED and one.through in request.history
    )
    last = next((one for one in in_history if one.work_dir is not None), pointer)
    is_same = (last.worker, last.work_dir) == (pointer.worker, pointer.work_dir)
    return replace(_as_work_dir(request, pointer), is_outdated=not is_same)


def _as_work_dir(request: ResumeRequest, pointer: Pointer) -> ResumeDir:
    assert pointer.work_dir is not None
    return ResumeDir(pointer.work_dir, pointer.worker, is_local=pointer.worker == request.runtime.worker)


def _runtime_id(pointer: Pointer) -> str | None:
    return None if pointer.runtime is None else pointer.runtime.id

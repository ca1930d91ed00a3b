"""Which native session a task resumes (M4, I26 to I29): the decision as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastgood.core.resume import (
    FreshStart,
    NativeResume,
    ResumeDecision,
    ResumePolicy,
    ResumeRequest,
    TranscriptReplay,
    as_record,
    decide_resume,
)
from lastgood.model.ids import AttemptId, TaskId, TurnId
from lastgood.model.runtimes import OnAgentChange, OnDirty, RuntimeIdentity
from lastgood.model.tasks import Pointer, PointerOutcome

A = RuntimeIdentity("rt_a", "laptop", "claude", "ann")
B = RuntimeIdentity("rt_b", "server", "claude", "ann")
#: A second CLI on the machine of A.
C = RuntimeIdentity("rt_c", "laptop", "codex", "ann")
T1, T2, T3 = TurnId("t1"), TurnId("t2"), TurnId("t3")
ONE = (T1,)
TWO = (T1, T2)
THREE = (T1, T2, T3)
X = TaskId("x")

COMMITTED, FAILED, POISON, UNCOUNTED = PointerOutcome


def row(
    native: str | None,
    runtime: RuntimeIdentity | None = A,
    through: TurnId | None = T1,
    outcome: PointerOutcome = COMMITTED,
    **fields: Any,
) -> Pointer:
    """One pointer. Its number is its place in the list, see `numbered`."""
    worker = "" if runtime is None else runtime.worker
    known: dict[str, Any] = {
        "attempt": AttemptId("a"),
        "task": TaskId("task"),
        "work_dir": f"/work/{worker or 'unknown'}",
        "worker": worker,
        "base": None,
        "agent_digest": "d1",
    }
    return Pointer(
        0, native_session=native, runtime=runtime, through=through, outcome=outcome, **known | fields
    )


def numbered(rows: Sequence[Pointer]) -> list[Pointer]:
    return [replace(one, number=number) for number, one in enumerate(rows, 1)]


def request(runtime: RuntimeIdentity = A, history: Sequence[TurnId] = ONE, **fields: Any) -> ResumeRequest:
    return ResumeRequest(runtime, fields.pop("agent_digest", "d1"), history, **fields)


STRICT = ResumePolicy(OnAgentChange.REPLAY, OnDirty.REPLAY)
FORGETFUL = ResumePolicy(OnAgentChange.FRESH)
REPLAY = "replay"
FRESH = "fresh"

#: (request, pointers from the oldest, the native session or replay or fresh, reasons of the rejected ones)
CASES: dict[str, tuple[ResumeRequest, list[Pointer], str, list[str]]] = {
    # -- nothing known
    "first turn": (request(history=()), [], FRESH, []),
    "history but no pointer": (request(), [], REPLAY, []),
    "attempts that made no native session": (request(), [row(None), row(None)], REPLAY, []),
    "a failed first turn without a session": (request(history=()), [row(None, through=None)], FRESH, []),
    # -- the runtime guard
    "same runtime": (request(), [row("a1")], "a1", []),
    "M4.1 another runtime": (request(B), [row("a1")], REPLAY, ["runtime rt_a"]),
    "M4.1 another CLI on the same machine": (request(C), [row("a1")], REPLAY, ["runtime rt_a"]),
    "M4.2 queued for A before the agent moved to B": (
        request(A, TWO), [row("a1"), row("b1", B, T2)], "a1", ["runtime rt_b"]),
    "A to B": (request(B), [row("a1")], REPLAY, ["runtime rt_a"]),
    "A to B to A": (request(A, TWO), [row("a1"), row("b1", B, T2)], "a1", ["runtime rt_b"]),
    "A to B to A to B": (
        request(B, THREE), [row("a1"), row("b1", B, T2), row("a1", A, T3)], "b1", ["runtime rt_a"]),
    "A to B to A, and B made many": (
        request(A, TWO), [row("a1"), row("b1", B, T2), row("b2", B, T2), row("b3", B, T2)], "a1",
        ["runtime rt_b"] * 3),
    "A to B to C": (
        request(C, TWO), [row("a1"), row("b1", B, T2)], REPLAY, ["runtime rt_b", "runtime rt_a"]),
    "the same id on two runtimes is two sessions": (
        request(A, TWO), [row("7"), row("7", B, T2)], "7", ["runtime rt_b"]),
    "a poisoned session on B says nothing about the same id on A": (
        request(A, ONE), [row("7"), row("7", B, outcome=POISON), row("7", B, outcome=POISON)], "7",
        ["runtime rt_b"]),
    "account switched on one runtime": (
        request(replace(A, account="bob")), [row("a1")], REPLAY, ["to account ann"]),
    "account switched and switched back": (
        request(A, TWO), [row("a1"), row("a2", replace(A, account="bob"), T2)], "a1", ["to account bob"]),
    "first account was not recorded": (
        request(), [row("a1", replace(A, account=""))], REPLAY, ["to account (none)"]),
    "provider changed under one id": (
        request(replace(A, provider="codex")), [row("a1")], REPLAY, ["belongs to provider claude"]),
    "session format changed by an upgrade": (
        request(replace(A, format="2")), [row("a1")], REPLAY, ["session format (none)"]),
    "session format unchanged": (
        request(replace(A, format="2")), [row("a1", replace(A, format="2"))], "a1", []),
    "deleted and registered again": (request(replace(A)), [row("a1")], "a1", []),
    "another machine took over the name": (
        request(replace(A, id="rt_a2", worker="new")), [row("a1")], REPLAY, ["runtime rt_a"]),
    # -- legacy rows without a runtime
    "M4.4 a legacy pointer is not resumed": (request(), [row("l1", None)], REPLAY, ["without a runtime"]),
    "M4.4 a legacy pointer falls back to the rows of its tasks": (
        request(), [row("a1"), row("l1", None)], "a1", ["without a runtime"]),
    "M4.4 the fallback has the same guard": (
        request(A, TWO), [row("b1", B, T2), row("l1", None)], REPLAY, ["without a runtime", "runtime rt_b"]),
    "M4.5 a stale legacy pointer beside a newer task of another runtime": (
        request(B, TWO), [row("l1", None), row("b1", B, T2)], "b1", []),
    "M4.5 the same for the runtime that had it": (
        request(A, TWO), [row("l1", None), row("b1", B, T2)], REPLAY, ["runtime rt_b", "without a runtime"]),
    # -- newest first
    "the newest of several": (request(A, TWO), [row("a1"), row("a2", A, T2)], "a2", []),
    "judged by its newest pointer, not by another session's": (
        request(A, TWO), [row("a1"), row("a2", A, T2), row("a1", A, T2)], "a1", []),
    "an attempt without a session in between": (request(A, TWO), [row("a1"), row(None, A, T2)], "a1", []),
    "an empty report does not hide the last pointer": (request(), [row("a1"), row(None)], "a1", []),
    # -- retired
    "retired": (request(), [row("a1", retired="by ann")], REPLAY, ["retired: by ann"]),
    "retired by an older row": (
        request(), [row("a1", retired="by ann"), row("a1")], REPLAY, ["retired: by ann"]),
    "retired, an older session is left": (
        request(A, TWO), [row("a1"), row("a2", A, T2, retired="by ann")], "a1", ["retired: by ann"]),
    "an older one retired": (
        request(A, TWO), [row("a1", retired="by ann"), row("a2", A, T2)], "a2", []),
    # -- poisoned
    "I29 one failed resume": (request(), [row("a1"), row("a1", outcome=POISON)], "a1", []),
    "I29 two failed resumes": (
        request(), [row("a1"), *[row("a1", outcome=POISON)] * 2], REPLAY, ["2 times in a row"]),
    "I29 three failed resumes": (
        request(), [row("a1"), *[row("a1", outcome=POISON)] * 3], REPLAY, ["2 times in a row"]),
    "I29 recovered in between": (
        request(A, TWO),
        [row("a1", outcome=POISON), row("a1", A, T2), row("a1", A, T2, POISON)], "a1", []),
    "I29 cancels do not count": (
        request(), [row("a1"), row("a1", outcome=POISON), *[row("a1", outcome=UNCOUNTED)] * 3], "a1", []),
    "I29 cancels do not end the count": (
        request(),
        [row("a1"), row("a1", outcome=POISON), row("a1", outcome=UNCOUNTED), row("a1", outcome=POISON)],
        REPLAY, ["2 times in a row"]),
    "I29 a run that resumed and then failed ends the count": (
        request(),
        [row("a1"), row("a1", outcome=POISON), row("a1", outcome=FAILED), row("a1", outcome=POISON)],
        "a1", []),
    "I29 failures that are no failed resumes never poison": (
        request(), [row("a1"), *[row("a1", outcome=FAILED)] * 5], "a1", []),
    "I29 poisoned, an older one is left": (
        request(A, TWO), [row("a1"), *[row("a2", A, T2, POISON)] * 2], "a1", ["2 times in a row"]),
    "I29 the working directory of a poisoned one is kept": (
        request(), [*[row("a1", outcome=POISON)] * 2], REPLAY, ["2 times in a row"]),
    # -- diverged
    "an edit replaced the turn it has seen": (
        request(A, (T1, T3)), [row("a1", A, T2)], REPLAY, ["not part of"]),
    "an older one from before the edit": (
        request(A, (T1, T3)), [row("a1", A, T1), row("a2", A, T2)], "a1", ["not part of"]),
    "the first turn was replaced": (request(A, (T2,)), [row("a1", A, T1)], REPLAY, ["not part of"]),
    "everything was replaced": (request(A, ()), [row("a1", A, T1)], FRESH, ["not part of"]),
    "a fork continues from an earlier turn": (
        request(A, ONE), [row("a1", A, T2)], REPLAY, ["not part of"]),
    "reset": (request(A, (T3,), was_reset=True), [row("a1", A, T2)], REPLAY, ["not part of"]),
    "used again after a reset": (
        request(A, (T3,), was_reset=True), [row("a1", A, T2), row("a2", A, T3)], "a2", []),
    "never committed, from before a reset": (
        request(A, (T3,), was_reset=True), [row("a1", A, None, FAILED)], REPLAY, ["not part of"]),
    "never committed, from after the reset": (
        request(A, (T3,), was_reset=True), [row("a1", A, None, FAILED, base=T3)], "a1", []),
    "never committed, begun at a turn that was replaced": (
        request(A, (T1, T3)), [row("a1", A, None, FAILED, base=T2)], REPLAY, ["not part of"]),
    # -- behind the head
    "behind by one turn": (request(A, TWO), [row("a1")], "a1", []),
    "behind by two turns": (request(A, THREE), [row("a1")], "a1", []),
    "has seen nothing committed": (request(A, ONE), [row("a1", A, None, FAILED)], "a1", []),
    "its first prompt failed and nothing is committed": (
        request(A, ()), [row("a1", A, None, FAILED, is_dirty=True)], "a1", []),
    # -- policies
    "dirty is disclosed": (request(), [row("a1", outcome=FAILED, is_dirty=True)], "a1", []),
    "dirty under a strict policy": (
        request(policy=STRICT), [row("a1", outcome=FAILED, is_dirty=True)], REPLAY, ["not committed"]),
    "clean again after a good turn": (
        request(A, TWO, policy=STRICT),
        [row("a1", outcome=FAILED, is_dirty=True), row("a1", A, T2)], "a1", []),
    "a changed agent is disclosed": (request(agent_digest="d2"), [row("a1")], "a1", []),
    "a changed agent under a strict policy": (
        request(agent_digest="d2", policy=STRICT), [row("a1")], REPLAY, ["definition has changed"]),
    "a changed agent that starts fresh": (
        request(agent_digest="d2", policy=FORGETFUL), [row("a1")], FRESH, ["definition has changed"]),
    "a session of the changed agent is resumed after a fresh start": (
        request(A, TWO, agent_digest="d2", policy=FORGETFUL),
        [row("a1"), row("a2", A, T2, agent_digest="d2")], "a2", []),
    "a fresh start on a change, and nothing has changed": (request(policy=FORGETFUL), [row("a1")], "a1", []),
    "a fresh start on a change does not forget a session that is rejected for something else": (
        request(policy=FORGETFUL), [row("a1", retired="by ann")], REPLAY, ["retired"]),
    "an unchanged agent under a strict policy": (request(policy=STRICT), [row("a1")], "a1", []),
    # -- fresh and rerun
    "fresh": (request(fresh=True), [row("a1")], FRESH, []),
    "fresh with nothing known": (request(history=(), fresh=True), [], FRESH, []),
    "a rerun uses its source": (
        request(A, TWO, rerun_of=X), [row("a1", task=X), row("a2", A, T2)], "a1", []),
    "a rerun has the same guard": (
        request(B, TWO, rerun_of=X), [row("a1", task=X), row("b1", B, T2)], REPLAY, ["runtime rt_a"]),
    "a rerun never takes another session": (
        request(A, TWO, rerun_of=X), [row(None, task=X), row("a2", A, T2)], REPLAY, []),
    "a rerun of a retired session": (
        request(rerun_of=X), [row("a1", task=X, retired="by ann")], REPLAY, ["retired: by ann"]),
    "a rerun that is fresh": (request(rerun_of=X, fresh=True), [row("a1", task=X)], FRESH, []),
    "a rerun whose session has seen a turn that was replaced since": (
        request(A, (T1, T3), rerun_of=X), [row("a1", task=X), row("a1", A, T2)], REPLAY, ["not part of"]),
    "a rerun whose session was poisoned since": (
        request(rerun_of=X), [row("a1", task=X), *[row("a1", outcome=POISON)] * 2], REPLAY,
        ["2 times in a row"]),
    "a rerun whose session went on": (
        request(A, TWO, rerun_of=X), [row("a1", task=X), row("a1", A, T2), row("a2", A, T2)], "a1", []),
    "a fresh retry does not resume what its first try made": (
        request(fresh=True), [row("a1"), row("a2", A, None, FAILED, is_dirty=True)], FRESH, []),
    "after a fresh task the session that it made is used": (
        request(A, TWO), [row("a1"), row("a2", A, T2)], "a2", []),
    "generations: each one is judged by its own rows": (
        request(A, TWO),
        [row("a1"), *[row("a1", outcome=POISON)] * 2, row("a2", A, T2), row("a2", A, T2, POISON)], "a2", []),
    "generations: the one before is left when the newest is poisoned": (
        request(A, TWO), [row("a1"), row("a2", A, T2), *[row("a2", A, T2, POISON)] * 2], "a1",
        ["2 times in a row"]),
    "a rerun of a task that nobody ran": (request(rerun_of=X), [row("a1")], REPLAY, []),
}  # fmt: skip


@pytest.mark.parametrize(("asked", "rows", "expected", "rejected"), CASES.values(), ids=CASES)
def test_M4_the_resume_decision(
    asked: ResumeRequest, rows: list[Pointer], expected: str, rejected: list[str]
) -> None:
    decision = decide_resume(asked, numbered(rows))
    kind = {REPLAY: TranscriptReplay, FRESH: FreshStart}.get(expected, NativeResume)
    assert type(decision) is kind, decision
    if isinstance(decision, NativeResume):
        assert decision.native_session == expected
    assert len(decision.rejected) == len(rejected), decision.rejected
    for one, reason in zip(decision.rejected, rejected, strict=True):
        assert reason in one.reason
    assert decision.reason


def test_there_are_at_least_60_cases() -> None:
    assert len(CASES) >= 60


# -- the working directory -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "rows", "path", "is_local"),
    [
        (request(), [row("a1")], "/work/laptop", True),
        (request(B), [row("a1")], "/work/laptop", False),
        (request(C), [row("a1")], "/work/laptop", True),
        (request(A, TWO), [row("a1"), row("b1", B, T2)], "/work/laptop", True),
        (request(B, TWO), [row("a1"), row("a2", A, T2)], "/work/laptop", False),
        (request(), [row("a1", work_dir=None)], None, None),
        (request(A, TWO), [row("a1", work_dir="/old"), row("a1", A, T2, work_dir=None)], "/old", True),
        (request(), [row(None, work_dir="/made")], "/made", True),
        (request(), [row("a1", retired="x")], "/work/laptop", True),
        (request(fresh=True), [row("a1")], None, None),
        (request(rerun_of=X), [row("a1", task=X, work_dir="/x"), row("a2")], "/x", True),
        (request(rerun_of=X), [row("a1", task=X, work_dir="/x"), row("a1", work_dir="/y")], "/x", True),
        (request(), [row("l1", None, work_dir="/legacy")], "/legacy", False),
    ],
)
def test_M4_3_the_working_directory_is_kept_apart_from_the_session(
    asked: ResumeRequest, rows: list[Pointer], path: str | None, is_local: bool | None
) -> None:
    found = decide_resume(asked, numbered(rows)).work_dir
    assert (None if found is None else found.path) == path
    assert (None if found is None else found.is_local) == is_local


@pytest.mark.parametrize(
    ("asked", "rows", "is_outdated"),
    [
        (request(), [row("a1")], False),
        (request(A, TWO), [row("a1"), row("b1", B, T2)], True),
        (request(A, TWO), [row("a1"), row("c1", C, T2)], False),  # same machine, same directory
        (request(A, TWO), [row("a1"), row("c1", C, T2, work_dir="/other")], True),
        (request(A, ONE), [row("a1"), row("b1", B, T1, FAILED)], False),
        (request(A, ONE), [row("a1"), row("b1", B, T2)], False),  # of a turn that was edited away
        (request(A, THREE), [row("a1"), row("b1", B, T2), row("a1", A, T3)], False),
        (request(B, TWO), [row("a1"), row("a2", A, T2)], False),  # elsewhere anyway
    ],
)
def test_M4_3_a_directory_lacks_what_later_turns_did_elsewhere(
    asked: ResumeRequest, rows: list[Pointer], is_outdated: bool
) -> None:
    decision = decide_resume(asked, numbered(rows))
    assert decision.work_dir is not None
    assert decision.work_dir.is_outdated == is_outdated
    assert decision.work_dir.lacks_files == (is_outdated or asked.runtime is B)
    assert ("is_outdated" in as_record(decision)["work_dir"]) == is_outdated


# -- what is sent along and shown ----------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "rows", "is_behind", "after"),
    [
        (request(), [row("a1")], False, None),
        (request(A, THREE), [row("a1")], True, T1),
        (request(A, THREE), [row("a1", A, T2)], True, T2),
        (request(A, ONE), [row("a1", A, None, FAILED)], True, None),
        (request(A, ()), [row("a1", A, None, FAILED)], False, None),
    ],
)
def test_I27_a_native_session_behind_the_head_gets_the_missed_turns(
    asked: ResumeRequest, rows: list[Pointer], is_behind: bool, after: TurnId | None
) -> None:
    decision = decide_resume(asked, numbered(rows))
    assert isinstance(decision, NativeResume)
    assert (decision.is_behind, decision.catch_up_after) == (is_behind, after)
    assert any("newest turns" in one for one in decision.disclosures) == is_behind


def test_I28_what_the_model_should_know_is_disclosed() -> None:
    rows = numbered([row("a1", outcome=FAILED, is_dirty=True, agent_digest="old")])
    decision = decide_resume(request(A, TWO), rows)
    assert isinstance(decision, NativeResume)
    assert decision.disclosures == (
        "it has not seen the newest turns, which are sent along",
        "it holds a prompt whose turn was not committed",
        "the agent's definition has changed since",
    )
    assert as_record(decision)["is_dirty"] is True


def test_I26_the_reason_does_not_call_a_failed_turn_committed() -> None:
    committed, failed = row("a1"), row("a1", outcome=FAILED, is_dirty=True)
    reasons = [decide_resume(request(), numbered(rows)).reason for rows in ([committed], [committed, failed])]
    assert reasons == [
        "same runtime; last turn committed",
        "same runtime; it holds a prompt whose turn was not committed",
    ]


def test_I26_the_record_says_what_was_decided_and_why() -> None:
    rows = numbered([row("a1"), row("b1", B, T2)])
    assert as_record(decide_resume(request(A, TWO), rows)) == {
        "decision": "native",
        "native_session": "a1",
        "reason": "same runtime; behind the session's newest turn",
        "disclosures": ["it has not seen the newest turns, which are sent along"],
        "catch_up_after": "t1",
        "work_dir": {"path": "/work/laptop", "worker": "laptop", "is_outdated": True},
        "rejected": [{"native_session": "b1", "runtime_id": "rt_b", "reason": "it belongs to runtime rt_b"}],
    }
    assert as_record(decide_resume(request(C, TWO), rows)) == {
        "decision": "replay",
        "reason": "native session b1 cannot be resumed: it belongs to runtime rt_b",
        "work_dir": {"path": "/work/server", "worker": "server"},
        "rejected": [
            {"native_session": "b1", "runtime_id": "rt_b", "reason": "it belongs to runtime rt_b"},
            {"native_session": "a1", "runtime_id": "rt_a", "reason": "it belongs to runtime rt_a"},
        ],
    }
    assert as_record(decide_resume(request(), numbered([row("a1", work_dir=None)]))) == {
        "decision": "native",
        "native_session": "a1",
        "reason": "same runtime; last turn committed",
        "disclosures": [],
        "rejected": [],
    }
    assert as_record(decide_resume(request(history=()), [])) == {
        "decision": "fresh",
        "reason": "no native session is known",
        "rejected": [],
    }


def test_a_decision_records_the_newest_rejected_sessions_and_counts_the_others() -> None:
    """Else the decisions of a session whose agent leaves a native session behind with each turn grow with the
    square of its turns."""
    rows = numbered([row(f"n{number}", retired="spent") for number in range(1, 51)])
    record = as_record(decide_resume(request(), rows))
    assert [one["native_session"] for one in record["rejected"]] == [f"n{50 - at}" for at in range(20)]
    assert record["rejected_more"] == 30
    assert "rejected_more" not in as_record(decide_resume(request(), rows[:20]))


# -- properties ----------------------------------------------------------------------------

rows_of_any_kind = st.lists(
    st.builds(
        row,
        st.sampled_from([None, "s1", "s2", "s3"]),
        st.sampled_from([None, A, B, C]),
        st.sampled_from([None, T1, T2, T3]),
        st.sampled_from(list(PointerOutcome)),
        retired=st.sampled_from([None, None, "x"]),
        base=st.sampled_from([None, T1]),
        is_dirty=st.booleans(),
    ),
    max_size=12,
)
requests_of_any_kind = st.builds(
    request, st.sampled_from([A, B, C]), st.sampled_from([(), ONE, TWO, THREE, (T1, T3)]), fresh=st.booleans()
)


@given(requests_of_any_kind, rows_of_any_kind, st.randoms())
def test_M4_1_I26_never_another_runtimes_session_and_always_the_same_answer(
    asked: ResumeRequest, rows: list[Pointer], random: Any
) -> None:
    pointers = numbered(rows)
    decision: ResumeDecision = decide_resume(asked, pointers)
    if isinstance(decision, NativeResume):
        mine = [one for one in pointers if one.native_session == decision.native_session]
        assert any(one.runtime == asked.runtime for one in mine)
        assert all(one.retired is None for one in mine if one.runtime == asked.runtime)
        assert not asked.fresh
    if asked.history and not asked.fresh:
        assert not isinstance(decision, FreshStart)
    shuffled = list(pointers)
    random.shuffle(shuffled)
    assert decide_resume(asked, shuffled) == decision

"""What a run is told about the files of the turns before it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lastgood.core.resume import FreshStart, NativeResume, ResumeDecision, ResumeDir, TranscriptReplay
from lastgood.core.session_files import (
    FILES_ELSEWHERE,
    FILES_OUTDATED,
    FILES_RESTORED,
    about_files,
    lacks_files,
    unseen,
)
from lastgood.model.ids import TurnId
from lastgood.model.sessions import Turn, TurnKind
from tests.core.builders import turn

HERE = ResumeDir("/w", "laptop", is_local=True)
OLD = replace(HERE, is_outdated=True)
AWAY = ResumeDir("/w", "server", is_local=False)
RUNTIME = {"runtime": "rt"}


def replay(work_dir: ResumeDir | None) -> TranscriptReplay:
    return TranscriptReplay("why", work_dir)


def native(work_dir: ResumeDir | None, after: str | None = None, is_behind: bool = False) -> NativeResume:
    return NativeResume("n", "why", work_dir, is_behind, TurnId(after) if after else None)


def on_runtime(id: str, **fields: object) -> Turn:
    return replace(turn(None), id=TurnId(id), **({"decision": RUNTIME} | fields))  # type: ignore[arg-type]


ONE, TWO = on_runtime("one"), on_runtime("two")
LOCAL = on_runtime("local", decision={})
IMPORTED = on_runtime("imported", decision={"imported_from": "x"})
SAID = on_runtime("said", decision={}, kind=TurnKind.APPEND)


@pytest.mark.parametrize(
    ("decision", "turns", "restored", "received"),
    [
        (FreshStart("why", None), (), None, None),
        (FreshStart("why", None), (ONE, LOCAL), None, None),
        (FreshStart("why", AWAY), (), None, FILES_ELSEWHERE),
        (FreshStart("why", HERE), (), None, None),
        (replay(HERE), (ONE,), None, None),
        (replay(HERE), (IMPORTED, SAID), None, None),
        (replay(HERE), (LOCAL, ONE), None, FILES_ELSEWHERE),
        (replay(OLD), (ONE,), None, FILES_ELSEWHERE),
        (replay(AWAY), (ONE,), None, FILES_ELSEWHERE),
        (replay(AWAY), (ONE,), "one", FILES_RESTORED),
        (replay(AWAY), (ONE, SAID), "one", FILES_RESTORED),
        (replay(AWAY), (ONE, TWO), "one", FILES_OUTDATED),
        (replay(AWAY), (ONE, LOCAL), "one", FILES_OUTDATED),
        (replay(None), (ONE,), None, FILES_ELSEWHERE),  # a fork
        (replay(None), (ONE,), "one", FILES_RESTORED),
        (replay(None), (LOCAL,), None, FILES_ELSEWHERE),  # it ran on the server before
        (replay(None), (IMPORTED,), None, FILES_ELSEWHERE),
        (native(HERE), (ONE, TWO), None, None),
        (native(None), (ONE,), None, None),
        (native(HERE), (LOCAL,), None, None),
        (native(HERE, "one", is_behind=True), (ONE, TWO), None, None),
        (native(HERE, "one", is_behind=True), (ONE, LOCAL), None, FILES_ELSEWHERE),
        (native(HERE, "local", is_behind=True), (LOCAL, ONE), None, None),
        (native(HERE, None, is_behind=True), (LOCAL, ONE), None, FILES_ELSEWHERE),
        (native(OLD, "one", is_behind=True), (ONE, TWO), "two", FILES_RESTORED),
        (native(AWAY), (ONE,), None, FILES_ELSEWHERE),
    ],
)
def test_files_that_a_run_does_not_have_are_restored_or_disclosed(
    decision: ResumeDecision, turns: tuple[Turn, ...], restored: str | None, received: str | None
) -> None:
    assert about_files(decision, turns, restored and TurnId(restored)) == received  # type: ignore[arg-type]


def test_only_what_the_directory_has_not_held_is_restored() -> None:
    assert unseen(replay(AWAY), (ONE, TWO)) == (ONE, TWO)
    assert unseen(native(OLD, "one", is_behind=True), (ONE, TWO)) == (TWO,)
    assert unseen(native(OLD), (ONE, TWO)) == ()
    assert not lacks_files(native(None))
    assert not lacks_files(FreshStart("why", None))

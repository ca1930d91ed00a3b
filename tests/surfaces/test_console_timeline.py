"""A turn as bars: time in the queue apart from work, adopted steps, and where a process ended."""

from typing import Any

import pytest

from lastgood.flows.session_reader import AttemptDetails
from lastgood.model.attempts import AttemptStatus, Step, StepKind, ToolOutcome
from lastgood.model.ids import AttemptId
from lastgood.model.messages import Message, Role, ToolCall, tool_result
from lastgood.model.sessions import Usage
from lastgood.surfaces.console.timeline import WIDTH, timeline
from tests.core.builders import attempt

ONE, TWO = AttemptId("one"), AttemptId("two")

CALLS = Step(
    StepKind.MODEL,
    Message(Role.ASSISTANT, "", tool_calls=(ToolCall("c", "shell", '{"cmd": "make"}'),)),
    Usage(10, 2),
    model="p/m",
    seconds=2.0,
    ended_at=14.0,
)
RESULT = Step(StepKind.TOOL, tool_result("c", "done"), outcome=ToolOutcome.FAILED, seconds=1.0, ended_at=15.0)


def tried(
    id: AttemptId, status: AttemptStatus, began: float, ended: float | None, *steps: Step, **more: Any
) -> Any:
    made = attempt(status, id=id, started_at=began, ended_at=ended, model="p/m", **more)
    return AttemptDetails(made, steps, Usage())


def lanes(made: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(one["kind"], one["label"], one["span"]) for one in made["lanes"]]


def test_the_queue_is_apart_from_work_and_each_request_and_call_has_a_bar() -> None:
    done = tried(ONE, AttemptStatus.COMMITTED, 12.0, 20.0, CALLS, RESULT)
    made = timeline([done], 10.0, 99.0, "p/m")
    assert lanes(made) == [
        ("queue", "In the queue", "2.0 s"),
        ("attempt", "Attempt 1", "8.0 s"),
        ("model", "p/m", "2.0 s"),
        ("tool", "shell", "1.0 s"),
        ("model", "p/m", "5.0 s"),
    ]
    queue, work, asks, call, answer = made["lanes"]
    assert (queue["x"], queue["width"]) == (0, 0.2 * WIDTH)
    assert (work["x"], work["width"]) == (0.2 * WIDTH, 0.8 * WIDTH)
    assert (asks["detail"], asks["tokens"]) == ("calls shell", "10 → 2")
    assert (call["detail"], call["outcome"], call["x"]) == ("make", "failed", 0.4 * WIDTH)
    assert not any(one["is_open"] or one["is_adopted"] for one in made["lanes"])
    assert made["boundaries"] == []
    assert answer["x"] == 0.5 * WIDTH


def test_a_process_that_died_is_a_line_and_what_it_had_finished_is_adopted() -> None:
    died = tried(ONE, AttemptStatus.INTERRUPTED, 10.0, 16.0, CALLS, RESULT, error_code="interrupted")
    again = tried(TWO, AttemptStatus.RUNNING, 17.0, None, CALLS, RESULT, number=2, continues=ONE)
    made = timeline([died, again], None, 20.0)
    assert made["boundaries"] == [0.6 * WIDTH]
    mine = [one for one in made["lanes"] if one["is_adopted"]]
    assert [(one["label"], one["x"]) for one in mine] == [("p/m", 0.7 * WIDTH), ("shell", 0.7 * WIDTH)]
    open_ones = [(one["kind"], one["label"]) for one in made["lanes"] if one["is_open"]]
    assert open_ones == [("attempt", "Attempt 2"), ("model", "In progress")]
    assert ("unfinished", "Not finished", "1.0 s") in lanes(made)


@pytest.mark.parametrize(
    ("status", "kind", "label"),
    [
        (AttemptStatus.WAITING, "person", "Waits for a person"),
        (AttemptStatus.RUNNING, "model", "In progress"),
        (AttemptStatus.FAILED, "unfinished", "Not finished"),
        (AttemptStatus.CANCELLED, "unfinished", "Not finished"),
    ],
)
def test_the_last_bar_says_what_has_not_finished(status: AttemptStatus, kind: str, label: str) -> None:
    is_open = status in (AttemptStatus.WAITING, AttemptStatus.RUNNING)
    made = timeline([tried(ONE, status, 10.0, None if is_open else 15.0)], None, 15.0)
    assert lanes(made)[-1] == (kind, label, "5.0 s")
    assert made["lanes"][-1]["is_open"] == is_open


def test_bars_stay_in_the_picture_whatever_clocks_say() -> None:
    early = Step(StepKind.MODEL, CALLS.message, model="p/m", seconds=500.0, ended_at=11.0)
    late = Step(StepKind.TOOL, tool_result("c", ""), seconds=0.0, ended_at=9_999.0)
    backwards = tried(ONE, AttemptStatus.FAILED, 10.0, 9.0, early, late)
    for one in timeline([backwards], 30.0, 0.0)["lanes"]:
        assert 0 <= one["x"] <= WIDTH
        assert 0 < one["width"] <= WIDTH - one["x"] + 0.1


def test_the_bar_of_what_failed_names_the_error() -> None:
    failed = tried(ONE, AttemptStatus.FAILED, 10.0, 20.0, CALLS, RESULT, error_code="model_overloaded")
    last = timeline([failed], None, 99.0)["lanes"][-1]
    assert (last["kind"], last["label"], last["detail"]) == ("unfinished", "Not finished", "model_overloaded")


def test_the_legend_explains_what_is_in_the_picture_and_nothing_else() -> None:
    died = tried(ONE, AttemptStatus.INTERRUPTED, 10.0, 16.0, CALLS, RESULT)
    again = tried(TWO, AttemptStatus.WAITING, 17.0, None, CALLS, RESULT, number=2, continues=ONE)
    names = [one["name"] for one in timeline([died, again], 9.0, 20.0)["legend"]]
    assert names == [
        "in the queue",
        "model",
        "tool",
        "adopted from an earlier attempt",
        "waits for a person",
        "not finished",
        "failed or cut",
        "the process ended",
    ]
    done = tried(ONE, AttemptStatus.COMMITTED, 10.0, 16.0)
    assert [one["name"] for one in timeline([done], None, 20.0)["legend"]] == ["model"]


@pytest.mark.parametrize(
    ("seconds", "labels"),
    [
        (0.004, ["0", "1 ms", "2 ms", "3 ms", "4 ms"]),
        (9.0, ["0", "2.0 s", "4.0 s", "6.0 s", "8.0 s"]),
        (31.0, ["0", "10 s", "20 s", "30 s"]),
        (200.0, ["0", "1 min", "2 min", "3 min"]),
        (86_400.0, ["0", "6 h", "12 h", "18 h", "1 d"]),
        (2_000_000.0, ["0", "7 d", "14 d", "21 d"]),
    ],
)
def test_the_axis_has_a_few_round_times(seconds: float, labels: list[str]) -> None:
    made = timeline([tried(ONE, AttemptStatus.COMMITTED, 10.0, 10.0 + seconds)], None, 0.0)
    assert [one["label"] for one in made["ticks"]] == labels
    places = [one["x"] for one in made["ticks"]]
    assert places == sorted(places)
    assert places[0] == 0
    assert places[-1] <= WIDTH

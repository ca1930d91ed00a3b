"""The stored form of events: what one release stores, it and the next one read."""

import pytest

from lastgood.model import events
from lastgood.model.attempts import Edit
from lastgood.model.events import EventData, EventKind, as_json, data_of
from lastgood.model.ids import AttemptId, TaskId, TurnId
from lastgood.model.messages import Image, user, user_parts

TURN, OTHER, ATTEMPT = TurnId("t1"), TurnId("t0"), AttemptId("a1")

#: Every kind, and its stored form. A changed key is a changed database format.
STORED: list[tuple[EventData, dict[str, object]]] = [
    (events.AttemptStarted(TURN, ATTEMPT, ""), {"turn": "t1", "attempt": "a1", "agent": ""}),
    (
        events.AttemptStarted(TURN, ATTEMPT, "root", Edit(None, OTHER), AttemptId("a0"), "adopted"),
        {
            "turn": "t1",
            "attempt": "a1",
            "agent": "root",
            "after": None,
            "replaces": "t0",
            "continues": "a0",
            "decision": "adopted",
        },
    ),
    (events.UserSaid(user("hi")), {"message": {"role": "user", "content": "hi"}}),
    (
        events.UserSaid(user_parts("see", Image("https://a/b.png")), steer=True),
        {
            "message": {
                "role": "user",
                "content": [
                    {"type": "text", "text": "see"},
                    {"type": "image_url", "image_url": {"url": "https://a/b.png"}},
                ],
            },
            "steer": True,
        },
    ),
    (
        events.ResumeChosen(TaskId("k1"), "rt_1", {"decision": "native", "catch_up_after": None}),
        {"task": "k1", "runtime_id": "rt_1", "record": {"decision": "native", "catch_up_after": None}},
    ),
    (events.AgentChanged("key", "d1", "d2"), {"key": "key", "from": "d1", "to": "d2"}),
    (events.AgentSwitched("writer"), {"agent": "writer"}),
    (events.TextStreamed("word"), {"content": "word"}),
    (events.TextStreamed("", "helper"), {"content": "", "agent": "helper"}),
    (events.ReasoningStreamed("hm"), {"content": "hm"}),
    (
        events.ModelAnswered("p/m", 0, 2, 0.0),
        {"model": "p/m", "input_tokens": 0, "output_tokens": 2, "cost": 0.0},
    ),
    (
        events.ModelAnswered("p/m", 1, 2, 0.5, cut_short=True, agent="helper", context_size=9),
        {
            "model": "p/m",
            "input_tokens": 1,
            "output_tokens": 2,
            "cost": 0.5,
            "cut_short": True,
            "agent": "helper",
            "context_size": 9,
        },
    ),
    (
        events.ModelRetried("p/m", 0.0, "503", 2),
        {"model": "p/m", "after_seconds": 0.0, "reason": "503", "attempt": 2},
    ),
    (
        events.ModelFellBack("p/m", "q/m", "503", 2, 3),
        {"failed_model": "p/m", "fallback_model": "q/m", "reason": "503", "attempt": 2, "max_attempts": 3},
    ),
    (events.HistoryShortened(3, 10), {"left_out": 3, "of": 10}),
    (events.ToolCalled("c", "shell", "{}"), {"id": "c", "name": "shell", "arguments": "{}"}),
    (events.ToolStreamed("c", "out"), {"id": "c", "content": "out"}),
    (events.ToolAnswered("c", "shell", ""), {"id": "c", "name": "shell", "result": ""}),
    (
        events.ToolAnswered("c", "shell", "error: no", failed=True),
        {"id": "c", "name": "shell", "result": "error: no", "failed": True},
    ),
    (
        events.HookDenied("c", "shell", "{}", "not here", "helper"),
        {"id": "c", "name": "shell", "arguments": "{}", "message": "not here", "agent": "helper"},
    ),
    (events.HookWarned("stop", "it failed"), {"event": "stop", "message": "it failed"}),
    (events.RunWarned("no sandbox"), {"message": "no sandbox"}),
    (events.AttemptWaits(ATTEMPT, {"call": "c"}), {"attempt": "a1", "question": {"call": "c"}}),
    (events.AttemptErred("model_error", "503"), {"code": "model_error", "message": "503"}),
    (
        events.AttemptCommitted(TURN, 1, ATTEMPT, "p/m", 3, 4, Edit(None, OTHER)),
        {
            "turn": "t1",
            "seq": 1,
            "attempt": "a1",
            "model": "p/m",
            "input_tokens": 3,
            "output_tokens": 4,
            "after": None,
            "replaces": "t0",
        },
    ),
    (
        events.AttemptFailed(TURN, "failed", "model_error", "503", ATTEMPT, has_effects=True),
        {
            "turn": "t1",
            "attempt": "a1",
            "status": "failed",
            "code": "model_error",
            "message": "503",
            "has_effects": True,
        },
    ),
    (
        events.AttemptFailed(TURN, "cancelled", "turn_cancelled", "queued"),
        {"turn": "t1", "status": "cancelled", "code": "turn_cancelled", "message": "queued"},
    ),
    (events.AttemptEnded("failed"), {"reason": "failed"}),
    (events.TitleSet("A title"), {"title": "A title"}),
    (events.EventsDropped(0), {"after": 0}),
]


def test_every_kind_of_event_is_in_the_table() -> None:
    assert {data.kind for data, _ in STORED} == set(EventKind)


@pytest.mark.parametrize(("data", "stored"), STORED, ids=lambda value: getattr(value, "kind", ""))
def test_an_event_is_stored_and_read_back_as_it_was(data: EventData, stored: dict[str, object]) -> None:
    assert as_json(data) == stored
    assert data_of(data.kind, stored) == data


def test_a_key_of_a_newer_release_is_ignored() -> None:
    assert data_of(EventKind.TITLE_SET, {"title": "t", "by": "person"}) == events.TitleSet("t")

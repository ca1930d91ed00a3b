"""Questions on the event stream: docker-agent's clients read the call from the body, not from `question`."""

from __future__ import annotations

from typing import Any

import pytest

from lastgood.model.events import AttemptWaits, EventData, StoredEvent
from lastgood.model.ids import AttemptId, SessionId
from lastgood.surfaces.api.sse import as_wire

ATTEMPT = AttemptId("att_1")
OF_A_TURN = {
    "kind": "approval",
    "place": "1:call_1",
    "call": "call_1",
    "tool": "shell",
    "arguments": '{"cmd": "ls"}',
    "agent": "root",
    "reason": "the rules ask",
}
OF_A_TASK = {"task": "task_1", "id": "q1", "tool": "Bash", "input": {"command": "ls"}, "title": "Run ls?"}


def wire(data: EventData) -> dict[str, Any]:
    return as_wire(StoredEvent(7, ATTEMPT, data, 0.0), SessionId("ses_1"))


@pytest.mark.parametrize(
    ("question", "id", "name", "arguments"),
    [
        (OF_A_TURN, "call_1", "shell", '{"cmd": "ls"}'),
        (OF_A_TASK, "q1", "Bash", '{"command":"ls"}'),
        ({**OF_A_TASK, "input": "ls"}, "q1", "Bash", '"ls"'),
        ({**OF_A_TASK, "input": None}, "q1", "Bash", ""),
    ],
    ids=["turn", "task", "text", "nothing"],
)
def test_a_confirmation_names_the_call_with_its_arguments(
    question: dict[str, Any], id: str, name: str, arguments: str
) -> None:
    body = wire(AttemptWaits(ATTEMPT, question))
    assert body["type"] == "tool_call_confirmation"
    assert body["question"] == question
    assert body["tool_call"] == {
        "id": id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }
    assert body["tool_definition"] == {"name": name}


def test_a_question_of_a_tool_is_an_elicitation() -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    question = {"kind": "elicitation", "place": "1:c", "message": "Which one?", "schema": schema, "url": None}
    body = wire(AttemptWaits(ATTEMPT, question))
    assert (body["type"], body["mode"], body["message"]) == ("elicitation_request", "form", "Which one?")
    assert body["schema"] == schema
    assert body["elicitation_id"] == "att_1:1:c"
    at = wire(AttemptWaits(ATTEMPT, {**question, "url": "https://example.com"}))
    assert (at["mode"], at["url"]) == ("url", "https://example.com")

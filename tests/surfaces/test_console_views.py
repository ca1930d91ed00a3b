"""What the console says about a value."""

import re
from typing import Any

import pytest

from lastgood.flows.approvals import PendingQuestion
from lastgood.model.ids import AttemptId
from lastgood.surfaces.console.text_format import linked
from lastgood.surfaces.console.views import question_view, runtime_view
from tests.core.builders import session
from tests.core.test_runtimes import runtime


@pytest.mark.parametrize(
    ("seconds", "online", "seen"),
    [
        (5.0, True, "seen 5 s ago"),
        (400.0, False, "seen 6 min ago"),
        (1.79e9, False, "its worker has stopped"),  # since 1970: it has deregistered
    ],
)
def test_a_runtime_says_when_it_was_seen_or_that_its_worker_has_stopped(
    seconds: float, online: bool, seen: str
) -> None:
    shown = runtime_view(runtime(seen_seconds_ago=seconds))
    assert (shown["online"], shown["seen"]) == (online, seen)


def question(**fields: Any) -> PendingQuestion:
    return PendingQuestion("q", AttemptId("att_1"), None, None, {"kind": "approval", **fields}, None)


def test_an_address_to_open_is_shown_as_text_with_nothing_invisible_in_it() -> None:
    asks = question(kind="elicitation", url="https://bank.example\u202e\u200b/login", message="Log\u2028in")
    view = question_view(asks, session())
    assert (view["url"], view["message"]) == ("https://bank.example\\u202e\\u200b/login", "Log\\u2028in")
    assert view["fields"] == []


@pytest.mark.parametrize(
    ("key", "name", "seen"),
    [
        ("deploy", "root", "deploy"),
        ("deploy", "", "deploy"),
        ("deploy", "tester", "deploy (tester)"),
        ("", "root", "root"),
        ("de\u3164ploy", "te\ufe0fster", "de\\u3164ploy (te\\ufe0fster)"),
    ],
)
def test_a_question_names_the_agent_by_its_key(key: str, name: str, seen: str) -> None:
    assert question_view(question(agent=name), session(agent_key=key))["agent"] == seen


def test_ids_and_times_in_a_sentence_are_short() -> None:
    runtime, native = "rt_" + "a" * 32, "0f8fad5b-d9cb-469f-a165-70867728950e"
    text = f"{runtime} of wrk_{'b' * 24} is offline since 2026-11-19T22:00:30Z, <b> {native}"
    assert re.sub("<[^>]+>", "", linked(text, {runtime: "laptop"})) == (
        "laptop of wrk_bbbbbbbb is offline since 2026-11-19 22:00 UTC, &lt;b&gt; 0f8fad5b"
    )
    assert linked("task_" + "c" * 32) == f'<a href="/work/tasks/task_{"c" * 32}">task_cccccccc</a>'

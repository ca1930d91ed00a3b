"""The claude kind on recorded streams: what counts as a success, and what never does."""

import time
from pathlib import Path
from typing import Any

import pytest

from lastgood.worker.job import (
    ActivityType,
    FailureCode,
    Job,
    JobAnswer,
    JobFailed,
    JobPermissions,
    SafetyMode,
    Said,
)
from lastgood.worker.runtimes.record import RAW_EVENTS
from lastgood.worker.runtimes.runtime_kinds import kind_named
from tests.worker.fake_runtime import FakeRuntime

pytestmark = pytest.mark.anyio

NATIVE = "8121f444-ff88-4080-b3d9-cae079975c36"
START = ({"read": "control_request"}, {"read": "user"})
#: Claude repeats a message when it takes it up.
TAKEN = {"echo": {"isReplay": True}}
INIT = {"write": {"type": "system", "subtype": "init", "session_id": NATIVE}}


def result(**fields: Any) -> dict[str, Any]:
    usage = {"input_tokens": 3, "cache_read_input_tokens": 4, "output_tokens": 2}
    event = {
        "type": "result",
        "subtype": "success",
        "is_error": False,
        "result": "done",
        "session_id": NATIVE,
    }
    return {"write": {**event, "usage": usage, "total_cost_usd": 0.5, **fields}}


def said(*parts: dict[str, Any], kind: str = "assistant") -> dict[str, Any]:
    return {"write": {"type": kind, "message": {"content": list(parts)}, "session_id": NATIVE}}


@pytest.fixture
def claude(tmp_path: Path) -> FakeRuntime:
    return FakeRuntime("claude", tmp_path)


async def test_a_result_that_says_success_is_one(claude: FakeRuntime) -> None:
    done = await claude.run(*START, INIT, TAKEN, said({"type": "text", "text": "hello"}), result())
    assert (done.output, done.native_session) == ("done", NATIVE)
    assert (done.usage.input_tokens, done.usage.output_tokens, done.usage.cost) == (7, 2, 0.5)
    assert done.cli_version == "1.0.0 (untested)"
    assert claude.recorder.pins == [NATIVE]
    assert [one.content for one in claude.recorder.of(ActivityType.TEXT)] == ["hello"]


async def test_the_model_and_its_effort_are_what_the_job_says(claude: FakeRuntime) -> None:
    await claude.run(*START, INIT, TAKEN, result(), model="claude-x", effort="high")
    assert {"--model=claude-x", "--effort=high"} <= set(claude.arguments())
    await claude.run(*START, INIT, TAKEN, result())
    assert not any(one.startswith(("--model", "--effort")) for one in claude.arguments())


async def test_a_tested_version_is_not_flagged(claude: FakeRuntime) -> None:
    claude.version = "2.1.197 (Claude Code)"
    assert (await claude.run(*START, INIT, TAKEN, result())).cli_version == "2.1.197"


@pytest.mark.parametrize(
    ("last", "code"),
    [
        ({"write": {"type": "outcome", "is_error": False}}, FailureCode.CLI_PROTOCOL),  # renamed event
        (result(is_error=None), FailureCode.CLI_PROTOCOL),
        (result(result=None), FailureCode.CLI_PROTOCOL),
        (result(result=""), FailureCode.CLI_PROTOCOL),
        (result(session_id="other"), FailureCode.CLI_PROTOCOL),
        (result(is_error=True, api_error_status=500), FailureCode.MODEL_ERROR),
        (result(is_error=True, api_error_status=429), FailureCode.RATE_LIMITED),
        (result(is_error=True, result="Not logged in"), FailureCode.CLI_FAILED),
        (result(subtype="error_max_turns", is_error=True), FailureCode.CLI_FAILED),
        ({"exit": 0}, FailureCode.CLI_PROTOCOL),
        ({"exit": 3}, FailureCode.CLI_FAILED),
    ],
)
async def test_anything_else_is_a_failure(
    claude: FakeRuntime, last: dict[str, Any], code: FailureCode
) -> None:
    failure = await claude.failure(*START, INIT, TAKEN, last)
    assert failure.code is code, failure
    assert failure.native_session == NATIVE


async def test_a_usage_limit_says_when_to_come_back(claude: FakeRuntime) -> None:
    text = f"Claude AI usage limit reached|{int(time.time()) + 600}"
    failure = await claude.failure(*START, INIT, TAKEN, result(is_error=True, result=text))
    assert failure.code is FailureCode.RATE_LIMITED
    assert 590 < (failure.retry_after_seconds or 0) <= 600


async def test_a_version_that_does_not_repeat_messages_ends_after_its_result(claude: FakeRuntime) -> None:
    assert (await claude.run(*START, INIT, result())).output == "done"


async def test_unknown_events_are_kept_and_bounded(claude: FakeRuntime) -> None:
    news = [{"write": {"type": "news", "number": number}} for number in range(RAW_EVENTS + 10)]
    await claude.run(
        *START, INIT, TAKEN, {"write": "no JSON"}, {"repeat": ["x", 17_000_000]}, *news, result()
    )
    kept = [one.content for one in claude.recorder.of(ActivityType.ERROR)]
    assert len(kept) == RAW_EVENTS
    assert "no JSON" in kept[0]
    assert "17,000,000 bytes" in kept[1]
    assert '{"type":"news","number":0}' in kept[2]


async def test_an_id_that_claude_echoes_after_refusing_it_is_no_resume(claude: FakeRuntime) -> None:
    echo = result(
        subtype="error_during_execution",
        is_error=True,
        result=None,
        errors=[f"No conversation found with session ID: {NATIVE}"],
    )
    failure = await claude.failure(*START, echo, {"exit": 1}, native_session=NATIVE)
    assert failure.code is FailureCode.RESUME_FAILED
    assert failure.retired_session == NATIVE
    assert claude.recorder.pins == []


async def test_another_session_than_the_one_to_resume_is_no_resume(claude: FakeRuntime) -> None:
    other = "00000000-0000-4000-8000-000000000000"
    failure = await claude.failure(*START, INIT, TAKEN, result(), native_session=other)
    assert failure.code is FailureCode.RESUME_FAILED
    assert NATIVE in failure.message
    assert claude.recorder.pins == []


async def test_a_crash_before_the_start_does_not_retire_the_session(claude: FakeRuntime) -> None:
    failure = await claude.failure({"stderr": "out of memory"}, {"exit": 137}, native_session=NATIVE)
    assert failure.code is FailureCode.RESUME_FAILED
    assert failure.retired_session is None


async def test_no_second_start_after_a_tool_call(claude: FakeRuntime) -> None:
    """The prompt went to another session, and a tool ran there: running it again would run the tool twice."""
    use = said({"type": "tool_use", "id": "t1", "name": "Write", "input": {}})
    transcript = (Said("user", "before"),)
    other = {"write": {"type": "system", "subtype": "init", "session_id": "other"}}
    failure = await claude.failure(*START, use, other, native_session=NATIVE, transcript=transcript)
    assert failure.code is FailureCode.RESUME_FAILED
    assert failure.tool_calls == 1


def hook(call: str, tool: str, command: str = "date") -> dict[str, Any]:
    given = {"tool_name": tool, "tool_input": {"command": command}, "tool_use_id": call}
    request = {"subtype": "hook_callback", "callback_id": "gate", "input": given}
    return {"write": {"type": "control_request", "request_id": "r1", "request": request}}


async def test_a_tool_that_ran_without_the_hook_ends_the_job(claude: FakeRuntime) -> None:
    use = said({"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "date"}})
    done = said({"type": "tool_result", "tool_use_id": "t1", "content": "now"}, kind="user")
    steps = (*START, INIT, TAKEN, use, done, result())
    failure = await claude.failure(*steps, permissions=JobPermissions(SafetyMode.BALANCED))
    assert failure.code is FailureCode.UNENFORCEABLE
    assert (await claude.run(*steps)).output == "done"  # where everything is allowed, nothing was evaded


async def test_the_hook_gets_the_answer_of_a_person_with_its_reason(claude: FakeRuntime) -> None:
    claude.recorder.answer = lambda question: JobAnswer(False, "too late today")
    use = said({"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "date"}})
    steps = (*START, INIT, TAKEN, use, hook("t1", "Bash"), {"read": "control_response"}, result())
    await claude.run(*steps, permissions=JobPermissions(SafetyMode.BALANCED))
    (asked,) = claude.recorder.questions
    assert (asked.id.partition(":")[0], asked.tool) == ("t1", "Bash")
    answer = claude.was_read()[-1]["response"]["response"]["hookSpecificOutput"]
    assert answer["permissionDecision"] == "deny"
    assert answer["permissionDecisionReason"] == "too late today"


async def test_an_answer_counts_only_for_the_arguments_that_were_shown(claude: FakeRuntime) -> None:
    """The id of the call is claude's own, and it may use one again."""
    claude.recorder.answer = lambda question: JobAnswer(question.input == {"command": "date"})
    replied = {"read": "control_response"}
    asks = (hook("t1", "Bash"), replied, hook("t1", "Bash", "rm -rf /"), replied, hook("t1", "Bash"), replied)
    await claude.run(*START, INIT, TAKEN, *asks, result(), permissions=JobPermissions(SafetyMode.BALANCED))
    first, other = claude.recorder.questions
    assert first.id != other.id
    replies = [one["response"]["response"] for one in claude.was_read() if one["type"] == "control_response"]
    decided = [one["hookSpecificOutput"]["permissionDecision"] for one in replies]
    assert decided == ["allow", "deny", "allow"]


async def test_a_question_that_cannot_be_asked_is_a_denial(claude: FakeRuntime) -> None:
    def broken(question: object) -> JobAnswer:
        raise RuntimeError("the server is gone")

    claude.recorder.answer = broken
    steps = (*START, INIT, TAKEN, hook("t1", "Bash"), {"read": "control_response"}, result())
    await claude.run(*steps, permissions=JobPermissions(SafetyMode.STRICT))
    answer = claude.was_read()[-1]["response"]["response"]["hookSpecificOutput"]
    assert answer["permissionDecision"] == "deny"
    assert "the server is gone" in answer["permissionDecisionReason"]


async def test_a_missing_cli_is_not_started(claude: FakeRuntime, tmp_path: Path) -> None:
    kind = kind_named("claude", ["/nonexistent/claude"], {})
    assert await kind.version() is None
    with pytest.raises(JobFailed) as failed:
        await kind.run(Job("x", tmp_path), claude.recorder)
    assert failed.value.code is FailureCode.NOT_STARTED

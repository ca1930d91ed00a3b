"""The command kind: the line protocol for scripts."""

from pathlib import Path
from typing import Any

import pytest

from lastgood.worker.job import ActivityType, FailureCode, JobPermissions, SafetyMode, Said
from tests.worker.fake_runtime import FakeRuntime

pytestmark = pytest.mark.anyio

JOB = {"read": "job"}
DONE = {"write": {"type": "result", "output": "done"}}


def line(kind: str, **fields: Any) -> dict[str, Any]:
    return {"write": {"type": kind, **fields}}


@pytest.fixture
def command(tmp_path: Path) -> FakeRuntime:
    return FakeRuntime("command", tmp_path)


async def test_a_script_reports_and_ends_with_a_result(command: FakeRuntime) -> None:
    result = await command.run(
        JOB,
        line("session", id="s1"),
        {"write": "plain text"},
        line("text", text="hello"),
        line("thinking", text="hm"),
        line("tool_use", tool="ls", input={"path": "."}, call="c1"),
        line("tool_result", tool="ls", output="a.txt", call="c1"),
        line("usage", input_tokens=5, output_tokens=2, cost=0.1),
        line("news"),
        DONE,
        instruction="be brief",
        disclosures=("the folder is new",),
    )
    assert (result.output, result.native_session) == ("done", "s1")
    assert (result.usage.input_tokens, result.usage.output_tokens, result.usage.cost) == (5, 2, 0.1)
    seen = [(one.type, one.content or one.output or one.tool) for one in command.recorder.activities]
    assert seen == [
        (ActivityType.TEXT, "plain text"),
        (ActivityType.TEXT, "hello"),
        (ActivityType.THINKING, "hm"),
        (ActivityType.TOOL_USE, "ls"),
        (ActivityType.TOOL_RESULT, "a.txt"),
        (ActivityType.ERROR, 'Unknown event of the CLI: {"type":"news"}'),
    ]
    job = command.was_read()[0]
    assert job["prompt"] == "the prompt"
    assert job["instruction"] == "be brief"
    assert job["disclosures"] == ["the folder is new"]


@pytest.mark.parametrize(
    ("steps", "code"),
    [
        ([{"exit": 0}], FailureCode.CLI_PROTOCOL),
        ([{"exit": 1}], FailureCode.CLI_FAILED),
        ([{"stderr": "HTTP 500 from the model"}, {"exit": 1}], FailureCode.MODEL_ERROR),
        ([line("result")], FailureCode.CLI_PROTOCOL),
        ([line("error", message="no", code="model_error")], FailureCode.MODEL_ERROR),
        ([line("error", message="no", code="made_up")], FailureCode.CLI_FAILED),
        ([line("error")], FailureCode.CLI_FAILED),
    ],
)
async def test_a_script_without_a_result_has_failed(
    command: FakeRuntime, steps: list[dict[str, Any]], code: FailureCode
) -> None:
    assert (await command.failure(JOB, *steps)).code is code


async def test_a_rate_limit_carries_its_wait(command: FakeRuntime) -> None:
    error = line("error", code="rate_limited", message="slow down", retry_after_seconds=12)
    failure = await command.failure(JOB, error)
    assert (failure.code, failure.retry_after_seconds) == (FailureCode.RATE_LIMITED, 12)


@pytest.mark.parametrize(
    "session",
    [
        [line("session", id="s2", resumed=True)],
        [line("session", id="s1")],
        [line("session", id="s1", resumed="yes")],
        [],
    ],
)
async def test_a_resume_must_be_confirmed(command: FakeRuntime, session: list[dict[str, Any]]) -> None:
    failure = await command.failure(JOB, *session, DONE, native_session="s1")
    assert failure.code is FailureCode.RESUME_FAILED
    assert failure.retired_session == "s1"
    assert command.recorder.pins == []


async def test_a_confirmed_resume_continues(command: FakeRuntime) -> None:
    said = (Said("user", "missed"),)
    resumed = line("session", id="s1", resumed=True)
    result = await command.run(JOB, resumed, DONE, native_session="s1", catch_up=said)
    assert result.native_session == "s1"
    assert result.retired_session is None
    assert command.was_read()[0]["catch_up"] == [{"role": "user", "content": "missed"}]


async def test_a_refused_resume_without_a_transcript_is_not_tried_again(command: FakeRuntime) -> None:
    await command.failure(JOB, line("error", code="resume_failed", message="gone"), native_session="s1")
    assert len(command.was_read()) == 1


async def test_the_fresh_start_after_a_refusal_comes_once_and_is_disclosed(command: FakeRuntime) -> None:
    refusal = line("error", code="resume_failed", message="gone")
    said = (Said("user", "before"),)
    failure = await command.failure(JOB, refusal, native_session="s1", transcript=said)
    first, second = command.was_read()  # the second one is refused, too: there is no third
    assert (first["session"], second["session"]) == ("s1", None)
    assert second["transcript"] == [{"role": "user", "content": "before"}]
    assert "'s1': gone" in second["disclosures"][0]
    assert failure.retired_session == "s1"


async def test_no_fresh_start_after_a_tool_call(command: FakeRuntime) -> None:
    use = line("tool_use", tool="rm", input={}, call="c1")
    refusal = line("error", code="resume_failed", message="gone")
    said = (Said("user", "before"),)
    failure = await command.failure(JOB, use, refusal, native_session="s1", transcript=said)
    assert failure.tool_calls == 1
    assert len(command.was_read()) == 1


async def test_a_script_may_ask(command: FakeRuntime) -> None:
    ask = line("ask", id="q1", tool="deploy", input={"to": "prod"}, title="Deploy")
    await command.run(JOB, ask, {"read": "answer"}, DONE)
    assert command.was_read()[-1] == {
        "type": "answer",
        "id": "q1",
        "allowed": True,
        "reason": ("the safety mode is autonomous, no rule matches this call, and its effect is unknown"),
    }


async def test_rules_cannot_be_enforced_on_a_script(command: FakeRuntime) -> None:
    failure = await command.failure(JOB, DONE, permissions=JobPermissions(SafetyMode.BALANCED))
    assert failure.code is FailureCode.UNENFORCEABLE
    assert command.kind.cannot_enforce(JobPermissions(SafetyMode.AUTONOMOUS)) is None
    for permissions in (
        JobPermissions(SafetyMode.BALANCED),
        JobPermissions(SafetyMode.AUTONOMOUS, deny=("shell",)),
        JobPermissions(SafetyMode.AUTONOMOUS, ask=("shell",)),
        JobPermissions(SafetyMode.AUTONOMOUS, ceiling=SafetyMode.BALANCED),
    ):
        assert "autonomous" in (command.kind.cannot_enforce(permissions) or "")

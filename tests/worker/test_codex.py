"""The codex kind on recorded conversations with its app server."""

from pathlib import Path
from typing import Any

import pytest

from lastgood.worker.job import ActivityType, FailureCode, JobPermissions, SafetyMode, Said
from lastgood.worker.runtimes.codex_events import script_in
from tests.worker.fake_runtime import FakeRuntime

pytestmark = pytest.mark.anyio

THREAD = "01a1ee61-edba-7c41-81cf-19e82524907d"
HELLO = ({"read": "initialize"}, {"reply": {"userAgent": "x"}})
OURS = {"threadId": THREAD, "turnId": "turn-1"}
BALANCED = JobPermissions(SafetyMode.BALANCED)


def opened(
    method: str = "thread/start", policy: str | None = "never", thread: str = THREAD
) -> tuple[Any, ...]:
    return {"read": method}, {"reply": {"thread": {"id": thread}, "approvalPolicy": policy}}


TURN = ({"read": "turn/start"}, {"reply": {"turn": {"id": "turn-1", "status": "inProgress"}}})
START = (*HELLO, *opened(), *TURN)


def note(method: str, **params: Any) -> dict[str, Any]:
    return {"write": {"method": method, "params": {**OURS, **params}}}


def item(kind: str, state: str = "completed", **fields: Any) -> dict[str, Any]:
    return note(f"item/{state}", item={"type": kind, "id": "i1", **fields})


def ended(status: str = "completed", **fields: Any) -> dict[str, Any]:
    return note("turn/completed", turn={"id": "turn-1", "status": status, **fields})


ANSWER = item("agentMessage", text="done")


@pytest.fixture
def codex(tmp_path: Path) -> FakeRuntime:
    return FakeRuntime("codex", tmp_path)


async def test_a_completed_turn_with_an_answer_is_a_success(codex: FakeRuntime) -> None:
    tokens = {"last": {"inputTokens": 5, "outputTokens": 2}, "total": {"inputTokens": 500}}
    used = note("thread/tokenUsage/updated", tokenUsage=tokens)
    other = {
        "write": {
            "method": "item/completed",
            "params": {
                "threadId": "a subagent's",
                "item": {"type": "agentMessage", "id": "i9", "text": "of another thread"},
            },
        }
    }
    result = await codex.run(
        *START,
        item("commandExecution", "started", command="/bin/bash -lc 'ls -a'"),
        item("commandExecution", status="completed", aggregatedOutput="a.txt"),
        used,
        used,
        ANSWER,
        other,
        note("codex/news"),
        ended(),
        instruction="be brief",
        model="gpt-x",
        effort="xhigh",
    )
    assert (result.output, result.native_session) == ("done", THREAD)
    assert (result.usage.input_tokens, result.usage.output_tokens) == (10, 4)
    assert result.cli_version == "1.0.0 (untested)"
    (use,) = codex.recorder.of(ActivityType.TOOL_USE)
    assert (use.tool, use.input) == ("commandExecution", {"command": "ls -a"})
    assert "codex/news" in codex.recorder.of(ActivityType.ERROR)[0].content
    settings = codex.was_read()[1]["params"]
    assert (settings["developerInstructions"], settings["model"]) == ("be brief", "gpt-x")
    assert settings["config"] == {"model_reasoning_effort": "xhigh"}


@pytest.mark.parametrize(
    ("steps", "code"),
    [
        ([ANSWER, note("turn/finished"), {"exit": 0}], FailureCode.CLI_PROTOCOL),  # renamed event
        ([ended()], FailureCode.CLI_PROTOCOL),  # no answer
        ([ANSWER, note("turn/completed", turn={"status": "completed"})], FailureCode.CLI_PROTOCOL),
        ([ANSWER, ended("interrupted")], FailureCode.CLI_FAILED),
        (
            [ended("failed", error={"message": "no", "codexErrorInfo": "internalServerError"})],
            FailureCode.MODEL_ERROR,
        ),
        (
            [ended("failed", error={"message": "no", "codexErrorInfo": "usageLimitExceeded"})],
            FailureCode.RATE_LIMITED,
        ),
        (
            [
                ended(
                    "failed",
                    error={
                        "message": "x",
                        "codexErrorInfo": {"httpConnectionFailed": {"httpStatusCode": 401}},
                    },
                )
            ],
            FailureCode.MODEL_ERROR,
        ),
        ([{"exit": 1}], FailureCode.CLI_FAILED),
        (
            [note("error", error={"message": "Reconnecting"}, willRetry=True)] * 3 + [{"hang": 1}],
            FailureCode.MODEL_ERROR,
        ),
    ],
)
async def test_anything_else_is_a_failure(
    codex: FakeRuntime, steps: list[dict[str, Any]], code: FailureCode
) -> None:
    failure = await codex.failure(*START, *steps)
    assert failure.code is code, failure
    assert failure.native_session == THREAD


async def test_a_thread_that_was_not_requested_is_no_resume(codex: FakeRuntime) -> None:
    other = "00000000-0000-7000-8000-000000000000"
    failure = await codex.failure(*HELLO, *opened("thread/resume"), *TURN, native_session=other)
    assert failure.code is FailureCode.RESUME_FAILED
    assert failure.retired_session == other
    assert "turn/start" not in [one.get("method") for one in codex.was_read()]


async def test_a_thread_with_another_writer_is_not_retired(codex: FakeRuntime) -> None:
    error = {"code": -32600, "message": f"thread {THREAD} already has an active writer"}
    refused = (*HELLO, {"read": "thread/resume"}, {"error": error})
    failure = await codex.failure(*refused, native_session=THREAD, transcript=(Said("user", "before"),))
    assert failure.code is FailureCode.RESUME_FAILED
    assert failure.retired_session is None
    assert "thread/start" not in [one.get("method") for one in codex.was_read()]


async def test_a_policy_that_codex_does_not_take_is_not_enforceable(codex: FakeRuntime) -> None:
    failure = await codex.failure(*HELLO, *opened(policy="on-request"), *TURN, permissions=BALANCED)
    assert failure.code is FailureCode.UNENFORCEABLE


async def test_a_command_that_ran_unasked_ends_the_job(codex: FakeRuntime) -> None:
    steps = (*HELLO, *opened(policy="untrusted"), *TURN)
    ran = item("commandExecution", command="rm -rf /", status="completed")
    failure = await codex.failure(*steps, ran, ANSWER, ended(), permissions=BALANCED)
    assert failure.code is FailureCode.UNENFORCEABLE
    assert "rm -rf /" in failure.message


async def test_a_call_of_an_mcp_server_that_ran_unasked_ends_the_job(codex: FakeRuntime) -> None:
    steps = (*HELLO, *opened(policy="untrusted"), *TURN)
    ran = item("mcpToolCall", server="github", tool="merge", status="completed")
    failure = await codex.failure(*steps, ran, ANSWER, ended(), permissions=BALANCED)
    assert failure.code is FailureCode.UNENFORCEABLE
    assert "github__merge" in failure.message


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("/bin/bash -lc 'ls -a; rm x'", "ls -a; rm x"),
        ("/bin/zsh -c ls", "ls"),
        ("git status", "git status"),
        ("/bin/bash -lc 'broken", "/bin/bash -lc 'broken"),
        ("env bash -lc ls", "env bash -lc ls"),
    ],
)
def test_rules_see_the_script_and_not_the_shell(command: str, script: str) -> None:
    assert script_in(command) == script

"""Every kind with its real CLI: turns, resume, failures, cancel and permissions.

What a CLI remembered is read from what its model received.
"""

import asyncio
import socket
import uuid
from pathlib import Path

import pytest

from lastgood.worker.job import (
    ActivityType,
    FailureCode,
    JobAnswer,
    JobFailed,
    JobPermissions,
    SafetyMode,
    Said,
    Steering,
)
from lastgood.worker.runtimes.acp_sessions import SessionName, digest_of, store_name
from tests.clis.harness import RealCli

pytestmark = pytest.mark.anyio

FOREIGN_IDS = {
    "claude": ["ses_abc", "20261115_1"],
    "codex": ["ses_abc", "20261115_1"],
    "goose": ["ses_abc", "0198c1de-0000-7000-8000-000000000000"],
}


def unknown_id(cli: RealCli) -> str:
    """Of the CLI's own shape and home, and never made by it."""
    if cli.name == "goose":
        return str(SessionName("20200101_77", store_name(cli.environment()), digest_of("hello")))
    return str(uuid.uuid4())


def content_of(file: Path) -> str | None:
    return file.read_text().strip() if file.exists() else None


async def failure_of(cli: RealCli, prompt: str, native: str | None = None) -> JobFailed:
    with pytest.raises(JobFailed) as failed:
        await cli.run(prompt, native_session=native)
    return failed.value


async def test_three_turns_are_one_native_session(cli: RealCli) -> None:
    native = None
    for mark in ("MARK-one", "MARK-two", "MARK-three"):
        result = await cli.run(f"hello {mark}", native_session=native)
        assert result.output.startswith("FAKE seen=[")
        assert native in (None, result.native_session)
        native = result.native_session
        assert native is not None
    last = cli.model.about("MARK-three")[-1]
    assert last.marks == ["MARK-one", "MARK-two", "MARK-three"]
    assert last.assistants == 2
    assert set(cli.recorder.pins) == {native}
    assert result.usage.output_tokens > 0
    assert result.cli_version
    assert "untested" not in result.cli_version


async def test_a_turn_edits_a_file(cli: RealCli) -> None:
    result = await cli.run(f"MARK-edit {cli.write_file('a.txt', 'written')}")
    assert content_of(cli.folder / "a.txt") == "written", cli.recorder.outputs()
    uses = [one for one in cli.recorder.activities if one.type is ActivityType.TOOL_USE]
    results = [one for one in cli.recorder.activities if one.type is ActivityType.TOOL_RESULT]
    assert len(uses) == 1
    assert uses[0].call == results[0].call
    assert "MARK-edit" in result.output


async def test_a_stream_of_the_model_that_is_cut_costs_no_edit(cli: RealCli) -> None:
    if cli.name != "claude":
        pytest.skip("the others end the turn, which is no success")
    cli.model.cuts = 1
    await cli.run(f"MARK-edit {cli.write_file('a.txt', 'written')}")
    assert cli.model.cuts == 0
    assert any(body.get("stream") is not True and body.get("tools") for body in cli.model.bodies)
    assert content_of(cli.folder / "a.txt") == "written", cli.recorder.outputs()


async def test_an_unknown_session_is_never_a_silent_fresh_start(cli: RealCli) -> None:
    for native in (unknown_id(cli), *FOREIGN_IDS[cli.name]):
        failure = await failure_of(cli, "MARK-lost", native)
        assert failure.code is FailureCode.RESUME_FAILED, failure
        assert failure.retired_session == native
        assert failure.tool_calls == 0
    assert cli.model.about("MARK-lost") == []


async def test_a_session_of_another_home_is_refused(cli: RealCli, tmp_path: Path) -> None:
    other = cli.at_home(tmp_path / "other")
    theirs = await cli.run("MARK-mine")
    await other.run("MARK-other")
    failure = await failure_of(other, "MARK-lost", theirs.native_session)
    assert failure.code is FailureCode.RESUME_FAILED
    assert cli.model.about("MARK-lost") == []


async def test_a_refused_session_starts_once_more_with_the_transcript(cli: RealCli) -> None:
    native = unknown_id(cli)
    said = (Said("user", "remember MARK-past"), Said("assistant", "I do"))
    result = await cli.run("MARK-now", native_session=native, transcript=said)
    assert result.retired_session == native
    assert native in result.disclosure
    assert result.native_session not in (None, native)
    asked = cli.model.about("MARK-now")[-1]
    assert any("> remember MARK-past" in text and "> I do" in text for text in asked.users)


@pytest.mark.parametrize("status", [401, 429, 500])
async def test_a_model_that_fails_is_never_a_success(cli: RealCli, status: int) -> None:
    cli.model.fail_with = status
    failure = await failure_of(cli, "MARK-fail")
    wanted = FailureCode.RATE_LIMITED if status == 429 else FailureCode.MODEL_ERROR
    assert failure.code is wanted, failure


async def test_a_model_that_cannot_be_reached_is_never_a_success(cli: RealCli) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        cli.port = free.getsockname()[1]
    failure = await failure_of(cli, "MARK-refused")
    assert failure.code is FailureCode.MODEL_ERROR, failure


async def test_a_cancelled_run_leaves_no_process_and_can_be_resumed(cli: RealCli) -> None:
    first = await cli.run("MARK-one")
    running = asyncio.create_task(cli.run("MARK-two SLOW", native_session=first.native_session))
    await asyncio.to_thread(cli.model.slow.wait, 30)
    assert cli.processes()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert cli.processes() == []
    again = await cli.run("MARK-three", native_session=first.native_session)
    assert again.native_session == first.native_session
    assert "MARK-one" in cli.model.about("MARK-three")[-1].marks


@pytest.mark.parametrize("allowed", [True, False])
async def test_a_person_allows_or_denies_an_edit(cli: RealCli, allowed: bool) -> None:
    cli.recorder.answer = lambda question: JobAnswer(allowed, "not on a Friday")
    permissions = JobPermissions(SafetyMode.BALANCED)
    assert cli.kind.cannot_enforce(permissions) is None
    prompt = f"MARK-ask {cli.write_file('asked.txt', 'x')}"
    await cli.run(prompt, permissions=permissions)
    assert len(cli.recorder.questions) == 1
    assert "asked.txt" in str(cli.recorder.questions[0].input)
    assert content_of(cli.folder / "asked.txt") == ("x" if allowed else None), cli.recorder.outputs()
    if not allowed:
        received = [text for one in cli.model.conversations for text in (*one.tool_results, *one.users)]
        assert any("not on a Friday" in text for text in received)


async def test_a_deny_rule_and_the_ceiling_deny_without_a_question(cli: RealCli) -> None:
    ceiling = JobPermissions(SafetyMode.AUTONOMOUS, allow=("*",), ceiling=SafetyMode.RESTRICTED)
    await cli.run(f"MARK-ceiling {cli.write_file('b.txt', 'x')}", permissions=ceiling)
    rule = JobPermissions(SafetyMode.BALANCED, allow=("*",), deny=("write*:path=*b.txt", "shell:cmd=*b.txt"))
    await cli.run(f"MARK-rule {cli.write_file('b.txt', 'x')}", permissions=rule)
    assert cli.recorder.questions == []
    assert not (cli.folder / "b.txt").exists()


async def test_a_message_reaches_a_running_turn(cli: RealCli) -> None:
    assert cli.kind.can_steer
    steering = Steering()
    asked = asyncio.Event()
    go_on = asyncio.Event()
    permissions = JobPermissions(SafetyMode.BALANCED)

    async def ask(question: object) -> JobAnswer:
        asked.set()
        await go_on.wait()
        return JobAnswer(True)

    cli.recorder.ask = ask  # type: ignore[method-assign]
    prompt = f"MARK-first {cli.write_file('c.txt', 'x')}"
    running = asyncio.create_task(cli.run(prompt, steering, permissions=permissions))
    await asyncio.wait_for(asked.wait(), 30)
    assert await steering.send("also MARK-steer")
    go_on.set()
    result = await running
    assert "MARK-steer" in result.output
    assert not await steering.send("too late")

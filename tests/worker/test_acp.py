"""The acp kind on recorded conversations, and the names of its native sessions."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from lastgood.worker.job import ActivityType, FailureCode, JobPermissions, SafetyMode, Steering
from lastgood.worker.runtimes.acp_sessions import SessionName, digest_of, parse_name, store_name
from tests.polls import eventually
from tests.worker.fake_runtime import FakeRuntime

pytestmark = pytest.mark.anyio

BALANCED = JobPermissions(SafetyMode.BALANCED)
MODES = {"currentModeId": "auto", "availableModes": [{"id": "auto"}, {"id": "approve"}]}


def hello(version: Any = 1, loads: bool = True) -> tuple[Any, ...]:
    reply = {"protocolVersion": version, "agentCapabilities": {"loadSession": loads}}
    return {"read": "initialize"}, {"reply": {**reply, "agentInfo": {"name": "x", "version": "9.9"}}}


ASKS: tuple[Any, ...] = ({"read": "session/set_mode"}, {"reply": {}})
NEW = ({"read": "session/new"}, {"reply": {"sessionId": "s1", "modes": MODES}})
PROMPT = {"read": "session/prompt"}
START = (*hello(), *NEW, PROMPT)
END = {"reply": {"stopReason": "end_turn", "usage": {"inputTokens": 5, "outputTokens": 2}}}


def update(name: str, **fields: Any) -> dict[str, Any]:
    params = {"sessionId": "s1", "update": {"sessionUpdate": name, **fields}}
    return {"write": {"method": "session/update", "params": params}}


def text(words: str, kind: str = "agent_message_chunk", message: str = "m1") -> dict[str, Any]:
    return update(kind, content={"type": "text", "text": words}, messageId=message)


@pytest.fixture
def acp(tmp_path: Path) -> FakeRuntime:
    return FakeRuntime("acp", tmp_path)


@pytest.fixture
def goose(tmp_path: Path) -> FakeRuntime:
    return FakeRuntime("goose", tmp_path)


def name_of(runtime: FakeRuntime, first: str, native: str = "s1") -> str:
    return str(SessionName(native, store_name(runtime.environment), digest_of(first)))


async def test_a_turn_that_ends_with_an_answer_is_a_success(acp: FakeRuntime) -> None:
    call = update("tool_call", toolCallId="c1", kind="edit", title="Edit a.txt", rawInput={"path": "a.txt"})
    done = update("tool_call_update", toolCallId="c1", status="completed", rawOutput="ok")
    steps = (text("I will "), text("edit"), call, done, text("do"), text("ne"), update("news"), END)
    result = await acp.run(*START, *steps)
    assert result.output == "done"
    assert result.native_session == name_of(acp, "the prompt")
    assert (result.usage.input_tokens, result.usage.output_tokens) == (5, 2)
    assert result.cli_version == "9.9"
    assert acp.recorder.pins == [result.native_session]
    assert [one.content for one in acp.recorder.of(ActivityType.TEXT)] == ["I will edit", "done"]
    assert acp.recorder.of(ActivityType.TOOL_RESULT)[0].output == "ok"
    assert '"news"' in acp.recorder.of(ActivityType.ERROR)[0].content


@pytest.mark.parametrize(
    ("steps", "code"),
    [
        ([END], FailureCode.CLI_PROTOCOL),
        ([text("x"), {"reply": {}}], FailureCode.CLI_FAILED),
        ([text("x"), {"reply": {"stopReason": "max_tokens"}}], FailureCode.CLI_FAILED),
        ([text("x"), {"reply": {"stopReason": "refusal"}}], FailureCode.MODEL_ERROR),
        ([{"error": {"code": -32000, "message": "Authentication required"}}], FailureCode.MODEL_ERROR),
        ([{"error": {"code": -32603, "message": "Internal error"}}], FailureCode.CLI_FAILED),
        ([text("x"), {"exit": 0}], FailureCode.CLI_PROTOCOL),
        ([{"exit": 2}], FailureCode.CLI_FAILED),
    ],
)
async def test_anything_else_is_a_failure(
    acp: FakeRuntime, steps: list[dict[str, Any]], code: FailureCode
) -> None:
    failure = await acp.failure(*START, *steps)
    assert failure.code is code, failure


async def test_an_agent_of_another_protocol_version_is_refused(acp: FakeRuntime) -> None:
    assert (await acp.failure(*hello(version=2))).code is FailureCode.CLI_PROTOCOL


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (
            "Ran into this error: Server error (500 Internal Server Error): x.\n\n"
            "Please retry if you think this is a transient or recoverable error.",
            FailureCode.MODEL_ERROR,
        ),
        (
            "Ran into this error: Rate limit exceeded. Retry after 30 s.\n\n"
            "Please retry if you think this is a transient or recoverable error.",
            FailureCode.RATE_LIMITED,
        ),
        (
            "Network error: Could not connect.\n\nPlease resend your message to try again.",
            FailureCode.MODEL_ERROR,
        ),
        (
            "The model returned an empty response. Please resend your message to continue.",
            FailureCode.MODEL_ERROR,
        ),
    ],
)
async def test_an_error_that_goose_answers_as_text_is_a_failure(
    goose: FakeRuntime, words: str, code: FailureCode
) -> None:
    steps = (text("I begin", message="m0"), text(words[:20]), text(words[20:]), END)
    failure = await goose.failure(*START, *steps)
    assert failure.code is code
    assert failure.retry_after_seconds == (30 if code is FailureCode.RATE_LIMITED else None)


async def test_an_answer_about_such_an_error_is_a_success(goose: FakeRuntime) -> None:
    words = "The log says: Ran into this error: no space. I deleted old files."
    assert (await goose.run(*START, text(words), END)).output == words


LOAD = {"read": "session/load"}
OLD = text("hello", "user_message_chunk")


async def test_a_resume_is_proved_by_the_conversation_that_is_shown(acp: FakeRuntime) -> None:
    native = name_of(acp, "hello   there")
    shown = (text("hello", "user_message_chunk"), text(" there", "user_message_chunk"), text("old answer"))
    later = text("and then", "user_message_chunk")
    steps = (*hello(), LOAD, *shown, later, {"reply": {}}, PROMPT, text("new"), END)
    result = await acp.run(*steps, native_session=native)
    assert (result.output, result.native_session) == ("new", native)
    assert [one.content for one in acp.recorder.of(ActivityType.TEXT)] == [
        "new"
    ]  # nothing old is shown again


@pytest.mark.parametrize(
    "steps",
    [
        (*hello(), LOAD, {"reply": {}}),  # any id is accepted, with an empty conversation
        (*hello(), LOAD, text("other", "user_message_chunk"), {"reply": {}}),
        (*hello(), LOAD, {"error": {"code": -32002, "message": "Session not found"}}),
        (*hello(loads=False),),
        (*hello(), LOAD, OLD, {"reply": {}}, PROMPT, {"reply": {"stopReason": "refusal"}}),
    ],
)
async def test_a_resume_that_is_not_proved_is_refused(
    acp: FakeRuntime, steps: tuple[dict[str, Any], ...]
) -> None:
    native = name_of(acp, "hello")
    failure = await acp.failure(*steps, native_session=native)
    assert failure.code is FailureCode.RESUME_FAILED
    assert failure.retired_session == native


async def test_names_of_sessions_belong_to_a_home(acp: FakeRuntime, tmp_path: Path) -> None:
    elsewhere = {"HOME": str(tmp_path / "elsewhere")}
    assert store_name(elsewhere) == store_name(elsewhere) != store_name(acp.environment)
    for native in ("s1", "s1@x.y", str(SessionName("s1", store_name(elsewhere), digest_of("hello")))):
        failure = await acp.failure(*hello(), LOAD, OLD, {"reply": {}}, native_session=native)
        assert failure.code is FailureCode.RESUME_FAILED
    name = SessionName("a@b.c", "0" * 16, "f" * 16)
    assert parse_name(str(name)) == name


async def test_two_jobs_that_start_at_once_give_a_home_one_name(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path / "data")}
    names = await asyncio.gather(*(asyncio.to_thread(store_name, environment) for _ in range(16)))
    assert len(set(names)) == 1
    assert [one.name for one in (tmp_path / "data" / "lastgood").iterdir()] == ["store-name"]


async def test_goose_enters_the_mode_in_which_it_asks(goose: FakeRuntime) -> None:
    await goose.run(*hello(), *NEW, *ASKS, PROMPT, text("x"), END, permissions=BALANCED)
    assert goose.was_read()[2]["params"]["modeId"] == "approve"
    refused = ({"read": "session/set_mode"}, {"error": {"code": -32602, "message": "no such mode"}})
    failure = await goose.failure(*hello(), *NEW, *refused, permissions=BALANCED)
    assert failure.code is FailureCode.UNENFORCEABLE


async def test_an_agent_whose_owner_names_its_asking_mode_is_held_to_rules(tmp_path: Path) -> None:
    agent = FakeRuntime("acp@approve", tmp_path)
    assert agent.kind.cannot_enforce(BALANCED) is None
    options = [
        {"optionId": f"id-{kind}", "kind": kind, "name": kind} for kind in ("allow_once", "reject_once")
    ]
    call = {"toolCallId": "c1", "kind": "execute", "title": "rm x", "rawInput": {"command": "rm x"}}
    asked = {"sessionId": "s1", "toolCall": call, "options": options}
    ask = {"write": {"id": 77, "method": "session/request_permission", "params": asked}}
    start = (*hello(), *NEW, *ASKS, PROMPT)
    rules = JobPermissions(SafetyMode.BALANCED, deny=("shell:cmd=rm *",))
    await agent.run(
        *start,
        ask,
        {"read": "answer"},
        text("x"),
        {"write": {"id": 4, "result": {"stopReason": "end_turn"}}},
        permissions=rules,
    )
    assert agent.was_read()[2]["params"]["modeId"] == "approve"
    assert agent.was_read()[-1]["result"]["outcome"]["optionId"] == "id-reject_once"
    ran = update("tool_call", status="completed", **{**call, "toolCallId": "c2"})
    failure = await agent.failure(*start, ran, END, permissions=rules)
    assert failure.code is FailureCode.UNENFORCEABLE
    refused = ({"read": "session/set_mode"}, {"error": {"code": -32602, "message": "no such mode"}})
    failure = await agent.failure(*hello(), *NEW, *refused, permissions=rules)
    assert "did not enter the mode 'approve'" in failure.message


async def test_a_tool_that_ran_unasked_ends_the_job(goose: FakeRuntime) -> None:
    meta = {"goose": {"toolCall": {"toolName": "write", "extensionName": "developer"}}}
    call = update("tool_call", toolCallId="c1", title="write · a", rawInput={"path": "a"}, _meta=meta)
    done = update("tool_call_update", toolCallId="c1", status="completed")
    failure = await goose.failure(*hello(), *NEW, *ASKS, PROMPT, call, done, END, permissions=BALANCED)
    assert failure.code is FailureCode.UNENFORCEABLE
    safe = dict(meta, goose={"toolCall": {"toolName": "tree", "extensionName": "developer"}})
    call = update("tool_call", toolCallId="c1", title="tree · .", rawInput={"path": "."}, _meta=safe)
    await goose.run(*hello(), *NEW, *ASKS, PROMPT, call, done, text("x"), END, permissions=BALANCED)


async def test_a_tool_of_another_extension_does_not_borrow_a_safe_name(goose: FakeRuntime) -> None:
    meta = {"goose": {"toolCall": {"toolName": "tree", "extensionName": "evil"}}}
    call = update("tool_call", toolCallId="c1", title="tree · .", rawInput={"path": "."}, _meta=meta)
    done = update("tool_call_update", toolCallId="c1", status="completed")
    failure = await goose.failure(*hello(), *NEW, *ASKS, PROMPT, call, done, END, permissions=BALANCED)
    assert failure.code is FailureCode.UNENFORCEABLE
    assert "evil__tree" in failure.message


async def test_an_answer_counts_once_and_never_for_always(goose: FakeRuntime) -> None:
    kinds = ("allow_always", "allow_once", "reject_always", "reject_once")
    options = [{"optionId": f"id-{kind}", "kind": kind, "name": kind} for kind in kinds]
    call = {"toolCallId": "c1", "title": "shell · rm x", "rawInput": {"command": "rm x"}}
    ask = {
        "write": {
            "id": 7,
            "method": "session/request_permission",
            "params": {"toolCall": call, "options": options},
        }
    }
    for allow, chosen in ((("shell",), "id-allow_once"), ((), "id-reject_once")):
        rules = JobPermissions(SafetyMode.RESTRICTED, allow=allow)
        steps = (
            *hello(),
            *NEW,
            *ASKS,
            PROMPT,
            ask,
            {"read": "answer"},
            text("x"),
            {"write": {"id": 4, "result": {"stopReason": "end_turn"}}},
        )
        await goose.run(*steps, permissions=rules)
        assert goose.was_read()[-1]["result"]["outcome"] == {"outcome": "selected", "optionId": chosen}


async def test_a_steer_that_came_too_late_is_prompted(goose: FakeRuntime) -> None:
    steering = Steering()
    run = update("session_info_update", _meta={"goose": {"activeRunId": "run-1"}})
    queued = ({"read": "_goose/unstable/session/steer"}, {"reply": {"messageId": "steer-1"}})
    first = {"write": {"id": 3, "result": {"stopReason": "end_turn"}}}
    steps = (*START, run, text("one"), *queued, first, PROMPT, text("two", message="m2"), END)
    running = asyncio.create_task(goose.run(*steps, steering=steering))
    await eventually(lambda: steering.send("one more thing"))
    assert (await running).output.endswith("two")
    assert goose.was_read()[-1]["params"]["prompt"] == [{"type": "text", "text": "one more thing"}]
    assert not await steering.send("too late")


def test_only_known_agents_can_be_held_to_rules(acp: FakeRuntime, goose: FakeRuntime) -> None:
    assert goose.kind.cannot_enforce(BALANCED) is None
    assert "autonomous" in (acp.kind.cannot_enforce(BALANCED) or "")
    assert acp.kind.cannot_enforce(JobPermissions(SafetyMode.AUTONOMOUS)) is None
    assert (goose.kind.can_steer, acp.kind.can_steer) == (True, False)

"""Drives Claude Code by its stream of JSON lines, in both directions.

Permissions are enforced by a hook of ours that claude calls before every tool call, so nothing that claude
allows by itself or by its settings escapes the rules. Where rules restrict anything, settings of the user
and of the repository are not loaded at all: they can hold hooks and MCP servers that run commands without
any tool call.

A turn succeeded only if its `result` event says so and `is_error` is false.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from lastgood.worker.job import (
    FailureCode,
    Job,
    JobAnswer,
    JobFailed,
    JobPermissions,
    JobResult,
    Reporter,
    Steering,
)
from lastgood.worker.runtimes.claude_events import (
    TOOLS,
    error_text_of,
    hook_reply,
    parts_of,
    texts_of,
    tool_reply,
    usage_with,
)
from lastgood.worker.runtimes.cli_process import CliGone, CliNotStarted, CliProcess, ProcessGroups
from lastgood.worker.runtimes.failures import code_of_status
from lastgood.worker.runtimes.jsonrpc import object_in
from lastgood.worker.runtimes.mcp_config import claude_config_file
from lastgood.worker.runtimes.native_ids import is_uuid
from lastgood.worker.runtimes.prompt import as_message, prompt_of
from lastgood.worker.runtimes.record import RunRecord, with_one_fresh_start
from lastgood.worker.runtimes.tool_rules import UNKNOWN_TOOL, CliToolCall, ToolGate, restricts_nothing
from lastgood.worker.runtimes.versions import version_of

TESTED = frozenset({"2.1.197"})
EXIT_SECONDS = 10.0
NOTES_CHARACTERS = 40_000
#: A person may take days to answer. Claude's timers hold at most 24 days; a longer one would end at once.
GATE_SECONDS = 20 * 24 * 3600

_FLAGS = (
    *("--print", "--verbose", "--replay-user-messages"),
    *("--input-format", "stream-json", "--output-format", "stream-json"),
    *("--permission-prompt-tool", "stdio", "--permission-mode", "default"),
)
_ONLY_THESE_SERVERS = "--strict-mcp-config"
_NO_SETTINGS = ("--setting-sources=", _ONLY_THESE_SERVERS)
#: They need a person at the terminal, or act after the job has ended.
_UNUSABLE = "AskUserQuestion,EnterPlanMode,ExitPlanMode,CronCreate,ScheduleWakeup"
#: An update in the middle of a job would change what was tested.
_QUIET = {"DISABLE_AUTOUPDATER": "1"}
#: Otherwise the first request may come before the servers, and the model sees none of their tools.
_WAIT_FOR_SERVERS = {"MCP_CONNECTION_NONBLOCKING": "0"}

_IGNORED = {"stream_event", "control_response", "control_cancel_request", "keep_alive", "tool_progress"}
_NO_SESSION = re.compile(r"no conversation found|requires a valid session", re.IGNORECASE)
_RESET = re.compile(r"\|(\d{10})\b")


class ClaudeKind:
    provider = "claude"
    format = "claude-jsonl"
    can_steer = True

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], groups: ProcessGroups) -> None:
        self._command, self._environment, self._groups = tuple(command), environment, groups

    async def version(self) -> str | None:
        return await version_of(self._command, self._environment, TESTED)

    def cannot_enforce(self, permissions: JobPermissions) -> str | None:
        return None

    async def run(self, job: Job, reporter: Reporter, steering: Steering | None = None) -> JobResult:
        version = await version_of(self._command, job.environment, TESTED) or ""
        return await with_one_fresh_start(
            job, lambda one: self._once(one, RunRecord(reporter, version), reporter, steering or Steering())
        )

    async def _once(self, job: Job, record: RunRecord, reporter: Reporter, steering: Steering) -> JobResult:
        if job.native_session is not None and not is_uuid(job.native_session):
            # Claude would take it for a title, and a title may belong to another conversation.
            raise record.refused(job, "it is not a session id of claude")
        gate = ToolGate(job, reporter)
        environment = {**_QUIET, **(_WAIT_FOR_SERVERS if job.mcp_servers else {}), **job.environment}
        try:
            with claude_config_file(job) as servers:
                arguments = self._arguments(job, servers)
                async with self._groups.started(arguments, job.work_dir, environment) as process:
                    conversation = _Conversation(job, record, gate, process)
                    with steering.accepted_by(conversation.steer):
                        return await conversation.result()
        except CliNotStarted as error:
            raise record.failed(FailureCode.NOT_STARTED, str(error)) from error

    def _arguments(self, job: Job, servers: Path | None) -> list[str]:
        arguments = [*self._command, *_FLAGS, "--disallowed-tools", _UNUSABLE]
        if not restricts_nothing(job.permissions):
            arguments += _NO_SETTINGS
        if servers is not None:  # these, and none of the user's or the repository's
            arguments += [_ONLY_THESE_SERVERS, f"--mcp-config={servers}"]
        if job.model:
            arguments.append(f"--model={job.model}")
        if job.effort:
            arguments.append(f"--effort={job.effort}")
        if job.native_session:
            arguments.append(f"--resume={job.native_session}")
        return arguments


class _Conversation:
    def __init__(self, job: Job, record: RunRecord, gate: ToolGate, process: CliProcess) -> None:
        self._job, self._record, self._gate, self._process = job, record, gate, process
        self._answers: dict[str, asyncio.Future[JobAnswer]] = {}  # by the id of the question
        self._asked: set[str] = set()  # calls that the hook was asked about
        self._answering: set[asyncio.Task[None]] = set()
        self._calls: dict[str, CliToolCall] = {}
        self._unread: set[str] = set()  # messages that claude has not taken up yet
        self._acknowledges = False  # by repeating them, which old versions do not do
        self._reset_at: float | None = None
        self._ended = False

    async def steer(self, text: str) -> bool:
        if self._ended or self._record.native_session is None:
            return False
        try:
            await self._say(as_message(text))
        except CliGone:
            return False
        return True

    async def result(self) -> JobResult:
        try:
            return await self._converse()
        finally:
            self._ended = True
            for task in self._answering:
                task.cancel()
            await asyncio.gather(*self._answering, return_exceptions=True)

    async def _converse(self) -> JobResult:
        notes = "" if restricts_nothing(self._job.permissions) else _project_notes(self._job.work_dir)
        with contextlib.suppress(CliGone):  # its last events say why
            await self._initialize("\n\n".join(filter(None, (self._job.instruction, notes))))
            await self._say(prompt_of(self._job))
        async for line in self._process.lines():
            event = object_in(line.data) if line.whole else None
            if event is None:
                await self._record.unknown(
                    f"{line.data[:1000].decode(errors='replace')} ({line.size:,} bytes)"
                )
            elif ended := await self._handle(event):
                self._process.close_input()
                await self._process.wait(EXIT_SECONDS)
                return ended
        raise self._exited(await self._process.wait(EXIT_SECONDS))

    async def _initialize(self, instruction: str) -> None:
        hook = {"matcher": None, "hookCallbackIds": ["gate"], "timeout": GATE_SECONDS}
        request: dict[str, Any] = {"subtype": "initialize", "hooks": {"PreToolUse": [hook]}}
        if instruction:
            request["appendSystemPrompt"] = instruction
        await self._write({"type": "control_request", "request_id": "initialize", "request": request})

    async def _say(self, text: str) -> None:
        number = str(uuid.uuid4())
        self._unread.add(number)
        message = {"role": "user", "content": text}
        await self._write({"type": "user", "message": message, "parent_tool_use_id": None, "uuid": number})

    async def _write(self, value: dict[str, Any]) -> None:
        await self._process.write_line(orjson.dumps(value))

    async def _handle(self, event: dict[str, Any]) -> JobResult | None:
        """Returns the result at the end of the last turn."""
        match event.get("type"):
            case "system" if event.get("subtype") == "init":
                await self._begun(event)
            case "assistant":
                await self._assistant(event)
            case "user":
                await self._user(event)
            case "control_request":
                self._control(event)
            case "result":
                return await self._turn_ended(event)
            case "rate_limit_event":
                info = event.get("rate_limit_info")
                reset = info.get("resetsAt") if isinstance(info, dict) else None
                self._reset_at = float(reset) if isinstance(reset, int | float) else self._reset_at
            case "system":
                pass  # progress of tasks, hooks and compaction
            case str() as name if name in _IGNORED:
                pass
            case _:
                await self._record.unknown(event)
        return None

    async def _begun(self, event: dict[str, Any]) -> None:
        native = event.get("session_id")
        if not isinstance(native, str) or not native:
            raise self._record.failed(
                FailureCode.CLI_PROTOCOL, "The `init` event of claude has no session_id"
            )
        if self._job.native_session not in (None, native):
            raise self._record.refused(self._job, f"claude started the session {native!r} instead")
        await self._record.pin(native)

    async def _assistant(self, event: dict[str, Any]) -> None:
        for part in parts_of(event):
            match part.get("type"):
                case "text":
                    await self._record.text(str(part.get("text", "")))
                case "thinking":
                    await self._record.thinking(str(part.get("thinking", "")))
                case "tool_use" | "server_tool_use":
                    call = _call(part.get("id"), part.get("name"), part.get("input"))
                    self._calls[call.id] = call
                    await self._record.tool_use(call.tool, call.input, call.id)
                case "redacted_thinking":
                    pass
                case _:
                    await self._record.unknown(part)

    async def _user(self, event: dict[str, Any]) -> None:
        self._unread.discard(str(event.get("uuid")))
        self._acknowledges |= event.get("isReplay") is True
        for part in parts_of(event):
            if part.get("type") != "tool_result":
                continue
            number = str(part.get("tool_use_id", ""))
            call = self._calls.get(number) or _call(number, "", None)
            unasked = number not in self._asked and part.get("is_error") is not True
            if unasked and not self._gate.allows(call):
                message = f"claude ran {call.tool!r} without calling the permission hook: {call.input}"
                raise self._record.failed(FailureCode.UNENFORCEABLE, message)
            await self._record.tool_result(call.tool, texts_of(part.get("content")), number)

    # -- permissions ---------------------------------------------------------------------

    def _control(self, event: dict[str, Any]) -> None:
        """Answered beside the reading: a person may have to be asked, and the stream goes on."""
        task = asyncio.create_task(self._answer_control(event))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer_control(self, event: dict[str, Any]) -> None:
        number, request = event.get("request_id"), event.get("request")
        request = request if isinstance(request, dict) else {}
        reply: dict[str, Any]
        match request.get("subtype"):
            case "hook_callback":
                given = request.get("input")
                reply = hook_reply(await self._permission(given if isinstance(given, dict) else {}))
            case "can_use_tool":
                answer = await self._permission({**request, "tool_input": request.get("input")})
                reply = tool_reply(answer, request.get("input"))
            case other:
                error = f"Unknown control request {other!r}"
                await self._respond({"subtype": "error", "request_id": number, "error": error})
                return
        await self._respond({"subtype": "success", "request_id": number, "response": reply})

    async def _respond(self, response: dict[str, Any]) -> None:
        with contextlib.suppress(CliGone):
            await self._write({"type": "control_response", "response": response})

    async def _permission(self, request: dict[str, Any]) -> JobAnswer:
        """The answer for one call and its arguments, given once: claude may ask by the hook and by its own
        prompt."""
        call = _call(request.get("tool_use_id"), request.get("tool_name"), request.get("tool_input"))
        self._asked.add(call.id)
        if (id := call.question_id) not in self._answers:
            self._answers[id] = asyncio.ensure_future(self._gate.answer(call))
        try:
            return await self._answers[id]
        except Exception as error:  # claude waits for an answer; without one the turn would hang
            return JobAnswer(False, f"Could not request the permission: {error}")

    # -- the end -------------------------------------------------------------------------

    async def _turn_ended(self, event: dict[str, Any]) -> JobResult | None:
        if self._job.native_session and self._record.native_session is None:
            raise self._not_resumed(error_text_of(event))
        if not isinstance(event.get("is_error"), bool):
            message = "The `result` event of claude does not say whether it is an error"
            raise self._record.failed(FailureCode.CLI_PROTOCOL, message)
        if event.get("subtype") != "success" or event["is_error"]:
            raise self._failure(event)
        if self._record.native_session is None or event.get("session_id") != self._record.native_session:
            message = "The `result` event of claude names another session than its `init` event"
            raise self._record.failed(FailureCode.CLI_PROTOCOL, message)
        self._record.usage = usage_with(self._record.usage, event)
        if self._unread and self._acknowledges:
            return None  # claude goes on with them in a turn of its own
        output = event.get("result")
        if not isinstance(output, str):
            raise self._record.failed(FailureCode.CLI_PROTOCOL, "The `result` event of claude has no text")
        if not output and not self._record.tool_calls:
            raise self._record.failed(FailureCode.CLI_PROTOCOL, "claude ended the turn without an answer")
        self._ended = True
        return self._record.succeeded(output)

    def _not_resumed(self, message: str) -> JobFailed:
        gone = bool(_NO_SESSION.search(message))
        return self._record.refused(self._job, message or "claude ended before it began", retire=gone)

    def _failure(self, event: dict[str, Any]) -> JobFailed:
        message = error_text_of(event) or f"claude reported {event.get('subtype')!r} without a message"
        status = event.get("api_error_status")
        if not isinstance(status, int):
            failure = self._record.failed_by_text(message)
        else:
            failure = self._record.failed(code_of_status(status), message)
        if failure.code is FailureCode.RATE_LIMITED and failure.retry_after_seconds is None:
            failure.retry_after_seconds = self._wait_for_reset(message)
        return failure

    def _wait_for_reset(self, message: str) -> float | None:
        found = _RESET.search(message)
        reset = float(found[1]) if found else self._reset_at
        return None if reset is None else max(0.0, reset - time.time())

    def _exited(self, code: int | None) -> JobFailed:
        message = self._process.stderr_tail or "no message"
        if self._job.native_session and self._record.native_session is None:
            return self._not_resumed(message)
        if code == 0:
            message = f"claude exited without a `result` event: {message}"
            return self._record.failed(FailureCode.CLI_PROTOCOL, message)
        return self._record.failed_by_text(f"claude exited with code {code}: {message}")


def _call(number: Any, tool: Any, given: Any) -> CliToolCall:
    name = str(tool or "")
    return CliToolCall(str(number or ""), name, given, TOOLS.get(name, UNKNOWN_TOOL))


def _project_notes(work_dir: Path) -> str:
    """CLAUDE.md, which claude reads only together with the settings that are left out."""
    file = work_dir / "CLAUDE.md"
    try:
        if file.is_symlink():  # a repository must not send a file from outside to the model
            return ""
        notes = file.read_text(errors="replace")[:NOTES_CHARACTERS]
    except OSError:
        return ""
    return f"Contents of CLAUDE.md, the project's notes:\n{notes}"

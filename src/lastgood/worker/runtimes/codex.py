"""Drives codex by its app server: JSON-RPC over standard input and output.

`codex exec` is not used: it cannot ask for approval, and it starts a new thread for an id that it does not
know. With rules, codex must ask before every command and every change of a file (`untrusted`), and we
answer. Rule files of the user or the repository would let commands run without a question, so a job with
rules is refused while they exist, and a call that ran unasked ends the job.

A turn succeeded only if `turn/completed` says `completed` and the thread is the one that was started or
resumed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lastgood.worker.job import (
    FailureCode,
    Job,
    JobAnswer,
    JobFailed,
    JobMcpServer,
    JobPermissions,
    JobResult,
    JobUsage,
    Reporter,
    Steering,
)
from lastgood.worker.runtimes.cli_process import CliGone, CliNotStarted, CliProcess, ProcessGroups
from lastgood.worker.runtimes.codex_events import (
    IGNORED,
    TOOL_ITEMS,
    error_of,
    output_of_item,
    tool_call_of,
)
from lastgood.worker.runtimes.failures import code_of_status
from lastgood.worker.runtimes.jsonrpc import METHOD_NOT_FOUND, RpcError, RpcPeer
from lastgood.worker.runtimes.mcp_config import ServerStarts, codex_config, without_servers
from lastgood.worker.runtimes.native_ids import is_uuid
from lastgood.worker.runtimes.prompt import prompt_of
from lastgood.worker.runtimes.record import RunRecord, with_one_fresh_start
from lastgood.worker.runtimes.tool_rules import CliToolCall, ToolGate, restricts_nothing
from lastgood.worker.runtimes.versions import version_of

TESTED = frozenset({"0.166.0"})
START_SECONDS = 60.0
EXIT_SECONDS = 3.0
#: Codex retries a model that cannot be reached forever; after so many reports in a row the job has failed.
RETRIES_SEEN = 3


class CodexKind:
    provider = "codex"
    format = "codex-rollout"
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
            raise record.refused(job, "it is not a thread id of codex")
        if not restricts_nothing(job.permissions):
            await asyncio.to_thread(_refuse_rule_files, job, record)
        job, left_out = without_servers(job, _refuse_sse)
        for reason in left_out:
            await record.error(reason)
        gate = ToolGate(job, reporter)
        arguments = [*self._command, "app-server", "-c", "features.hooks=false"]
        try:
            async with self._groups.started(arguments, job.work_dir, job.environment) as process:
                return await _Conversation(job, record, gate, process).result(steering)
        except CliNotStarted as error:
            raise record.failed(FailureCode.NOT_STARTED, str(error)) from error


class _Conversation:
    def __init__(self, job: Job, record: RunRecord, gate: ToolGate, process: CliProcess) -> None:
        self._job, self._record, self._gate, self._process = job, record, gate, process
        self._peer = RpcPeer(process, self._requested, self._notified)
        self._items: dict[str, dict[str, Any]] = {}
        self._asked: set[str] = set()
        self._thread = self._turn = ""
        self._is_prompted = False
        self._output: str | None = None
        self._retries = 0
        self._servers = ServerStarts(job)
        self._done: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    async def result(self, steering: Steering) -> JobResult:
        try:
            async with self._peer.reading():
                await self._start_in_time()
                self._job, failed = await self._servers.waited_for(self._job)
                for reason in failed:
                    await self._record.error(reason)
                self._is_prompted = True
                turn = await self._peer.request("turn/start", self._input(prompt_of(self._job)))
                self._turn = _text(_object(turn, "turn"), "id")
                await self._record.pin(self._thread)
                with steering.accepted_by(self.steer):
                    ended = await self._ended_turn()
                result = self._judge(ended)
            self._process.close_input()
            await self._process.wait(EXIT_SECONDS)
            return result
        except RpcError as error:
            raise self._record.failed_by_text(f"codex refused a request: {error}") from error
        except CliGone as error:
            raise await self._exited() from error

    async def steer(self, text: str) -> bool:
        try:
            await self._peer.request("turn/steer", {**self._input(text), "expectedTurnId": self._turn})
        except (RpcError, CliGone):
            return False
        return True

    def _input(self, text: str) -> dict[str, Any]:
        return {"threadId": self._thread, "input": [{"type": "text", "text": text}]}

    # -- start or resume -----------------------------------------------------------------

    async def _start_in_time(self) -> None:
        try:
            async with asyncio.timeout(START_SECONDS):
                await self._start()
        except TimeoutError:
            message = f"codex did not start a thread within {START_SECONDS:.0f} seconds"
            raise self._record.failed(FailureCode.TIMEOUT, message) from None

    async def _start(self) -> None:
        client = {"name": "lastgood", "title": "Lastgood", "version": "1"}
        await self._peer.request("initialize", {"clientInfo": client})
        await self._peer.notify("initialized")
        native = self._job.native_session
        if native is None:
            answer = await self._peer.request("thread/start", self._settings())
        else:
            answer = await self._resume(native)
        self._thread = _text(_object(answer, "thread"), "id")
        if native not in (None, self._thread):
            raise self._record.refused(self._job, f"codex continued the thread {self._thread!r} instead")
        if not self._thread:
            raise self._record.failed(FailureCode.CLI_PROTOCOL, "codex started a thread without an id")
        wanted = self._settings()["approvalPolicy"]
        if answer.get("approvalPolicy") != wanted:
            message = f"codex did not accept the approval policy {wanted!r}"
            raise self._record.failed(FailureCode.UNENFORCEABLE, message)

    async def _resume(self, native: str) -> Any:
        try:
            settings = {**self._settings(), "threadId": native, "excludeTurns": True}
            return await self._peer.request("thread/resume", settings)
        except RpcError as error:
            # Another process of codex still writes to it: that ends, and the thread can be resumed later.
            raise self._record.refused(
                self._job, str(error), retire="active writer" not in str(error)
            ) from error

    def _settings(self) -> dict[str, Any]:
        free = restricts_nothing(self._job.permissions)
        settings: dict[str, Any] = {
            "cwd": str(self._job.work_dir),
            "approvalPolicy": "never" if free else "untrusted",
            "approvalsReviewer": "user",
            # Under rules every command has been allowed by one, or by a person, before it runs. A sandbox
            # would then break what was allowed, and only on machines where codex can set one up.
            "sandbox": "danger-full-access",
        }
        if config := codex_config(self._job):
            settings["config"] = config
        if self._job.instruction:
            settings["developerInstructions"] = self._job.instruction
        if self._job.model:
            settings["model"] = self._job.model
        return settings

    # -- what codex reports --------------------------------------------------------------

    async def _notified(self, method: str, params: dict[str, Any]) -> None:
        if self._is_prompted and params.get("threadId") == self._thread:
            await self._record.pin(
                self._thread
            )  # what follows may fail the job before turn/start is answered
        match method:
            case "item/started":
                await self._item_started(_object(params, "item"))
            case "item/completed":
                await self._item_completed(_object(params, "item"), params.get("threadId") == self._thread)
            case "turn/completed" if params.get("threadId") == self._thread:
                if not self._done.done():
                    self._done.set_result(_object(params, "turn"))
            case "thread/tokenUsage/updated":
                self._count(_object(_object(params, "tokenUsage"), "last"))
            case "error":
                await self._error(params)
            case "mcpServer/startupStatus/updated":
                self._servers.updated(params)
            case _ if method in IGNORED:
                pass
            case _:
                await self._record.unknown({"method": method, "params": params})

    async def _item_started(self, item: dict[str, Any]) -> None:
        self._retries = 0
        self._items[_text(item, "id")] = item
        if call := tool_call_of(item):
            await self._record.tool_use(call.tool, call.input, call.id)

    async def _item_completed(self, item: dict[str, Any], is_ours: bool) -> None:
        self._retries = 0
        match item.get("type"):
            case "agentMessage":
                await self._record.text(_text(item, "text"))
                self._output = _text(item, "text") if is_ours else self._output
            case "reasoning":
                await self._record.thinking("\n".join(map(str, item.get("summary") or ())))
            case str() as kind if kind in TOOL_ITEMS:
                await self._tool_ended(item)
            case _:
                pass  # the user's message, plans and reviews

    async def _tool_ended(self, item: dict[str, Any]) -> None:
        call = tool_call_of(item)
        assert call is not None
        if item.get("status") == "completed" and call.id not in self._asked and not self._gate.allows(call):
            message = f"codex ran {call.tool!r} without asking, and the rules do not allow it: {call.input}"
            raise self._record.failed(FailureCode.UNENFORCEABLE, message)
        await self._record.tool_result(call.tool, output_of_item(item), call.id)

    async def _error(self, params: dict[str, Any]) -> None:
        message = _text(_object(params, "error"), "message")
        await self._record.error(message)
        self._retries += 1
        if params.get("willRetry") is True and self._retries >= RETRIES_SEEN:
            raise self._record.failed_by_text(message, FailureCode.MODEL_ERROR)

    def _count(self, last: dict[str, Any]) -> None:
        used = self._record.usage
        read, written = last.get("inputTokens"), last.get("outputTokens")
        if isinstance(read, int) and isinstance(written, int):
            self._record.usage = JobUsage(used.input_tokens + read, used.output_tokens + written)

    # -- approvals -----------------------------------------------------------------------

    async def _requested(self, method: str, params: dict[str, Any]) -> Any:
        match method:
            case "item/commandExecution/requestApproval" | "item/fileChange/requestApproval":
                return {"decision": await self._decision(params)}
            case "item/permissions/requestApproval":
                return {"permissions": {}, "scope": "turn"}  # nothing beyond what is asked call by call
            case "mcpServer/elicitation/request":
                return {"action": await self._server_action(params)}
            case _:
                raise RpcError(METHOD_NOT_FOUND, f"Lastgood does not answer {method}")

    async def _server_action(self, params: dict[str, Any]) -> str:
        """What a server itself wants to know is declined; codex asks in the same way about a call of it."""
        about = _object(params, "_meta")
        if about.get("codex_approval_kind") != "mcp_tool_call":
            return "decline"
        wanted = (params.get("serverName"), about.get("tool_params"))
        for item in self._items.values():
            if (item.get("server"), item.get("arguments")) == wanted and item.get("id") not in self._asked:
                return await self._answered(tool_call_of(item))
        return "decline"

    async def _decision(self, params: dict[str, Any]) -> str:
        command = _text(params, "command")
        item = self._items.get(_text(params, "itemId"), {"id": params.get("itemId")})
        return await self._answered(
            tool_call_of({**item, "type": "commandExecution", "command": command} if command else item)
        )

    async def _answered(self, call: CliToolCall | None) -> str:
        if call is None:
            return "decline"
        self._asked.add(call.id)
        answer = await self._gate.answer(call)
        if not answer.allowed:
            await self._explain(call, answer)
        return "accept" if answer.allowed else "decline"

    async def _explain(self, call: CliToolCall, answer: JobAnswer) -> None:
        """Codex takes no reason for a refusal, so the model gets it as a message."""
        reason = f"The call of {call.tool} was denied: {answer.reason or 'no reason was given'}"
        await self._record.error(reason)
        await self.steer(reason)

    # -- the end -------------------------------------------------------------------------

    async def _ended_turn(self) -> dict[str, Any]:
        """Raises CliGone if codex exits first."""
        end = asyncio.create_task(self._peer.ended())
        waiting: tuple[asyncio.Future[Any], ...] = (end, self._done)
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not self._done.done():
                await end
            return await self._done
        finally:
            end.cancel()
            await asyncio.gather(end, return_exceptions=True)

    def _judge(self, turn: dict[str, Any]) -> JobResult:
        if turn.get("status") == "completed" and turn.get("id") == self._turn and self._output is not None:
            return self._record.succeeded(self._output)
        if turn.get("status") == "completed":
            raise self._record.failed(FailureCode.CLI_PROTOCOL, "codex completed a turn without an answer")
        message, info, status = error_of(turn)
        if status is not None:
            raise self._record.failed(code_of_status(status), message)
        if info in ("usageLimitExceeded", "rateLimitExceeded", "serverOverloaded"):
            failure = self._record.failed_by_text(message)
            failure.code = FailureCode.RATE_LIMITED
            raise failure
        if info in ("internalServerError", "unauthorized", "badRequest", "modelNotFound"):
            raise self._record.failed(FailureCode.MODEL_ERROR, message)
        raise self._record.failed_by_text(message)

    async def _exited(self) -> JobFailed:
        code = await self._process.wait(EXIT_SECONDS)
        message = f"codex exited with code {code} before the turn ended: {self._process.stderr_tail[-1000:]}"
        if code == 0:
            return self._record.failed(FailureCode.CLI_PROTOCOL, message)
        return self._record.failed_by_text(message)


def _refuse_sse(server: JobMcpServer) -> str | None:
    return (
        "codex does not support SSE; use `transport_type: streamable`" if server.transport == "sse" else None
    )


def _refuse_rule_files(job: Job, record: RunRecord) -> None:
    for file in _rule_files(job):
        message = (
            f"codex runs the commands that {file} allows without asking. Remove this file, or give the "
            "agent the safety mode `autonomous`"
        )
        raise record.failed(FailureCode.UNENFORCEABLE, message)


def _rule_files(job: Job) -> Iterator[Path]:
    home = Path(job.environment.get("CODEX_HOME") or Path(job.environment.get("HOME", "/")) / ".codex")
    projects = (folder / ".codex" for folder in (job.work_dir, *job.work_dir.parents))
    for folder in (home, *projects, Path("/etc/codex")):
        with contextlib.suppress(OSError):
            yield from (file for file in sorted((folder / "rules").glob("*.rules")) if file.stat().st_size)


def _object(value: Any, name: str) -> dict[str, Any]:
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def _text(value: dict[str, Any], name: str) -> str:
    found = value.get(name)
    return found if isinstance(found, str) else ""

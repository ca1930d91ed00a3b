"""Runs a program that speaks a small protocol of JSON lines, so that any script can be a runtime.

The program gets one line `{"type": "job", …}` and writes one object per line. `session`, `text`, `thinking`,
`tool_use`, `tool_result`, `usage` and `ask` may come in any number; one `result` or `error` ends the job.
Lines that are no JSON object are shown as text. A program that exits without `result` has failed, whatever
its exit code.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from lastgood.worker.job import (
    FailureCode,
    Job,
    JobFailed,
    JobPermissions,
    JobResult,
    JobUsage,
    Reporter,
    Steering,
)
from lastgood.worker.runtimes.cli_process import CliGone, CliLine, CliNotStarted, CliProcess, ProcessGroups
from lastgood.worker.runtimes.jsonrpc import object_in
from lastgood.worker.runtimes.mcp_config import without_servers
from lastgood.worker.runtimes.record import RunRecord, with_one_fresh_start
from lastgood.worker.runtimes.tool_rules import CliToolCall, ToolGate, restricts_nothing

EXIT_SECONDS = 5.0


class CommandKind:
    provider = "command"
    format = "command-1"
    can_steer = False

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], groups: ProcessGroups) -> None:
        self._command, self._environment, self._groups = tuple(command), environment, groups

    async def version(self) -> str | None:
        found = await asyncio.to_thread(
            shutil.which, self._command[0], path=self._environment.get("PATH", "")
        )
        return "1" if found else None

    def cannot_enforce(self, permissions: JobPermissions) -> str | None:
        if restricts_nothing(permissions):
            return None
        return (
            "A `command` runtime does what its program does; Lastgood sees only what the program reports. "
            "Use it with the safety mode `autonomous`, without `ask` and `deny` rules"
        )

    async def run(self, job: Job, reporter: Reporter, steering: Steering | None = None) -> JobResult:
        return await with_one_fresh_start(job, lambda one: self._once(one, reporter))

    async def _once(self, job: Job, reporter: Reporter) -> JobResult:
        record = RunRecord(reporter, "1")
        if reason := self.cannot_enforce(job.permissions):
            raise record.failed(FailureCode.UNENFORCEABLE, reason)
        job, left_out = without_servers(
            job, lambda server: "a `command` runtime does not support MCP servers"
        )
        for reason in left_out:
            await record.error(reason)
        gate = ToolGate(job, reporter)
        try:
            async with self._groups.started(self._command, job.work_dir, job.environment) as process:
                return await _Conversation(job, record, gate, process).result()
        except CliNotStarted as error:
            raise record.failed(FailureCode.NOT_STARTED, str(error)) from error


class _Conversation:
    def __init__(self, job: Job, record: RunRecord, gate: ToolGate, process: CliProcess) -> None:
        self._job, self._record, self._gate, self._process = job, record, gate, process
        self._resumed = job.native_session is None

    async def result(self) -> JobResult:
        try:
            await self._process.write_line(orjson.dumps(_job_line(self._job)))
            async for line in self._process.lines():
                if ended := await self._handle(line):
                    return ended
        except CliGone:
            pass  # its exit code and its standard error say why
        code = await self._process.wait(EXIT_SECONDS)
        message = self._process.stderr_tail or f"exit code {code}"
        if code == 0:
            message = f"The command exited without a `result` line: {message}"
            raise self._record.failed(FailureCode.CLI_PROTOCOL, message)
        raise self._record.failed_by_text(f"The command failed with exit code {code}: {message}")

    async def _handle(self, line: CliLine) -> JobResult | None:
        event = object_in(line.data) if line.whole else None
        record = self._record
        if event is None:
            await record.text(line.data.decode(errors="replace"))
            return None
        match event.get("type"):
            case "session":
                await self._session(event)
            case "text":
                await record.text(_text(event, "text"))
            case "thinking":
                await record.thinking(_text(event, "text"))
            case "tool_use":
                await record.tool_use(_text(event, "tool"), event.get("input"), _text(event, "call"))
            case "tool_result":
                await record.tool_result(_text(event, "tool"), _text(event, "output"), _text(event, "call"))
            case "usage":
                record.usage = _usage(event)
            case "ask":
                await self._ask(event)
            case "result":
                return self._ended(event)
            case "error":
                raise self._failure(event)
            case _:
                await record.unknown(event)
        return None

    async def _session(self, event: dict[str, Any]) -> None:
        native = _text(event, "id")
        if self._job.native_session is not None:
            if native != self._job.native_session or event.get("resumed") is not True:
                raise self._record.refused(self._job, f"the command started the session {native!r} instead")
            self._resumed = True
        await self._record.pin(native)

    async def _ask(self, event: dict[str, Any]) -> None:
        call = CliToolCall(
            _text(event, "id"), _text(event, "tool"), event.get("input"), title=_text(event, "title")
        )
        answer = await self._gate.answer(call)
        reply = {"type": "answer", "id": call.id, "allowed": answer.allowed, "reason": answer.reason}
        await self._process.write_line(orjson.dumps(reply))

    def _ended(self, event: dict[str, Any]) -> JobResult:
        if not self._resumed:
            raise self._record.refused(self._job, "the command did not confirm it with a `session` line")
        if not isinstance(event.get("output"), str):
            raise self._record.failed(FailureCode.CLI_PROTOCOL, "The `result` line has no text `output`")
        return self._record.succeeded(_text(event, "output"))

    def _failure(self, event: dict[str, Any]) -> JobFailed:
        message = _text(event, "message") or "The command reported an error without a message"
        code = _text(event, "code")
        if code == FailureCode.RESUME_FAILED:
            return self._record.refused(self._job, message)
        if code not in set(FailureCode):
            return self._record.failed_by_text(message)
        wait = event.get("retry_after_seconds")
        seconds = float(wait) if isinstance(wait, int | float) else None
        return self._record.failed(FailureCode(code), message, retry_after_seconds=seconds)


def _job_line(job: Job) -> dict[str, Any]:
    return {
        "type": "job",
        "prompt": job.prompt,
        "session": job.native_session,
        "transcript": [{"role": one.role, "content": one.content} for one in job.transcript],
        "catch_up": [{"role": one.role, "content": one.content} for one in job.catch_up],
        "disclosures": list(job.disclosures),
        "instruction": job.instruction,
        "model": job.model,
        "effort": job.effort,
    }


def _text(event: dict[str, Any], name: str) -> str:
    value = event.get(name)
    return value if isinstance(value, str) else ""


def _usage(event: dict[str, Any]) -> JobUsage:
    numbers = {name: event.get(name) for name in ("input_tokens", "output_tokens", "cost")}
    given = {name: value for name, value in numbers.items() if isinstance(value, int | float) and value >= 0}
    cost = float(given.get("cost", 0.0))
    return JobUsage(int(given.get("input_tokens", 0)), int(given.get("output_tokens", 0)), cost)

"""Drives any agent that speaks the Agent Client Protocol: JSON-RPC over standard input and output.

An agent offers no files and terminals of ours: it works in its folder with its own tools. It asks for
permission through `session/request_permission`; what it runs without asking and the rules do not allow ends
the job.

A turn succeeded only if the agent ends it with `end_turn`, has said something, and has not said the text in
which it hides an error of the model. `acp_sessions.py` says how a resume is proved.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping, Sequence
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
from lastgood.worker.runtimes.acp_presets import AcpPreset
from lastgood.worker.runtimes.acp_sessions import SessionName, digest_of, parse_name, store_name
from lastgood.worker.runtimes.acp_updates import AcpUpdates
from lastgood.worker.runtimes.cli_process import CliGone, CliNotStarted, CliProcess, ProcessGroups
from lastgood.worker.runtimes.jsonrpc import METHOD_NOT_FOUND, RpcError, RpcPeer
from lastgood.worker.runtimes.mcp_config import acp_servers, without_servers
from lastgood.worker.runtimes.prompt import as_message, prompt_of
from lastgood.worker.runtimes.record import RunRecord, with_one_fresh_start
from lastgood.worker.runtimes.tool_rules import ToolGate, restricts_nothing
from lastgood.worker.runtimes.versions import version_of

PROTOCOL = 1
START_SECONDS = 120.0
EXIT_SECONDS = 3.0


class AcpKind:
    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        groups: ProcessGroups,
        preset: AcpPreset,
    ) -> None:
        self._command, self._environment, self._groups = tuple(command), environment, groups
        self._preset = preset
        self.provider, self.format = preset.provider, preset.format
        self.can_steer = preset.steer_method is not None

    async def version(self) -> str | None:
        if self._preset.tested is not None:
            return await version_of(self._command, self._environment, self._preset.tested)
        path = self._environment.get("PATH", "")
        found = await asyncio.to_thread(shutil.which, self._command[0], path=path)
        return "unknown" if found else None

    def cannot_enforce(self, permissions: JobPermissions) -> str | None:
        if self._preset.ask_mode is not None or restricts_nothing(permissions):
            return None
        return (
            "The Agent Client Protocol does not make an agent ask before it calls a tool, and this agent is "
            "not known to do so. Name the mode in which it asks (NAME=acp@MODE:COMMAND), or use it with the "
            "safety mode `autonomous`, without `ask` and `deny` rules"
        )

    async def run(self, job: Job, reporter: Reporter, steering: Steering | None = None) -> JobResult:
        return await with_one_fresh_start(job, lambda one: self._once(one, reporter, steering or Steering()))

    async def _once(self, job: Job, reporter: Reporter, steering: Steering) -> JobResult:
        record = RunRecord(reporter, "")
        environment = {**self._preset.environment, **job.environment}
        if reason := self.cannot_enforce(job.permissions) or await self._weakened(job, environment):
            raise record.failed(FailureCode.UNENFORCEABLE, reason)
        gate = ToolGate(job, reporter)
        try:
            store = await asyncio.to_thread(store_name, environment)
        except OSError as error:
            message = f"Could not write to the home of the agent: {error}"
            raise record.failed(FailureCode.NOT_STARTED, message) from error
        try:
            arguments = [*self._command, *self._preset.arguments]
            async with self._groups.started(arguments, job.work_dir, environment) as process:
                return await _Conversation(job, record, gate, process, self._preset, store).result(steering)
        except CliNotStarted as error:
            raise record.failed(FailureCode.NOT_STARTED, str(error)) from error

    async def _weakened(self, job: Job, environment: Mapping[str, str]) -> str | None:
        if restricts_nothing(job.permissions):
            return None
        file = await asyncio.to_thread(self._preset.weakened_by, environment)
        if file is None:
            return None
        return (
            f"{self.provider} runs the tools that {file} allows without asking. Remove its `always_allow` "
            "entries, or give the agent the safety mode `autonomous`"
        )


class _Conversation:
    def __init__(
        self, job: Job, record: RunRecord, gate: ToolGate, process: CliProcess, preset: AcpPreset, store: str
    ) -> None:
        self._job, self._record, self._gate, self._process = job, record, gate, process
        self._preset, self._store = preset, store
        self._updates = AcpUpdates(record, gate, preset)
        self._peer = RpcPeer(process, self._requested, self._updates.notified)
        self._session = ""
        self._unread: dict[str, str] = {}  # steers that the agent has queued

    async def result(self, steering: Steering) -> JobResult:
        try:
            async with self._peer.reading():
                name = await self._start_in_time()
                prompt = prompt_of(self._job, with_instruction=True)
                self._updates.began(name or SessionName(self._session, self._store, digest_of(prompt)))
                with steering.accepted_by(self.steer):
                    answer = await self._turns(prompt)
                result = await self._judge(answer)
            self._process.close_input()
            await self._process.wait(EXIT_SECONDS)
            return result
        except RpcError as error:
            raise self._record.failed_by_text(f"The agent refused a request: {error}") from error
        except CliGone as error:
            raise await self._exited() from error

    # -- start or resume -----------------------------------------------------------------

    async def _start_in_time(self) -> SessionName | None:
        try:
            async with asyncio.timeout(START_SECONDS):
                return await self._start()
        except TimeoutError:
            message = f"The agent did not open a session within {START_SECONDS:.0f} seconds"
            raise self._record.failed(FailureCode.TIMEOUT, message) from None

    async def _start(self) -> SessionName | None:
        """Returns the name of a resumed session, and None for a new one."""
        client = {"name": "lastgood", "title": "Lastgood", "version": "1"}
        files = {"readTextFile": False, "writeTextFile": False}
        capabilities = {"fs": files, "terminal": False}
        hello = await self._peer.request(
            "initialize",
            {"protocolVersion": PROTOCOL, "clientCapabilities": capabilities, "clientInfo": client},
        )
        if not isinstance(hello, dict) or hello.get("protocolVersion") != PROTOCOL:
            message = f"The agent does not speak version {PROTOCOL} of the Agent Client Protocol"
            raise self._record.failed(FailureCode.CLI_PROTOCOL, message)
        self._record.cli_version = self._version_in(hello)
        await self._choose_servers(hello)
        name = None
        if self._job.native_session is not None:
            name, opened = await self._load(self._job.native_session, hello)
        else:
            opened = await self._peer.request("session/new", self._place())
            self._session = str(opened.get("sessionId") or "") if isinstance(opened, dict) else ""
            if not self._session:
                raise self._record.failed(
                    FailureCode.CLI_PROTOCOL, "The agent opened a session without an id"
                )
        await self._set_mode(opened)
        return name

    def _place(self) -> dict[str, Any]:
        return {"cwd": str(self._job.work_dir), "mcpServers": acp_servers(self._job)}

    async def _choose_servers(self, hello: dict[str, Any]) -> None:
        abilities = hello.get("agentCapabilities")
        found = abilities.get("mcpCapabilities") if isinstance(abilities, dict) else None
        taken = {
            "",
            *(kind for kind, can in (found if isinstance(found, dict) else {}).items() if can is True),
        }
        free = restricts_nothing(self._job.permissions)

        def refusal(server: JobMcpServer) -> str | None:
            kind = "" if not server.url else "sse" if server.transport == "sse" else "http"
            if kind not in taken:
                return f"this agent does not connect to MCP servers over {kind}"
            if server.tools is not None and (free or self._preset.ask_mode is None):
                return "this agent requests no approvals, so it cannot be limited to some tools of the server"
            return None

        self._job, left_out = without_servers(self._job, refusal)
        for reason in left_out:
            await self._record.error(reason)

    async def _load(self, native: str, hello: dict[str, Any]) -> tuple[SessionName, Any]:
        name, record = parse_name(native), self._record
        if name is None:
            raise record.refused(self._job, "it is not a session of this kind")
        if name.store != self._store:
            raise record.refused(self._job, "it was created in another home directory")
        abilities = hello.get("agentCapabilities")
        if not isinstance(abilities, dict) or abilities.get("loadSession") is not True:
            raise record.refused(self._job, "the agent cannot load sessions")
        self._session = name.id
        try:
            opened = await self._peer.request("session/load", {**self._place(), "sessionId": name.id})
        except RpcError as error:
            raise record.refused(self._job, str(error)) from error
        if digest_of(self._updates.first_message) != name.start:
            shown = "no conversation" if not self._updates.first_message else "another conversation"
            raise record.refused(self._job, f"the agent loaded {shown} under its id")
        return name, opened

    async def _set_mode(self, opened: Any) -> None:
        """Raises JobFailed if the agent does not enter the mode in which it asks."""
        free = restricts_nothing(self._job.permissions)
        mode = self._preset.free_mode if free else self._preset.ask_mode
        modes = opened.get("modes") if isinstance(opened, dict) else None
        current = modes.get("currentModeId") if isinstance(modes, dict) else None
        if mode is None or mode == current:
            return
        try:
            await self._peer.request("session/set_mode", {"sessionId": self._session, "modeId": mode})
        except RpcError as error:
            message = f"The agent did not enter the mode {mode!r}: {error}"
            raise self._record.failed(FailureCode.UNENFORCEABLE, message) from error

    def _version_in(self, hello: dict[str, Any]) -> str:
        info = hello.get("agentInfo")
        version = str(info.get("version") or "unknown") if isinstance(info, dict) else "unknown"
        tested = self._preset.tested
        return version if tested is None or version in tested else f"{version} (untested)"

    # -- the turn ------------------------------------------------------------------------

    async def _turns(self, text: str) -> Any:
        """Prompts, and prompts again with steers that came too late for the turn."""
        while True:
            answer = await self._peer.request(
                "session/prompt", {"sessionId": self._session, "prompt": _block(text)}
            )
            self._count(answer)
            left = [
                text for number, text in self._unread.items() if number not in self._updates.messages_read
            ]
            self._unread.clear()
            if not left or answer.get("stopReason") != "end_turn":
                return answer
            text = "\n\n".join(left)

    async def steer(self, text: str) -> bool:
        run = self._updates.active_run
        if self._preset.steer_method is None or run is None:
            return False
        text = as_message(text)
        request = {"sessionId": self._session, "prompt": _block(text), "expectedRunId": run}
        try:
            answer = await self._peer.request(self._preset.steer_method, request)
        except (RpcError, CliGone):
            return False
        self._unread[str(answer.get("messageId"))] = text
        return True

    async def _requested(self, method: str, params: dict[str, Any]) -> Any:
        if method != "session/request_permission":
            raise RpcError(METHOD_NOT_FOUND, f"Lastgood does not offer {method}")
        asked = params.get("toolCall")
        call = self._updates.asked(asked if isinstance(asked, dict) else {})
        answer = await self._gate.answer(call)
        if not answer.allowed:
            await self._explain(call.tool, answer)
        return {"outcome": _outcome(params.get("options"), answer)}

    async def _explain(self, tool: str, answer: JobAnswer) -> None:
        """The protocol has no field for a reason; an agent that can be steered gets it as a message."""
        reason = f"The call of {tool} was denied: {answer.reason or 'no reason was given'}"
        await self._record.error(reason)
        await self.steer(reason)

    def _count(self, answer: Any) -> None:
        usage = answer.get("usage") if isinstance(answer, dict) else None
        if isinstance(usage, dict):
            read, written = usage.get("inputTokens"), usage.get("outputTokens")
            if isinstance(read, int) and isinstance(written, int):
                used = self._record.usage
                self._record.usage = JobUsage(used.input_tokens + read, used.output_tokens + written)

    async def _judge(self, answer: Any) -> JobResult:
        await self._updates.flush()
        reason = answer.get("stopReason") if isinstance(answer, dict) else None
        output = self._updates.output
        if reason == "refusal" and self._job.native_session and not output and not self._record.tool_calls:
            raise self._record.refused(self._job, "the agent refused to continue it")
        if reason == "refusal":
            raise self._record.failed(FailureCode.MODEL_ERROR, f"The model refused to answer: {output}")
        if reason != "end_turn":
            raise self._record.failed(
                FailureCode.CLI_FAILED, f"The agent ended the turn with {reason!r}: {output}"
            )
        last = self._updates.last_message
        if self._preset.error_answer and self._preset.error_answer.fullmatch(last):
            raise self._record.failed_by_text(last.strip(), FailureCode.MODEL_ERROR)
        if not output and not self._record.tool_calls:
            raise self._record.failed(FailureCode.CLI_PROTOCOL, "The agent ended the turn without an answer")
        return self._record.succeeded(output)

    async def _exited(self) -> JobFailed:
        code = await self._process.wait(EXIT_SECONDS)
        message = (
            f"The agent exited with code {code} before the turn ended: {self._process.stderr_tail[-1000:]}"
        )
        if code == 0:
            return self._record.failed(FailureCode.CLI_PROTOCOL, message)
        return self._record.failed_by_text(message)


def _block(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def _outcome(options: Any, answer: JobAnswer) -> dict[str, str]:
    """Only for this once: an answer for always would end all further questions of the agent."""
    wanted = "allow_once" if answer.allowed else "reject_once"
    for option in options if isinstance(options, list) else ():
        if isinstance(option, dict) and option.get("kind") == wanted:
            return {"outcome": "selected", "optionId": str(option.get("optionId"))}
    return {"outcome": "cancelled"}

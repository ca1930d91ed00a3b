"""Decides about tool calls of a CLI, by the rules of the agent and the ceiling of the worker.

A CLI names its tools as it likes. A rule may use that name, or the name that the tool has in Lastgood: a
deny of `shell:cmd=rm *` holds for claude's `Bash` and codex's commands. Deny and ask rules count if either
name matches; so do allow rules. Knows no CLI and no protocol; a kind says what its tools are called here
and what they can do.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lastgood.core.mcp_servers import tool_name
from lastgood.core.tool_permissions import Allowed, Asks, Denied, Verdict, is_granted, judge
from lastgood.model.agents import Effect, Safety
from lastgood.model.agents import Permissions as Rules
from lastgood.worker.job import Job, JobAnswer, JobMcpServer, JobPermissions, JobQuestion, Reporter


@dataclass(frozen=True, slots=True)
class KnownTool:
    """What a CLI's tool is called in Lastgood; `arguments` maps its names of arguments to ours."""

    effect: Effect
    name: str = ""
    arguments: Mapping[str, str] = field(default_factory=dict)


UNKNOWN_TOOL = KnownTool(Effect.UNKNOWN)


@dataclass(frozen=True, slots=True)
class CliToolCall:
    id: str
    tool: str
    input: Any
    known: KnownTool = UNKNOWN_TOOL
    title: str = ""

    @property
    def question_id(self) -> str:
        """Another call, or other arguments, under an id that the CLI used before, is another question."""
        shown = json.dumps([self.tool, self.input, self.title], default=str, sort_keys=True)
        return f"{self.id}:{hashlib.sha256(shown.encode()).hexdigest()[:16]}"

    def spellings(self) -> list[tuple[str, Mapping[str, Any]]]:
        given = self.input if isinstance(self.input, dict) else {"input": self.input}
        ours = {our: given[theirs] for theirs, our in self.known.arguments.items() if theirs in given}
        both = {**given, **ours}
        return [(self.tool, both), (self.known.name, both)] if self.known.name else [(self.tool, both)]


def verdict_on(permissions: JobPermissions, call: CliToolCall, root: str = "") -> Verdict:
    ceiling = judge((), permissions.ceiling, False, call.tool, call.known.effect, {})
    if isinstance(ceiling, Denied):
        return Denied(f"the worker's ceiling is {permissions.ceiling}, and this tool can modify data")
    wanted = _by_agent(permissions, call, root)
    if isinstance(wanted, Allowed) and isinstance(ceiling, Asks):
        return Asks(f"the worker's ceiling is {permissions.ceiling}")
    return wanted


def _by_agent(permissions: JobPermissions, call: CliToolCall, root: str) -> Verdict:
    effect, spellings = call.known.effect, call.spellings()
    denying, asking = Rules(deny=permissions.deny), Rules(ask=permissions.ask)
    for tool, arguments in spellings:
        denied = judge((denying,), Safety.AUTONOMOUS, False, tool, effect, arguments, root=root)
        if isinstance(denied, Denied):
            return denied
    allowing = Rules(allow=permissions.allow)
    if any(is_granted(allowing, tool, arguments, root) for tool, arguments in spellings):
        return Allowed("a rule allows it")
    verdicts = [
        judge((asking,), permissions.mode, False, tool, effect, arguments, root=root)
        for tool, arguments in spellings
    ]
    return next((one for one in verdicts if not isinstance(one, Allowed)), verdicts[0])


class ToolGate:
    """Answers a CLI that wants to call a tool, and asks a person where the rules say so."""

    def __init__(self, job: Job, reporter: Reporter) -> None:
        self._permissions, self._root = job.permissions, str(job.work_dir)
        self._servers, self._reporter = job.mcp_servers, reporter

    async def answer(self, call: CliToolCall) -> JobAnswer:
        match self._verdict(call):
            case Allowed(reason):
                return JobAnswer(True, reason)
            case Denied(reason):
                return JobAnswer(False, f"Denied: {reason}.")
            case Asks():
                # By our name, too: rules that were narrowed since the claim are matched by the server.
                known = self._known(call)
                asked = JobQuestion(
                    call.question_id,
                    call.tool,
                    call.input,
                    call.title,
                    known.name,
                    known.arguments,
                    known.effect.value,
                )
                return await self._reporter.ask(asked)

    def allows(self, call: CliToolCall) -> bool:
        """Whether the call may run without a question."""
        return isinstance(self._verdict(call), Allowed)

    def _verdict(self, call: CliToolCall) -> Verdict:
        if (found := server_tool(self._servers, call.tool)) is not None:
            server, tool = found
            if server.tools is not None and tool not in server.tools:
                return Denied(f"the agent's file does not offer {tool} of the MCP server {server.name}")
        return verdict_on(self._permissions, replace(call, known=self._known(call)), self._root)

    def _known(self, call: CliToolCall) -> KnownTool:
        if (found := server_tool(self._servers, call.tool)) is None:
            return call.known
        server, tool = found
        return KnownTool(Effect.UNKNOWN, tool_name(tool, server.prefix))


def server_tool(servers: Sequence[JobMcpServer], called: str) -> tuple[JobMcpServer, str] | None:
    """The server and the tool that a CLI means by `SERVER__TOOL` or `mcp__SERVER__TOOL`."""
    for server in servers:
        for start in (f"{server.name}__", f"mcp__{server.name}__"):
            if called.startswith(start):
                return server, called.removeprefix(start)
    return None


def restricts_nothing(permissions: JobPermissions) -> bool:
    """Whether every call is allowed, so that a CLI that cannot be held to rules may run."""
    modes = {permissions.mode, permissions.ceiling}
    return modes == {Safety.AUTONOMOUS} and not permissions.ask and not permissions.deny

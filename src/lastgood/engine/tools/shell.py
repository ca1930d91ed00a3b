"""`shell` runs what the model writes; `script` runs what the file says, with arguments from the model.

A script's arguments are environment variables, so there is no quoting to get wrong: nothing of
them becomes a part of the command.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lastgood.engine.tools.command_environment import Environment
from lastgood.engine.tools.command_output import HEAD_BYTES
from lastgood.engine.tools.processes import ProcessResult, ProcessSpec, run
from lastgood.engine.tools.rooted_files import Root, place_under
from lastgood.engine.tools.tool import Tool, ToolFailed, ToolUse
from lastgood.model.agents import OnUnknown, ToolsetSpec

SHELL_SECONDS = 30
SCRIPT_SECONDS = 600
MOST_SECONDS = 3600

#: By its path, never by the PATH or the SHELL of the server's environment.
SHELL = "/bin/bash" if Path("/bin/bash").exists() else "/bin/sh"


@dataclass(frozen=True, slots=True)
class Shell:
    """Runs command lines on behalf of a toolset."""

    spec: ToolsetSpec
    environment: Environment

    async def run(
        self,
        use: ToolUse,
        line: str,
        *,
        folder: str,
        seconds: float,
        given: Mapping[str, str] = MappingProxyType({}),
        own: Mapping[str, Any] = MappingProxyType({}),
    ) -> ProcessResult:
        """`given` are variables from the call, `own` those the file has beside the command."""
        command = self.process_of(use, line, folder=folder, seconds=seconds, given=given, own=own)
        return await run(command, use.say)

    def process_of(
        self,
        use: ToolUse,
        line: str,
        *,
        folder: str,
        seconds: float,
        given: Mapping[str, str] = MappingProxyType({}),
        own: Mapping[str, Any] = MappingProxyType({}),
        kept_bytes: int = HEAD_BYTES,
    ) -> ProcessSpec:
        if "\x00" in line:
            raise ToolFailed("a command cannot contain a NUL character")
        filled, trusted = self.environment.filled, self.spec.trusted
        of_toolset, longest = filled(self.spec.options.get("env") or {}, trusted)
        of_script, longer = filled(own, trusted, canonical=True)
        return ProcessSpec(
            words=(SHELL, "-c", line),
            folder=_folder(use, folder),
            environment={**self.environment.of(use), **of_toolset, **of_script, **given},
            seconds=seconds,
            scrub=self.environment.secrets.scrub,
            longest_key=max(longest, longer),
            kept_bytes=kept_bytes,
        )


def shell_toolset(spec: ToolsetSpec, environment: Environment) -> Sequence[Tool]:
    default = _seconds(spec, SHELL_SECONDS)
    shell = Shell(spec, environment)

    async def run_shell(use: ToolUse) -> str:
        line: str = use.arguments["cmd"]
        if not line.strip():
            raise ToolFailed("`cmd` is empty")
        seconds = use.arguments.get("timeout", default)
        folder = use.arguments.get("cwd", ".")
        return result_text(await shell.run(use, line, folder=folder, seconds=seconds), seconds)

    return [
        Tool(
            "shell",
            f"Executes the given shell command with {SHELL}. Every call is a new shell. What still runs in "
            "the background when the command ends is ended, unless it was started with setsid.",
            {
                "type": "object",
                "properties": {
                    "cmd": {"type": "string", "description": "The shell command to execute"},
                    "cwd": {
                        "type": "string",
                        "description": 'The working directory to execute the command in (default: ".")',
                    },
                    "timeout": {
                        "type": "integer",
                        "description": f"Command execution timeout in seconds (default: {default})",
                        "minimum": 1,
                        "maximum": MOST_SECONDS,
                    },
                },
                "required": ["cmd"],
            },
            run_shell,
            on_unknown=_on_unknown(spec),
        )
    ]


def script_toolset(spec: ToolsetSpec, environment: Environment) -> Sequence[Tool]:
    scripts: Mapping[str, Mapping[str, Any]] = spec.options.get("shell") or {}
    return [_script(name, script, spec, environment) for name, script in scripts.items()]


def _script(name: str, script: Mapping[str, Any], spec: ToolsetSpec, environment: Environment) -> Tool:
    line = str(script.get("cmd", ""))
    arguments: Mapping[str, Any] = script.get("args") or {}
    seconds = _seconds(spec, SCRIPT_SECONDS)
    shell = Shell(spec, environment)

    async def run_script(use: ToolUse) -> str:
        given = {
            name: _as_variable(name, value) for name, value in use.arguments.items() if name in arguments
        }
        folder, own = str(script.get("working_dir") or "."), script.get("env") or {}
        ran = await shell.run(use, line, folder=folder, seconds=seconds, given=given, own=own)
        if ran.code != 0:
            raise ToolFailed(result_text(ran, seconds))
        return result_text(ran, seconds)

    return Tool(
        name,
        str(script.get("description") or f"Execute shell command: {line}"),
        {
            "type": "object",
            "properties": {name: {"type": "string", **(schema or {})} for name, schema in arguments.items()},
            "required": list(script.get("required") or ()),
        },
        run_script,
        on_unknown=_on_unknown(spec),
    )


# -- what they share ------------------------------------------------------------------------


def working_dir_of(use: ToolUse) -> Path:
    if use.working_dir is None:
        raise ToolFailed("this session has no working directory; create a session with one")
    return use.working_dir


def _folder(use: ToolUse, path: str) -> Path:
    """A folder under the working directory. A command can leave it; it begins inside."""
    with place_under(Root(working_dir_of(use)), path) as place:
        if not place.path.is_dir():
            raise ToolFailed(f"{path} is not a folder")
        return place.path


def _seconds(spec: ToolsetSpec, default: int) -> int:
    """The file may say so. Bounded, because nothing else ends a command that waits forever."""
    return min(int(spec.options.get("timeout") or default), MOST_SECONDS)


def _on_unknown(spec: ToolsetSpec) -> OnUnknown:
    """Only the file knows whether running its commands twice does harm."""
    return OnUnknown.REPEAT if spec.options.get("repeatable") is True else OnUnknown.FAIL


def _as_variable(name: str, value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if "\x00" in text:
        raise ToolFailed(f"`{name}` cannot contain a NUL character")
    return text


def result_text(ran: ProcessResult, seconds: float) -> str:
    output = ran.output.strip() or "<no output>"
    if ran.left_some:
        output += "\n[Processes that were still running in the background were ended.]"
    if ran.code is None:
        return f"Command timed out after {seconds:g}s\nOutput: {output}"
    return f"Error executing command: {ran.failure}\nOutput: {output}" if ran.code else output

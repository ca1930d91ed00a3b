"""Decides which MCP servers of an agent a CLI on this machine gets.

The agent's file is the server's; the machine is its owner's. A server is passed on if the owner's ceiling is
`autonomous`, or if `--allow-mcp` names it: its whole line, with variables and arguments, as a shell would
have it. Names of secrets are filled from what the owner passes on to CLIs, and from nothing else.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lastgood.core.globs import Glob
from lastgood.core.mcp_servers import NOT_PASSED_ON
from lastgood.model.agents import Safety
from lastgood.worker.job import JobMcpServer

#: `${env.NAME}`, `${NAME}` or `$NAME`
_PLACEHOLDER = re.compile(r"\$(?:\{(?:env\.)?([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")
_IN_FOLDER = 'cd "$1" && shift && exec "$@"'


class _Refused(Exception):
    """The text says why a server is not passed on, and what to do."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What its owner allows, and what CLIs see of its environment."""

    ceiling: Safety
    allowed: tuple[str, ...]  # lines, with globs
    environment: Mapping[str, str]


def read_server(plain: Mapping[str, Any]) -> JobMcpServer:
    """Of a claim. Raises KeyError, TypeError or ValueError."""
    tools = plain.get("tools")
    return JobMcpServer(
        name=str(plain["name"]),
        prefix=str(plain.get("prefix") or ""),
        tools=None if tools is None else tuple(map(str, tools)),
        command=tuple(map(str, plain.get("command") or ())),
        variables={str(name): str(value) for name, value in (plain.get("env") or {}).items()},
        working_dir=str(plain.get("working_dir") or ""),
        url=str(plain.get("url") or ""),
        transport=str(plain.get("transport") or "streamable"),
        headers={str(name): str(value) for name, value in (plain.get("headers") or {}).items()},
    )


def passed_on(
    servers: Sequence[JobMcpServer], machine: Machine, work_dir: Path
) -> tuple[tuple[JobMcpServer, ...], tuple[str, ...]]:
    """The servers that a CLI may start or reach, ready for it; and what the model must know of the others."""
    ready: list[JobMcpServer] = []
    notes: list[str] = []
    for server in servers:
        try:
            ready.append(_ready(server, machine, work_dir))
        except _Refused as refusal:
            notes.append(NOT_PASSED_ON.format(server.name, refusal))
    return tuple(ready), tuple(notes)


def line_of(server: JobMcpServer) -> str:
    """For instance `TOKEN='${TOKEN}' uvx mcp-server-git --repository .`; a remote one ends with its URL."""
    # What is used of it, and so what is filled with secrets: an owner allows what the line shows.
    named = server.variables if server.command else server.headers
    words = server.command or (server.url,)
    return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in named.items()), shlex.join(words)])


def _ready(server: JobMcpServer, machine: Machine, work_dir: Path) -> JobMcpServer:
    line = line_of(server)
    if machine.ceiling is not Safety.AUTONOMOUS and not any(
        Glob(one).matches(line) for one in machine.allowed
    ):
        raise _Refused(
            f"the owner of this machine has not allowed it; to allow it, start the worker with "
            f"--allow-mcp {shlex.quote(_escaped(line))}"
        )
    if not server.command:
        return replace(server, headers=_filled(server.headers, machine))
    program = shutil.which(server.command[0], path=machine.environment.get("PATH", ""))
    if program is None:
        raise _Refused(f"`{server.command[0]}` is not installed on this machine")
    return replace(
        server,
        command=_in_folder(server, (program, *server.command[1:]), work_dir),
        variables=_filled(server.variables, machine),
        working_dir="",
    )


def _escaped(line: str) -> str:
    """As a glob that matches this line; commas separate the values of a setting."""
    return re.sub(r"([*?\[\\])", r"\\\1", line).replace(",", "?")


def _filled(values: Mapping[str, str], machine: Machine) -> dict[str, str]:
    def fill(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name not in machine.environment:
            raise _Refused(
                f"it needs the variable {name}; set it on this machine and start the worker with "
                f"--pass-env {name}"
            )
        return machine.environment[name]

    return {name: _PLACEHOLDER.sub(fill, value) for name, value in values.items()}


def _in_folder(server: JobMcpServer, command: tuple[str, ...], work_dir: Path) -> tuple[str, ...]:
    """CLIs start servers in their own folder and have no setting for another."""
    if not server.working_dir:
        return command
    root = work_dir.resolve()
    folder = (root / server.working_dir).resolve()
    if not folder.is_relative_to(root) or not folder.is_dir():
        raise _Refused(f"its working_dir {server.working_dir} is not a folder below the working directory")
    return ("/bin/sh", "-c", _IN_FOLDER, "sh", str(folder), *command)

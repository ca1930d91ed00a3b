"""`lastgood agents check` and `lastgood agents schema`: agent files, their problems and their JSON Schema."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lastgood.agents.agent_file import AgentFile, read_agent_file
from lastgood.agents.editor_schema import json_schema
from lastgood.agents.file_source import UnreadableFile, beside, list_folder, read_file
from lastgood.agents.schema.toolsets import TOOLSET
from lastgood.cli.output import count, one_line, print_json, print_line
from lastgood.errors import AgentInvalid, InvalidRequest
from lastgood.model.agents import AgentSpec, ModelSpec, ToolsetSpec

if TYPE_CHECKING:
    from lastgood.cli.agents_connect import Connected


@dataclass(frozen=True, slots=True)
class Checked:
    """`file` is None if it has errors; `findings` are all that there is to say."""

    path: Path
    file: AgentFile | None
    findings: list[dict[str, Any]]

    @property
    def errors(self) -> int:
        return sum(one["level"] == "error" for one in self.findings)


def check_files(args: argparse.Namespace) -> int:
    checked = [_check(path) for name in args.files for path in _files(name)]
    connected = [_connected(one, args) if args.connect else () for one in checked]
    if args.json:
        print_json([_as_json(one, found) for one, found in zip(checked, connected, strict=True)])
    else:
        for one, found in zip(checked, connected, strict=True):
            _print(one, found)
    unreachable = any(server.offer.problem for found in connected for server in found)
    return 1 if unreachable or any(one.errors for one in checked) else 0


def _connected(checked: Checked, args: argparse.Namespace) -> Sequence[Connected]:
    from lastgood.cli.agents_connect import connect
    from lastgood.cli.startup import settings_of

    return connect([checked.file] if checked.file else [], settings_of(args).env_file)


def print_schema(args: argparse.Namespace) -> int:
    json.dump(json_schema(), sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")
    return 0


def _files(name: str) -> list[Path]:
    path = Path(name)
    if not path.is_dir():
        return [path]
    try:
        files = list_folder(path)
    except UnreadableFile as error:
        raise InvalidRequest(str(error)) from None
    if not files:
        raise InvalidRequest(f"no agent file (*.yaml, *.yml) in {path}")
    return files


def _check(path: Path) -> Checked:
    try:
        body = read_file(path)
        file = read_agent_file(body, where=str(path), key=path.stem, read_beside=beside(path))
    except UnreadableFile as error:
        raise InvalidRequest(str(error)) from None
    except AgentInvalid as error:
        return Checked(path, None, error.detail["findings"])
    return Checked(path, file, [one.as_json() for one in file.warnings])


# -- for people --------------------------------------------------------------------


def _print(checked: Checked, connected: Sequence[Connected]) -> None:
    if checked.file is not None:
        print_line(f"{checked.path}: {count(len(checked.file.agents), 'agent')}")
        for name, value in checked.file.metadata.items():
            shown = ", ".join(value) if isinstance(value, list) else value.strip().partition("\n")[0]
            print_line(_indented(f"  {name}: {shown}"))
        for agent in checked.file.agents.values():
            for line in _about(agent, first=agent.name == checked.file.root):
                print_line(_indented(line))
    for server in connected:
        print_line(_indented(server.line()))
    for one in checked.findings:
        where = f"{checked.path}:{one['line']}:{one['column']}"
        print_line(f"{where}: {one['level']}: {one_line(one['message'])}")
    print_line(f"{checked.path}: {_verdict(checked)}")


def _indented(line: str) -> str:
    return " " * (len(line) - len(line.lstrip(" "))) + one_line(line)


def _verdict(checked: Checked) -> str:
    warnings = count(len(checked.findings) - checked.errors, "warning")
    if checked.errors:
        return f"invalid: {count(checked.errors, 'error')}, {warnings}"
    return f"valid, {warnings}" if checked.findings else "valid"


def _about(agent: AgentSpec, *, first: bool) -> Iterator[str]:
    mark = " (entry point)" if first else ""
    yield f"  {agent.name}{mark}: {_model(agent)}"
    if agent.description:
        yield f"    {agent.description}"
    lists = {
        "tools": [_toolset(spec) for spec in agent.toolsets],
        "sub-agents": list(agent.sub_agents),
        "handoffs": list(agent.handoffs),
        "fallback models": list(agent.fallback.models),
        "commands": [f"/{command.name}" for command in agent.commands],
    }
    for title, names in lists.items():
        if names:
            yield f"    {title}: {', '.join(names)}"
    limits = [agent.safety.value] if agent.safety else []
    limits += ["read-only"] if agent.readonly else []
    if limits:
        yield f"    safety: {', '.join(limits)}"


def _model(agent: AgentSpec) -> str:
    spec = agent.models.get(agent.model)
    return agent.model if spec is None else _spelled_out(agent.model, spec)


def _spelled_out(name: str, spec: ModelSpec) -> str:
    if spec.first_available:
        return f"{name}, first available of {', '.join(spec.first_available)}"
    if spec.alloy:
        return f"{name}, one of {', '.join(spec.alloy)} per turn"
    at = f" at {spec.base_url}" if spec.base_url else ""
    return f"{spec.ref}{at}" if name == spec.ref else f"{name}, {spec.ref}{at}"


def _toolset(spec: ToolsetSpec) -> str:
    named = spec.options.get("shell") if spec.type == "script" else spec.tools
    some = f" ({', '.join(named)})" if named else ""
    return f"{spec.type}{some}{' [not supported yet]' if TOOLSET.types[spec.type].later else ''}"


# -- for scripts ---------------------------------------------------------------------


def _as_json(checked: Checked, connected: Sequence[Connected]) -> dict[str, Any]:
    file = checked.file
    servers = {"servers": [server.as_json() for server in connected]} if connected else {}
    return servers | {
        "file": str(checked.path),
        "ok": not checked.errors,
        "version": None if file is None else file.version,
        "root": None if file is None else file.root,
        "metadata": {} if file is None else file.metadata,
        "agents": [] if file is None else [_agent_json(agent) for agent in file.agents.values()],
        "findings": checked.findings,
    }


def _agent_json(agent: AgentSpec) -> dict[str, Any]:
    return {
        "name": agent.name,
        "description": agent.description,
        "model": agent.model,
        "tools": [spec.type for spec in agent.toolsets],
        "sub_agents": agent.sub_agents,
        "handoffs": agent.handoffs,
        "commands": [command.name for command in agent.commands],
    }

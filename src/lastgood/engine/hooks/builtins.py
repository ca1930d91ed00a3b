"""The hooks that need no command: docker-agent's, by name."""

from __future__ import annotations

import asyncio
import getpass
import json
import platform
import re
import socket
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lastgood.core.hooks import Failure, HookOutput
from lastgood.core.secret_shapes import redaction, without_secret_shapes
from lastgood.engine.hooks.git_reader import read_git
from lastgood.engine.system_prompt import prompt_file
from lastgood.engine.tools.command_environment import Environment
from lastgood.model.hooks import HookSpec
from lastgood.time_slices import paced

_MOST_DIFF = 4096
_MOST_ENTRIES = 100

Given = Mapping[str, Any]


async def run_builtin(
    hook: HookSpec, given: Given, folder: Path | None, environment: Environment
) -> HookOutput | Failure:
    if folder is None and hook.command in _NEED_A_FOLDER:
        return Failure("this session has no working directory; create a session with one")
    return await _BUILTINS[hook.command](hook, given, _Place(folder or Path(), environment))


class _Place:
    def __init__(self, folder: Path, environment: Environment) -> None:
        self.folder = folder
        self._environment = environment

    async def git(self, *words: str) -> str:
        """What git prints; empty if there is no git or no repository."""
        return await read_git(self.folder, self._environment, *words)


async def _add_date(hook: HookSpec, given: Given, place: _Place) -> HookOutput:
    return HookOutput(context=f"Today's date: {datetime.now(UTC):%Y-%m-%d}")


async def _add_environment_info(hook: HookSpec, given: Given, place: _Place) -> HookOutput:
    is_repository = "yes" if await place.git("rev-parse", "--git-dir") else "no"
    return HookOutput(
        context=f"Working directory: {place.folder}\nGit repository: {is_repository}\n"
        f"Operating system: {platform.system()}\nCPU architecture: {platform.machine()}"
    )


async def _add_prompt_files(hook: HookSpec, given: Given, place: _Place) -> HookOutput:
    names = [name for name in hook.args if not name.startswith("--")]
    texts = await asyncio.to_thread(lambda: [prompt_file(place.folder, name) for name in names])
    return HookOutput(context="\n\n".join(text for text in texts if text))


async def _add_git_status(hook: HookSpec, given: Given, place: _Place) -> HookOutput:
    status = await place.git("status", "--short", "--branch")
    return HookOutput(context=f"Git status:\n{status}" if status else "")


async def _add_git_diff(hook: HookSpec, given: Given, place: _Place) -> HookOutput:
    words = ("diff",) if "full" in hook.args else ("diff", "--stat")
    diff = await place.git(*words)
    cut = diff if len(diff) <= _MOST_DIFF else f"{diff[:_MOST_DIFF]}\n[cut]"
    return HookOutput(context=f"Git diff:\n{cut}" if diff else "")


async def _add_recent_commits(hook: HookSpec, given: Given, place: _Place) -> HookOutput:
    count = next((arg for arg in hook.args if arg.isdecimal() and int(arg) > 0), "10")
    commits = await place.git("log", "--oneline", "-n", count)
    return HookOutput(context=f"Recent commits:\n{commits}" if commits else "")


async def _add_directory_listing(hook: HookSpec, given: Given, place: _Place) -> HookOutput:
    def entries() -> list[str]:
        found = (one for one in place.folder.iterdir() if not one.name.startswith("."))
        return sorted(f"{one.name}/" if one.is_dir() else one.name for one in found)

    names = await asyncio.to_thread(entries)
    more = len(names) - _MOST_ENTRIES
    shown = names[:_MOST_ENTRIES] + ([f"... and {more} more"] if more > 0 else [])
    return HookOutput(context="Files in the working directory:\n" + "\n".join(shown) if shown else "")


async def _add_user_info(hook: HookSpec, given: Given, place: _Place) -> HookOutput:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container without an entry for its user
        name = "unknown"
    return HookOutput(context=f"User: {name}\nHost: {socket.gethostname()}")


async def _add_context(hook: HookSpec, given: Given, place: _Place) -> HookOutput | Failure:
    try:
        return HookOutput(context="\n".join(rendered(text, given) for text in hook.args))
    except ValueError as error:
        return Failure(str(error))


async def _max_iterations(hook: HookSpec, given: Given, place: _Place) -> HookOutput:
    most = int(hook.args[0])
    reached = int(given.get("iteration", 0)) > most
    return HookOutput(
        blocks=reached, reason=f"the turn needs more than {most} model calls" if reached else ""
    )


async def _redact_secrets(hook: HookSpec, given: Given, place: _Place) -> HookOutput:
    if "tool_response" in given:
        return HookOutput(response=await paced(redaction(str(given["tool_response"]))))
    arguments = given.get("tool_input")
    if not arguments:
        return HookOutput()
    return HookOutput(arguments=json.loads(without_secret_shapes(json.dumps(arguments, ensure_ascii=False))))


_BUILTINS: Mapping[str, Callable[[HookSpec, Given, _Place], Awaitable[HookOutput | Failure]]] = {
    "add_context": _add_context,
    "add_date": _add_date,
    "add_directory_listing": _add_directory_listing,
    "add_environment_info": _add_environment_info,
    "add_git_diff": _add_git_diff,
    "add_git_status": _add_git_status,
    "add_prompt_files": _add_prompt_files,
    "add_recent_commits": _add_recent_commits,
    "add_user_info": _add_user_info,
    "max_iterations": _max_iterations,
    "redact_secrets": _redact_secrets,
}
_NEED_A_FOLDER = frozenset(
    {"add_directory_listing", "add_environment_info", "add_git_diff", "add_git_status", "add_prompt_files"}
    | {"add_recent_commits"}
)

# -- Go templates, as far as hooks need them -----------------------------------------------------

_PIECE = re.compile(r"\{\{-?\s*(.*?)\s*-?\}\}", re.DOTALL)
_FIELD = re.compile(r"\.(\w+)$")
_TRUNCATE = re.compile(r"truncate\s+(\d+)$")


def rendered(template: str, given: Given) -> str:
    """`{{ .ToolName }}`, `{{ .ToolInput | toJSON }}`, `{{ .Prompt | truncate 100 }}`. ValueError: anything
    else."""
    return _PIECE.sub(lambda found: _piece(found[1], given), template)


def _piece(expression: str, given: Given) -> str:
    field, *filters = (part.strip() for part in expression.split("|"))
    found = _FIELD.match(field)
    if found is None:
        raise ValueError(
            f"the template has {{{{ {expression} }}}}, which is not supported; use {{{{ .Field }}}}"
        )
    value = given.get(_key_of(found[1]), "")
    for one in filters:
        if one == "toJSON":
            value = json.dumps(value, ensure_ascii=False)
        elif (cut := _TRUNCATE.match(one)) is not None:
            value = str(value)[: int(cut[1])]
        else:
            raise ValueError(f"the template uses {one!r}; the filters are toJSON and truncate N")
    return str(value)


def _key_of(name: str) -> str:
    """`ToolUseID` is `tool_use_id` in the JSON."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()

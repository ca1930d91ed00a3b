"""Reads an untrusted git repository.

A repository's configuration names programs that git runs: an fsmonitor, hooks, filters, text conversions,
signature checks, transports. Reading a repository must not run a program that its author chose, so each of
these is turned off, also the ones whose names only the repository knows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from lastgood.engine.tools.command_environment import Environment
from lastgood.engine.tools.processes import ProcessSpec, run
from lastgood.engine.tools.tool import ToolFailed

_SECONDS = 10.0
#: Characters. The output of a command is kept up to a limit, and what it loses could be a filter.
_MOST_CONFIGURATION = 16_384

_QUIET = {
    "core.fsmonitor": "false",
    "core.hooksPath": "/dev/null",
    "core.pager": "cat",
    "diff.external": "",
    "log.showSignature": "false",
    "protocol.allow": "never",  # a partial clone would fetch what is missing
}
_ENVIRONMENT = {
    "GIT_PAGER": "cat",
    "GIT_EXTERNAL_DIFF": "",
    "GIT_ALLOW_PROTOCOL": "",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_TERMINAL_PROMPT": "0",
}
#: Submodules have a configuration of their own, which ours does not reach.
_OPTIONS = {
    "status": ("--ignore-submodules=all",),
    "diff": ("--ignore-submodules=all", "--no-ext-diff", "--no-textconv"),
    "log": ("--no-show-signature", "--no-ext-diff", "--no-textconv"),
}
#: Filters run for `status` and `diff`. An empty command turns a filter off.
_FILTER = re.compile(r"(filter\..+)\.(?:clean|smudge|process|required)", re.DOTALL | re.IGNORECASE)


async def read_git(folder: Path, environment: Environment, command: str, *words: str) -> str:
    """Returns what git prints; empty if there is no git or no repository, or if its configuration is too long
    to be sure of all filters."""
    known = await _run(folder, environment, {}, "config", "--list", "--name-only", "-z")
    if known is None or len(known) > _MOST_CONFIGURATION:
        return ""
    filters = {found[1] for name in known.split("\0") if (found := _FILTER.fullmatch(name.strip()))}
    off = {f"{one}.{key}": "" for one in filters for key in ("clean", "smudge", "process")}
    off |= {f"{one}.required": "false" for one in filters}
    printed = await _run(folder, environment, off, command, *_OPTIONS.get(command, ()), *words)
    return (printed or "").strip()


async def _run(folder: Path, environment: Environment, more: Mapping[str, str], *words: str) -> str | None:
    """None: git is missing or failed."""
    command = ProcessSpec(
        ("git", "--no-optional-locks", *words),
        folder,
        {**environment.harmless(), **_ENVIRONMENT, **_configuration({**_QUIET, **more})},
        _SECONDS,
        environment.secrets.scrub,
        stdin=b"",
    )
    try:
        ran = await run(command, lambda text: None)
    except ToolFailed:
        return None
    return ran.output if ran.code == 0 else None


def _configuration(values: Mapping[str, str]) -> dict[str, str]:
    """In the environment, and not as `-c name=value`: a name may contain `=`."""
    settings = {"GIT_CONFIG_COUNT": str(len(values))}
    for number, (name, value) in enumerate(values.items()):
        settings |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    return settings

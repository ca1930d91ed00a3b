"""Finds the kind that a worker's `--runtime NAME=KIND[:COMMAND]` names.

`acp@MODE` is `acp` with the session mode in which the agent asks before every call, as its owner says."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lastgood.worker.job import RuntimeKind
from lastgood.worker.runtimes.acp import AcpKind
from lastgood.worker.runtimes.acp_presets import GOOSE, AcpPreset
from lastgood.worker.runtimes.claude import ClaudeKind
from lastgood.worker.runtimes.cli_process import ProcessGroups
from lastgood.worker.runtimes.codex import CodexKind
from lastgood.worker.runtimes.command import CommandKind

KINDS = ("acp", "claude", "codex", "command", "goose")
_COMMANDS = {"claude": ("claude",), "codex": ("codex",), "goose": ("goose",)}


class UnknownKind(ValueError):
    """The kind does not exist, or its command is missing."""


@dataclass(frozen=True, slots=True)
class RuntimeChoice:
    """`NAME=KIND[:COMMAND]`, parsed."""

    name: str
    kind: str
    command: tuple[str, ...] | None
    account: str | None = None  # as its owner names it


def parse_runtime(text: str) -> RuntimeChoice:
    """Raises UnknownKind."""
    name, equals, rest = text.partition("=")
    kind, colon, command = rest.partition(":")
    if not name or not equals:
        raise UnknownKind(f"Write a runtime as NAME=KIND[:COMMAND], not {text!r}")
    try:
        words = tuple(shlex.split(command)) if colon else None
    except ValueError as error:
        raise UnknownKind(f"The command of the runtime {name!r} cannot be read: {error}") from error
    _check(kind, words)
    return RuntimeChoice(name, kind, words)


def kind_named(
    kind: str,
    command: Sequence[str] | None,
    environment: Mapping[str, str],
    groups: ProcessGroups | None = None,
) -> RuntimeKind:
    """`environment` is for looking at the CLI; a run sees only that of its job. Raises UnknownKind."""
    _check(kind, command)
    kind, _, mode = kind.partition("@")
    words = tuple(command or _COMMANDS[kind])
    groups = groups or ProcessGroups()
    match kind:
        case "claude":
            return ClaudeKind(words, environment, groups)
        case "codex":
            return CodexKind(words, environment, groups)
        case "goose":
            return AcpKind(words, environment, groups, GOOSE)
        case "acp":
            return AcpKind(words, environment, groups, AcpPreset(ask_mode=mode or None))
        case _:
            return CommandKind(words, environment, groups)


def _check(given: str, command: Sequence[str] | None) -> None:
    kind, at, mode = given.partition("@")
    if at and (kind != "acp" or not mode):
        raise UnknownKind(f"Only `acp` takes the mode in which it asks: NAME=acp@MODE:COMMAND, not {given!r}")
    if kind not in KINDS:
        raise UnknownKind(f"Unknown runtime kind {kind!r}; use one of {', '.join(KINDS)}")
    if not command and kind not in _COMMANDS:
        raise UnknownKind(f"The runtime kind `{kind}` needs a command: NAME={kind}:COMMAND")

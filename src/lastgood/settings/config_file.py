"""Reads `lastgood.toml`: its settings as text, and the agents that it names.

An unknown key is an error: a misspelled setting must not be ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lastgood.settings.types import SettingsInvalid


@dataclass(frozen=True, slots=True)
class AliasSetting:
    """An agent named in `[agents]`. `trusted`: an agent from this URL has the rights of a local file."""

    source: str
    trusted: bool
    folder: Path


@dataclass(frozen=True, slots=True)
class Config:
    """A `lastgood.toml` and the agents that it names."""

    path: Path
    agents: Mapping[str, AliasSetting] = field(default_factory=dict)


def read_config(file: Path, keys: Sequence[str]) -> Mapping[str, Any]:
    """`keys` are the settings that the file may contain."""
    import tomllib  # most commands have no such file

    try:
        text = file.read_bytes().decode()
        table = tomllib.loads(text)
    except OSError as error:
        raise SettingsInvalid(f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsInvalid(f"{file} is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsInvalid(f"{file} is not TOML: {error}") from None
    _refuse_unknown(table, (*keys, "agents", "worker"), file, text)
    return table


def read_aliases(table: Mapping[str, Any], file: Path) -> Mapping[str, AliasSetting]:
    agents = table.get("agents", {})
    if not isinstance(agents, dict):
        raise SettingsInvalid(f'{file}: agents must be a table: [agents] with lines like name = "reference"')
    return {name: _alias(value, f"{file}: agents.{name}", file) for name, value in agents.items()}


def read_worker_table(table: Mapping[str, Any], keys: Sequence[str], file: Path) -> Mapping[str, Any]:
    """`keys` are the settings that the table `[worker]` may contain."""
    found = table.get("worker", {})
    if not isinstance(found, dict):
        raise SettingsInvalid(f"{file}: worker must be a table: [worker] with settings of `lastgood worker`")
    _refuse_unknown(found, keys, file)
    return found


def _alias(value: Any, who: str, file: Path) -> AliasSetting:
    if not isinstance(value, dict):
        return AliasSetting(_text(value, who), False, file.parent)
    _refuse_unknown(value, ("source", "trusted"), file)
    trusted = value.get("trusted", False)
    if not isinstance(trusted, bool):
        raise SettingsInvalid(f"{who}.trusted must be true or false")
    return AliasSetting(_text(value.get("source"), f"{who}.source"), trusted, file.parent)


def as_text(value: Any, who: str) -> str:
    """TOML has numbers, lists and booleans; flags and variables only have text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list):
        return ",".join(_text(item, who) for item in value)
    return _text(value, who)


def _text(value: Any, who: str) -> str:
    if isinstance(value, str) and value and "\0" not in value:
        return value
    raise SettingsInvalid(f"{who} must be a string in quotes")


def _refuse_unknown(table: Mapping[str, Any], known: Sequence[str], file: Path, text: str = "") -> None:
    import difflib

    for key in table:
        if key in known:
            continue
        found = re.search(rf"^[ \t]*\[*[ \t]*[\"']?{re.escape(key)}\b", text, re.MULTILINE)
        line = f", line {text.count(chr(10), 0, found.start()) + 1}" if found else ""
        near = difflib.get_close_matches(key, known, 1)
        hint = f"did you mean {near[0]}?" if near else f"known settings: {', '.join(known)}"
        raise SettingsInvalid(f"{file}{line}: unknown setting {key!r}; {hint}")

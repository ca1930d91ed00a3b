"""Decides whether a tool may be called.

A deny rule wins over everything, whoever wrote it. Then a read-only agent calls only
what is safe. Then an allow rule decides, then an ask rule, then the safety mode's row in
the table. A rule is `tool`, a glob over the tool's name, or `tool:argument=glob:argument=glob`.

A deny or ask rule looks at every spelling of an argument it knows, in any case; an allow
rule takes it as it is. It knows names and arguments only: what a path leads to and what
a command does is not visible here.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from lastgood.core.commandline import guises, simple_commands
from lastgood.model.agents import Effect, Permissions, Safety


@dataclass(frozen=True, slots=True)
class Allowed:
    reason: str


@dataclass(frozen=True, slots=True)
class Denied:
    reason: str


@dataclass(frozen=True, slots=True)
class Asks:
    """A person has to say yes."""

    reason: str


Verdict = Allowed | Denied | Asks


class _Word(IntEnum):
    """The smaller one is the tighter one."""

    DENY = 0
    ASK = 1
    ALLOW = 2


_DENY, _ASK, _ALLOW = _Word
_VERDICTS: dict[_Word, type[Verdict]] = {_DENY: Denied, _ASK: Asks, _ALLOW: Allowed}
_ROWS = {
    Safety.STRICT: (_ASK, _ASK, _ASK),
    Safety.BALANCED: (_ALLOW, _ASK, _ASK),
    Safety.RESTRICTED: (_ALLOW, _DENY, _DENY),
    Safety.AUTONOMOUS: (_ALLOW, _ALLOW, _ALLOW),
}
_COLUMNS = (Effect.SAFE, Effect.DESTRUCTIVE, Effect.UNKNOWN)
_TABLE = {mode: dict(zip(_COLUMNS, row, strict=True)) for mode, row in _ROWS.items()}


def judge(
    rules: Sequence[Permissions],
    safety: Safety | tuple[Safety, ...],
    readonly: bool,
    tool: str,
    effect: Effect,
    arguments: Mapping[str, Any],
    *,
    root: str = "",
) -> Verdict:
    """`root` is where relative paths begin; with it, both spellings of a path below it are the same path."""
    try:
        ruled = _by_rules(rules, readonly, effect, _Call(tool, arguments, root))
    except RecursionError:
        return Denied("its arguments are nested too deeply to be judged")
    return ruled or _by_mode((safety,) if isinstance(safety, Safety) else safety, effect)


def _by_rules(rules: Sequence[Permissions], readonly: bool, effect: Effect, call: _Call) -> Verdict | None:
    for rule in (rule for one in rules for rule in one.deny):
        if _hits(rule, call):
            return Denied(f"the rule {rule!r} denies it")
    if readonly and effect is not Effect.SAFE:
        return Denied("the agent is read-only, and this tool may change something")
    allowing = _granted_by([rule for one in rules for rule in one.allow], call)
    if allowing:
        return Allowed(f"the rule {allowing!r} allows it")
    for rule in (rule for one in rules for rule in one.ask):
        if _hits(rule, call):
            return Asks(f"the rule {rule!r} asks for approval")
    return None


def _by_mode(modes: tuple[Safety, ...], effect: Effect) -> Verdict:
    mode = min(modes, key=lambda mode: _TABLE[mode][effect])
    reason = f"the safety mode is {mode}, and no rule speaks of this call, whose effect is {effect}"
    return _VERDICTS[_TABLE[mode][effect]](reason)


def narrower(first: Safety, *others: Safety) -> tuple[Safety, ...]:
    """The modes that hold where all of these do; whoever may only narrow can add one and gain nothing.

    Nearly always it is one of them. Strict and restricted stay two: the one asks where the other
    denies, the other runs what the one asks about, and no single mode is as tight as both.
    """
    modes = tuple(dict.fromkeys((first, *others)))
    return tuple(
        mode for mode in modes if not any(_tighter(other, mode) for other in modes if other is not mode)
    )


def _tighter(one: Safety, other: Safety) -> bool:
    return all(_TABLE[one][effect] <= _TABLE[other][effect] for effect in _COLUMNS)


def is_above(mode: Safety, ceiling: Safety) -> bool:
    """Whether somebody asks for more than the server gives to anybody, by the order of the modes."""
    modes = list(Safety)
    return modes.index(mode) > modes.index(ceiling)


def narrowing(rules: Permissions) -> Permissions:
    """What a file from somebody we do not trust may say: it can take rights away, and give none."""
    return replace(rules, allow=())


def is_granted(rules: Permissions, tool: str, arguments: Mapping[str, Any], root: str = "") -> bool:
    """Whether its allow rules speak of the call: an answer given beforehand to what would be asked."""
    try:
        return bool(_granted_by(rules.allow, _Call(tool, arguments, root)))
    except RecursionError:
        return False


# -- does a rule speak of this call? -------------------------------------------------

#: The argument that is a command line, by the tool that takes it.
_COMMANDS = {"shell": "cmd"}
_PATHS = ("path", "paths", "cwd", "dir", "directory", "file", "filename")


@dataclass(frozen=True, slots=True)
class _Call:
    tool: str
    arguments: Mapping[str, Any]
    root: str

    @property
    def command(self) -> str | None:
        """The command line it asks for, if that is what this tool takes."""
        command = self.arguments.get(_COMMANDS.get(self.tool, ""))
        return command if isinstance(command, str) else None


@lru_cache(maxsize=1024)
def _parsed(rule: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """The glob for the name, and argument and glob in pairs. A colon before no `name=` is only a colon."""
    tool, *rest = re.split(r":([A-Za-z_][\w.-]*)=", rule.strip())
    return tool, tuple(zip(rest[::2], rest[1::2], strict=True))


def _matches(glob: str, text: str) -> bool:
    """Go's `filepath.Match`, but `*` crosses slashes and a bracket without an end is a bracket."""
    glob = re.sub(r"\\([*?\[\\])", r"[\1]", glob).replace("[^", "[!")
    return fnmatchcase(text, glob)


def _hits(rule: str, call: _Call) -> bool:
    """For deny and ask: the rule speaks of the call if any spelling of each argument fits, in any case."""
    tool, conditions = _parsed(rule)
    return _matches(tool.lower(), call.tool.lower()) and all(
        name in call.arguments
        and any(_matches(glob.lower(), text.lower()) for text in _spellings(call, name))
        for name, glob in conditions
    )


def _spellings(call: _Call, name: str) -> Iterator[str]:
    value = call.arguments[name]
    for item in (value, *_items(value)):
        text = _text(item)
        yield text
        yield text.strip()
        yield from _paths(name, text.strip(), call.root)
    if call.command is not None and name == _COMMANDS[call.tool]:
        yield from guises(call.command)


def _granted_by(rules: Sequence[str], call: _Call) -> str:
    """The rules that allow it. Of a command line each command must be allowed, by whichever rule."""
    if call.command is None:
        return next((rule for rule in rules if _grants(rule, call)), "")
    whole = next((rule for rule in rules if not _asks_for_command(rule, call) and _grants(rule, call)), "")
    if whole:
        return whole
    used: dict[str, None] = {}
    for command in simple_commands(call.command) or ():
        part = replace(call, arguments={**call.arguments, _COMMANDS[call.tool]: command})
        rule = next((rule for rule in rules if _grants(rule, part)), "")
        if not rule:
            return ""
        used[rule] = None
    return ", ".join(used)


def _asks_for_command(rule: str, call: _Call) -> bool:
    return any(name == _COMMANDS[call.tool] and glob != "*" for name, glob in _parsed(rule)[1])


def _grants(rule: str, call: _Call) -> bool:
    """For allow: every item of every argument must fit, spelled plainly."""
    tool, conditions = _parsed(rule)
    return _matches(tool, call.tool) and all(
        name in call.arguments
        and all(
            any(_matches(glob, text) for text in _paths(name, _text(item), call.root) or (_text(item),))
            for item in _items(call.arguments[name]) or (call.arguments[name],)
        )
        and not (name == _COMMANDS.get(call.tool) and _splits_a_word(glob, call.command or ""))
        for name, glob in conditions
    )


def _splits_a_word(glob: str, command: str) -> bool:
    """`ls*` means ls and what follows it, not lsof."""
    prefix = glob.removesuffix("*")
    if prefix == glob or not prefix[-1:].isalnum():
        return False
    return not (_matches(prefix, command) or _matches(prefix + "[ \t]*", command))


def _items(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list) else ()


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _paths(name: str, text: str, root: str) -> tuple[str, ...]:
    """The path without detours, as it may be written; nothing for what is no path."""
    if not name.lower().endswith(_PATHS) or "://" in text:
        return ()
    path = posixpath.normpath(posixpath.join(root, text)).replace("//", "/", 1)
    top = root.rstrip("/") + "/"
    if root and f"{path}/".startswith(top):
        relative = path[len(top) :] or "."
        return path, relative, f"./{relative}"
    return path, f"./{path}"

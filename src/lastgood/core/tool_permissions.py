"""Decides whether a tool may be called.

A deny rule wins over everything, whoever set it. Then a read-only agent may call only safe tools. Then an
allow rule decides, then an ask rule, then the safety mode's row in the table. A rule is `tool`, a glob over
the tool's name, or `tool:argument=glob:argument=glob`.

A deny or ask rule looks at every spelling of an argument it knows, in any case; an allow
rule takes it as it is. It knows names and arguments only: what a path leads to and what
a command does is not visible here.

An argument that is longer than `JUDGED_CHARACTERS` is not matched. A deny rule that looks at it
denies, an ask rule asks, and an allow rule does not allow: no rule is evaded by length. Many rules
and long arguments still add up, so judging is a generator that can be paused between matches.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import lru_cache
from typing import Any, TypeVar

from lastgood.core.command_line import guises, simple_commands
from lastgood.core.globs import Glob
from lastgood.core.limits import JUDGED_CHARACTERS, JUDGED_ITEMS
from lastgood.model.agents import Effect, Permissions, Safety


@dataclass(frozen=True, slots=True)
class Allowed:
    reason: str


@dataclass(frozen=True, slots=True)
class Denied:
    """`remedy`: what would allow the call; "": a rule that allows it, or a wider mode."""

    reason: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Asks:
    """A person has to approve the call."""

    reason: str


Verdict = Allowed | Denied | Asks

_T = TypeVar("_T")
#: Yields where it may be paused, and returns what it decides.
Judging = Generator[None, None, _T]


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
    return _result(judging(rules, safety, readonly, tool, effect, arguments, root=root))


def judging(
    rules: Sequence[Permissions],
    safety: Safety | tuple[Safety, ...],
    readonly: bool,
    tool: str,
    effect: Effect,
    arguments: Mapping[str, Any],
    *,
    root: str = "",
) -> Judging[Verdict]:
    """As `judge`, in steps: what a caller does between them cannot change the verdict."""
    try:
        ruled = yield from _by_rules(rules, readonly, effect, _JudgedCall(tool, arguments, root))
    except RecursionError:
        return Denied("its arguments are nested too deeply to match rules against", "nest them less deeply")
    return ruled or _by_mode((safety,) if isinstance(safety, Safety) else safety, effect)


def _result(judging: Judging[_T]) -> _T:
    while True:
        try:
            next(judging)
        except StopIteration as end:
            result: _T = end.value
            return result


def _by_rules(
    rules: Sequence[Permissions], readonly: bool, effect: Effect, call: _JudgedCall
) -> Judging[Verdict | None]:
    for rule in (rule for one in rules for rule in one.deny):
        if found := (yield from _hits(rule, call)):
            remedy = f"remove {rule!r} from `permissions.deny`, which no `allow` rule overrides"
            return Denied(f"the rule {rule!r} denies it{found.but}", remedy)
    if readonly and effect is not Effect.SAFE:
        return Denied("the agent is read-only, and this tool can modify data", "remove `readonly: true`")
    allowing = yield from _granted_by([rule for one in rules for rule in one.allow], call)
    if allowing:
        return Allowed(f"the rule {allowing!r} allows it")
    for rule in (rule for one in rules for rule in one.ask):
        if found := (yield from _hits(rule, call)):
            return Asks(f"the rule {rule!r} asks for approval{found.but}")
    return None


def _by_mode(modes: tuple[Safety, ...], effect: Effect) -> Verdict:
    mode = min(modes, key=lambda mode: _TABLE[mode][effect])
    reason = f"the safety mode is {mode}, no rule matches this call, and its effect is {effect}"
    return _VERDICTS[_TABLE[mode][effect]](reason)


def narrower(first: Safety, *others: Safety) -> tuple[Safety, ...]:
    """The modes that apply if all of these do: adding one can only narrow.

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
    """Whether a mode exceeds the ceiling of the server, by the order of the modes."""
    modes = list(Safety)
    return modes.index(mode) > modes.index(ceiling)


def narrowing(rules: Permissions) -> Permissions:
    """The rules of an untrusted file: it can remove rights, but grant none."""
    return replace(rules, allow=())


def is_granted(rules: Permissions, tool: str, arguments: Mapping[str, Any], root: str = "") -> bool:
    """Whether its allow rules match the call: approval given in advance."""
    return _result(granting(rules, tool, arguments, root))


def granting(rules: Permissions, tool: str, arguments: Mapping[str, Any], root: str = "") -> Judging[bool]:
    """As `is_granted`, in steps."""
    try:
        return bool((yield from _granted_by(rules.allow, _JudgedCall(tool, arguments, root))))
    except RecursionError:
        return False


# -- does a rule speak of this call? -------------------------------------------------

#: The argument that is a command line, by the tool that takes it.
_COMMANDS = {"shell": "cmd", "run_background_job": "cmd"}
_PATHS = ("path", "paths", "cwd", "dir", "directory", "file", "filename")


@dataclass(frozen=True, slots=True)
class _JudgedCall:
    """A call, and what was read off its arguments: hundreds of rules may look at each of them."""

    tool: str
    arguments: Mapping[str, Any]
    root: str
    _read: dict[tuple[str, str], Any] = field(default_factory=dict)

    @property
    def command(self) -> str | None:
        """The command line it asks for, if that is what this tool takes."""
        command = self.arguments.get(_COMMANDS.get(self.tool, ""))
        return command if isinstance(command, str) else None

    def excess(self, name: str) -> str:
        """Why the argument is too long to be matched; empty: it is not."""
        if ("excess", name) not in self._read:
            self._read["excess", name] = _excess(name, self.arguments[name])
        excess: str = self._read["excess", name]
        return excess

    def spellings(self, name: str) -> Sequence[str]:
        """In lower case, each once."""
        if ("spellings", name) not in self._read:
            lowered = (text.lower() for text in _spellings(self, name))
            self._read["spellings", name] = tuple(dict.fromkeys(lowered))
        spellings: Sequence[str] = self._read["spellings", name]
        return spellings

    def items(self, name: str) -> Sequence[Sequence[str]]:
        """Of each item of the argument, the ways to write it plainly."""
        if ("items", name) not in self._read:
            value = self.arguments[name]
            texts = [_text(item) for item in _items(value) or (value,)]
            self._read["items", name] = [_paths(name, text, self.root) or (text,) for text in texts]
        items: Sequence[Sequence[str]] = self._read["items", name]
        return items


def _excess(name: str, value: Any) -> str:
    length, items = len(_text(value)), len(_items(value))
    if length > JUDGED_CHARACTERS:
        return f"`{name}` has {length:,} characters; rules match at most {JUDGED_CHARACTERS:,}"
    if items > JUDGED_ITEMS:
        return f"`{name}` has {items:,} items; rules match at most {JUDGED_ITEMS:,}"
    return ""


@dataclass(frozen=True, slots=True)
class _Rule:
    """The globs for the name and for arguments: as they are written, and in lower case."""

    tool: Glob
    lower_tool: Glob
    #: Argument, its glob, the same in lower case, and how it was written.
    conditions: tuple[tuple[str, Glob, Glob, str], ...]


@lru_cache(maxsize=2048)
def _parsed(rule: str) -> _Rule:
    """A colon before no `name=` is only a colon."""
    tool, *rest = re.split(r":([A-Za-z_][\w.-]*)=", rule.strip())
    conditions = (
        (name, Glob(glob), Glob(glob.lower()), glob) for name, glob in zip(rest[::2], rest[1::2], strict=True)
    )
    return _Rule(Glob(tool), Glob(tool.lower()), tuple(conditions))


@dataclass(frozen=True, slots=True)
class _Hit:
    but: str = ""  # why it counts as one although nothing was matched


def _hits(rule: str, call: _JudgedCall) -> Judging[_Hit | None]:
    """For deny and ask: the rule speaks of the call if any spelling of each argument fits, in any case."""
    parsed = _parsed(rule)
    if not parsed.lower_tool.matches(call.tool.lower()):
        return None
    but = ""
    for name, _, glob, _ in parsed.conditions:
        yield
        if name not in call.arguments:
            return None
        if excess := call.excess(name):
            but = f", because {excess}; shorten it"
        elif not any(map(glob.matches, call.spellings(name))):
            return None
    return _Hit(but)


def _spellings(call: _JudgedCall, name: str) -> Iterator[str]:
    value = call.arguments[name]
    for item in (value, *_items(value)):
        text = _text(item)
        yield text
        yield text.strip()
        yield from _paths(name, text.strip(), call.root)
    if call.command is not None and name == _COMMANDS[call.tool]:
        yield from guises(call.command)


def _granted_by(rules: Sequence[str], call: _JudgedCall) -> Judging[str]:
    """The rules that allow it. Of a command line each command must be allowed, by whichever rule."""
    speaking = [rule for rule in rules if _parsed(rule).tool.matches(call.tool)]
    if call.command is None:
        return (yield from _first_granting(speaking, call))
    whole = yield from _first_granting([rule for rule in speaking if not _asks_for_command(rule, call)], call)
    if whole or not speaking or len(call.command) > JUDGED_CHARACTERS:
        return whole
    used: dict[str, None] = {}
    for command in simple_commands(call.command) or ():
        part = _JudgedCall(call.tool, {**call.arguments, _COMMANDS[call.tool]: command}, call.root)
        rule = yield from _first_granting(speaking, part)
        if not rule:
            return ""
        used[rule] = None
    return ", ".join(used)


def _first_granting(rules: Sequence[str], call: _JudgedCall) -> Judging[str]:
    for rule in rules:
        yield
        if _grants(rule, call):
            return rule
    return ""


def _asks_for_command(rule: str, call: _JudgedCall) -> bool:
    return any(name == _COMMANDS[call.tool] and glob != "*" for name, _, _, glob in _parsed(rule).conditions)


def _grants(rule: str, call: _JudgedCall) -> bool:
    """For allow: every item of every argument must fit, spelled plainly."""
    return all(
        name in call.arguments
        and (written == "*" or not call.excess(name))
        and all(any(map(glob.matches, texts)) for texts in call.items(name))
        and not (name == _COMMANDS.get(call.tool) and _splits_a_word(written, call.command or ""))
        for name, glob, _, written in _parsed(rule).conditions
    )


def _splits_a_word(glob: str, command: str) -> bool:
    """`ls*` means ls and what follows it, not lsof."""
    prefix = glob.removesuffix("*")
    if prefix == glob or not prefix[-1:].isalnum():
        return False
    return not any(word.matches(command) for word in _words(prefix))


@lru_cache(maxsize=2048)
def _words(prefix: str) -> tuple[Glob, Glob]:
    return Glob(prefix), Glob(prefix + "[ \t]*")


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

"""Decides which commands a command line runs, as far as its text shows.

Two readers for two kinds of rules. The one for allow rules must never see less than the shell does, so it
gives up on anything complex. The one for deny rules looks everywhere a command could be, and may find one too
many. Neither is a sandbox: a command that is allowed can run others, and there is always another way to spell
one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

#: After `$`: substitutions, and the quotings that bash and sh read differently.
_CLEVER_AFTER_DOLLAR = frozenset("({['\"")
#: Outside quotes: redirections, background, groups and functions, comments (which may hide a quote).
_CLEVER = frozenset("<>&()#")


def simple_commands(line: str) -> tuple[str, ...] | None:
    """The commands of a line that runs them one after another, or None if it does anything else."""
    commands: list[str] = []
    quote = ""
    at = start = 0
    while at < len(line):
        here, both = line[at], line[at : at + 2]
        step = 1
        if quote == "'":
            quote = "" if here == "'" else quote
        elif here == "\\":
            if len(both) < 2:
                return None
            step = 2
        elif here == "`" or (here == "$" and both[1:] in _CLEVER_AFTER_DOLLAR):
            return None
        elif quote:
            quote = "" if here == quote else quote
        elif here in "'\"":
            quote = here
        elif both in ("&&", "||") or here in ";|\n":
            commands.append(line[start:at])
            step = 2 if both in ("&&", "||") else 1
            start = at + step
        elif here in _CLEVER:
            return None
        at += step
    if quote:
        return None
    commands.append(line[start:])
    return tuple(command.strip() for command in commands if command.strip())


_BETWEEN = re.compile(r"[;&|\n\r(){}`]")
_ASSIGNMENT = r"""[A-Za-z_]\w*=(?:'[^']*'|"[^"]*"|\\.|[^\s'"\\])*"""
_WORDS = "if|then|else|elif|while|until|do|time|exec|command|builtin|env|nohup|sudo|doas|xargs"
_BEFORE = re.compile(rf"^(?:(?:{_ASSIGNMENT}|!|{_WORDS})\s+)+")


def guises(line: str) -> Iterator[str]:
    """The line, and every command that may stand in it, without what commonly stands before or around one."""
    yield line.strip()
    for part in _BETWEEN.split(line.replace("\\\n", "")):
        yield part.strip()
        bare = re.sub(r"['\"\\]", "", _BEFORE.sub("", part.strip()))
        bare = _BEFORE.sub("", " ".join(bare.split()))
        yield bare
        name, space, rest = bare.partition(" ")
        yield name.rpartition("/")[2] + space + rest

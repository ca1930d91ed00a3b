"""A skill as its source has it, and the limits of reading one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from lastgood.core.skills import ListedSkill, SkillHeader

#: Of SKILL.md, to list it.
HEADER_BYTES = 16 * 1024
#: Of SKILL.md, and of a file beside it, to read it.
SKILL_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Skill:
    """`read` returns the text of one of its files; ToolFailed: it cannot be read. `is_trusted`: whether its
    header may add toolsets and choose any model; one in a working directory may be the work of the model."""

    listed: ListedSkill
    read: Callable[[str], Awaitable[str]]
    is_trusted: bool = True

    @property
    def header(self) -> SkillHeader:
        return self.listed.header


@dataclass(frozen=True, slots=True)
class Found:
    """`problem`: why skills of a source are missing, for the model."""

    skills: tuple[Skill, ...] = ()
    problem: str = ""


def cut(text: str, is_cut: bool) -> str:
    return f"{text}\n\n[Truncated; only the first {SKILL_BYTES} bytes were read]" if is_cut else text

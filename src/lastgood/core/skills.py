"""Decides what a skill is: its header, its instructions, and how the model learns of it.

A skill is a folder with a file SKILL.md: a header between two lines of dashes, and instructions in Markdown.
The header is read line by line and not as YAML, since descriptions often hold a colon without quotes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

READ_SKILL = "read_skill"
READ_SKILL_FILE = "read_skill_file"
RUN_SKILL = "run_skill"

#: Of all sources together; beyond, skills are left out, which the prompt says.
MOST_SKILLS = 200
#: Of one skill, beside SKILL.md.
MOST_FILES = 50
MOST_DESCRIPTION_CHARACTERS = 1024
#: Of the list in the system prompt, which is sent with every request; and of a file's path in it.
MOST_LIST_CHARACTERS = 64 * 1024
MOST_PATH_CHARACTERS = 200

COMMANDS_NOT_RUN = (
    "[This skill contains commands as !`…`. They were not run; run them with a tool if you need them.]"
)

_FENCE = "---"
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}\Z")
_COMMAND = re.compile(r"!`[^`]+`")
#: What YAML writes before a text of several lines.
_BLOCK = frozenset({"", ">", ">-", ">+", "|", "|-", "|+"})


@dataclass(frozen=True, slots=True)
class SkillHeader:
    """`is_fork`: it runs apart from the conversation, with the fields after it."""

    name: str
    description: str
    is_fork: bool = False
    model: str = ""
    allowed_tools: tuple[str, ...] = ()
    toolsets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ListedSkill:
    header: SkillHeader
    files: tuple[str, ...] = ()


def is_skill_name(name: str) -> bool:
    """It becomes a part of paths and URLs."""
    return _NAME.match(name) is not None


def is_skill_file(path: str) -> bool:
    """Whether the path leads to a file beside SKILL.md, in a folder and in a URL alike."""
    plain = all(" " < letter <= "~" and letter not in "\\?#[]%" for letter in path)
    short = 0 < len(path) <= MOST_PATH_CHARACTERS
    return short and plain and all(name not in ("", ".", "..") for name in path.split("/"))


def header_of(text: str, folder: str) -> SkillHeader | None:
    """None: this is no skill. `folder`: its name if the header has none."""
    header, _ = _split(text)
    if header is None:
        return None
    fields = _fields(header)
    name, description = fields.get("name", "") or folder, fields.get("description", "")
    if not is_skill_name(name) or not description:
        return None
    return SkillHeader(
        name,
        description[:MOST_DESCRIPTION_CHARACTERS],
        is_fork=fields.get("context") == "fork",
        model=fields.get("model", ""),
        allowed_tools=_names(fields.get("allowed-tools", "")),
        toolsets=_names(fields.get("toolsets", "")),
    )


def instructions_of(text: str) -> str:
    """Without the header, and with a note if it relies on commands: reading a skill runs nothing."""
    body = _split(text)[1].strip()
    return f"{body}\n\n{COMMANDS_NOT_RUN}" if _COMMAND.search(body) else body


def _split(text: str) -> tuple[str | None, str]:
    lines = text.removeprefix("\ufeff").splitlines()
    if not lines or lines[0].rstrip() != _FENCE:
        return None, text
    end = next((at for at, line in enumerate(lines[1:], 1) if line.rstrip() == _FENCE), None)
    if end is None:
        return None, text
    return "\n".join(lines[1:end]), "\n".join(lines[end + 1 :])


def _fields(header: str) -> dict[str, str]:
    """A list is its entries, joined with commas; a text of several lines is joined with spaces."""
    fields: dict[str, str] = {}
    key = ""
    for line in header.splitlines():
        if line[:1] in (" ", "\t", "-"):
            entry = line.strip()
            if key:
                glue = ", " if entry.startswith("- ") else " "
                fields[key] = glue.join(filter(None, (fields[key], _unquoted(entry.removeprefix("- ")))))
            continue
        name, colon, value = line.partition(":")
        key = name.strip() if colon and value.strip() in _BLOCK else ""
        if colon:
            fields[name.strip()] = "" if key else _unquoted(value.strip())
    return fields


def _unquoted(text: str) -> str:
    quoted = len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'"
    return text[1:-1] if quoted else text


def _names(text: str) -> tuple[str, ...]:
    plain = text.removeprefix("[").removesuffix("]")
    return tuple(name for one in plain.split(",") if (name := _unquoted(one.strip())))


def about_skills(skills: Sequence[ListedSkill], problems: Sequence[str]) -> str:
    """The part of the system prompt about them. `problems`: why some are missing."""
    lines: list[str] = []
    if skills:
        lines.append(
            "Skills are instructions for specific tasks. If a request matches the description of a skill, "
            f"read the skill with {READ_SKILL} first and follow it."
        )
        if any(skill.header.is_fork for skill in skills):
            lines.append(
                f"A skill marked (forked) works apart from this conversation: give it its task with "
                f"{RUN_SKILL}, not with {READ_SKILL}."
            )
        if any(skill.files for skill in skills):
            lines.append(f"Read the files of a skill with {READ_SKILL_FILE} if its instructions name them.")
        lines.append("Skills:")
        lines += _fitting([_line(skill) for skill in skills])
    lines += problems
    return "\n".join(lines)


def _fitting(lines: Sequence[str]) -> Iterator[str]:
    left = MOST_LIST_CHARACTERS
    for at, line in enumerate(lines):
        left -= len(line) + 1
        if left < 0:
            yield f"[{len(lines) - at} more skills are not listed here]"
            return
        yield line


def _line(skill: ListedSkill) -> str:
    header = skill.header
    mark = " (forked)" if header.is_fork else ""
    files = f" [files: {', '.join(skill.files)}]" if skill.files else ""
    return f"- {header.name}{mark}: {' '.join(header.description.split())}{files}"

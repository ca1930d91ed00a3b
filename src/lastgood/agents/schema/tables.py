"""The schema as tables in Markdown, for the documentation."""

from __future__ import annotations

from collections.abc import Iterator

from lastgood.agents.schema.file import FILE
from lastgood.agents.schema.kinds import (
    Anything,
    Either,
    Flag,
    Key,
    Kind,
    ListOf,
    MapOf,
    Number,
    Section,
    Span,
    Text,
    Typed,
    Whole,
)
from lastgood.agents.schema.toolsets import TOOLSET


def keys() -> Iterator[str]:
    """A heading and a table for each section, outermost first."""
    for section in _sections():
        yield f"### {section.title[0].upper()}{section.title[1:]}"
        yield ""
        yield "| key | value | meaning |"
        yield "|---|---|---|"
        for name, key in section.keys.items():
            yield f"| `{name}` | {_cell(_value(key.kind))} | {_cell(_meaning(key))} |"
        yield ""


def toolsets() -> Iterator[str]:
    yield "| type | purpose | its own keys |"
    yield "|---|---|---|"
    for name, variant in TOOLSET.types.items():
        own = ", ".join(f"`{key}`" for key in variant.keys)
        later = "**Not supported yet**: " if variant.later else ""
        yield f"| `{name}` | {later}{variant.about} | {own} |"


def _sections() -> list[Section]:
    found: dict[str, Section] = {}
    left: list[Kind] = [FILE]
    while left:
        kind = left.pop(0)
        section = kind.section if isinstance(kind, Typed) else kind
        match section:
            case Section() if section.name not in found and section.name != "mcp":
                found[section.name] = section
                left += [key.kind for key in section.keys.values()]
            case MapOf(of) | ListOf(of):
                left.append(of)
            case Either(kinds):
                left += kinds
            case _:
                pass
    return list(found.values())


def _value(kind: Kind) -> str:
    match kind:
        case Text(choices):
            return ", ".join(f"`{one}`" for one in choices) or "text"
        case Flag():
            return "`true` or `false`"
        case Whole():
            return "an integer"
        case Number():
            return "a number"
        case Span():
            return "a duration: `90s`, `1m30s`, or seconds"
        case Anything(mapping):
            return "a mapping" if mapping else "anything"
        case ListOf(of, _, or_one):
            if isinstance(of, Section | Typed):
                return f"a list, each entry {_value(of)}"
            return f"{f'{_value(of)}, or ' if or_one else ''}a list of {_value(of)}"
        case MapOf(of):
            one = "a value" if isinstance(of, Either | MapOf) else _value(of)
            return f"a mapping of names to {one}"
        case Either(kinds):
            return " or ".join(dict.fromkeys(map(_value, kinds)))
        case Section(_, title):
            return title
        case Typed(section):
            return section.title


def _meaning(key: Key) -> str:
    meaning = key.about
    if key.required:
        meaning += " (required)"
    if key.until is not None:
        meaning += f". Only in versions 0 to {key.until}" if key.until else ". Only in version 0"
        meaning += f"; use `{key.instead}` instead" if key.instead else ""
    if key.later:
        meaning += f". **Not supported yet**: {key.later}"
    return meaning


def _cell(text: str) -> str:
    return text.replace("|", "\\|")

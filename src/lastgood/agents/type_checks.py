"""Checks whether a node has a kind, and words the error if it does not."""

from __future__ import annotations

from typing import Any

from lastgood.agents.findings import hint, one_of
from lastgood.agents.scalar_values import flag_of, number_of, seconds_of, whole_of
from lastgood.agents.schema.kinds import (
    Anything,
    Either,
    Flag,
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
from lastgood.agents.yaml_tree import Node, Scalar, TreeList, TreeMapping

ScalarKind = Text | Flag | Whole | Number | Span


def fits(node: Node, kind: Kind) -> bool:
    """Whether it looks like one; what is inside may be wrong anyway."""
    match kind:
        case Section() | Typed() | MapOf():
            return isinstance(node, TreeMapping)
        case ListOf():
            return isinstance(node, TreeList)
        case Text() | Flag() | Whole() | Number() | Span():
            return scalar_of(node, kind) is not None
        case Anything(mapping):
            return not mapping or isinstance(node, TreeMapping)
        case Either(kinds):
            return any(fits(node, one) for one in kinds)


def scalar_of(node: Node, kind: ScalarKind) -> Any:
    """Returns None if the value is not of this kind."""
    if not isinstance(node, Scalar):
        return None
    match kind:
        case Text():
            return node.text
        case Flag():
            return flag_of(node)
        case Whole():
            return whole_of(node)
        case Number():
            return number_of(node)
        case Span():
            return seconds_of(node)


def asks_for_nothing(node: Node, kind: Kind) -> bool:
    """Turning off what is not there needs no warning."""
    has_flag = isinstance(kind, Flag) or (isinstance(kind, Either) and Flag() in kind.kinds)
    return has_flag and isinstance(node, Scalar) and flag_of(node) is False


def out_of_range(raw: Any, kind: ScalarKind) -> str:
    """What is wrong with a value of the right kind; empty: nothing."""
    if isinstance(kind, Text) and kind.choices and raw not in kind.choices:
        return (
            f"'{raw}' is not a valid value{hint(raw, kind.choices) or f'; expected {one_of(kind.choices)}'}"
        )
    if isinstance(kind, Whole | Number):
        above = isinstance(kind, Number) and kind.above
        low = kind.least is not None and (raw < kind.least or (above and raw == kind.least))
        high = kind.most is not None and raw > kind.most
        return (
            f"{raw:g} is out of range; expected {_range(kind.least, kind.most, above)}" if low or high else ""
        )
    return ""


def _range(least: float | None, most: float | None, above: bool) -> str:
    low = "" if least is None else f"{'more than' if above else 'at least'} {least:g}"
    high = "" if most is None else f"at most {most:g}"
    return " and ".join(part for part in (low, high) if part)


def wanted(kind: Kind) -> str:
    match kind:
        case Text(choices):
            return one_of(choices) if choices else "text"
        case Flag():
            return "true or false"
        case Whole():
            return "a whole number"
        case Number():
            return "a number"
        case Span():
            return "a duration (90s, 1m30s, or a number of seconds)"
        case ListOf():
            return "a list"
        case Section() | Typed() | MapOf() | Anything():
            return "a mapping"
        case Either(kinds):
            return one_of(wanted(one) for one in kinds)


def shown(node: Node) -> str:
    """Describes the value that was found instead."""
    match node:
        case TreeList():
            return "a list"
        case TreeMapping():
            return "a mapping"
        case Scalar() if node.is_null:
            return "nothing"
        case Scalar(text, quoted):
            flat = " ".join(text.split())
            short = flat if len(flat) <= 40 else f"{flat[:39]}…"
            return f'the string "{short}"' if quoted else f"'{short}'"

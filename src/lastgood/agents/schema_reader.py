"""Reads a tree by the schema, and reports everything that does not match it.

Values keep their place in the file, so that later checks can report unknown names with a line. An invalid
value is left out; the rest is still read, and all errors are reported together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lastgood.agents.findings import Findings, Location, hint, nearest, one_of
from lastgood.agents.scalar_values import core_value
from lastgood.agents.schema.file import AGENT, FILE, NEWEST
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
from lastgood.agents.schema.model_providers import MODEL, PROVIDER
from lastgood.agents.schema.toolsets import TOOLSET
from lastgood.agents.type_checks import (
    ScalarKind,
    asks_for_nothing,
    fits,
    out_of_range,
    scalar_of,
    shown,
    wanted,
)
from lastgood.agents.yaml_tree import Node, Scalar, TreeList, TreeMapping

#: Where a misplaced key may belong.
_HOMES = (FILE, AGENT, MODEL, PROVIDER, TOOLSET.section)

#: What people write where the name of a variable belongs, often with the secret itself as its value.
_NAMES_OF_KEYS = frozenset({"api_key", "apikey", "key", "api_token", "secret_key"})
_USE_TOKEN_KEY = "use 'token_key' with the name of the environment variable that holds the API key"


@dataclass(frozen=True, slots=True)
class Value:
    """`raw` is text, a number, a flag, seconds, a section, or a list or a mapping of values.

    Free data is plain all the way down.
    """

    raw: Any
    place: Location


@dataclass(frozen=True, slots=True)
class Fields:
    """A section as it was read. `seen` are all keys in the file, including invalid and misspelt ones."""

    values: Mapping[str, Value]
    seen: frozenset[str]
    place: Location

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def raw(self, key: str, default: Any = None) -> Any:
        value = self.values.get(key)
        return default if value is None else value.raw

    def text(self, key: str) -> str:
        return str(self.raw(key, ""))

    def at(self, key: str) -> Location:
        """Returns the place of its value, or of the section if it has none."""
        value = self.values.get(key)
        return self.place if value is None else value.place

    def named(self, key: str) -> dict[str, Value]:
        """A mapping, by name."""
        mapping: dict[str, Value] = self.raw(key, {})
        return mapping

    def listed(self, key: str) -> list[Value]:
        values: list[Value] = self.raw(key, [])
        return values


@dataclass(slots=True)
class SchemaReader:
    findings: Findings
    version: int = NEWEST
    is_versioned: bool = True  # whether the file says its version
    #: Inside of something that is not supported: reported once, at its top.
    _quiet: int = field(default=0, init=False)

    def read(self, node: Node, kind: Kind, at: Location) -> Value | None:
        """`at` is the place of its key. Returns None after adding a finding if the value is invalid."""
        place = Location(node.line, node.column, at.key) if isinstance(node, Scalar) else at
        match kind:
            case Section():
                return self._section(node, kind, place)
            case Typed():
                return self._typed(node, kind, place)
            case Either():
                return self._either(node, kind, place)
            case ListOf():
                return self._list(node, kind, place)
            case MapOf():
                return self._map(node, kind, place)
            case Anything():
                return self._anything(node, kind, place)
            case Text() | Flag() | Whole() | Number() | Span():
                return self._scalar(node, kind, place)

    # -- sections --------------------------------------------------------------------

    def _section(self, node: Node, section: Section, place: Location) -> Value | None:
        table = self._table(node, section.title, place)
        if table is None:
            return None
        values: dict[str, Value] = {}
        meant: set[str] = set()
        for name, child in table.pairs:
            at = _below(name, place)
            if name.text in section.keys:
                self._field(values, section.keys[name.text], child, at, name.text)
            elif not section.open:
                meant |= self._unknown(name.text, section.keys, section, at)
        given = {name.text for name, child in table.pairs if not _is_blank(child)}
        for text, key in section.keys.items():
            if key.required and text not in given | meant:
                self.findings.error(place, f"{section.title} needs '{text}': {key.about}")
        return Value(Fields(values, frozenset(given | meant), place), place)

    def _typed(self, node: Node, typed: Typed, place: Location) -> Value | None:
        section = typed.section
        table = self._table(node, section.title, place)
        if table is None:
            return None
        children = {name.text: child for name, child in table.pairs if not _is_blank(child)}
        kind = self._type(children, typed, place)
        own = set(section.keys) if kind is None else {*typed.shared, *typed.types[kind].keys}
        later = kind is not None and bool(typed.types[kind].later)
        self._quiet += later
        values: dict[str, Value] = {}
        meant: set[str] = set()
        for name, child in table.pairs:
            at = _below(name, place)
            if name.text in own:
                self._field(values, section.keys[name.text], child, at, name.text)
            elif name.text in section.keys:
                self._wrong_type(name.text, str(kind), typed, at)
            else:
                meant |= self._unknown(name.text, own, section, at)
        self._quiet -= later
        fields = Fields(values, frozenset({*children, *meant}), place)
        if kind is not None:
            values["type"] = Value(kind, fields.at("type"))
            self._variant(kind, typed, fields)
        return Value(fields, place)

    def _type(self, children: Mapping[str, Node], typed: Typed, place: Location) -> str | None:
        """Returns None if the type is unknown, which is reported elsewhere."""
        node = children.get("type")
        if node is None and typed.implied:
            return typed.implied
        if node is None:
            misspelt = any(nearest(name, typed.section.keys) == "type" for name in children)
            if not misspelt:
                some = ", ".join(list(typed.types)[:6])
                self.findings.error(place, f"{typed.section.title} needs a 'type', for example {some}")
            return None
        if not isinstance(node, Scalar) or node.text in typed.types:
            return node.text if isinstance(node, Scalar) else None
        at = Location(node.line, node.column, f"{place.key}.type")
        known = hint(node.text, typed.types) or f"; known types: {', '.join(typed.types)}"
        self.findings.error(at, f"unknown type '{node.text}' of {typed.section.title}{known}")
        return None

    def _variant(self, kind: str, typed: Typed, fields: Fields) -> None:
        variant, title = typed.types[kind], f"{typed.section.title} of type '{kind}'"
        for key in variant.needs:
            if key not in fields.seen:
                self.findings.error(fields.place, f"{title} needs '{key}': {typed.section.keys[key].about}")
        given = [key for key in variant.exactly_one if key in fields.seen]
        if variant.exactly_one and len(given) != 1:
            choice = one_of(f"'{key}'" for key in variant.exactly_one)
            self.findings.error(
                fields.place,
                f"{title} needs exactly one of {choice}; it has {' and '.join(given) or 'none'}",
            )
        both = [key for key in variant.not_together if key in fields.seen]
        if len(both) > 1:
            self.findings.error(
                fields.at(both[-1]), f"'{both[0]}' and '{both[1]}' cannot be combined; keep one"
            )
        if variant.later:
            self._not_yet(fields.at("type"), f"tools of type '{kind}' are not supported yet: {variant.later}")

    def _field(self, values: dict[str, Value], key: Key, child: Node, at: Location, name: str) -> None:
        if key.until is not None and self.version > key.until:
            instead = f"; use {key.instead}" if key.instead else "; remove it"
            if not self.is_versioned:
                instead += f', or add `version: "{key.until}"` to the file if it was written for that version'
            self.findings.error(at, f"'{name}' was removed in version {key.until + 1}{instead}")
            return
        if _is_null(child):
            return
        later = bool(key.later) and not asks_for_nothing(child, key.kind)
        if later:
            self._not_yet(at, f"'{name}' is not supported yet: {key.later}")
        self._quiet += later
        value = self.read(child, key.kind, at)
        self._quiet -= later
        if value is not None:
            values[name] = value

    def _not_yet(self, place: Location, message: str) -> None:
        if not self._quiet:
            self.findings.warning(place, message)

    # -- keys that should not be there -------------------------------------------------

    def _unknown(self, name: str, known: Iterable[str], section: Section, at: Location) -> set[str]:
        """Required keys that were probably misspelt: they are not also reported as missing."""
        current = [key for key in known if self._has(section, key)]
        if name.lower().replace("-", "_") in _NAMES_OF_KEYS and "token_key" in current:
            self.findings.error(at, f"unknown key '{name}'; {_USE_TOKEN_KEY}")
            return {"token_key"}
        homes = [home.title for home in _HOMES if home is not section and self._has(home, name)]
        close = nearest(name, current)
        if homes and close is None:
            belongs = f"; it belongs to {one_of(homes)}"
        else:
            belongs = f" ('{name}' belongs to {one_of(homes)})" if homes else ""
        self.findings.error(at, f"unknown key '{name}'{hint(name, current)}{belongs}")
        return set() if close is None else {close}

    def _wrong_type(self, name: str, kind: str, typed: Typed, at: Location) -> None:
        others = [f"'{one}'" for one, variant in typed.types.items() if name in variant.keys]
        where = f"; it belongs to type {one_of(others)}" if others else ""
        self.findings.error(at, f"'{name}' is not a key of {typed.section.title} of type '{kind}'{where}")

    def _has(self, section: Section, name: str) -> bool:
        key = section.keys.get(name)
        return key is not None and (key.until is None or self.version <= key.until)

    # -- lists, mappings and scalars -----------------------------------------------------

    def _table(self, node: Node, title: str, place: Location) -> TreeMapping | None:
        if _is_null(node):
            return TreeMapping((), (), node.line, node.column)
        if not isinstance(node, TreeMapping):
            self.findings.error(place, f"expected {title} as a mapping, got {shown(node)}")
            return None
        for name, first in node.repeated:
            self.findings.error(
                _below(name, place), f"'{name.text}' is a duplicate key; the first one is on line {first}"
            )
        return node

    def _list(self, node: Node, kind: ListOf, place: Location) -> Value | None:
        if kind.or_one and isinstance(node, Scalar):
            one = self.read(node, kind.of, place)
            return None if one is None else Value([one], place)
        if not isinstance(node, TreeList):
            self.findings.error(place, f"expected a list, got {shown(node)}")
            return None
        if len(node.items) < kind.least:
            self.findings.error(place, "the list is empty; add at least one entry")
        values = []
        for number, item in enumerate(node.items):
            value = self.read(item, kind.of, Location(item.line, item.column, f"{place.key}[{number}]"))
            values += [] if value is None else [value]
        return Value(values, place)

    def _map(self, node: Node, kind: MapOf, place: Location) -> Value | None:
        table = self._table(node, "names with their values", place)
        if table is None:
            return None
        if len(table.pairs) < kind.least:
            self.findings.error(place, "the mapping is empty; add at least one entry")
        if kind.most is not None and len(table.pairs) > kind.most:
            self.findings.error(place, f"{len(table.pairs):,} entries; the limit is {kind.most}")
            return None
        values: dict[str, Value] = {}
        for name, child in table.pairs:
            at = _below(name, place)
            if not name.text.strip():
                self.findings.error(at, "a name is missing before the ':'")
                continue
            value = self.read(child, kind.of, at)
            if value is not None:
                values[name.text] = value
        return Value(values, place)

    def _anything(self, node: Node, kind: Anything, place: Location) -> Value | None:
        if kind.mapping and not isinstance(node, TreeMapping):
            self.findings.error(place, f"expected a mapping, got {shown(node)}")
            return None
        return Value(self._free(node, place), place)

    def _free(self, node: Node, place: Location) -> Any:
        match node:
            case Scalar():
                return core_value(node)
            case TreeList(items):
                return [self._free(item, place) for item in items]
            case TreeMapping(pairs):
                self._table(node, "", place)
                return {name.text: self._free(child, _below(name, place)) for name, child in pairs}

    def _either(self, node: Node, kind: Either, place: Location) -> Value | None:
        for one in kind.kinds:
            if fits(node, one):
                return self.read(node, one, place)
        self.findings.error(place, f"expected {wanted(kind)}, got {shown(node)}")
        return None

    def _scalar(self, node: Node, kind: ScalarKind, place: Location) -> Value | None:
        raw = scalar_of(node, kind)
        problem = f"expected {wanted(kind)}, got {shown(node)}" if raw is None else out_of_range(raw, kind)
        if problem:
            self.findings.error(place, problem)
            return None
        return Value(raw, place)


def _is_null(node: Node) -> bool:
    return isinstance(node, Scalar) and node.is_null


def _is_blank(node: Node) -> bool:
    """A key without a value, or with an empty text, counts as absent."""
    return isinstance(node, Scalar) and (node.is_null or not node.text.strip())


def _below(name: Scalar, place: Location) -> Location:
    plain = name.text if re.fullmatch(r"[\w-]+", name.text) else f'"{name.text}"'
    return Location(name.line, name.column, f"{place.key}.{plain}" if place.key else plain)

"""Reads YAML into a tree of text, lists and mappings, each with its place in the file.

Nothing is constructed from tags, and scalars stay text: what `yes`, `2` or `1.10` means is decided where a
flag, a number or a text is expected. Knows nothing of agents.

The file may come from anywhere. So its size, its depth and what its aliases amount
to are bounded while it is read: the parser's events are taken one by one, and
nothing here recurses into the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import yaml

from lastgood.agents.findings import Findings, Location

MOST_BYTES = 1024 * 1024
MOST_DEPTH = 64
#: With every alias counted as what it stands for.
MOST_NODES = 100_000

# The parser of libyaml is many times faster; without it the same events come from Python's own.
_LOADER: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ufeff\ufffe\uffff]")
_YAML_TAG = "tag:yaml.org,2002:"
_TEXT_TAGS = {None, "!", *(_YAML_TAG + name for name in ("str", "int", "float", "bool", "null"))}
_LIST_TAGS = {None, "!", _YAML_TAG + "seq"}
_MAPPING_TAGS = {None, "!", _YAML_TAG + "map"}


@dataclass(frozen=True, slots=True)
class Scalar:
    """`quoted`: it is text and nothing else, because it was quoted, a block, or tagged as text."""

    text: str
    quoted: bool
    line: int
    column: int

    @property
    def is_null(self) -> bool:
        return not self.quoted and self.text in ("", "~", "null", "Null", "NULL")


@dataclass(frozen=True, slots=True)
class TreeList:
    items: tuple[Node, ...]
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class TreeMapping:
    """Its keys differ from each other; those of merged mappings come first.

    `repeated` are the keys that were left out because they came before, each with the line of the first.
    """

    pairs: tuple[tuple[Scalar, Node], ...]
    repeated: tuple[tuple[Scalar, int], ...]
    line: int
    column: int


Node = Scalar | TreeList | TreeMapping


class _Unreadable(Exception):
    """The rest of the file cannot be parsed."""

    def __init__(self, line: int, column: int, message: str) -> None:
        super().__init__(message)
        self.place = Location(line, column)


def read_tree(body: bytes, findings: Findings) -> Node | None:
    """Returns None after adding a finding if the file cannot be read."""
    try:
        text = _decoded(body)
        root = _Builder(text).build()
        if root is None:
            raise _Unreadable(1, 1, "the file is empty; `lastgood init` writes an example")
        return root
    except _Unreadable as problem:
        findings.error(problem.place, str(problem))
    except yaml.MarkedYAMLError as problem:
        findings.error(*_malformed(problem, text))
    except yaml.YAMLError as problem:
        findings.error(Location(1, 1), f"not valid YAML: {' '.join(str(problem).split())}")
    return None


def _decoded(body: bytes) -> str:
    if len(body) > MOST_BYTES:
        raise _Unreadable(1, 1, f"the file has {len(body):,} bytes; the limit is {MOST_BYTES:,}")
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        before = body[: problem.start].decode("utf-8-sig", "replace")
        raise _Unreadable(*_position(before), "not UTF-8; save the file as UTF-8") from None
    if control := _CONTROLS.search(text):
        what = f"a control character (U+{ord(control[0]):04X}) that YAML does not allow; remove it"
        raise _Unreadable(*_position(text[: control.start()]), what)
    return text


def _position(before: str) -> tuple[int, int]:
    return before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1


# -- from events to nodes ----------------------------------------------------------


@dataclass(slots=True)
class _Open:
    """A list or a mapping whose end was not met yet. A mapping holds keys and values in turn."""

    event: yaml.CollectionStartEvent
    nodes: list[Node] = field(default_factory=list)
    size: int = 1


class _Builder:
    def __init__(self, text: str) -> None:
        self._text = text
        self._open: list[_Open] = []
        self._anchors: dict[str, tuple[Node, int]] = {}
        self._count = 0
        self._documents = 0
        self._root: Node | None = None

    def build(self) -> Node | None:
        """None: the file is empty."""
        for event in _events(self._text):
            match event:
                case yaml.DocumentStartEvent():
                    self._begin_document(event)
                case yaml.AliasEvent():
                    self._put(*self._aliased(event), None)
                case yaml.ScalarEvent():
                    self._put(self._scalar(event), 1, event.anchor)
                case yaml.SequenceStartEvent() | yaml.MappingStartEvent():
                    self._begin(event)
                case yaml.SequenceEndEvent() | yaml.MappingEndEvent():
                    self._end()
                case _:  # the stream and the document begin and end
                    pass
        return self._root

    def _begin_document(self, event: yaml.Event) -> None:
        self._documents += 1
        if self._documents > 1:
            raise _Unreadable(
                *_start(event),
                "a second YAML document starts here (---); an agent file must be a single document",
            )

    def _begin(self, event: yaml.CollectionStartEvent) -> None:
        if len(self._open) >= MOST_DEPTH:
            raise _Unreadable(*_start(event), f"nested more than {MOST_DEPTH} levels deep")
        self._counted(event, 1)
        _check_tag(event, _LIST_TAGS if isinstance(event, yaml.SequenceStartEvent) else _MAPPING_TAGS)
        self._open.append(_Open(event))

    def _end(self) -> None:
        done = self._open.pop()
        node: Node
        if isinstance(done.event, yaml.SequenceStartEvent):
            node = TreeList(tuple(done.nodes), *_start(done.event))
        else:
            node = _table(done)
        self._put(node, done.size, done.event.anchor)

    def _put(self, node: Node, size: int, anchor: str | None) -> None:
        if anchor is not None:
            self._anchors[anchor] = (node, size)
        if self._open:
            self._open[-1].nodes.append(node)
            self._open[-1].size += size
        else:
            self._root = node

    def _counted(self, event: yaml.Event, size: int) -> None:
        self._count += size
        if self._count > MOST_NODES:
            what = f"more than {MOST_NODES:,} values in one file (aliases count as what they expand to)"
            raise _Unreadable(*_start(event), what)

    def _scalar(self, event: yaml.ScalarEvent) -> Scalar:
        self._counted(event, 1)
        _check_tag(event, _TEXT_TAGS)
        quoted = event.style not in (None, "") or event.tag == _YAML_TAG + "str"
        return Scalar(event.value, quoted, *_start(event))

    def _aliased(self, event: yaml.AliasEvent) -> tuple[Node, int]:
        name = event.anchor
        if any(one.event.anchor == name for one in self._open):
            raise _Unreadable(*_start(event), f"'*{name}' is a recursive alias")
        if name not in self._anchors:
            raise _Unreadable(
                *_start(event), f"'*{name}' is an undefined alias: there is no '&{name}' before it"
            )
        node, size = self._anchors[name]
        self._counted(event, size)
        return node, size


def _check_tag(event: yaml.ScalarEvent | yaml.CollectionStartEvent, allowed: set[str | None]) -> None:
    if event.tag not in allowed:
        tag = str(event.tag).replace(_YAML_TAG, "!!")
        raise _Unreadable(*_start(event), f"the tag '{tag}' is not allowed in an agent file")


def _table(done: _Open) -> TreeMapping:
    own: dict[str, tuple[Scalar, Node]] = {}
    merged: dict[str, tuple[Scalar, Node]] = {}
    repeated: list[tuple[Scalar, int]] = []
    for key, value in zip(done.nodes[::2], done.nodes[1::2], strict=True):
        if not isinstance(key, Scalar):
            raise _Unreadable(key.line, key.column, "a key must be a string, not a list or a mapping")
        if key.text == "<<" and not key.quoted:
            merged = {**{one.text: (one, node) for one, node in _merged(value)}, **merged}
        elif key.text in own:
            repeated.append((key, own[key.text][0].line))
        else:
            own[key.text] = (key, value)
    inherited = (pair for text, pair in merged.items() if text not in own)
    return TreeMapping((*inherited, *own.values()), tuple(repeated), *_start(done.event))


def _merged(value: Node) -> Iterator[tuple[Scalar, Node]]:
    """The pairs of one mapping, or of several: last come those that count."""
    tables = value.items if isinstance(value, TreeList) else (value,)
    for table in reversed(tables):
        if not isinstance(table, TreeMapping):
            raise _Unreadable(table.line, table.column, "'<<' needs a mapping or a list of mappings")
        yield from table.pairs


def _events(text: str) -> Iterator[yaml.Event]:
    loader = _LOADER(text)
    try:
        while loader.check_event():
            yield loader.get_event()
    finally:
        loader.dispose()


def _start(event: yaml.Event) -> tuple[int, int]:
    mark = event.start_mark
    assert mark is not None
    return mark.line + 1, mark.column + 1


# -- what the parser says, for people --------------------------------------------------

_WORDS = (
    (
        r"mapping values are not allowed",
        "unexpected ':'; quote values that contain one, and check the indentation",
    ),
    (r"expected ',' or '[]}]'", "a list or mapping in brackets is not closed, or a comma is missing"),
    (r"could not find expected ':'", "missing ':' after a key, or wrong indentation of a multi-line string"),
    (r"expected <block end>|did not find expected key|expected '-'", "inconsistent indentation"),
    (r"unknown escape character", "unknown escape sequence; use single quotes, or write \\\\"),
    (r"cannot start any token", "a value cannot begin with this character; quote the value"),
    (r"undefined tag handle", "a value that begins with '!' is a tag, which is not allowed; quote the value"),
)


def _malformed(problem: yaml.MarkedYAMLError, text: str) -> tuple[Location, str]:
    mark, opened = problem.problem_mark, problem.context_mark
    if mark is None:
        return Location(1, 1), f"not valid YAML: {problem.problem}"
    lines = text.splitlines()
    if mark.line >= len(lines) and opened is not None:
        # The parser met the end of the file. What it was reading is more helpful.
        place = Location(opened.line + 1, opened.column + 1)
        return place, "not valid YAML: the quote or bracket that starts here is not closed"
    said = " ".join(f"{problem.context or ''} {problem.problem or ''}".split())
    words = next((words for pattern, words in _WORDS if re.search(pattern, said)), said)
    if lines[mark.line : mark.line + 1] and lines[mark.line][mark.column : mark.column + 1] == "\t":
        words = "tab character in the indentation; use spaces"
    return Location(mark.line + 1, mark.column + 1), f"not valid YAML: {words}"

"""The agent files of `corpus/`, what they expect to be told, and a walk through their keys.

A line that ends in `# expect: warning WORDS` gets exactly one finding, of that level and with these words.
The walk follows the schema's table on its own and knows nothing of the reader.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lastgood.agents.agent_file import AgentFile, Finding, Level, read_agent_file
from lastgood.agents.file_source import beside
from lastgood.agents.findings import Findings
from lastgood.agents.schema.file import FILE
from lastgood.agents.schema.kinds import Either, Kind, ListOf, MapOf, Section, Typed
from lastgood.agents.type_checks import fits
from lastgood.agents.yaml_tree import Node, Scalar, TreeList, TreeMapping, read_tree
from lastgood.errors import AgentInvalid

FOLDER = Path(__file__).parent / "corpus"
FILES = sorted(FOLDER.glob("*.yaml"))
_EXPECTED = re.compile(r"# expect: (error|warning) (.+)$")


def read(path: Path, body: bytes | None = None, *, trusted: bool = True) -> AgentFile:
    body = path.read_bytes() if body is None else body
    return read_agent_file(body, where=path.name, key=path.stem, trusted=trusted, read_beside=beside(path))


def parse(text: str, *, trusted: bool = True) -> AgentFile:
    return read_agent_file(text.encode(), where="agent.yaml", key="agent", trusted=trusted)


def findings_of(body: bytes, *, trusted: bool = True) -> list[Finding]:
    """All of them, whether it loads or not."""
    try:
        return list(read_agent_file(body, where="agent.yaml", key="agent", trusted=trusted).warnings)
    except AgentInvalid as error:
        return [Finding(**(one | {"level": Level(one["level"])})) for one in error.detail["findings"]]


def errors_of(text: str, *, trusted: bool = True) -> list[tuple[int, str]]:
    found = findings_of(text.encode(), trusted=trusted)
    return [(one.line, one.message) for one in found if one.level == "error"]


def warnings_of(text: str, *, trusted: bool = True) -> list[tuple[int, str]]:
    found = findings_of(text.encode(), trusted=trusted)
    assert [one for one in found if one.level == "error"] == []
    return [(one.line, one.message) for one in found]


def expected(path: Path) -> list[tuple[int, str, str]]:
    lines = enumerate(path.read_text().splitlines(), 1)
    return [(number, found[1], found[2]) for number, line in lines if (found := _EXPECTED.search(line))]


@dataclass(frozen=True)
class Named:
    """A key as it stands in a file. `owner` is the section it is a key of, or the type of toolset."""

    owner: str
    name: str
    line: int
    column: int
    open: bool = False  # others may stand beside it, so that a misspelt one is just another key


def keys_in(body: bytes) -> list[Named]:
    tree = read_tree(body, Findings())
    assert tree is not None
    return sorted(set(_walk(tree, FILE)), key=lambda one: (one.line, one.column))


def _walk(node: Node, kind: Kind) -> Iterator[Named]:
    match kind, node:
        case Section(name, _, keys, open_), TreeMapping(pairs):
            for key, child in pairs:
                if key.text in keys:
                    yield Named(name, key.text, key.line, key.column, open_)
                    yield from _walk(child, keys[key.text].kind)
        case Typed(section, _, _, implied), TreeMapping(pairs):
            texts = {key.text: child.text for key, child in pairs if isinstance(child, Scalar)}
            for key, child in pairs:
                yield Named(f"{section.name} {texts.get('type', implied)}", key.text, key.line, key.column)
                yield from _walk(child, section.keys[key.text].kind)
        case MapOf(of), TreeMapping(pairs):
            for _, child in pairs:
                yield from _walk(child, of)
        case ListOf(of), TreeList(items):
            for child in items:
                yield from _walk(child, of)
        case Either(kinds), _:
            yield from next((_walk(node, one) for one in kinds if fits(node, one)), ())
        case _:
            return


def sections(kind: Kind = FILE) -> Iterator[tuple[str, str]]:
    """Every key of every section there is, with its owner, as `Named` has it."""
    match kind:
        case Section(name, _, keys):
            for key, about in keys.items():
                yield name, key
                yield from sections(about.kind)
        case Typed(section, shared, types):
            for type_, variant in types.items():
                yield f"{section.name} {type_}", "type"
                for key in variant.keys:
                    yield f"{section.name} {type_}", key
            for key in {*shared, *(key for variant in types.values() for key in variant.keys)}:
                yield from sections(section.keys[key].kind)
        case MapOf(of) | ListOf(of):
            yield from sections(of)
        case Either(kinds):
            for one in kinds:
                yield from sections(one)
        case _:
            return

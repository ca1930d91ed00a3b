"""Every key that is supported names a test of what it does, and that test exists and is about it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from lastgood.agents.provider_options import SUPPORTED
from lastgood.agents.schema.file import FILE
from lastgood.agents.schema.kinds import Either, Key, Kind, ListOf, MapOf, Section, Typed
from tests.agents.key_tests import OPTIONS, TESTS

TESTS_FOLDER = Path(__file__).parents[1]
#: Names of sections that a toolset has, too.
_NAMES = {"script": "script_tool", "matched hooks": "matched_hooks", "routing rule": "routing_rule"}


def supported(kind: Kind = FILE) -> Iterator[str]:
    """Every key that is not reported as unsupported, as `section.key`."""
    match kind:
        case Section(name, _, keys):
            yield from _keys(_NAMES.get(name, name), keys.items())
        case Typed(section, shared, types):
            yield from _keys("toolset", ((key, section.keys[key]) for key in shared))
            for name, variant in types.items():
                if not variant.later:
                    yield from _keys(name, ((key, section.keys[key]) for key in variant.keys))
        case MapOf(of) | ListOf(of):
            yield from supported(of)
        case Either(kinds):
            for one in kinds:
                yield from supported(one)
        case _:
            return


def _keys(owner: str, keys: Iterable[tuple[str, Key]]) -> Iterator[str]:
    for name, key in keys:
        if not key.later:
            yield f"{owner}.{'*' if owner == 'hooks' else name}"
            yield from supported(key.kind)


@cache
def names_in(file: str) -> frozenset[str]:
    body = ast.parse((TESTS_FOLDER / file).read_text()).body
    return frozenset(one.name for one in body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))


def test_every_supported_key_names_its_test() -> None:
    assert sorted(set(supported()) - TESTS.keys()) == []
    assert sorted(TESTS.keys() - set(supported())) == []


def test_every_supported_option_names_its_test() -> None:
    assert sorted(SUPPORTED ^ OPTIONS.keys()) == []


def test_the_tests_are_there() -> None:
    missing = []
    for key, named in (TESTS | OPTIONS).items():
        file, _, test = named.partition("::")
        if test not in names_in(file):
            missing.append((key, named))
    assert missing == []


def test_the_file_of_a_test_has_the_key() -> None:
    """A table that names any test would say nothing."""
    strangers = []
    for key, named in (TESTS | OPTIONS).items():
        file, _, _ = named.partition("::")
        name = key.rpartition(".")[2]
        if name != "*" and not re.search(rf"\b{name}\b", (TESTS_FOLDER / file).read_text()):
            strangers.append((key, named))
    assert strangers == []

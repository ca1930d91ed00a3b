"""Agent files as people write them: all of them load, and what is said about them is what they expect."""

from pathlib import Path

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

from lastgood.agents.editor_schema import json_schema
from lastgood.agents.schema.file import NEWEST
from lastgood.agents.schema.toolsets import TOOLSET
from tests.agents.corpus import FILES, Named, expected, findings_of, keys_in, read, sections

SCHEMA = jsonschema.Draft7Validator(json_schema())
NAMES = [path.name for path in FILES]


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_a_file_loads_with_the_findings_it_expects_and_no_others(path: Path) -> None:
    found = [(one.line, one.level.value, one.message) for one in read(path).warnings]
    wanted = expected(path)
    assert [one[:2] for one in found] == [one[:2] for one in wanted]
    assert all(words in message for (*_, message), (*_, words) in zip(found, wanted, strict=True)), found


def test_there_are_enough_files_and_they_differ() -> None:
    assert len(FILES) >= 40
    assert len({path.read_bytes() for path in FILES}) == len(FILES)


def test_the_files_have_every_version_of_the_format() -> None:
    said = {read(path).version for path in FILES}
    assert said == set(range(NEWEST + 1))


def test_the_files_have_every_key_of_every_section() -> None:
    used = {(key.owner, key.name) for path in FILES for key in keys_in(path.read_bytes())}
    assert sorted(set(sections()) - used) == []


def test_the_files_have_every_type_of_toolset() -> None:
    owners = {key.owner for path in FILES for key in keys_in(path.read_bytes())}
    assert {f"toolset {name}" for name in TOOLSET.types} <= owners


# -- misspelt keys ------------------------------------------------------------------------


def misspelt(body: bytes, key: Named) -> bytes:
    """The file with one letter of this key doubled, at that very place."""
    lines = body.decode().split("\n")
    line, start = lines[key.line - 1], key.column - 1
    assert line[start:].startswith(key.name), (key, line)
    middle = start + len(key.name) // 2
    lines[key.line - 1] = line[:middle] + line[middle] + line[middle:]
    return "\n".join(lines).encode()


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_a_misspelt_key_is_an_error_at_its_line_that_names_the_right_one(path: Path) -> None:
    body = path.read_bytes()
    for key in (one for one in keys_in(body) if not one.open):
        wrong = misspelt(body, key)
        found = [one for one in findings_of(wrong) if one.level == "error" and one.line == key.line]
        assert any(
            one.column == key.column
            and "unknown key" in one.message
            and f"did you mean '{key.name}'?" in one.message
            for one in found
        ), (key, findings_of(wrong))


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_editors_get_the_same_schema(path: Path) -> None:
    """The JSON schema accepts every file, and refuses it with any key misspelt."""
    body = path.read_bytes()
    assert [error.message for error in SCHEMA.iter_errors(yaml.load(body, EditorLoader))] == []
    for key in (one for one in keys_in(body) if not one.open):
        assert not SCHEMA.is_valid(yaml.load(misspelt(body, key), EditorLoader)), key


class EditorLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """As editors read YAML: a date is a text."""


EditorLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}

"""What the documentation names exists: commands in blocks; flags, variables, routes and codes in sentences.

Blocks of `console` are run by `test_docs.py`. Those that need a network, a second machine or a key are only
parsed, with placeholders where a reader would put a name.
"""

import argparse
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.draw import served, walk
from lastgood import cli
from lastgood.cli.parser import build_parser
from lastgood.errors import WrongUsage
from lastgood.settings.worker_settings import WORKER_ROWS
from tests.test_docs import DOCUMENTS, ROOT, error_codes, name_of, variables

SHELLS = ("sh", "console", "text", "bash")
#: What ends one command and begins the next.
_OPERATORS = re.compile(r"[|&;()]+")


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """The language of each fenced block, also of indented ones, and its lines."""
    for indent, language, body in re.findall(
        r"^( *)```(\w*)\n(.*?)^ *```", text, flags=re.MULTILINE | re.DOTALL
    ):
        yield language, re.sub(rf"^{indent}", "", body, flags=re.MULTILINE)


def commands(text: str) -> Iterator[list[str]]:
    """The arguments of each `lastgood` in a line of shell, without redirections."""
    for line in text.replace("\\\n", " ").splitlines():
        if "lastgood" not in line or (line.startswith((" ", "#", "…")) and "$ " not in line):
            continue
        line = re.sub(r"^\$ ", "", line)
        line = re.sub(r" \d?>{1,2}&?\s?[^\s)]+", "", line)  # redirections
        line = re.sub(r"\$'((?:[^'\\]|\\.)*)'", "'TEXT'", line)  # $'…' is bash's own
        yield from _split(line)


def _split(line: str) -> Iterator[list[str]]:
    # A command in $(…) is one of its own; to the one around it, it is a word.
    while inner := re.search(r"\$\(([^()]*)\)", line):
        yield from _split(inner[1])
        line = line.replace(inner[0], "VALUE", 1)
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.commenters, lexer.whitespace_split = "#", True
    words: list[str] = []
    for token in [*lexer, ";"]:
        if not _OPERATORS.fullmatch(token):
            words.append(token)
            continue
        if found := _arguments(words):
            yield found
        words = []


def _arguments(words: list[str]) -> list[str] | None:
    names = [index for index, word in enumerate(words) if word == "lastgood" or word.endswith("bin/lastgood")]
    before = words[: names[0]] if names else []
    # `lastgood` as a value: `createdb lastgood`, `systemctl restart lastgood`.
    is_program = all(re.fullmatch(r"[A-Za-z_]\w*=.*|timeout|\d+|until|exec|sh|-c", word) for word in before)
    return words[names[0] + 1 :] if names and is_program else None


def objection(arguments: list[str]) -> str | None:
    if arguments[-1:] == ["--help"]:
        arguments = arguments[:-1]
    words = [word for word in arguments if word != "…"]
    try:
        cli._parse(build_parser(), words)
    except WrongUsage as error:
        return f"lastgood {shlex.join(words)}: {error.message}"
    return None


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_every_command_in_a_block_parses(document: Path) -> None:
    text = document.read_text()
    shown = [found for language, body in blocks(text) if language in SHELLS for found in commands(body)]
    assert [one for one in map(objection, shown) if one] == []


def test_commands_are_found_where_they_are() -> None:
    guide = "\n".join(document.read_text() for document in DOCUMENTS)
    shown = [found for language, body in blocks(guide) if language in SHELLS for found in commands(body)]
    assert len(shown) > 80
    assert ["agents", "check", "agent.yaml"] in shown


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("$ lastgood db check", [["db", "check"]]),
        ("A=b lastgood run x 'a b' && lastgood doctor | grep x", [["run", "x", "a b"], ["doctor"]]),
        ("(timeout 9 lastgood serve a --listen unix://$PWD/s >s.log 2>&1 & echo $! > pid)",
         [["serve", "a", "--listen", "unix://$PWD/s"]]),
        ("lastgood tasks show $(lastgood tasks list --limit 1 | cut -d' ' -f1) # the newest",
         [["tasks", "list", "--limit", "1"], ["tasks", "show", "VALUE"]]),
        ("sudo systemctl restart lastgood", []),
        ("createdb lastgood", []),
        ("# lastgood nonsense", []),
    ],
)  # fmt: skip
def test_a_line_of_shell_is_read_as_a_shell_would(line: str, found: list[list[str]]) -> None:
    assert list(commands(line)) == found


def test_a_command_that_does_not_exist_is_found() -> None:
    assert objection(["db", "chekc"]) is not None
    assert objection(["serve", "--lisen", "x"]) is not None
    assert objection(["run", "default", "hello"]) is None


def test_make_lists_every_test_of_the_documentation() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert all(f"tests/{file.name}" in makefile for file in (ROOT / "tests").glob("test_docs*.py"))


# -- sentences --------------------------------------------------------------------------------------------

#: Of docker compose, docker, curl, Claude Code, and `make prove`.
FLAGS_OF_OTHERS = {
    *("--build", "--wait", "--no-deps", "--init", "--read-only", "--tmpfs", "--long", "--data-urlencode"),
    *("--strict-mcp-config", "--mcp-config", "--setting-sources"),
}


def named(text: str) -> list[str]:
    """What stands in `code` outside of blocks."""
    prose = re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"`([^`\n]+)`", prose)


def unknown_flags(text: str) -> set[str]:
    known = {option for _, one in walk(build_parser()) for a in one._actions for option in a.option_strings}
    found = {flag for code in named(text) for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", code)}
    return found - known - FLAGS_OF_OTHERS


def unknown_variables(text: str) -> set[str]:
    known = variables() | {row.variable for row in WORKER_ROWS.values()}
    found = {name for code in named(text) for name in re.findall(r"LASTGOOD_[A-Z_]*[A-Z]", code)}
    return found - {name.rstrip("_") for name in known}


def unknown_routes(text: str) -> set[str]:
    """A path that begins with a slash is whole; `…/cancel` and the like are not looked up."""
    known = [re.sub(r"{\w+}", "[^/]+", path) for path in json.loads(served("/openapi.json"))["paths"]]
    found = re.findall(r"(?:GET|POST|PUT|PATCH|DELETE) (/(?:api|v1)/[^\s?]+)", "\n".join(named(text)))
    return {path for path in found if not any(re.fullmatch(one, path) for one in known)}


def unknown_codes(text: str) -> set[str]:
    return set(re.findall(r"\b[45]\d\d `([a-z_]+)`", text)) - error_codes()


#: The changelog names what was removed, too.
PRESENT = [document for document in DOCUMENTS if document.name != "CHANGELOG.md"]


@pytest.mark.parametrize("document", PRESENT, ids=name_of)
def test_flags_variables_routes_and_codes_that_are_named_exist(document: Path) -> None:
    text = document.read_text()
    assert unknown_flags(text) == set()
    assert unknown_variables(text) == set()
    assert unknown_routes(text) == set()
    assert unknown_codes(text) == set()


def test_what_does_not_exist_is_found() -> None:
    text = "`--lisen X`, `LASTGOOD_LISEN`; `GET /api/sesions/{id}`, `POST /v1/chat/completions`; 409 `bsy`"
    assert unknown_flags(text) == {"--lisen"}
    assert unknown_variables(text) == {"LASTGOOD_LISEN"}
    assert unknown_routes(text) == {"/api/sesions/{id}"}
    assert unknown_codes(text) == {"bsy"}


def test_every_value_of_a_command_has_a_name() -> None:
    """An argument with choices and no metavar is called `None` in the reference."""
    for command, parser in walk(build_parser()):
        for action in parser._actions:
            is_flag = action.nargs == 0 or isinstance(action, argparse._SubParsersAction)
            assert is_flag or action.metavar is not None, f"{command}: {action.option_strings or action.dest}"

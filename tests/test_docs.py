"""The documentation against the code: what is promised exists, what exists is documented, commands run.

Each judgement is a function that returns what is wrong, so that the last section can show it something
wrong and see it object.
"""

import argparse
import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from docs.draw import DOCS, OPENAPI, PAGES, drawn, openapi, served, walk
from lastgood import errors
from lastgood.cli.parser import build_parser
from lastgood.core import limits
from lastgood.engine.providers import scripted
from lastgood.settings import Settings, read_settings
from lastgood.settings.types import SettingsInvalid
from lastgood.settings.worker_settings import WORKER_ROWS
from tests.test_rooms import MAY_IMPORT

ROOT = Path(__file__).parent.parent
WRITTEN = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
DOCUMENTS = [*(ROOT / name for name in WRITTEN), *sorted(DOCS.rglob("*.md"))]
REFERENCE = (DOCS / "reference.md").read_text()

# fmt: off
GLOSSARY = [
    "session", "turn", "attempt", "step", "head", "fence", "lease", "hold", "ask", "request",
    "agent source", "runtime", "task", "claim", "native session", "pointer",
    "outbox", "orphan", "displaced", "durable", "adopt", "replay", "attach",
    "history", "journal",
]
# fmt: on

SECONDS = 60.0


def name_of(document: Path) -> str:
    return str(document.relative_to(ROOT))


def missing(wanted: Iterable[str], text: str) -> list[str]:
    """Those that are not in the text as `code`, alone or with what follows them: `--limit N`."""
    return [one for one in wanted if not re.search(rf"`{re.escape(one)}[ `]", text)]


# --- the reference ---------------------------------------------------------------------------------------


def error_codes() -> set[str]:
    classes = (value for value in vars(errors).values() if isinstance(value, type))
    return {one.code for one in classes if issubclass(one, errors.LastgoodError)}


def variables() -> set[str]:
    sources = (file.read_text() for file in (ROOT / "src").rglob("*.py"))
    settings = {f"LASTGOOD_{name.upper()}" for name in Settings.__dataclass_fields__}
    found = {name for source in sources for name in re.findall(r"LASTGOOD_[A-Z_]+", source)}
    return (settings | found) - {"LASTGOOD_"}


def words(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Every command, and every option and argument of every command."""
    for command, below in walk(parser):
        yield command
        for action in below._actions:
            if isinstance(action, argparse._SubParsersAction):
                continue
            yield from action.option_strings or [str(action.metavar)]


def undocumented_limits(table: str) -> list[str]:
    """Limits of requests and quotas whose number or flag is not in the table."""
    numbers = {name: f"{value:,}" for name, value in vars(limits).items() if isinstance(value, int)}
    flags = [
        f"--{name.replace('_', '-')}"
        for name in Settings.__dataclass_fields__
        if re.search(r"^(tenant|token|user)_(sessions|bytes|rate|running)$|_size$", name)
    ]
    gone = [name for name, number in numbers.items() if not re.search(rf"[ ;]{number}[ ;]", table)]
    return gone + missing(flags, table)


def test_every_limit_and_quota_is_in_the_table_of_limits() -> None:
    text = (DOCS / "guarantees.md").read_text().partition("## Limits and quotas\n")[2]
    table = text.partition("\n## ")[0]
    assert undocumented_limits(table) == []
    assert undocumented_limits(table.replace("2,000,000", "").replace("`--token-bytes`", "")) == [
        "IMPORT_VALUES",
        "--token-bytes",
    ]


def test_every_error_code_is_documented() -> None:
    assert len(error_codes()) > 20
    assert missing(sorted(error_codes()), REFERENCE) == []


def test_every_setting_is_documented_and_read() -> None:
    assert {"LASTGOOD_DATA_DIR", "LASTGOOD_DATABASE", "LASTGOOD_PROMPT_LOG"} <= variables()
    assert missing(sorted(variables()), REFERENCE) == []
    assert missing([row.variable for row in WORKER_ROWS.values()], REFERENCE) == []
    section = REFERENCE.split("<!-- drawn: settings -->")[1].split("<!-- end: settings -->")[0]
    documented = re.findall(r"^\| `(LASTGOOD_\w+)`", section, re.MULTILINE)
    assert len(documented) == len(Settings.__dataclass_fields__)
    for name in documented:
        with suppress(SettingsInvalid):  # it is read, or nobody would object
            assert read_settings({name: "/elsewhere"}) != read_settings({}), f"{name} changes nothing"


def test_every_command_and_option_is_documented() -> None:
    wanted = set(words(build_parser()))
    assert {"lastgood run", "lastgood db check", "--session", "AGENT", "--help"} <= wanted
    assert missing(sorted(wanted), REFERENCE) == []


@pytest.mark.parametrize("page", PAGES)
def test_generated_parts_are_current(page: str) -> None:
    text = (DOCS / page).read_text()
    assert drawn(page, text) == text, "run `python docs/draw.py`"


def test_the_openapi_file_is_current() -> None:
    assert OPENAPI.read_text() == openapi(), "run `python docs/draw.py`"


def test_every_metric_is_documented() -> None:
    names = re.findall(r"^# TYPE (\S+)", served("/metrics"), re.MULTILINE)
    assert "lastgood_turns_total" in names
    assert missing(names, (DOCS / "server.md").read_text()) == []


# --- commands --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shown:
    """A command as a document shows it, and the lines it says will come."""

    line: str
    fails: bool
    output: tuple[str, ...]


def console_blocks(text: str) -> list[list[Shown]]:
    blocks = re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [_commands(block) for block in blocks]


def _commands(block: str) -> list[Shown]:
    commands: list[Shown] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            command, mark, _ = line[2:].partition("  # fails")
            commands.append(Shown(command, bool(mark), ()))
        else:
            last = commands.pop()
            commands.append(Shown(last.line, last.fails, (*last.output, line)))
    return commands


def objections(block: list[Shown], folder: Path) -> list[str]:
    """What did not happen as shown, in a folder and on data of its own."""
    ours = ("LASTGOOD_", "MAKE", "MFLAGS")  # a make above this one would have its say in ours
    clean = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    path = f"{Path(sys.executable).parent}{os.pathsep}{clean.get('PATH', '')}"
    env = clean | {"LASTGOOD_DATA_DIR": str(folder / "data"), "PATH": path}
    found: list[str] = []
    for shown in block:
        if shown.line.startswith("make "):
            # Running it would run this very test. That there is such a target can be asked for.
            line, cwd = shown.line.replace("make ", "make --dry-run ", 1), ROOT
        else:
            line, cwd = shown.line.replace(".venv/bin/", ""), folder
        ran = subprocess.run(
            ["bash", "-c", line],
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=SECONDS,
        )
        said = ran.stdout.decode()
        if (ran.returncode != 0) != shown.fails:
            found.append(f"{shown.line}: exit code {ran.returncode}\n{said}")
        found += [f"{shown.line}: does not say {line!r} but\n{said}" for line in _unsaid(shown.output, said)]
    return found


def _unsaid(wanted: Iterable[str], said: str) -> Iterator[str]:
    """Lines that do not come, in this order. `…` stands for anything; lines in between may be left out."""
    rest = iter(said.splitlines())
    for line in wanted:
        pattern = ".*".join(map(re.escape, line.split("…")))
        if not any(re.fullmatch(pattern, one) for one in rest):
            yield line
            return


README = ROOT / "README.md"
CONSOLES = [
    pytest.param(block, id=f"{name_of(document)}-{number}")
    for document in DOCUMENTS
    if document != README  # its blocks belong together; tests/test_readme.py runs them
    for number, block in enumerate(console_blocks(document.read_text()), 1)
]


@pytest.mark.slow
@pytest.mark.parametrize("block", CONSOLES)
def test_shown_commands_run(block: list[Shown], tmp_path: Path) -> None:
    assert objections(block, tmp_path) == []


def test_readme_shows_a_failed_turn_a_kill_and_the_memory_afterwards() -> None:
    lines = [shown.line for block in console_blocks((ROOT / "README.md").read_text()) for shown in block]
    for part in ("make test", "run builtin/scripted", "!fail during", "kill -9", "!remember"):
        assert any(part in line for line in lines), part


def make_targets(text: str) -> set[str]:
    """Targets that a document tells people to make: in `code`, or as a line of a block of it."""
    blocks = "".join(re.findall(r"^```.*?^```", text, re.MULTILINE | re.DOTALL))
    lines = re.findall(r"^(?:\$ )?make ([a-z]+)", blocks, re.MULTILINE)
    return {*lines, *re.findall(r"`make ([a-z]+)`", text)}


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_make_targets_exist(document: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert make_targets(document.read_text()) - targets == set()


# --- prose -----------------------------------------------------------------------------------------------


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) < 600


def test_changelog_has_an_unreleased_section() -> None:
    assert "## Unreleased" in (ROOT / "CHANGELOG.md").read_text().splitlines()


def test_contributing_starts_with_five_commands() -> None:
    found = re.match(r"# Contributing\n\n```sh\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    assert found is not None
    assert len(found[1].splitlines()) == 5
    assert all(line.startswith("make ") for line in found[1].splitlines())


def rooms(text: str) -> dict[str, set[str]]:
    """The table of rooms: what each may import. Rows may refer to the rows above them."""
    found: dict[str, set[str]] = {}
    for room, imports in re.findall(r"^\| `(\w+)(?:/|\.py)` \| .+ \| (.+) \|$", text, re.MULTILINE):
        names = set(re.findall(r"`(\w+)`", imports))
        found[room] = set(found) - names if imports.startswith("all rooms above") else names
    return found


def test_contributing_says_of_every_room_what_it_may_import() -> None:
    assert rooms((ROOT / "CONTRIBUTING.md").read_text()) == MAY_IMPORT


def headings(text: str) -> list[str]:
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^#+ (.+)$", prose, re.MULTILINE)


def anchor(heading: str) -> str:
    """As GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def glossary(text: str) -> list[tuple[str, str]]:
    """Each word and what it means."""
    found = re.findall(r"^\| ([\w -]+) \| (.+) \|$", text, re.MULTILINE)
    return [(word, meaning) for word, meaning in found if word != "word"]


def test_glossary_has_every_word_once_and_in_one_sentence() -> None:
    entries = glossary((DOCS / "glossary.md").read_text())
    found = [word for word, _ in entries]
    assert [word for word in GLOSSARY if found.count(word) != 1] == []
    assert [word for word, meaning in entries if meaning.count(". ") or not meaning.endswith(".")] == []


def broken_links(document: Path, text: str) -> list[str]:
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    found = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if re.match(r"[a-z]+:", target):
            found.append(f"{target} leads outside, where nobody can check it")
            continue
        path, _, fragment = target.partition("#")
        file = document.parent / path
        if path and not file.is_file():
            found.append(f"{target}: no such file")
        elif fragment and fragment not in map(anchor, headings(file.read_text() if path else text)):
            found.append(f"{target}: no such heading")
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_lead_somewhere(document: Path) -> None:
    assert broken_links(document, document.read_text()) == []


def missing_paths(text: str) -> list[str]:
    """Paths from the root, and files of the package as they are named within it."""
    roots = ("src", "tests", "docs", "requirements")
    paths = re.findall(rf"`(?:python )?((?:{'|'.join(roots)})/[\w./-]+)`", text)
    ours = re.findall(r"`((?:\w+/)+\w+\.(?:py|sql))`", text)
    package = ROOT / "src" / "lastgood"
    return [path for path in paths if not (ROOT / path).exists()] + [
        path for path in ours if path.split("/")[0] not in roots and not (package / path).exists()
    ]


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_files_that_are_named_exist(document: Path) -> None:
    assert missing_paths(document.read_text()) == []


def reached_from(start: Path) -> set[Path]:
    """The documents that a reader gets to by following links."""
    reached, waiting = set[Path](), [start]
    while waiting:
        document = waiting.pop()
        if document in reached or document.suffix != ".md":
            continue
        reached.add(document)
        targets = re.findall(r"\]\(([^)\s#]+)", document.read_text())
        waiting += [(document.parent / target).resolve() for target in targets]
    return reached


def test_readme_and_the_index_lead_to_every_document() -> None:
    index = DOCS / "README.md"
    assert "](docs/README.md)" in (ROOT / "README.md").read_text()
    assert [name_of(one) for one in DOCUMENTS if one not in reached_from(ROOT / "README.md")] == []
    others = [one for one in DOCUMENTS if one.parent == DOCS and one != index]
    assert [name_of(one) for one in others if f"]({one.name})" not in index.read_text()] == []


# --- guarantees ------------------------------------------------------------------------------------------


def rows(text: str) -> dict[str, str]:
    """The status of each promise, by its number."""
    found = re.findall(r"^\| ([MI][\d.]+) \| .+ \| (.+) \|$", text, re.MULTILINE)
    assert len(found) == len(dict(found)), "a promise has two rows"
    return dict(found)


def guards(status: str) -> list[str]:
    return re.findall(r"`(\w+)`", status)


def functions_of_tests() -> set[str]:
    """Tests and probes: what runs by its name. A helper that is merely called so is not one."""
    found: set[str] = set()
    for file in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            decorators = {one.id for one in node.decorator_list if isinstance(one, ast.Name)}
            if (node.name.startswith("test_") and file.name.startswith("test_")) or "probe" in decorators:
                found.add(node.name)
    return found


def unkept(text: str, known: set[str]) -> list[str]:
    """Promises without tests, and those whose tests do not exist."""
    found = []
    for number, status in rows(text).items():
        if not re.match(r"(tested by|planned)\b", status):
            found.append(f"{number} is neither tested nor planned: {status}")
        if status.startswith("tested by") and not guards(status):
            found.append(f"{number} names no test")
        found += [f"{number} names {name}" for name in guards(status) if name not in known]
    named = re.findall(r"`(test_\w+)`", text)
    return found + [f"there is no {name}" for name in named if name not in known]


def test_every_promise_has_a_row() -> None:
    numbers = set(rows((DOCS / "guarantees.md").read_text()))
    missions = {"M1": 5, "M2": 7, "M3": 8, "M4": 6}
    wanted = {f"{mission}.{part}" for mission, parts in missions.items() for part in range(1, parts + 1)}
    assert numbers == wanted | {f"I{number}" for number in range(1, 43)}


def test_what_is_kept_is_guarded_by_something_that_exists() -> None:
    known = functions_of_tests()
    assert {"a_zombie_writes_nothing", "test_what_is_kept_is_guarded_by_something_that_exists"} <= known
    assert unkept((DOCS / "guarantees.md").read_text(), known) == []


# --- the scripted model ----------------------------------------------------------------------------------


def handled_directives() -> set[str]:
    """The words of the `match` in the model itself."""
    tree = ast.parse(Path(scripted.__file__).read_text())
    apply = next(
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "_apply"
    )
    return {
        str(node.value.value)
        for node in ast.walk(apply)
        if isinstance(node, ast.MatchValue) and isinstance(node.value, ast.Constant)
    }


def test_every_directive_is_documented_and_handled() -> None:
    text = (DOCS / "scripted-model.md").read_text()
    documented = set(re.findall(r"^\| `!([a-z-]+)", text, re.MULTILINE))
    assert "remember" in handled_directives()
    assert documented == handled_directives()


def test_directives_are_spelled_as_the_model_itself_says() -> None:
    spelled = re.findall(r"^    (!.+?)  ", scripted.__doc__ or "", re.MULTILINE)
    assert len(spelled) == len(handled_directives())
    text = (DOCS / "scripted-model.md").read_text()
    assert [one for one in spelled if f"| `{one}` |" not in text] == []


# --- these tests can fail --------------------------------------------------------------------------------


def test_a_word_inside_another_is_not_documented() -> None:
    assert missing(["--key", "--limit", "gone"], "`--key-file F` and `--limit N`, gone") == ["--key", "gone"]


def test_a_page_that_was_changed_by_hand_is_found() -> None:
    text = (DOCS / "reference.md").read_text()
    changed = text.replace("| `session_busy` |", "| `session_bsy` |")
    assert changed != text
    assert drawn("reference.md", changed) == text


@pytest.mark.parametrize(
    ("block", "objects"),
    [
        ("$ true\n$ false  # fails\n", False),
        ("$ false\n", True),
        ("$ true  # fails\n", True),
        ("$ printf 'one\\ntwo\\nthree\\n'\none\nt…e\n", False),
        ("$ printf 'one\\ntwo\\n'\ntwo\none\n", True),
        ("$ echo one two\none\n", True),
        ("$ make quick\n", False),
        ("$ make nonsense\n", True),
    ],
)
def test_a_command_that_does_something_else_is_found(block: str, objects: bool, tmp_path: Path) -> None:
    (commands,) = console_blocks(f"```console\n{block}```\n")
    assert bool(objections(commands, tmp_path)) == objects


@pytest.mark.parametrize(
    ("link", "broken"),
    [
        ("[a](states.md#states-and-transitions)", False),
        ("[a](../README.md)", False),
        ("[a](#here)", False),
        ("[a](nowhere.md)", True),
        ("[a](glossary.md#nothing)", True),
        ("[a](#there)", True),
        ("[a](https://example.org)", True),
    ],
)
def test_a_link_to_nowhere_is_found(link: str, broken: bool) -> None:
    assert bool(broken_links(DOCS / "page.md", f"# here\n\n{link}\n")) == broken


def test_a_path_or_a_target_that_is_gone_is_found() -> None:
    assert missing_paths("see `tests/conftest.py`, `python docs/draw.py` and `src/gone.py`") == [
        "src/gone.py"
    ]
    assert missing_paths("`core/history.py`, `core/gone.py`, `store/sql/shared.sql`") == ["core/gone.py"]
    assert make_targets("`make serve`\nmake sure\n```sh\nmake haste\n```\n") == {"serve", "haste"}


@pytest.mark.parametrize(
    ("status", "found"),
    [
        ("tested by `test_known`", 0),
        ("planned", 0),
        ("tested by", 1),
        ("nearly", 1),
        ("tested by `a_probe_that_is_gone`", 1),
        ("tested by `test_gone`", 2),
    ],
)
def test_a_promise_without_a_guard_is_found(status: str, found: int) -> None:
    assert len(unkept(f"| I1 | A promise. | {status} |\n", {"test_known"})) == found

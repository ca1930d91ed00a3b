"""What the documentation says about a fact is the fact: methods, defaults, codes in examples, names.

Each judgement is a function that returns what is wrong, and is shown something wrong below.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.draw import DOCS, served
from lastgood.cli.demo_steps import STEPS
from lastgood.core.hooks import CONTRACTS
from lastgood.model.tokens import Scope
from lastgood.settings import ROWS
from lastgood.settings.worker_settings import WORKER_ROWS
from tests.test_docs import DOCUMENTS, ROOT, error_codes, name_of
from tests.test_docs_commands import PRESENT, blocks, named

WORKER_PAGES = {"worker.md"}

# --- routes ----------------------------------------------------------------------------------------------


def unknown_methods(text: str) -> set[str]:
    """Requests with a method that their route does not have. `…/cancel` is the end of some route."""
    known = [
        (method.upper(), re.sub(r"{\w+}", "{}", path))
        for path, methods in json.loads(served("/openapi.json"))["paths"].items()
        for method in methods
    ]
    found = re.findall(
        r"(GET|POST|PUT|PATCH|DELETE) ((?:/(?:api|v1)|…)/[^\s?…]+)(?![^\s?]*…)", "\n".join(named(text))
    )
    return {f"{method} {path}" for method, path in found if not _is_known(method, path, known)}


def _is_known(method: str, path: str, known: list[tuple[str, str]]) -> bool:
    plain = re.sub(r"{\w+}", "{}", path)
    if plain.startswith("…"):
        return any(one == method and route.endswith(plain[1:]) for one, route in known)
    return (method, plain) in known


@pytest.mark.parametrize("document", PRESENT, ids=name_of)
def test_routes_have_the_methods_that_are_named(document: Path) -> None:
    assert unknown_methods(document.read_text()) == set()


def test_a_method_that_a_route_does_not_have_is_found() -> None:
    text = "`DELETE /api/webhooks`, `DELETE /api/webhooks/{id}`; `GET …/steer`, `POST …/steer`, `DELETE …`"
    assert unknown_methods(text) == {"DELETE /api/webhooks", "GET …/steer"}


# --- error codes in examples -----------------------------------------------------------------------------


def unknown_example_codes(text: str) -> set[str]:
    examples = "\n".join(body for language, body in blocks(text) if language == "json")
    return set(re.findall(r'"code": "(\w+)"', examples)) - error_codes()


@pytest.mark.parametrize("document", PRESENT, ids=name_of)
def test_examples_have_error_codes_that_exist(document: Path) -> None:
    assert unknown_example_codes(document.read_text()) == set()


def test_a_code_that_is_made_up_is_found() -> None:
    text = '```json\n{"error": {"code": "model_failed"}}\n{"error": {"code": "model_error"}}\n```\n'
    assert unknown_example_codes(text) == {"model_failed"}


# --- defaults --------------------------------------------------------------------------------------------

_UNITS = {
    **{"s": 1, "second": 1, "seconds": 1, "m": 60, "min": 60, "minute": 60, "minutes": 60},
    **{"h": 3600, "hour": 3600, "hours": 3600, "d": 86400, "day": 86400, "days": 86400},
}
_TIME = rf"(\d+) ?({'|'.join(sorted(_UNITS, key=len, reverse=True))})\b"
#: "`--flag` (30 s)", and "after 30 s (`--flag`)".
_AFTER = re.compile(rf"`--([a-z-]+)`\*{{0,2}} \({_TIME}\)")
_BEFORE = re.compile(rf"{_TIME}[^.`|;()]{{0,30}} \(`--([a-z-]+)`\)")
_DEFAULTS = re.compile(r"^\| setting \| default \|.*?\n\n", re.MULTILINE | re.DOTALL)


def wrong_defaults(text: str, of_worker: bool = False) -> list[str]:
    """Times in sentences beside the flag that sets them, and tables with a column of defaults."""
    rows = {**ROWS, **WORKER_ROWS} if of_worker else {**WORKER_ROWS, **ROWS}
    defaults = {row.flag.removeprefix("--"): row.default for row in rows.values() if row.has_flag}
    flat = re.sub(r"\n(?=\S)", " ", text)
    claims = [(flag, n, unit) for flag, n, unit in _AFTER.findall(flat)]
    claims += [(flag, n, unit) for n, unit, flag in _BEFORE.findall(flat)]
    wrong = [
        f"--{flag}: {n} {unit}" for flag, n, unit in claims if _seconds(defaults[flag]) != _seconds(n + unit)
    ]
    for flag, claimed in _rows_of_defaults(text):
        if claimed.strip("`") != (defaults[flag] or "none"):
            wrong.append(f"--{flag}: {claimed}")
    return wrong


def _rows_of_defaults(text: str) -> Iterator[tuple[str, str]]:
    for table in _DEFAULTS.findall(text):
        yield from re.findall(r"^\| `--([a-z-]+)` \| (.+?) \|", table, re.MULTILINE)


def _seconds(text: str) -> int | str:
    found = re.fullmatch(_TIME, text)
    return int(found[1]) * _UNITS[found[2]] if found else text


@pytest.mark.parametrize("document", PRESENT, ids=name_of)
def test_defaults_in_sentences_are_the_defaults(document: Path) -> None:
    assert wrong_defaults(document.read_text(), document.name in WORKER_PAGES) == []


def test_a_default_that_has_changed_is_found() -> None:
    text = "kept for `--disconnect-grace` (30 s), then stopped after 20 s (`--shutdown-grace`)\n"
    assert wrong_defaults(text) == ["--shutdown-grace: 20 s"]
    table = "| setting | default | effect |\n|---|---|---|\n| `--max-safety` | `strict` | x |\n\n"
    assert wrong_defaults(table) == ["--max-safety: `strict`"]
    guide = "\n".join(document.read_text() for document in PRESENT)
    assert len(_AFTER.findall(guide)) >= 4


# --- names in the code -----------------------------------------------------------------------------------


def undefined(text: str) -> list[str]:
    """Names of the code (`App.__call__`, `begin_if_free`) that no file of the package defines."""
    sources = [file.read_text() for file in (ROOT / "src").rglob("*.py")]
    names = {one for one in named(text) if re.fullmatch(r"[A-Z]\w*[a-z]\w*(\.\w+)?|[a-z]+_if_[a-z]+", one)}
    return sorted(name for name in names - {"Host", "Origin"} if not _is_defined(name, sources))


def _is_defined(name: str, sources: list[str]) -> bool:
    parts = [rf"(?:class|def) {part}\b|^\s*{part}\b.*=" for part in name.split(".")]
    return any(all(re.search(part, source, re.MULTILINE) for part in parts) for source in sources)


def test_the_walk_through_the_code_names_what_is_there() -> None:
    text = (DOCS / "architecture.md").read_text()
    assert undefined(text) == []
    assert undefined("`App.__call__`, `App.gone`, `TurnStarted2`, `begin_if_busy`, `Ask`") == [
        "App.gone",
        "TurnStarted2",
        "begin_if_busy",
    ]


# --- pages -----------------------------------------------------------------------------------------------


def unanswered(text: str) -> list[str]:
    """Headings of decisions that are no question, or do not say what would change our mind."""
    sections = re.split(r"^### ", text, flags=re.MULTILINE)[1:]
    found = [(one.partition("\n")[0], one.partition("\n")[2].partition("\n## ")[0]) for one in sections]
    return [
        title
        for title, body in found
        if not title.endswith("?") or body.count("**We would reconsider**") != 1 or len(body) < 100
    ]


def test_every_decision_answers_a_question_and_says_what_would_change_our_mind() -> None:
    text = (DOCS / "why.md").read_text()
    assert unanswered(text) == []
    assert unanswered(text.replace("**We would reconsider** for a third database", "So far")) == [
        "How are two databases supported?"
    ]


PAGES = [document for document in DOCUMENTS if document.parent == DOCS and document.name != "README.md"]


def is_dead_end(text: str) -> bool:
    """A page whose last paragraph leads nowhere else."""
    last = text.rstrip().rpartition("\n\n")[2]
    return re.search(r"\]\((?:\.\./)?[\w-]+\.md", last) is None


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_page_ends_with_where_to_read_on(page: Path) -> None:
    assert not is_dead_end(page.read_text())


def test_a_page_without_a_next_one_is_found() -> None:
    assert is_dead_end("# a\n\nSee [b](b.md).\n\nThe end.\n")
    assert not is_dead_end("# a\n\nNext: [b](b.md#c).\n")


def test_every_scope_of_a_token_is_documented() -> None:
    table = (DOCS / "server.md").read_text().partition("| scope | allows |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` ", table, re.MULTILINE) == [scope.value for scope in Scope]


def test_every_event_of_hooks_is_documented_and_those_with_a_matcher() -> None:
    section = (DOCS / "hooks.md").read_text().partition("## Events\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.+?`) \|", section, re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(CONTRACTS)
    matched = re.search(r"^((?:[`\w, ]|and)+) have a\s+`matcher`", section, re.MULTILINE)
    assert matched is not None
    assert set(re.findall(r"`(\w+)`", matched[1])) == {
        event for event in CONTRACTS if CONTRACTS[event].matched
    }


def test_the_quickstart_counts_providers_and_steps_of_the_demo_as_they_are() -> None:
    table = (DOCS / "models.md").read_text().partition("## Providers\n")[2].partition("\n## ")[0]
    rows = len(re.findall(r"^\| `", table, re.MULTILINE))
    text = (DOCS / "quickstart.md").read_text()
    assert f"lists {rows} providers" in text
    assert f"All {len(STEPS)} steps passed" in text


#: What a new field of a session needs, and CONTRIBUTING names. Migrations: one file for each database.
FIELD_FILES = {
    "model/sessions.py",
    "store/columns.py",
    "store/session_rows.py",
    "core/derivation.py",
    "surfaces/api/resources.py",
    "store/sql/sqlite/0001_initial.sql",
    "store/sql/postgres/0001_initial.sql",
}
#: Files that set or read `runtime_pinned`, which is what the field is for.
FIELD_USERS = {"flows/sessions.py", "flows/work/enqueue.py", "store/sql/runtimes.sql"}


def test_a_session_field_is_named_in_as_many_files_as_contributing_says() -> None:
    package = ROOT / "src" / "lastgood"
    found = {
        file.relative_to(package).as_posix()
        for file in package.rglob("*")
        if file.suffix in {".py", ".sql"} and re.search(r"\bruntime_pinned\b", file.read_text())
    }
    assert found - FIELD_USERS == FIELD_FILES
    row = re.search(r"^\| a session field \|.*$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    assert row is not None
    assert f": {len(FIELD_FILES)} files |" in row[0]
    named = {file for file in FIELD_FILES if not file.endswith(".sql")}
    assert {file for file in named if f"`{file}`" not in row[0]} == set()

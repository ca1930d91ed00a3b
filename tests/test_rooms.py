"""The rooms: who may import whom, and that the deciding rooms stay pure.

`.importlinter` is what the linter obeys; the table below is what we mean. One test holds the two together,
pair by pair, so neither can be loosened alone.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from grimp import ImportGraph
from importlinter.api import read_configuration
from importlinter.contracts.layers import LayersContract

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "lastgood"

MAY_IMPORT: dict[str, set[str]] = {
    "model": set(),
    "errors": set(),
    "settings": set(),
    "core": {"model", "errors"},
    "ports": {"model", "errors"},
    "time_slices": {"model", "errors"},
    "flows": {"core", "ports", "time_slices", "model", "errors"},
    "store": {"ports", "time_slices", "model", "errors"},
    "outside": {"core", "time_slices", "model", "errors"},
    "agents": {"outside", "core", "ports", "time_slices", "model", "errors"},
    "engine": {"outside", "core", "ports", "time_slices", "model", "errors"},
}
MAY_IMPORT["surfaces"] = {"flows", "core", "ports", "time_slices", "model", "errors"}
MAY_IMPORT["tracing"] = {"flows", "engine", "core", "ports", "time_slices", "model", "errors"}
MAY_IMPORT["wiring"] = set(MAY_IMPORT) - {"surfaces"}
MAY_IMPORT["server"] = set(MAY_IMPORT)
MAY_IMPORT["client"] = {"model", "errors"}
MAY_IMPORT["worker"] = {"client", "core", "model", "errors"}
MAY_IMPORT["cli"] = set(MAY_IMPORT)
MAY_IMPORT["__main__"] = set(MAY_IMPORT)

PURE_ROOMS = ("core", "model")

# fmt: off
IMPURE_MODULES = frozenset({
    "apsw", "asyncio", "asyncpg", "concurrent", "importlib", "io", "logging", "multiprocessing", "os",
    "pathlib", "random", "secrets", "shutil", "signal", "socket", "sqlite3", "subprocess", "tempfile",
    "threading", "time", "urllib.request", "uuid",
})
# fmt: on
IMPURE_NAMES = frozenset({"__import__", "breakpoint", "eval", "exec", "input", "open", "print"})
CLOCKS = frozenset(
    {
        "datetime.date.today",
        "datetime.datetime.now",
        "datetime.datetime.today",
        "datetime.datetime.utcnow",
    }
)
ASYNC_NODES = (ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.Await)


# --- who may import whom ---------------------------------------------------------------------------------


def contracts() -> list[LayersContract]:
    configuration = read_configuration(str(ROOT / ".importlinter"))
    return [
        LayersContract(options["name"], configuration["session_options"], options)
        for options in configuration["contracts_options"]
    ]


def allowed(*imports: tuple[str, str], rooms: set[str] | None = None) -> bool:
    """What the contracts say about a package with these rooms and only these imports."""
    graph = ImportGraph()
    graph.add_module("lastgood")
    for room in rooms if rooms is not None else set(MAY_IMPORT):
        graph.add_module(f"lastgood.{room}")
    for importer, imported in imports:
        graph.add_import(importer=f"lastgood.{importer}", imported=f"lastgood.{imported}")
    return all(contract.check(graph, verbose=False).kept for contract in contracts())


@pytest.mark.parametrize("importer", MAY_IMPORT)
def test_contracts_say_what_the_table_says(importer: str) -> None:
    others = set(MAY_IMPORT) - {importer}
    assert {imported for imported in others if allowed((importer, imported))} == MAY_IMPORT[importer]


#: Imports inside `surfaces/`. A new protocol is a new package here, next to `api` and `openai`.
SURFACES_MAY_IMPORT: dict[str, set[str]] = {
    "http": set(),
    "api": {"http"},
    "openai": {"http"},
    "work": {"http"},
    "console": {"http"},
    "routes": {"api", "openai", "work", "console", "http"},
}


@pytest.mark.parametrize("importer", SURFACES_MAY_IMPORT)
def test_each_api_imports_http_and_no_other_api(importer: str) -> None:
    rooms = {*MAY_IMPORT, *(f"surfaces.{package}" for package in SURFACES_MAY_IMPORT)}
    others = set(SURFACES_MAY_IMPORT) - {importer}
    found = {
        imported
        for imported in others
        if allowed((f"surfaces.{importer}", f"surfaces.{imported}"), rooms=rooms)
    }
    assert found == SURFACES_MAY_IMPORT[importer]


#: What surfaces need of `core`: limits and rules they apply to a request before any flow sees it.
SURFACES_NEED_OF_CORE = {
    "approval",  # the words that answer a question
    "client_presets",  # which conversation a known client means by its own headers
    "disconnect",  # the row of "Who may leave" that a request states
    "history",  # which tool calls of a turn are open, shown in responses
    "runtime_choice",  # whether a runtime is offline, shown in responses
    "limits",  # sizes, for parsing and for JSON schemas
    "session_rules",  # permissions as they are set and shown
    "token_bucket",  # rate limits
    "tool_ledger",  # tool calls and their outcomes, shown in responses
    "visible_text",  # escapes of invisible characters, for pages on which people approve
}
#: The inside of flows. Surfaces get flows that are built from these, and handles to turns.
FLOW_INTERNALS = {"attempt_driver", "attempt_run", "begin", "dependencies", "event_feed", "running_attempts"}


def surface_imports() -> Iterator[tuple[str, str]]:
    for file in sorted((PACKAGE / "surfaces").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("lastgood."):
                yield str(file.relative_to(PACKAGE)), node.module.removeprefix("lastgood.")


def test_surfaces_reach_no_store_and_no_run() -> None:
    found = list(surface_imports())
    assert len(found) > 100
    reached = [
        (file, module)
        for file, module in found
        if module.partition(".")[0] == "ports" or module in {f"flows.{name}" for name in FLOW_INTERNALS}
    ]
    assert reached == []


def test_surfaces_import_of_core_only_what_they_need() -> None:
    used = {module.removeprefix("core.") for _, module in surface_imports() if module.startswith("core.")}
    assert used == SURFACES_NEED_OF_CORE


def test_a_room_that_is_not_in_the_table_is_refused() -> None:
    assert allowed()
    assert not allowed(rooms={*MAY_IMPORT, "attic"})


def test_rooms_import_only_what_the_table_allows() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    run = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


# --- purity ----------------------------------------------------------------------------------------------


def impurities(source: str) -> list[str]:
    """Everything in a module that waits, looks at the world or changes it, as `line: what`."""
    tree = ast.parse(source)
    names = _imported_names(tree)
    return [f"{line}: {what}" for line, what in sorted(_impurities(tree, names))]


def _imported_names(tree: ast.AST) -> dict[str, str]:
    """Local name to dotted origin, so that an alias hides nothing."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                names[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def _impurities(tree: ast.AST, names: dict[str, str]) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ASYNC_NODES):
            yield node.lineno, type(node).__name__
        elif isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            if any(generator.is_async for generator in node.generators):
                yield node.lineno, "async comprehension"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if _impure_module(alias.name):
                    yield node.lineno, f"import {alias.name}"
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            for alias in node.names:
                if _impure_module(f"{node.module}.{alias.name}"):
                    yield node.lineno, f"import {node.module}.{alias.name}"
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in IMPURE_NAMES:
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and _dotted(node, names) in CLOCKS:
            yield node.lineno, _dotted(node, names)


def _impure_module(name: str) -> bool:
    parts = name.split(".")
    return any(".".join(parts[:length]) in IMPURE_MODULES for length in range(1, len(parts) + 1))


def _dotted(node: ast.expr, names: dict[str, str]) -> str:
    match node:
        case ast.Attribute(value=value, attr=attr):
            return f"{_dotted(value, names)}.{attr}"
        case ast.Name(id=name):
            return names.get(name, name)
        case _:
            return "?"


@pytest.mark.parametrize("room", PURE_ROOMS)
def test_deciding_rooms_are_pure(room: str) -> None:
    files = sorted((PACKAGE / room).rglob("*.py"))
    assert files, f"src/lastgood/{room} holds no Python file"
    found = [f"{file.relative_to(ROOT)}:{what}" for file in files for what in impurities(file.read_text())]
    assert found == [], "\n".join(found)


@pytest.mark.parametrize(
    ("snippet", "reason"),
    [
        ("async def decide(): ...", "AsyncFunctionDef"),
        ("async def f(xs):\n    return [x async for x in xs]", "async comprehension"),
        ("async def f(x):\n    await x", "Await"),
        ("import asyncio", "import asyncio"),
        ("import os.path as p", "import os.path"),
        ("def f():\n    from time import monotonic", "import time.monotonic"),
        ("from uuid import uuid4", "import uuid.uuid4"),
        ("from urllib import request", "import urllib.request"),
        ("import logging", "import logging"),
        ("import datetime as dt\nx = dt.datetime.now(dt.UTC)", "datetime.datetime.now"),
        ("from datetime import datetime as D\nx = D.utcnow()", "datetime.datetime.utcnow"),
        ("from datetime import datetime\nfactory = datetime.now", "datetime.datetime.now"),
        ("x = open('f')", "open"),
        ("print('decided')", "print"),
    ],
)
def test_impure_code_is_found(snippet: str, reason: str) -> None:
    assert any(found.endswith(f": {reason}") for found in impurities(snippet))


def test_pure_code_has_no_findings() -> None:
    snippet = """
from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import quote

@dataclass(frozen=True)
class Lease:
    until: datetime
    open: bool

    def expired(self, now: datetime) -> bool:
        return not self.open and now >= self.until + timedelta(seconds=1)
"""
    assert impurities(snippet) == []

"""No test waits a fixed time and hopes that something has happened by then.

A sleep is allowed where it
- is `sleep(0)`, which only lets other tasks run;
- is the pause of a poll: in a loop that ends at a deadline (`asyncio.timeout`, a clock, or a bounded `for`);
- never ends by itself: a minute or more, in something that the test interrupts;
- runs on a virtual clock: in a module of VIRTUAL, or marked with `# virtual time`;
- says why it needs real time, in a comment `# real time: …` on its line.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
MARKERS = ("real time: ", "# virtual time")
#: The pause of a poll. A longer one costs the suite time at every use.
LONGEST_POLL_SECONDS = 0.1
#: Nobody waits for this long; it stands for "until interrupted".
ENDLESS_SECONDS = 60.0

#: Their sleeps pass on a virtual clock (`tests/faults/virtual_loop.py`).
VIRTUAL = {
    *(f"faults/{name}" for name in ("simulation.py", "probes.py")),
    *(f"faults/{path.name}" for path in (TESTS / "faults").glob("*_probes.py")),
    *(f"faults/{path.name}" for path in (TESTS / "faults").glob("*_defects.py")),
}
CLOCKS = {"monotonic", "perf_counter"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass(frozen=True, slots=True)
class Sleep:
    line: int
    #: None: not a constant.
    seconds: float | None
    #: Innermost first.
    around: tuple[ast.AST, ...]

    @property
    def is_allowed(self) -> bool:
        if self.seconds is not None and (self.seconds == 0 or self.seconds >= ENDLESS_SECONDS):
            return True
        return self.seconds is not None and self.seconds <= LONGEST_POLL_SECONDS and self._is_poll

    @property
    def _is_poll(self) -> bool:
        within = list(self._own_function())
        loops = [node for node in within if isinstance(node, (ast.While, ast.For, ast.AsyncFor))]
        return any(_ends(loop) for loop in loops) or (
            bool(loops) and any(_is_timeout(node) for node in within)
        )

    def _own_function(self) -> Iterator[ast.AST]:
        for node in self.around:
            if isinstance(node, FUNCTIONS):
                return
            yield node


def _ends(loop: ast.AST) -> bool:
    """Whether it has a deadline: it reads a clock, or counts its rounds and leaves early."""
    if any(isinstance(node, ast.Attribute) and node.attr in CLOCKS for node in ast.walk(loop)):
        return True
    leaves = any(isinstance(node, (ast.Return, ast.Break)) for node in ast.walk(loop))
    return isinstance(loop, ast.For) and leaves


def _is_timeout(node: ast.AST) -> bool:
    """`async with asyncio.timeout(…)`."""
    if not isinstance(node, ast.AsyncWith):
        return False
    calls = [item.context_expr for item in node.items if isinstance(item.context_expr, ast.Call)]
    return any(isinstance(call.func, ast.Attribute) and call.func.attr == "timeout" for call in calls)


def sleeps(source: str) -> list[Sleep]:
    found: list[Sleep] = []

    def visit(node: ast.AST, around: tuple[ast.AST, ...]) -> None:
        if isinstance(node, ast.Call) and _is_sleep(node.func):
            found.append(Sleep(node.lineno, _constant(node), around))
        for child in ast.iter_child_nodes(node):
            visit(child, (node, *around))

    visit(ast.parse(source), ())
    return found


def _is_sleep(called: ast.expr) -> bool:
    return (
        isinstance(called, ast.Attribute)
        and called.attr == "sleep"
        and isinstance(called.value, ast.Name)
        and called.value.id in ("time", "asyncio", "anyio")
    )


def _constant(call: ast.Call) -> float | None:
    value = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else None
    return float(value) if isinstance(value, (int, float)) else None


def fixed_sleeps(path: Path) -> list[str]:
    source = path.read_text()
    lines = source.splitlines()
    return [
        f"{path.relative_to(TESTS.parent)}:{one.line}: {lines[one.line - 1].strip()}"
        for one in sleeps(source)
        if not one.is_allowed and not any(marker in lines[one.line - 1] for marker in MARKERS)
    ]


def test_no_test_sleeps_for_a_fixed_time() -> None:
    modules = [path for path in TESTS.rglob("*.py") if path.relative_to(TESTS).as_posix() not in VIRTUAL]
    found = [line for path in modules for line in fixed_sleeps(path)]
    assert found == [], "wait for a signal instead, or state the reason: # real time: …"


def test_the_modules_on_a_virtual_clock_exist() -> None:
    assert [name for name in VIRTUAL if not (TESTS / name).exists()] == []


@pytest.mark.parametrize(
    ("source", "allowed"),
    [
        ("await asyncio.sleep(0)", True),
        ("await asyncio.sleep(3600)", True),
        ("time.sleep(0.3)", False),
        ("await asyncio.sleep(seconds)", False),
        ("while not done():\n    time.sleep(0.01)", False),
        ("while not done():\n    assert time.monotonic() < ends\n    time.sleep(0.01)", True),
        ("while not done():\n    assert time.monotonic() < ends\n    time.sleep(2)", False),
        ("for _ in range(9):\n    time.sleep(0.01)", False),
        ("for _ in range(9):\n    if done():\n        break\n    time.sleep(0.01)", True),
    ],
)
def test_what_counts_as_a_fixed_sleep(source: str, allowed: bool) -> None:
    body = "\n".join(f"    {line}" for line in source.splitlines())
    (found,) = sleeps(f"async def test() -> None:\n{body}\n")
    assert found.is_allowed is allowed


def test_a_timeout_is_a_deadline() -> None:
    source = "async def test():\n  async with asyncio.timeout(9):\n    "
    (poll,) = sleeps(source + "while not done():\n      await asyncio.sleep(0.01)")
    (pause,) = sleeps(source + "await asyncio.sleep(0.01)")
    assert (poll.is_allowed, pause.is_allowed) == (True, False)

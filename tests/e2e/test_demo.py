"""`lastgood demo`: every step is true, and one that is not shows."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from lastgood.cli import demo_steps, main
from lastgood.cli.demo_context import Demo, check
from lastgood.cli.demo_moves import changed_url, moved_runtime
from tests.e2e.command import Command, finish

pytestmark = pytest.mark.slow


def test_every_step_of_the_demo_is_true(tmp_path: Path) -> None:
    done = finish(Command(tmp_path).start("demo"), timeout=240)
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("✓")] == [
        str(number) for number in range(1, len(demo_steps.STEPS) + 1)
    ]
    shown = [line for line in lines if "the model saw:" in line]
    assert len(shown) == len(demo_steps.STEPS)
    assert ["Bob" in line for line in shown] == [number == 1 for number in range(len(shown))]
    assert "http://127.0.0.1:8080" in done.out.partition("steps passed")[2]


def test_a_step_that_is_not_true_fails_the_demo(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def lie(demo: Demo) -> str:
        check(await demo.count(), 7, "turns")
        return "never said"

    monkeypatch.setattr(demo_steps, "STEPS", (("a lie", lie),))
    assert main(["demo"]) == 1
    assert "✗  1 a lie          turns: expected 7, found 0" in capsys.readouterr().out


#: Executed by every Python process that the demo starts, before Lastgood itself.
BROKEN_IDENTITY = """
from lastgood.core import agent_identity
agent_identity.stable_identity = lambda key: key
"""
BROKEN_RESUME = """
from lastgood.core import resume
resume._difference = lambda made_by, runtime: "another runtime"
"""


@pytest.mark.parametrize(
    ("defect", "step", "found"),
    [
        (BROKEN_IDENTITY, changed_url, "no served source matches"),
        (BROKEN_RESUME, moved_runtime, "expected ['replay', 'native'], found ['replay', 'replay']"),
    ],
    ids=["the query is part of an agent's identity", "a session is never resumed by its own runtime"],
)
def test_a_broken_server_fails_the_demo(
    defect: str,
    step: Callable[[Demo], Awaitable[str]],
    found: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "sitecustomize.py").write_text(defect)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(demo_steps, "STEPS", (("planted", step),))
    assert main(["demo"]) == 1
    out = capsys.readouterr().out
    assert "✗  1 planted" in out
    assert found in out

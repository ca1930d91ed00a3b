"""`lastgood demo`: every step is true, and one that is not shows."""

from pathlib import Path

import pytest

from lastgood.cli import demo_steps, main
from lastgood.cli.demo_steps import Demo, check
from tests.e2e.command import Command

pytestmark = pytest.mark.slow


def test_every_step_of_the_demo_is_true(tmp_path: Path) -> None:
    done = Command(tmp_path)("demo")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("✓")] == [
        str(number) for number in range(1, len(demo_steps.STEPS) + 1)
    ]
    shown = [line for line in lines if "the model saw:" in line]
    assert len(shown) == len(demo_steps.STEPS)
    assert ["Bob" in line for line in shown] == [number == 1 for number in range(len(shown))]


def test_a_step_that_is_not_true_fails_the_demo(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def lie(demo: Demo) -> str:
        check(await demo.count(), 7, "turns")
        return "never said"

    monkeypatch.setattr(demo_steps, "STEPS", (("a lie", lie),))
    assert main(["demo"]) == 1
    assert "✗  1 a lie          turns: expected 7, found 0" in capsys.readouterr().out

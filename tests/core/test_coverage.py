"""The decisions are small enough to be tested whole: every branch of core, by these tables alone."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_every_branch_of_core_is_decided_by_a_table(tmp_path: Path) -> None:
    def coverage(command: str, *arguments: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "coverage", command, f"--data-file={tmp_path / 'coverage'}", *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    # Never this file: it would start itself again.
    tests = (
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--ignore=tests/core/test_coverage.py",
        "tests/core",
    )
    coverage("run", "--branch", "--source=src/lastgood/core", *tests)
    coverage("report", "--fail-under=100")

"""The decisions are small enough to be tested whole: every branch of core, by these tables alone."""

import os
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

    # Tables only: what is generated, and what measures cost, is run elsewhere and would pay for the tracing.
    # Never this file: it would start itself again.
    tests = (
        *("-m", "pytest", "-q", "-c", os.devnull, "--rootdir=.", "--noconftest", "--assert=plain"),
        *("--disable-plugin-autoload", "-p", "hypothesispytest", "-p", "no:cacheprovider"),
        *("-m", "not hypothesis", "-k", "not costs and not 16_times and not coverage", "tests/core"),
    )
    coverage("run", "--branch", "--source=src/lastgood/core", *tests)
    coverage("report", "--fail-under=100")

"""Other people's client libraries, at exact versions, installed once into the virtual environment's folder.

A library that cannot be installed here is skipped loudly.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

_KEPT = Path(sys.prefix) / "client-libraries"
_SECONDS = 180
#: Where packages come from: pip's variable, and uv's for the same.
_INDEXES = {"PIP_INDEX_URL": "UV_DEFAULT_INDEX", "PIP_FIND_LINKS": "UV_FIND_LINKS"}


def npm_folder(name: str, *packages: str) -> Path:
    """A folder in which node finds these packages."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip(f"NOT TESTED: {name} needs node and npm, which are not installed")

    def install(folder: Path) -> None:
        (folder / "package.json").write_text('{"private": true, "type": "module"}')
        _run(name, [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", *packages], folder)

    return _kept(name, packages, install)


def python_with(name: str, *packages: str) -> Path:
    """The interpreter of a virtual environment that has these packages."""

    def install(folder: Path) -> None:
        # A tool of ours, and ten times faster than pip.
        uv = str(Path(sys.executable).with_name("uv"))
        _run(name, [uv, "venv", "--quiet", "--python", sys.executable, "env"], folder)
        _run(name, [uv, "pip", "install", "--quiet", "--python", "env/bin/python", *packages], folder)

    return _kept(name, packages, install) / "env" / "bin" / "python"


def _kept(name: str, packages: tuple[str, ...], install: Callable[[Path], None]) -> Path:
    folder = _KEPT / "_".join(package.replace("/", "+") for package in packages)
    if not folder.exists():
        _KEPT.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_KEPT) as making:
            made = Path(making) / "made"
            made.mkdir()
            install(made)
            # Whole or not at all: an installation that was cut off must not be found next time.
            made.rename(folder)
    return folder


def _run(name: str, line: list[str], folder: Path) -> None:
    env = {ours: os.environ[pips] for pips, ours in _INDEXES.items() if pips in os.environ} | os.environ
    try:
        done = subprocess.run(line, cwd=folder, env=env, capture_output=True, text=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        pytest.skip(f"NOT TESTED: {name} was not installed within {_SECONDS} seconds")
    if done.returncode != 0:
        pytest.skip(f"NOT TESTED: {name} could not be installed: {done.stderr[-300:]}")

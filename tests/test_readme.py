"""README's commands, as a reader types them: in order, in one shell, while `make serve` is still running.

`make serve` itself is started for real, on a free port. `make test` would run this very test, so it is
only asked what it would do. The home directory is empty: what collides with the server's database fails.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.command import SECONDS, until
from tests.test_docs import README, ROOT, Shown, _unsaid, console_blocks

pytestmark = pytest.mark.slow


def environment(home: Path, port: int) -> dict[str, str]:
    theirs = ("AGENT", "ARGS", "LASTGOOD_", "MAKE", "MFLAGS", "XDG_")
    keys = re.compile(r"_API_KEY$|_TOKEN$|^OLLAMA_")
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(theirs) and not keys.search(name)
    }
    return clean | {"HOME": str(home), "LASTGOOD_LISTEN": f"127.0.0.1:{port}"}


def answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=SECONDS) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@contextmanager
def made_server(folder: Path, port: int) -> Iterator[None]:
    """`make serve`, until the end of the test."""
    with (folder / "serve.log").open("wb") as log:
        process = subprocess.Popen(
            ["make", "serve"],
            cwd=ROOT,
            env=environment(folder, port),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        until(lambda: process.poll() is not None or answers(port))
        assert process.poll() is None, (folder / "serve.log").read_text()
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(SECONDS)


def script(commands: list[Shown], port: int) -> str:
    lines = []
    for number, shown in enumerate(commands):
        line = shown.line.replace("127.0.0.1:8080", f"127.0.0.1:{port}").replace(
            "$PWD/.venv", f"{ROOT}/.venv"
        )
        if line == "make serve":
            line = "true"
        elif line.startswith("make "):
            line = f"make --dry-run -C {ROOT} {line.removeprefix('make ')} >/dev/null"
        # Not every output ends with a line break.
        lines += [line, f'printf "\\n@@ {number} $?\\n"']
    return "\n".join(lines)


def outcomes(output: str) -> list[tuple[str, int]]:
    """What each command has printed, and its exit code."""
    parts = re.split(r"\n@@ \d+ (\d+)\n", output)
    return [(parts[index], int(parts[index + 1])) for index in range(0, len(parts) - 1, 2)]


def test_every_command_of_the_readme_runs_beside_the_server(tmp_path: Path) -> None:
    commands = [shown for block in console_blocks(README.read_text()) for shown in block]
    assert commands[0].line == "make serve"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with made_server(tmp_path, port):
        ran = subprocess.run(
            ["bash", "-c", script(commands, port)],
            cwd=tmp_path,
            env=environment(tmp_path, port),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=4 * SECONDS,
        )
    found = outcomes(ran.stdout.decode())
    assert len(found) == len(commands)
    for shown, (said, code) in zip(commands, found, strict=True):
        # A shell says 137 of a process that it waits for and that was killed, and 0 of `kill` itself.
        assert (code != 0) == shown.fails, f"{shown.line}: exit code {code}\n{said}"
        assert list(_unsaid(shown.output, said)) == [], f"{shown.line}\n{said}"


def test_make_installs_while_the_environment_is_on_the_path(tmp_path: Path) -> None:
    """It has no pip of its own; without uv, that of the Python that made it installs."""
    outside = sys._base_executable  # type: ignore[attr-defined]
    if subprocess.run([outside, "-c", "import pip"], capture_output=True).returncode:
        pytest.skip("this Python has no pip")
    subprocess.run([outside, "-m", "venv", "--without-pip", ".venv"], cwd=tmp_path, check=True)
    for name in ("Makefile", "pyproject.toml", "requirements"):
        (tmp_path / name).symlink_to(ROOT / name)
    path = f"{tmp_path}/.venv/bin{os.pathsep}{os.environ['PATH']}"
    planned = subprocess.run(
        ["make", "--dry-run", "providers"],
        cwd=tmp_path,
        env=environment(tmp_path, 0) | {"PATH": path, "UV": ""},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert f"{outside} -m pip --python .venv/bin/python install" in planned.stdout, planned
    assert "--require-hashes --no-deps -r requirements/providers.txt" in planned.stdout  # what was tested


@pytest.mark.parametrize(("was", "is_new"), [("", False), ("{here}", False), ("{here}/before", True)])
def test_a_checkout_that_was_moved_is_installed_again(tmp_path: Path, was: str, is_new: bool) -> None:
    """Programs in .venv name the folder that they were installed in."""
    for name in ("Makefile", "pyproject.toml", "requirements"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / ".runtime").write_text(was.format(here=tmp_path) + "\n")
    planned = subprocess.run(
        ["make", "--dry-run", "serve"],
        cwd=tmp_path,
        env=environment(tmp_path, 0),
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert ("rm -rf .venv" in planned.stdout, " -m venv " in planned.stdout) == (is_new, is_new), planned


def test_output_is_labelled_by_command() -> None:
    assert outcomes("one\ntwo\n\n@@ 0 0\n\n@@ 1 3\n") == [("one\ntwo\n", 0), ("", 3)]

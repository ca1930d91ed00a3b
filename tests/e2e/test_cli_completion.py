"""`lastgood completion`: the script is sourced by a real shell, which then completes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from lastgood.cli.completion import SCRIPTS, _nodes
from lastgood.cli.parser import COMMANDS, build_parser

#: Calls the function as readline would.
COMPLETE = """
source {script}
COMP_WORDS=({words} "{last}"); COMP_CWORD={number}; COMPREPLY=()
$(complete -p lastgood | sed 's/.*-F \\([^ ]*\\) .*/\\1/')
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def script(shell: str) -> str:
    return SCRIPTS[shell](tuple(_nodes(build_parser(), "")))


@pytest.fixture(scope="module")
def bash(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "lastgood.bash"
    path.write_text(script("bash"))
    return path


def completed(path: Path, line: str) -> set[str]:
    words, _, last = line.rpartition(" ")
    number = len(words.split())
    source = COMPLETE.format(script=path, words=words, last=last, number=number)
    done = subprocess.run(["bash", "--norc", "-uc", source], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return set(done.stdout.split())


def test_bash_completes_commands_options_and_choices(bash: Path) -> None:
    assert completed(bash, "lastgood ") == set(COMMANDS)
    assert completed(bash, "lastgood ser") == {"serve"}
    assert completed(bash, "lastgood db ") == {"check", "backup", "restore", "stats", "upgrade"}
    assert completed(bash, "lastgood db restore --f") == {"--force"}
    assert "--listen" in completed(bash, "lastgood serve --")
    assert completed(bash, "lastgood completion z") == {"zsh"}
    assert completed(bash, "lastgood --data-dir /tmp sessions li") == {"list"}


def test_bash_leaves_files_to_the_shell(bash: Path) -> None:
    assert completed(bash, "lastgood serve ") == set()
    assert completed(bash, "lastgood serve --data-dir ") == set()
    assert "-o default" in bash.read_text()


def test_every_command_is_in_every_script() -> None:
    for shell in SCRIPTS:
        text = script(shell)
        for name in (*COMMANDS, "restore", "in-place"):
            assert name in text, (shell, name)


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_accept_the_script(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed here")
    path = tmp_path / "script"
    path.write_text(script(shell))
    subprocess.run([shell, "-n", str(path)], check=True)

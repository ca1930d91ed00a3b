"""An allow rule for a command, against real shells: whatever the line, no other command runs."""

import random
import subprocess
from pathlib import Path

import pytest

from lastgood.core.tool_permissions import Allowed, judge
from lastgood.model.agents import Effect, Permissions, Safety

PIECES = [
    *(
        ";",
        "&&",
        "||",
        "|",
        "&",
        "\n",
        "'",
        '"',
        "\\",
        "$",
        "$'",
        '$"',
        "${x#",
        "${x:-",
        "}",
        "{ ",
        "(",
        ")",
        "()",
    ),
    *("`", "$(", "<", ">", "#", " #", "!", "x=1 ", "a", "\\'", "\\\n", "[[ ", "if ", "then ", "fi", "case "),
    *(
        "esac",
        "function ",
        "<<E\n",
        "E\n",
        "\t",
        "\r",
        "%",
        "*",
        "~",
        "=(",
        "@(",
        "$[",
        "]",
        "*)",
        ";;",
        "|&",
        "&>",
    ),
    *("time ", "coproc ", "eval ", "exec ", "alias a=", "trap ", " EXIT"),
]
#: Every line runs in a subshell of its own, where `evil` leaves a trace and everything else does nothing.
RUN = """
ok() { :; }; a() { :; }; evil() { printf '%s\\0' "$line" >>"$TRACE"; }
PATH=/nonexistent
for line; do (eval "$line") </dev/null >/dev/null 2>&1; done
"""
SHELLS = [shell for shell in ("/bin/bash", "/bin/dash", "/bin/sh") if Path(shell).exists()]


def lines(count: int, seed: int) -> list[str]:
    """Each out of a few pieces only, so that they meet often."""
    dice = random.Random(seed)
    made = []
    for _ in range(count):
        pieces = [*dice.sample(PIECES, 4), *dice.sample(["'", '"', ";", "\\"], 2), "ok ", " evil ", " "]
        made.append("ok " + "".join(dice.choices(pieces, k=dice.randint(2, 14))))
    return made


def is_allowed(line: str) -> bool:
    rules = [Permissions(allow=("shell:cmd=ok*",))]
    verdict = judge(rules, Safety.RESTRICTED, False, "shell", Effect.UNKNOWN, {"cmd": line})
    return isinstance(verdict, Allowed)


def evil_ones(shell: str, candidates: list[str], trace: Path) -> set[str]:
    """Those of the lines that ran something else than `ok`."""
    trace.write_bytes(b"")
    for at in range(0, len(candidates), 200):
        command = [shell, "-c", RUN, "sh", *candidates[at : at + 200]]
        # They write files of odd names, too: not where our own are.
        subprocess.run(command, cwd=trace.parent, env={"TRACE": str(trace)}, timeout=60)
    return set(filter(None, trace.read_text().split("\0")))


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_no_line_that_is_allowed_runs_another_command(shell: str, tmp_path: Path) -> None:
    """Thousands of lines out of what shells stumble over; the reader that allows must see what they see."""
    candidates = [line for line in lines(60_000, 7) if "evil" in line and is_allowed(line)]
    assert len(candidates) > 2000
    assert evil_ones(shell, candidates, tmp_path / "trace") == set()


@pytest.mark.parametrize("shell", SHELLS)
def test_what_is_not_allowed_would_have_run_another_command(shell: str, tmp_path: Path) -> None:
    """Or the test above could not fail."""
    refused = [line for line in lines(3000, 8) if "evil" in line and not is_allowed(line)]
    assert len(evil_ones(shell, refused, tmp_path / "trace")) > 20


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    "line",
    ["ok '; evil'", 'ok "; evil"', "ok \\; evil", 'ok "\\"; evil"', "ok 'a'\\''; evil'", "ok \"a'; evil '\""],
)
def test_lines_that_only_speak_of_another_command_are_allowed(shell: str, line: str, tmp_path: Path) -> None:
    assert is_allowed(line)
    assert evil_ones(shell, [line], tmp_path / "trace") == set()

"""Commands of the file, with arguments from the model: they are variables, and never part of a command."""

import os
from pathlib import Path
from typing import Any

import pytest

from lastgood.model.agents import Effect, OnUnknown
from tests.tools.toolkit import Kit

pytestmark = pytest.mark.anyio

GREET = {
    "cmd": 'printf "%s|" hello "$name" "$count"',
    "description": "Greets somebody",
    "args": {"name": {"description": "who"}, "count": {"type": "integer"}},
    "required": ["name"],
}


def kit(root: Path | None, /, **scripts: Any) -> Kit:
    return Kit("script", root, shell=scripts)


def test_a_script_describes_itself() -> None:
    tool = kit(None, greet=GREET, plain={"cmd": "ls"}).tools["greet"]
    assert tool.description == "Greets somebody"
    assert tool.parameters == {
        "type": "object",
        "properties": {"name": {"type": "string", "description": "who"}, "count": {"type": "integer"}},
        "required": ["name"],
    }
    assert (tool.on_unknown, tool.effect) == (OnUnknown.FAIL, Effect.UNKNOWN)
    assert kit(None, plain={"cmd": "ls"}).tools["plain"].description == "Execute shell command: ls"
    repeatable = Kit("script", None, shell={"a": {"cmd": "ls"}}, repeatable=True).tools["a"]
    assert repeatable.on_unknown is OnUnknown.REPEAT


@pytest.mark.parametrize(
    "name",
    [
        "Ada",
        "a b",
        "'; touch pwned; '",
        '"; touch pwned; "',
        "$(touch pwned)",
        "`touch pwned`",
        "a\nb",
        "🎉",
        "",
    ],
)
async def test_an_argument_is_never_run(tmp_path: Path, name: str) -> None:
    assert await kit(tmp_path, greet=GREET)("greet", name=name, count=2) == f"hello|{name}|2|"
    assert os.listdir(tmp_path) == []


async def test_arguments_that_are_left_out_are_empty(tmp_path: Path) -> None:
    assert await kit(tmp_path, greet=GREET)("greet", name="Ada") == "hello|Ada||"
    assert await kit(tmp_path, greet=GREET)("greet", name="Ada", count=None) == "hello|Ada||"


async def test_non_text_content_is_returned_as_json(tmp_path: Path) -> None:
    show = {"cmd": 'printf %s "$a"', "args": {"a": {"type": ["array", "boolean"]}}}
    assert await kit(tmp_path, show=show)("show", a=["x", 1]) == '["x", 1]'
    assert await kit(tmp_path, show=show)("show", a=True) == "true"


async def test_undeclared_arguments_do_not_become_variables(tmp_path: Path) -> None:
    said = await kit(tmp_path, show={"cmd": "env"})("show", LD_PRELOAD="/x.so", PATH="/evil", x="y")
    assert "LD_PRELOAD" not in said
    assert "/evil" not in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [({}, "`name` is missing"), ({"name": 5}, "`name` must be"), ({"name": "a\x00b"}, "NUL")],
)
async def test_arguments_that_do_not_fit_are_explained(
    tmp_path: Path, arguments: dict[str, Any], words: str
) -> None:
    assert words in await kit(tmp_path, greet=GREET).fails("greet", **arguments)


async def test_a_huge_argument_is_refused(tmp_path: Path) -> None:
    assert "too long" in await kit(tmp_path, greet=GREET).fails("greet", name="x" * 300_000)


async def test_a_script_has_its_own_folder_and_variables(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    script = {"cmd": "pwd -P; echo $A $B $C", "working_dir": "sub", "env": {"B": "own", "C": "${env.KEY}"}}
    both = Kit(
        "script",
        tmp_path,
        shell={"show": script},
        env={"A": "all", "B": "all"},
        environment={"KEY": "secret-value"},
    )
    assert await both("show") == f"{tmp_path}/sub\nall own [KEY]"


async def test_I38_a_script_does_not_begin_outside(tmp_path: Path) -> None:
    assert "outside" in await kit(tmp_path, show={"cmd": "pwd", "working_dir": "/etc"}).fails("show")


async def test_a_script_that_fails_says_how(tmp_path: Path) -> None:
    failed = await kit(tmp_path, bad={"cmd": "echo why; exit 4"}).fails("bad")
    assert failed == "Error executing command: exit status 4\nOutput: why"


async def test_a_script_that_does_not_end_is_ended(tmp_path: Path) -> None:
    slow = Kit("script", tmp_path, shell={"slow": {"cmd": "sleep 1000"}}, timeout=1)
    assert "timed out after 1s" in await slow.fails("slow")

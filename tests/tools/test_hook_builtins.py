"""The hooks that need no command."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from lastgood.core.hooks import Failure, HookOutput
from lastgood.engine.hooks.builtins import rendered, run_builtin
from lastgood.engine.tools.command_environment import Environment
from lastgood.model.hooks import HookEvent, HookKind, HookSpec
from lastgood.outside.secrets import Secrets

pytestmark = pytest.mark.anyio

PLACE = Environment({"PATH": "/usr/bin:/bin"}, Secrets({}))


async def run(
    name: str,
    folder: Path | None,
    *args: str,
    given: dict[str, Any] | None = None,
    event: HookEvent = HookEvent.TURN_START,
) -> HookOutput | Failure:
    return await run_builtin(HookSpec(event, HookKind.BUILTIN, name, args=args), given or {}, folder, PLACE)


async def context(name: str, folder: Path | None, *args: str, **given: Any) -> str:
    reply = await run(name, folder, *args, given=given)
    assert isinstance(reply, HookOutput)
    return reply.context


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    def git(*words: str) -> None:
        who = ("-c", "user.name=n", "-c", "user.email=e@example.com")
        subprocess.run(["git", "-C", str(tmp_path), *who, *words], check=True, capture_output=True)

    git("init", "-b", "trunk")
    (tmp_path / "kept.txt").write_text("one\n")
    git("add", ".")
    git("commit", "-m", "the first commit")
    (tmp_path / "kept.txt").write_text("two\n")
    (tmp_path / "new.txt").write_text("x" * 10)
    return tmp_path


async def test_date_user_and_files(tmp_path: Path) -> None:
    assert (await context("add_date", None)).startswith("Today's date: 20")
    assert "Host: " in await context("add_user_info", None)
    (tmp_path / "b.txt").touch()
    (tmp_path / "a").mkdir()
    (tmp_path / ".hidden").touch()
    assert (await context("add_directory_listing", tmp_path)).endswith(":\na/\nb.txt")
    for number in range(120):
        (tmp_path / f"c{number:03}").touch()
    assert (await context("add_directory_listing", tmp_path)).endswith("... and 22 more")


async def test_git(repository: Path) -> None:
    assert "## trunk" in await context("add_git_status", repository)
    assert "new.txt" in await context("add_git_status", repository)
    assert "1 file changed" in await context("add_git_diff", repository)
    assert "+two" in await context("add_git_diff", repository, "full")
    assert "the first commit" in await context("add_recent_commits", repository, "3")
    assert "Git repository: yes" in await context("add_environment_info", repository)


async def test_git_outside_of_a_repository(tmp_path: Path) -> None:
    for name in ("add_git_status", "add_git_diff", "add_recent_commits"):
        assert await context(name, tmp_path) == ""
    assert "Git repository: no" in await context("add_environment_info", tmp_path)


async def test_prompt_files_stay_in_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "inside"
    folder.mkdir()
    (folder / "RULES.md").write_text("be kind")
    (tmp_path / "secret").write_text("canary")
    text = await context("add_prompt_files", folder, "RULES.md", "../secret", "missing")
    assert "be kind" in text
    assert "canary" not in text


async def test_what_needs_a_folder_fails_without_one() -> None:
    assert isinstance(await run("add_git_status", None), Failure)


async def test_secrets_are_taken_out_of_arguments_and_results() -> None:
    key = "ghp_" + "a1B2" * 9
    arguments = await run("redact_secrets", None, given={"tool_input": {"cmd": f"echo {key}"}})
    assert isinstance(arguments, HookOutput)
    assert arguments.arguments is not None
    assert key not in str(arguments.arguments)
    result = await run("redact_secrets", None, given={"tool_input": {}, "tool_response": f"it is {key}"})
    assert isinstance(result, HookOutput)
    assert result.response is not None
    assert key not in result.response
    assert result.response.startswith("it is ")
    assert await run("redact_secrets", None) == HookOutput()


async def test_iterations_end_at_their_limit() -> None:
    for iteration, blocks in ((2, False), (3, True)):
        reply = await run("max_iterations", None, "2", given={"iteration": iteration})
        assert isinstance(reply, HookOutput)
        assert reply.blocks is blocks


async def test_context_is_a_template() -> None:
    text = await context("add_context", None, "{{ .SessionID }} in {{ .Cwd }}", session_id="s", cwd="/w")
    assert text == "s in /w"
    assert isinstance(await run("add_context", None, "{{ if .X }}"), Failure)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ .ToolName }}({{ .ToolInput | toJSON }})", 'shell({"cmd": "ls"})'),
        ("{{ .Prompt | truncate 3 }}", "abc"),
        ("{{- .ToolUseID -}}", "c1"),
        ("{{ .Missing }}.", "."),
    ],
)
def test_templates(template: str, expected: str) -> None:
    given = {"tool_name": "shell", "tool_input": {"cmd": "ls"}, "prompt": "abcdef", "tool_use_id": "c1"}
    assert rendered(template, given) == expected


@pytest.mark.parametrize("template", ["{{ range .X }}", "{{ .A | upper }}", "{{ }}"])
def test_other_templates_are_refused(template: str) -> None:
    with pytest.raises(ValueError, match="template"):
        rendered(template, {})


def hostile(folder: Path, ran: Path) -> None:
    """Names a program wherever git would run one that the repository chooses."""
    program = folder / ".git" / "program"
    program.write_text(f'#!/bin/sh\necho "$0 $*" >>{ran}\ncat\n')
    program.chmod(0o755)
    (folder / "read.md").write_text("b\n")
    for hook in ("post-index-change", "fsmonitor-watchman", "post-checkout"):
        (folder / ".git" / "hooks").mkdir(exist_ok=True)
        (folder / ".git" / "hooks" / hook).symlink_to(program)
    names = {
        "core.fsmonitor": program,
        "core.pager": program,
        "core.sshCommand": program,
        "diff.external": program,
        "diff.evil.command": program,
        "diff.evil.textconv": program,
        "filter.ev=il.clean": program,
        "filter.ev=il.smudge": program,
        "filter.ev=il.required": "true",
        "filter.slow.process": program,
        "gpg.program": program,
        "log.showSignature": "true",
    }
    for name, value in names.items():
        subprocess.run(["git", "-C", str(folder), "config", name, str(value)], check=True)
    (folder / ".gitattributes").write_text("*.txt diff=evil filter=ev=il\n*.md filter=slow\n")
    subprocess.run(["git", "-C", str(folder), "status", "--short"], check=False, capture_output=True)


def submodule(folder: Path, ran: Path) -> None:
    """A repository inside, with a configuration of its own."""
    inner = folder / "inner"
    inner.mkdir()
    who = ("-c", "user.name=n", "-c", "user.email=e@example.com")
    for words in (("init",), ("commit", "--allow-empty", "-m", "inner")):
        subprocess.run(["git", "-C", str(inner), *who, *words], check=True, capture_output=True)
    (folder / "read.md").write_text("a\n")
    subprocess.run(["git", "-C", str(folder), "add", "inner", "read.md"], check=True, capture_output=True)
    subprocess.run(
        ["git", "-C", str(inner), "config", "core.fsmonitor", f"echo inner >>{ran}; false"], check=True
    )


async def test_a_repository_that_is_read_runs_no_program_of_its_own(
    repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    ran = tmp_path_factory.mktemp("outside") / "ran"
    submodule(repository, ran)
    hostile(repository, ran)
    assert ran.exists(), "git itself runs them, or this test shows nothing"
    ran.unlink()
    assert "new.txt" in await context("add_git_status", repository)
    assert "kept.txt" in await context("add_git_diff", repository)
    assert "+two" in await context("add_git_diff", repository, "full")
    assert "the first commit" in await context("add_recent_commits", repository)
    await context("add_environment_info", repository)
    assert not ran.exists(), ran.read_text()


async def test_a_repository_whose_configuration_hides_filters_is_not_read(repository: Path) -> None:
    lines = "".join(f'[filter "f{number}"]\n\tclean = touch ran\n' for number in range(2000))
    with (repository / ".git" / "config").open("a") as config:
        config.write(lines)
    assert await context("add_git_status", repository) == ""

"""Which tools there are, by the type an agent file names."""

import re
from pathlib import Path

import jsonschema  # type: ignore[import-untyped]
import pytest

from lastgood.core import memories, skills, todo
from lastgood.core import openapi as core_openapi
from lastgood.core.tool_permissions import Allowed, Asks, Denied, judge
from lastgood.engine.skills.skill import SKILL_BYTES
from lastgood.engine.tools import background_jobs as jobs
from lastgood.engine.tools import (
    command_output,
    directory_listing,
    fetch,
    file_search,
    filesystem,
    http_call,
    openapi_toolset,
    processes,
    shell,
    text_files,
)
from lastgood.engine.tools.builtin import first_toolsets, live_toolsets
from lastgood.engine.tools.program_tools import SessionPlace
from lastgood.model.agents import Effect, Safety, ToolsetSpec
from lastgood.model.ids import DEFAULT_TENANT, SessionId
from lastgood.outside.secrets import Secrets
from tests.tools.toolkit import Kit

pytestmark = pytest.mark.anyio

TYPES = {
    "api",
    "echo",
    "fetch",
    "filesystem",
    "memory",
    "model_picker",
    "open_url",
    "plan",
    "script",
    "session_plan",
    "shell",
    "think",
    "todo",
    "user_prompt",
}


def test_the_first_toolsets() -> None:
    assert set(first_toolsets(Secrets({}))) == TYPES


@pytest.mark.parametrize("kind", sorted(TYPES))
def test_every_tool_describes_itself_to_a_model(kind: str) -> None:
    tools = Kit(kind, None, shell={"hello": {"cmd": "echo hello", "args": {"a": {}}}}).tools
    assert tools
    for tool in tools.values():
        jsonschema.Draft202012Validator.check_schema(tool.parameters)
        assert tool.parameters["type"] == "object"
        assert set(tool.parameters["required"]) <= set(tool.parameters["properties"])
        assert tool.description
        assert tool.as_json()["function"]["name"] == tool.name


def test_a_file_may_ask_for_some_of_the_tools() -> None:
    assert set(Kit("filesystem", None, tools=["read_file", "no_such_tool"]).tools) == {"read_file"}
    assert set(Kit("filesystem", None, tools=[]).tools) == set()
    assert len(Kit("filesystem", None).tools) == 9


async def test_echo_says_what_it_is_given() -> None:
    assert await Kit("echo", None)("echo", text="hello") == "hello"


def test_I39_making_toolsets_starts_nothing_and_needs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: object, **more: object) -> None:
        raise AssertionError("something was done")

    for name in ("os.open", "os.pipe", "subprocess.Popen", "socket.socket", "asyncio.create_task"):
        monkeypatch.setattr(name, never)
    env = {"A": "${env.NOT_THERE}"}
    for make in first_toolsets(Secrets({}), environment={}).values():
        spec = ToolsetSpec(
            "x", options={"env": env, "headers": env, "shell": {"a": {"cmd": "x", "env": env}}}
        )
        assert make(spec)


@pytest.mark.parametrize(
    "tool", ["read_file", "write_file", "list_directory", "directory_tree", "create_directory"]
)
async def test_without_a_working_directory_files_say_so(tool: str) -> None:
    kit = Kit("filesystem", None)
    arguments = {"path": ".", "paths": ["."], "content": ""}
    wanted = kit.tools[tool].parameters["required"]
    said = await kit.fails(tool, **{name: arguments[name] for name in wanted})
    assert "no working directory" in said


async def test_a_working_directory_that_is_gone_is_said(tmp_path: Path) -> None:
    assert "not found" in await Kit("filesystem", tmp_path / "gone").fails("read_file", path="a")
    assert "not found" in await Kit("shell", tmp_path / "gone").fails("shell", cmd="ls")


TEXT = (Path(__file__).parents[2] / "docs" / "tools.md").read_text()


def rows(section: str) -> set[tuple[str, ...]]:
    text = TEXT.split(f"\n## {section}\n")[1].split("\n## ")[0]
    return set(re.findall(r"^\| `(\w+)`(?: \([^)]*\))? \| (\w+) \| (\w+) \| (\w+) \|$", text, re.MULTILINE))


def test_the_documentation_has_the_modes_as_they_are() -> None:
    words = {Allowed: "allow", Asks: "ask", Denied: "deny"}
    assert rows("Allow and deny calls") == {
        (mode.value, *(words[type(judge([], mode, False, "x", effect, {}))] for effect in Effect))
        for mode in Safety
    }


async def test_the_documentation_has_every_tool_as_it_is(tmp_path: Path) -> None:
    kits = {kind: Kit(kind, None).tools.values() for kind in TYPES - {"api", "open_url", "script"}}
    skill = tmp_path / ".agents/skills/a"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\ndescription: d\ncontext: fork\n---\n")
    (skill / "more.md").write_text("")
    place = SessionPlace(DEFAULT_TENANT, SessionId("s"), tmp_path)
    spec = ToolsetSpec("skills", options={"sources": ["local"]})
    live = live_toolsets(Secrets({}), environment={})
    listed = await live["skills"].program(spec, place).offer()
    started = await live["background_jobs"].program(ToolsetSpec("background_jobs"), place).offer()
    assert rows("The tools") == {
        (tool.name, kind, tool.effect.value, tool.on_unknown.value)
        for kind, tools in {**kits, "skills": listed.tools, "background_jobs": started.tools}.items()
        for tool in tools
    }


def test_the_documentation_has_the_limits_as_they_are() -> None:
    text = " ".join(TEXT.split())
    kib, mib = 1024, 1024 * 1024
    for words in (
        f"{shell.SHELL_SECONDS} seconds, a script {shell.SCRIPT_SECONDS};",
        f"up to {shell.MOST_SECONDS}.",
        f"SIGKILL after {processes.GRACE_SECONDS:g} seconds",
        f"the first and the last {command_output.HEAD_BYTES // kib} KiB",
        f"up to {command_output.STREAM_CHARACTERS // kib} KiB are streamed",
        f"UTF-8 files up to {text_files.EDIT_BYTES // mib} MiB",
        f"returns up to {filesystem.READ_BYTES // mib} MiB",
        f"up to {directory_listing.MOST_SHOWN:,} entries and {file_search.MOST_MATCHES} matches",
        f"stops after {filesystem.SEARCH_SECONDS:g} seconds",
        f"up to {fetch.PAGE_BYTES // mib} MiB, read within {fetch.SECONDS} seconds",
        f"holds {todo.MOST} entries",
        f"{jobs.MOST_RUNNING} running jobs of a session, {jobs.MOST_OF_TENANT} of a tenant",
        f"the last {jobs.KEPT_BYTES // kib} KiB are kept, of the last {jobs.MOST_ENDED} jobs",
        f"`timeout`, up to {jobs.MOST_WAIT_SECONDS}",
        f"{http_call.RESPONSE_BYTES // mib} MiB of a response",
        f"{http_call.SECONDS} seconds (`timeout`, up to {http_call.MOST_SECONDS}), "
        f"{core_openapi.MOST_OPERATIONS} operations, "
        f"documents of {openapi_toolset.DOCUMENT_BYTES // mib} MiB, "
        f"in YAML {openapi_toolset.YAML_BYTES // mib} MiB",
        f"{memories.MOST_MEMORIES:,} memories of {memories.MEMORY_CHARACTERS:,} characters",
        f"{skills.MOST_SKILLS} skills, {skills.MOST_FILES} files for each",
        f"{SKILL_BYTES // kib} KiB of a file",
        f"descriptions of {skills.MOST_DESCRIPTION_CHARACTERS:,} characters",
    ):
        assert words in text
    assert command_output.HEAD_BYTES == command_output.TAIL_BYTES

"""Keys of toolsets, each from its file to the tools that the model has and what they do."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.agent_files import AgentFiles, Ended, calls, open_agent_files
from tests.mcp.conftest import SERVER

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentFiles]:
    folder = tmp_path_factory.mktemp("keys")
    with open_agent_files(folder, "--safety", "autonomous", GREETING="hello you") as opened:
        yield opened


def use(files: AgentFiles, toolset: dict[str, Any], folder: Path, tool: str, **arguments: Any) -> Ended:
    """A turn that calls one tool of the toolset, in this folder."""
    key = files.agent(toolsets=[toolset])
    return files.turn(key, calls(tool, **arguments), made_with={"working_dir": str(folder)})


# -- every type --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("toolset", "tools"),
    [
        ({"type": "shell"}, ["shell"]),
        ({"type": "think"}, ["think"]),
        ({"type": "fetch"}, ["fetch"]),
        ({"type": "user_prompt"}, ["user_prompt"]),
        ({"type": "filesystem", "tools": ["read_file", "write_file"]}, ["read_file", "write_file"]),
        ({"type": "todo", "tools": ["list_todos"]}, ["list_todos"]),
        ({"type": "script", "shell": {"hi": {"cmd": "echo hi"}, "ho": {"cmd": "echo ho"}}}, ["hi", "ho"]),
        ({"type": "script", "shell": {"hi": {"cmd": "a"}, "ho": {"cmd": "b"}}, "tools": ["ho"]}, ["ho"]),
        ({"type": "shell", "readonly": True}, []),
        ({"type": "fetch", "readonly": True}, ["fetch"]),
        ({"type": "shell", "defer": True}, ["search_tool", "add_tool"]),
        ({"type": "think", "defer": ["think"]}, ["search_tool", "add_tool"]),
        ({"type": "think", "defer": ["other"]}, ["think"]),
    ],
)
def test_the_model_has_the_tools_that_the_file_says(
    files: AgentFiles, toolset: dict[str, Any], tools: list[str]
) -> None:
    assert sorted(files.turn(files.agent(toolsets=[toolset])).tools) == sorted(tools)


def test_results_of_a_toolset_go_to_its_model(files: AgentFiles) -> None:
    key = files.serve(
        models={"cheap": files.model_at("cheap")},
        agents={"root": {"model": "m", "toolsets": [{"type": "think", "model": "cheap"}]}},
    )
    ended = files.turn(key, calls("think", thought="a"))
    assert [one["model"] for one in ended.requests] == ["first", "cheap"]


# -- shell and script --------------------------------------------------------------------------


def test_commands_have_the_variables_of_the_file(files: AgentFiles, tmp_path: Path) -> None:
    toolset = {"type": "shell", "env": {"ONE": "1", "TWO": "${env.GREETING}", "THREE": "$GREETING"}}
    ended = use(files, toolset, tmp_path, "shell", cmd="echo $ONE,$TWO,$THREE,$GREETING.")
    assert ended.results == ["1,[GREETING],[GREETING],."]


def test_a_command_ends_at_its_timeout(files: AgentFiles, tmp_path: Path) -> None:
    ended = use(files, {"type": "shell", "timeout": 1}, tmp_path, "shell", cmd="sleep 30")
    assert "timed out after 1s" in ended.results[0]
    script = {"type": "script", "timeout": 1, "shell": {"wait": {"cmd": "sleep 30"}}}
    assert "timed out after 1s" in use(files, script, tmp_path, "wait").results[0]


def test_a_script_has_arguments_variables_and_a_folder(files: AgentFiles, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    script = {
        "cmd": 'echo "$name in $(basename $PWD) with $OWN and $ALL"',
        "description": "Greets somebody",
        "args": {"name": {"type": "string", "description": "who"}},
        "required": ["name"],
        "env": {"OWN": "its own $GREETING"},
        "working_dir": "sub",
    }
    toolset = {"type": "script", "env": {"ALL": "theirs"}, "shell": {"greet": script}}
    ended = use(files, toolset, tmp_path, "greet", name="Ada; ls")
    assert ended.results == ["Ada; ls in sub with its own $GREETING and theirs"]
    [greet] = [tool["function"] for tool in ended.requests[0]["tools"]]
    assert greet["description"] == "Greets somebody"
    assert greet["parameters"]["required"] == ["name"]
    assert greet["parameters"]["properties"]["name"]["description"] == "who"


# -- filesystem --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "path", "reads"),
    [
        ({}, "open/a.txt", True),
        ({"allow_list": ["open"]}, "open/a.txt", True),
        ({"allow_list": ["open"]}, "shut/a.txt", False),
        ({"allow_list": ["."], "deny_list": ["shut"]}, "open/a.txt", True),
        ({"allow_list": ["."], "deny_list": ["shut"]}, "shut/a.txt", False),
        ({"deny_list": ["shut"]}, "shut/../shut/a.txt", False),
    ],
)
def test_folders_are_opened_and_closed(
    files: AgentFiles, tmp_path: Path, keys: dict[str, Any], path: str, reads: bool
) -> None:
    for name in ("open", "shut"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text("found it")
    ended = use(files, {"type": "filesystem", **keys}, tmp_path, "read_file", path=path)
    assert ("found it" in ended.results[0]) == reads


def test_a_command_follows_an_edit_of_files_like_this(files: AgentFiles, tmp_path: Path) -> None:
    toolset = {"type": "filesystem", "post_edit": [{"path": "*.txt", "cmd": 'tr a-z A-Z <"$path" >up'}]}
    use(files, toolset, tmp_path, "write_file", path="a.md", content="quiet")
    assert not (tmp_path / "up").exists()
    use(files, toolset, tmp_path, "write_file", path="a.txt", content="quiet")
    assert (tmp_path / "up").read_text() == "QUIET"


def test_files_that_git_ignores_are_shown_if_the_file_says_so(files: AgentFiles, tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".gitignore").write_text("*.log\n")
    (tmp_path / "a.log").write_text("x")
    for keys, shown in (({}, False), ({"ignore_vcs": False}, True)):
        ended = use(files, {"type": "filesystem", **keys}, tmp_path, "list_directory", path=".")
        assert ("a.log" in ended.results[0]) == shown


# -- mcp ---------------------------------------------------------------------------------------


def test_a_docker_server_gets_its_configuration_in_a_file(tmp_path: Path) -> None:
    """`docker` is a program that keeps what it was given, and is the server itself."""
    log, programs = tmp_path / "log", tmp_path / "programs"
    programs.mkdir()
    docker = programs / "docker"
    keeps = f'echo "$@" >{log}; for last; do :; done; cp "$last" {log}.config'
    docker.write_text(f"#!/bin/sh\n{keeps}\nexec {sys.executable} {SERVER} stdio\n")
    docker.chmod(0o755)
    config = {"config_path": "/home/me/.kube", "read_only": True}
    toolsets = [{"type": "mcp", "ref": "docker:kubernetes", "config": config, "tools": ["add"]}]
    path = f"{programs}:{os.environ['PATH']}"
    with open_agent_files(tmp_path / "server", "--safety", "autonomous", PATH=path) as files:
        ended = files.turn(files.agent(toolsets=toolsets), calls("add", a=2, b=40))
        assert ended.results == ["42"]
        words = log.read_text().split()
        assert words[:-1] == ["mcp", "gateway", "run", "--servers", "kubernetes", "--config"]
        assert json.loads(log.with_suffix(".config").read_text()) == {"kubernetes": config}
        assert Path(words[-1]).parent.stat().st_mode & 0o077 == 0
        files.server.stop()
        assert not Path(words[-1]).exists()


def test_an_mcp_server_is_started_as_the_file_says(files: AgentFiles, tmp_path: Path) -> None:
    """`mcps` defines it, a toolset refers to it and adds to it."""
    (tmp_path / "sub").mkdir()
    server = {
        "command": sys.executable,
        "args": [str(SERVER), "stdio"],
        "env": {"SHARED": "1"},
        "working_dir": "sub",
    }
    toolset = {
        "type": "mcp",
        "ref": "small",
        "env": {"OWN": "${env.GREETING}"},
        "tools": ["environment", "where"],
    }
    key = files.serve(mcps={"small": server}, agents={"root": {"model": "m", "toolsets": [toolset]}})
    asked = [calls("environment", of="SHARED"), calls("environment", of="OWN"), calls("where")]
    ended = files.turn(key, *asked, made_with={"working_dir": str(tmp_path)})
    assert ended.tools == ["environment", "where"]
    assert ended.results == ["1", "[GREETING]", str(tmp_path / "sub")]

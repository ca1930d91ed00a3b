"""What MCP servers of agent files are called, and which of them a runtime gets."""

from typing import Any

import pytest

from lastgood.core.mcp_servers import (
    gateway_config,
    runtime_servers,
    server_name,
    server_words,
    tool_name,
    wants_oauth,
)
from lastgood.model.agents import AgentSpec, ToolsetSpec


def agent(*toolsets: ToolsetSpec) -> AgentSpec:
    return AgentSpec("agent", "root", "builtin/scripted", "digest", toolsets=toolsets)


def mcp(trusted: bool = True, tools: tuple[str, ...] | None = None, **options: Any) -> ToolsetSpec:
    return ToolsetSpec("mcp", tools=tools, options=options, trusted=trusted)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"name": "github", "command": "npx"}, "github"),
        ({"remote": {"url": "https://user:secret@mcp.example.com/mcp?key=1"}}, "https://mcp.example.com/mcp"),
        ({"ref": "docker:duckduckgo"}, "docker:duckduckgo"),
        ({"command": "/usr/bin/mcp-git"}, "mcp-git"),
        ({"command": "npx", "args": ["-y", "@scope/server"]}, "server"),
        ({"command": "python3"}, "python3"),
        ({}, "mcp"),
    ],
)
def test_a_server_is_named_for_people(options: dict[str, Any], name: str) -> None:
    assert server_name(options) == name


def test_a_docker_reference_starts_the_gateway() -> None:
    assert server_words({"ref": "docker:duck"})[-2:] == ["--servers", "duck"]
    assert server_words({"command": "uvx", "args": ["x", 1]}) == ["uvx", "x", "1"]


@pytest.mark.parametrize(
    ("name", "prefix", "called"),
    [
        ("add", "", "add"),
        ("add", "sums", "sums_add"),
        ("files/read file", "", "files_read_file"),
        ("x" * 80, "", "x" * 55 + "_5b3f5aee"),
    ],
)
def test_names_of_tools_are_what_models_can_call(name: str, prefix: str, called: str) -> None:
    made = tool_name(name, prefix)
    assert len(made) <= 64
    assert made[:56] == called[:56]


def test_a_runtime_gets_the_names_of_secrets_and_not_their_values() -> None:
    received = runtime_servers(
        agent(
            ToolsetSpec("shell"),
            mcp(name="GitHub Tools", command="npx", args=["-y", "x"], env={"A": "${TOKEN}", "N": 1}),
            mcp(remote={"url": "https://a.example/sse", "transport_type": "sse", "headers": {"X": "$KEY"}}),
            mcp(tools=("a",), name="github-tools", command="b", working_dir="inner"),
            mcp(name="__", remote={"url": "https://a.example/"}),
        )
    )
    assert received.disclosures == ()
    assert received.servers == (
        {
            "name": "github-tools",
            "prefix": "GitHub Tools",
            "tools": None,
            "command": ["npx", "-y", "x"],
            "env": {"A": "${TOKEN}", "N": "1"},
            "working_dir": "",
        },
        {
            "name": "https-a-example-sse",
            "prefix": "",
            "tools": None,
            "url": "https://a.example/sse",
            "transport": "sse",
            "headers": {"X": "$KEY"},
        },
        {
            "name": "github-tools-2",
            "prefix": "github-tools",
            "tools": ["a"],
            "command": ["b"],
            "env": {},
            "working_dir": "inner",
        },
        {
            "name": "mcp",
            "prefix": "__",
            "tools": None,
            "url": "https://a.example/",
            "transport": "streamable",
            "headers": {},
        },
    )


def test_I39_a_server_of_an_untrusted_file_goes_to_no_runtime() -> None:
    received = runtime_servers(agent(mcp(trusted=False, command="evil"), mcp(command="good")))
    assert [one["name"] for one in received.servers] == ["good"]
    assert (
        "MCP server evil of this agent is not available here: the agent file comes" in received.disclosures[0]
    )


def test_a_server_with_oauth_is_disclosed() -> None:
    remote = {"url": "https://a.example/mcp", "oauth": {"clientId": "x"}}
    assert wants_oauth({"remote": remote})
    assert not wants_oauth({"command": "x"})
    received = runtime_servers(agent(mcp(remote=remote)))
    assert received.servers == ()
    assert "OAuth for MCP servers is not supported yet" in received.disclosures[0]


def test_a_server_whose_configuration_would_be_lost_is_disclosed() -> None:
    configured = mcp(ref="docker:kubernetes", config={"config_path": "/x"})
    assert gateway_config(configured.options) == {"kubernetes": {"config_path": "/x"}}
    received = runtime_servers(agent(configured, mcp(ref="docker:git")))
    assert [one["name"] for one in received.servers] == ["docker-git"]
    assert "docker:kubernetes of this agent is not available here: its `config`" in received.disclosures[0]
    assert gateway_config({"command": "x", "config": {"a": 1}}) is None

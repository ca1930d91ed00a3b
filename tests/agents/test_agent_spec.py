"""What a file means: models, tools, teams, commands, limits."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lastgood.agents.agent_file import read_agent_file
from lastgood.agents.schema.toolsets import TOOLSET
from lastgood.engine.tools.builtin import first_toolsets, live_toolsets
from lastgood.errors import AgentInvalid
from lastgood.model.agents import AgentCommand, Fallback, ModelSpec, Safety, StructuredOutput, ToolsetSpec
from lastgood.outside.secrets import Secrets
from tests.agents.corpus import FILES, FOLDER, errors_of, parse, read, warnings_of

# -- the file -----------------------------------------------------------------------------


def test_root_is_asked_first_and_else_the_first_agent() -> None:
    assert read(FOLDER / "support-desk.yaml").root == "root"
    assert read(FOLDER / "four-eyes.yaml").root == "author"
    assert parse("agents: {b: {model: auto}, root: {model: auto}}").root == "root"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_members_are_all_the_others_and_models_those_of_the_file(path: Path) -> None:
    file = read(path)
    for name, agent in file.agents.items():
        assert agent.name == name
        assert agent.key == path.stem
        assert list(agent.members) == [other for other in file.agents if other != name]
        for other, member in agent.members.items():
            assert member == replace(file.agents[other], members={})
        assert agent.models == file.agents[file.root].models


def test_agents_are_in_the_order_of_the_file() -> None:
    assert list(parse("agents: {z: {model: auto}, a: {model: auto}, m: {model: auto}}").agents) == [
        "z",
        "a",
        "m",
    ]


def test_the_digest_is_of_the_bytes_and_the_trust_and_what_lies_beside() -> None:
    body = b"agents: {root: {model: auto}, other: {model: auto}}"

    def digest(body: bytes, trusted: bool = True) -> str:
        file = read_agent_file(body, where="anywhere", key="any", trusted=trusted)
        assert len({agent.digest for agent in file.agents.values()}) == 1
        return file.agents["root"].digest

    assert digest(body).startswith("sha256:")
    assert digest(body) == digest(body)
    assert digest(body) != digest(body + b"\n")
    assert digest(body) != digest(body, trusted=False)

    received = b"agents: {root: {model: auto, instruction_file: a.md}}"

    def digest_of(text: bytes) -> str:
        return read_agent_file(received, where="w", key="k", read_beside=lambda _: text).agents["root"].digest

    assert digest_of(b"one") == digest_of(b"one") != digest_of(b"two")


def test_warnings_are_with_the_file_and_with_its_agents() -> None:
    file = parse("agents:\n  root:\n    model: auto\n    cache: {enabled: true}\n  other: {model: auto}\n")
    [warning] = file.warnings
    assert (warning.line, warning.column, warning.key) == (4, 5, "agents.root.cache")
    text = "agent.yaml:4: 'cache' is not supported yet: every request goes to the model"
    assert [agent.warnings for agent in file.agents.values()] == [(text,), (text,)]


def test_metadata_is_text_as_it_was_written() -> None:
    metadata = read(FOLDER / "support-desk.yaml").metadata
    assert metadata["version"] == "1.10"
    assert metadata["tags"] == ["support", "customers"]
    assert parse("agents: {root: {model: auto}}").metadata == {}


def test_keys_without_a_value_are_no_keys() -> None:
    agent = "model: auto\n    toolsets:\n    fallback:\n    description: ~\n"
    root = parse(f"---\nversion:\nmodels:\nagents:\n  root:\n    {agent}...\n").agents["root"]
    assert (root.toolsets, root.fallback, root.description) == ((), Fallback(), "")


def test_text_is_the_text_that_was_written() -> None:
    root = read(FOLDER / "kitchen-v3.yaml").agents["root"]
    assert (root.description, root.welcome_message) == ("yes", "1.10")
    assert root.toolsets[0].options["env"] == {
        "LANG": "no",
        "COUNT": "007",
        "SINCE": "2024-01-31",
        "EMPTY": "",
        "RATE": "1e3",
    }
    assert [command.name for command in root.commands] == ["1", "yes"]
    assert (root.add_date, root.add_environment_info) == (True, False)
    assert "„cups“" in root.instruction


# -- agents -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "fallback"),
    [
        ("{}", Fallback()),
        ("{models: [openai/x]}", Fallback(("openai/x",))),
        ("{retries: 0}", Fallback(retries=2)),
        ("{retries: -1}", Fallback(retries=0)),
        ("{retries: 7}", Fallback(retries=7)),
        ("{cooldown: 1m}", Fallback(cooldown_seconds=60)),
        ("{cooldown: 1m30s}", Fallback(cooldown_seconds=90)),
        ("{cooldown: 500ms}", Fallback(cooldown_seconds=0.5)),
        ("{cooldown: 1.5h}", Fallback(cooldown_seconds=5400)),
        ("{cooldown: 45}", Fallback(cooldown_seconds=45)),
        ('{cooldown: "45"}', Fallback(cooldown_seconds=45)),
        ("{cooldown: 0}", Fallback(cooldown_seconds=60)),
    ],
)
def test_fallback_retries_and_lengths_of_time(written: str, fallback: Fallback) -> None:
    assert (
        parse(f"agents: {{root: {{model: auto, fallback: {written}}}}}").agents["root"].fallback == fallback
    )


def test_limits_have_their_defaults_where_nothing_or_none_is_said() -> None:
    file = read(FOLDER / "long-memory.yaml")
    root, forgetful = file.agents["root"], file.agents["forgetful"]
    assert (root.max_iterations, root.max_consecutive_tool_calls) == (50, 5)
    assert (root.max_old_tool_call_tokens, root.max_tool_result_tokens, root.num_history_items) == (
        40000,
        8000,
        60,
    )
    assert (forgetful.max_old_tool_call_tokens, forgetful.max_tool_result_tokens) == (0, 0)


def test_a_list_of_instructions_is_one_with_a_line_between() -> None:
    editor = read(FOLDER / "newsroom.yaml").agents["editor"]
    assert editor.instruction.startswith("Write the story in plain words.\n\nIf a fact")


def test_agents_may_hand_over_and_give_tasks_in_circles() -> None:
    newsroom = read(FOLDER / "newsroom.yaml").agents
    assert newsroom["editor"].handoffs == ("reporter", "proofreader")
    assert newsroom["reporter"].handoffs == ("editor",)
    pair = read(FOLDER / "coder-and-planner.yaml").agents
    assert (pair["root"].sub_agents, pair["planner"].sub_agents) == (("planner",), ("root",))


def test_agents_from_elsewhere_are_left_out() -> None:
    root = read(FOLDER / "borrowed.yaml").agents["root"]
    assert (root.sub_agents, root.handoffs) == (("local",), ("local",))


def test_commands_in_every_form() -> None:
    file = read(FOLDER / "shortcuts.yaml")
    assert file.agents["root"].commands == (
        AgentCommand("plan", "", "Makes a plan first", "planner"),
        AgentCommand("explain", "Explain ${args} to somebody who has never seen it."),
        AgentCommand("named-only", "Say good morning", "Say good morning"),
        AgentCommand("manual", "", "Opens the manual", url="https://example.com/manual"),
        AgentCommand(
            "lint", "Correct what this says: ${shell({cmd: 'ruff check'})}", "Corrects what the checker finds"
        ),
        AgentCommand("df", "Say how full the first disk is"),
        AgentCommand("tidy", "Find files that nobody needs, and list them. Delete nothing.", "Tidies up"),
        AgentCommand("sum", "Add up ${args[0]} and ${args[1]}"),
        AgentCommand("mean", "Say what ${args[0]} is on average"),
    )
    assert [command.name for command in file.agents["planner"].commands] == ["next", "all"]


def test_a_command_twice_in_a_list_is_a_mistake() -> None:
    text = "agents:\n  root:\n    model: auto\n    commands:\n      - a: x\n      - a: y\n"
    assert [line for line, message in errors_of(text) if "duplicate command" in message] == [6]


def test_structured_output_keeps_its_schema_as_data() -> None:
    output = read(FOLDER / "invoices.yaml").agents["root"].structured_output
    assert isinstance(output, StructuredOutput)
    assert (output.name, output.strict) == ("invoice", True)
    properties = output.schema["properties"]
    assert properties["total"] == {"type": "number", "minimum": 0}
    assert properties["currency"]["enum"] == ["EUR", "NO", "USD"]
    assert properties["paid"]["default"] is False
    assert properties["due"]["default"] == "2026-01-31"
    assert output.schema["additionalProperties"] is False


def test_permissions_and_safety_of_the_file_are_those_of_its_agents() -> None:
    root = read(FOLDER / "log-reader.yaml").agents["root"]
    assert root.permissions.allow[1] == "shell:cmd=curl -s http://localhost:9090/*"
    assert root.permissions.ask == ("fetch",)
    assert root.permissions.deny[2] == "mcp:github:delete_*"
    fenced = read(FOLDER / "fenced.yaml").agents
    assert {name: agent.safety for name, agent in fenced.items()} == {
        "root": Safety.RESTRICTED,
        "free": Safety.AUTONOMOUS,
        "tied": Safety.STRICT,
    }
    assert read(FOLDER / "code-review.yaml").agents["root"].readonly


def test_an_agent_of_a_harness_needs_no_model() -> None:
    agents = read(FOLDER / "programs.yaml").agents
    assert (agents["claude"].harness, agents["claude"].model) == ("claude-code", "harness/claude-code")
    assert (agents["opencode"].harness, agents["opencode"].model) == ("opencode", "harness/opencode")
    assert agents["root"].harness is None


def test_a_harness_alone_is_no_reason_for_a_warning() -> None:
    for program in ("claude-code", "codex", "goose", "opencode", "pi", "acp", "command"):
        assert warnings_of(f"agents:\n  root:\n    harness: {{type: {program}}}\n") == []


def test_a_team_leaves_out_agents_with_a_harness() -> None:
    assert read(FOLDER / "programs.yaml").agents["root"].sub_agents == ()


# -- what lies beside -----------------------------------------------------------------------


def test_an_instruction_is_read_from_beside_the_file() -> None:
    agents = read(FOLDER / "monorepo.yaml").agents
    assert agents["single"].instruction == "Read before you write.\nSay what you changed.\n"
    assert agents["root"].instruction.endswith(
        "changed.\n\n\nEach project has a folder and an AGENTS.md of its own.\n"
    )


def test_an_unreadable_instruction_is_reported_at_its_line() -> None:
    body = b"agents:\n  root:\n    model: auto\n    instruction_file: a.md\n"

    def refuses(_: str) -> bytes:
        raise AgentInvalid("it is outside the folder")

    readers: list[tuple[Callable[[str], bytes | None], str]] = [
        (lambda _: None, "file 'a.md' not found"),
        (lambda _: b"\xff", "'a.md' is not UTF-8"),
        (refuses, "it is outside the folder"),
    ]
    for reader, words in readers:
        with pytest.raises(AgentInvalid, match=f"^w:4: {words}"):
            read_agent_file(body, where="w", key="k", read_beside=reader)
    [(line, message)] = warnings_of(body.decode())
    assert (line, "runs without this instruction" in message) == (4, True)


def test_nothing_outside_of_the_folder_is_requested() -> None:
    """I38: the reader would refuse it, too; it is not even asked."""
    for path in ("/etc/passwd", "../up.md", "a/../../up.md", ".."):
        body = f"agents: {{root: {{model: auto, instruction_file: {path}}}}}".encode()
        with pytest.raises(AgentInvalid, match="must be a path inside the folder"):
            read_agent_file(
                body, where="w", key="k", read_beside=lambda path: pytest.fail(f"asked for {path}")
            )


# -- tools ----------------------------------------------------------------------------------


def test_toolsets_have_their_other_keys_as_plain_options() -> None:
    script, files = read(FOLDER / "release-notes.yaml").agents["root"].toolsets
    assert script.type == "script"
    assert script.instruction == "Ask for the log first, and only then for single changes."
    assert script.options["env"] == {"GIT_PAGER": "cat"}
    assert script.options["shell"]["show_change"] == {
        "cmd": 'git show --stat "$commit"',
        "description": "Shows one change",
        "args": {"commit": {"type": "string", "description": "its hash"}},
        "required": ["commit"],
        "env": {"LC_ALL": "C"},
        "working_dir": ".",
    }
    assert files == ToolsetSpec(
        "filesystem",
        ("read_file", "write_file"),
        options={
            "post_edit": [{"path": "*.md", "cmd": 'npx prettier --write "${file}"'}],
            "ignore_vcs": True,
        },
    )


def test_no_list_of_tools_and_an_empty_one_both_mean_all() -> None:
    root = parse("agents: {root: {model: auto, toolsets: [{type: shell}, {type: shell, tools: []}]}}").agents[
        "root"
    ]
    assert root.toolsets == (ToolsetSpec("shell"), ToolsetSpec("shell"))


def test_shared_toolsets_come_after_the_agents_own() -> None:
    agents = read(FOLDER / "shared-toolsets.yaml").agents
    look = ToolsetSpec(
        "filesystem",
        ("read_file", "list_directory", "search_files_content"),
        options={"allow_list": [".", "~/notes"], "deny_list": ["~/.ssh"]},
    )
    shared = ToolsetSpec("todo", options={"shared": True})
    assert agents["root"].toolsets == (shared,)
    assert agents["first"].toolsets == (ToolsetSpec("shell"), look, shared)
    assert agents["second"].toolsets == (shared, look)


def test_a_reference_to_a_server_is_resolved_and_the_toolset_wins() -> None:
    toolsets = read(FOLDER / "servers.yaml").agents["root"].toolsets
    tracker, calendar, notes = toolsets[:3]
    assert tracker == ToolsetSpec(
        "mcp",
        ("list_issues",),
        "For issues only.",
        {
            "ref": "docker:github-official",
            "env": {"GITHUB_TOKEN": "${env.GITHUB_TOKEN}", "LEVEL": "debug", "EXTRA": "1"},
            "config": {"read_only": False, "timeout": 20},
            "name": "Tracker",
        },
    )
    assert calendar.options["remote"]["oauth"]["callbackPort"] == 8765
    assert calendar.options["lifecycle"]["backoff"] == {
        "initial": 0.5,
        "max": 60.0,
        "multiplier": 2.0,
        "jitter": 0.2,
    }
    assert calendar.options["defer"] is True
    assert "ref" not in calendar.options
    assert notes.options == {
        "command": "uvx",
        "args": ["mcp-notes", "--folder", "notes"],
        "version": "example/mcp-notes@v1.2.0",
        "working_dir": "./notes",
    }


def test_a_type_of_toolset_is_supported_if_there_is_code_for_it() -> None:
    supported = {name for name, variant in TOOLSET.types.items() if not variant.later}
    secrets = Secrets({})
    made = {*first_toolsets(secrets), *live_toolsets(secrets)}
    assert supported == made - {"echo", "skills"}  # no file names these as types


def test_the_oldest_shape_says_the_same_as_todays() -> None:
    old = parse(
        "version: 0\nmodels: {m: {type: openai, model: gpt-4o}}\n"
        "agents: {root: {model: m, think: true, todo: {shared: true}, toolsets: [{type: shell}]}}"
    )
    new = parse(
        "models: {m: {provider: openai, model: gpt-4o}}\n"
        "agents: {root: {model: m, toolsets: [{type: todo, shared: true}, {type: think}, {type: shell}]}}"
    )
    past, now = (replace(file.agents["root"], digest="", warnings=()) for file in (old, new))
    assert past == now
    memory = read(FOLDER / "memory-v0.yaml").agents["root"]
    assert memory.toolsets == (ToolsetSpec("memory", options={"path": "birthdays.db"}),)


def test_anchors_and_merged_keys_mean_what_they_stand_for() -> None:
    agents = read(FOLDER / "anchors.yaml").agents
    assert agents["root"].models["warm"] == ModelSpec("openai", "gpt-5-mini", temperature=0.9)
    assert (agents["second"].model, agents["second"].description) == ("warm", "Helps more warmly")
    assert agents["second"].instruction == agents["third"].instruction == "Be brief.\nBe kind.\n"
    assert (agents["third"].add_date, agents["third"].description) == (True, "Helps today")
    assert agents["third"].toolsets == agents["root"].toolsets


def test_a_merged_value_that_is_overridden_does_not_count() -> None:
    file = parse("agents: {root: {<<: {max_iterations: -1, model: nobody}, max_iterations: 3, model: auto}}")
    assert file.agents["root"].max_iterations == 3


def test_free_data_is_what_yaml_1_2_says_it_is() -> None:
    text = """
agents: {root: {model: m}}
models:
  m:
    provider: openai
    model: x
    provider_opts:
      texts: ["5", 'true', yes, off, 2024-01-31, 12:30:00, 1_000, "", !!str 7, 1.2.3]
      numbers: [5, -7, 007, 0x1F, 0o17, 1.5, 1e3, .5]
      others: [true, False, null, ~, {a: [b]}]
"""
    options = parse(text).agents["root"].models["m"].options
    assert options["texts"] == [
        "5",
        "true",
        "yes",
        "off",
        "2024-01-31",
        "12:30:00",
        "1_000",
        "",
        "7",
        "1.2.3",
    ]
    assert options["numbers"] == [5, -7, 7, 31, 15, 1.5, 1000.0, 0.5]
    assert options["others"] == [True, False, None, None, {"a": ["b"]}]

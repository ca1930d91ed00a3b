"""Keys of agents, each from its file to what the model is asked and what the turn does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.agent_files import AgentFiles, calls, open_agent_files
from tests.e2e.fake_model import refuses, says

pytestmark = pytest.mark.slow

SHELL = {"type": "shell"}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentFiles]:
    with open_agent_files(tmp_path_factory.mktemp("keys"), "--safety", "autonomous") as opened:
        yield opened


# -- the prompt --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"instruction": "Be brief."}, ["Be brief."]),
        ({"instruction": ["One.", "Two."]}, ["One.\n\nTwo."]),
        ({"instruction_file": "prompt.md"}, ["From the file."]),
        ({"instruction_file": ["prompt.md", "more.md"]}, ["From the file.\n\nAnd more."]),
        ({"add_date": True}, [f"Today's date: {datetime.now(UTC):%Y-%m-}"]),
        ({"add_environment_info": True}, ["Working directory: /", "Operating system: Linux"]),
        ({"add_prompt_files": ["AGENTS.md", "missing.md"]}, ["From AGENTS.md:\nUse tabs."]),
        ({"toolsets": [{**SHELL, "instruction": "Prefer ls."}]}, ["Prefer ls."]),
    ],
)
def test_a_key_is_part_of_the_system_message(
    files: AgentFiles, tmp_path: Path, keys: dict[str, Any], words: list[str]
) -> None:
    (files.folder / "prompt.md").write_text("From the file.")
    (files.folder / "more.md").write_text("And more.")
    (tmp_path / "AGENTS.md").write_text("Use tabs.")
    ended = files.turn(files.agent(**keys), made_with={"working_dir": str(tmp_path)})
    assert ended.answer == "Done."
    assert [word for word in words if word not in ended.system] == []


def test_without_keys_there_is_no_system_message(files: AgentFiles) -> None:
    assert files.turn(files.agent()).system == ""


def test_the_oldest_messages_are_left_out(files: AgentFiles) -> None:
    agent = files.agent(num_history_items=3)
    session = files.turn(agent, says("one")).session
    files.turn(agent, says("two"), session=session)
    ended = files.turn(agent, session=session)
    said = [message["content"] for message in ended.requests[0]["messages"] if message["role"] == "assistant"]
    assert said == ["two"]


def test_results_of_tools_are_cut_and_fade(files: AgentFiles) -> None:
    """`max_tool_result_tokens` is for every result, `max_old_tool_call_tokens` for those of earlier calls."""
    long = {"cmd": "head -c 4000 /dev/zero | tr '\\0' x"}
    agent = files.agent(toolsets=[SHELL], max_tool_result_tokens=100, max_old_tool_call_tokens=150)
    ended = files.turn(agent, calls("shell", **long), calls("shell", **long))
    old, new = ended.results
    assert old == "[content truncated]"
    assert 200 < len(new) < 1000
    assert new.startswith("xxx")
    whole = files.turn(files.agent(toolsets=[SHELL]), calls("shell", **long))
    assert len(whole.results[0]) == 4000


# -- limits ------------------------------------------------------------------------------------


def test_model_calls_are_counted(files: AgentFiles) -> None:
    agent = files.agent(toolsets=[{"type": "think"}], max_iterations=2)
    ended = files.turn(agent, *(calls("think", thought=str(number)) for number in range(3)))
    assert ended.given.refusal == (500, "loop_detected")
    assert len(ended.requests) == 2


def test_repeated_calls_are_counted(files: AgentFiles) -> None:
    agent = files.agent(toolsets=[{"type": "think"}], max_consecutive_tool_calls=2)
    ended = files.turn(agent, *(calls("think", thought="again") for _ in range(4)))
    assert ended.given.refusal == (500, "loop_detected")
    assert len(ended.requests) == 2


@pytest.mark.parametrize("budget", [{"max_tokens": 15}, {"max_cost": 0.01}])
@pytest.mark.parametrize("named", [False, True])
def test_a_budget_ends_the_turn(files: AgentFiles, budget: dict[str, Any], named: bool) -> None:
    root: dict[str, Any] = {"model": "m", "toolsets": [{"type": "think"}]}
    priced = {"m": files.model_at(cost={"input": 1000, "output": 2000})}
    if named:
        key = files.serve(
            models=priced, budgets={"small": budget}, agents={"root": {**root, "budgets": ["small"]}}
        )
    else:
        key = files.serve(models=priced, budget=budget, agents={"root": root})
    ended = files.turn(key, calls("think", thought="a"))
    assert ended.given.refusal == (422, "budget_exceeded")
    assert len(ended.requests) == 1


def test_a_budget_of_time_ends_the_turn(files: AgentFiles) -> None:
    root = {"model": "m", "toolsets": [SHELL]}
    ended = files.turn(
        files.serve(budget={"max_time": "1s"}, agents={"root": root}), calls("shell", cmd="sleep 1.2")
    )
    assert ended.given.refusal == (422, "budget_exceeded")


# -- what it may do ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "keys", "outcome"),
    [
        ({}, {}, "ran"),
        ({"permissions": {"deny": ["shell:cmd=echo *"]}}, {}, "denies it"),
        ({"permissions": {"deny": ["shell:cmd=ls *"]}}, {}, "ran"),
        ({"permissions": {"ask": ["shell"]}}, {}, "waiting"),
        ({"permissions": {"ask": ["shell"], "allow": ["shell:cmd=echo*"]}}, {}, "ran"),
        ({"permissions": {"allow": ["shell"]}}, {"safety": "restricted"}, "ran"),
        ({}, {"safety": "restricted"}, "the safety mode is restricted"),
        ({}, {"safety": "strict"}, "waiting"),
        ({"runtime": {"safety": "balanced"}}, {}, "waiting"),
        ({"runtime": {"safety": "balanced"}}, {"safety": "autonomous"}, "ran"),
        ({}, {"readonly": True}, "the agent is read-only"),
    ],
)
def test_rules_and_modes_decide_about_a_call(
    files: AgentFiles, file: dict[str, Any], keys: dict[str, Any], outcome: str
) -> None:
    key = files.serve(agents={"root": {"model": "m", "toolsets": [SHELL], **keys}}, **file)
    session = files.api.session(key)
    if outcome == "waiting":
        word = f"wait{session}"
        files.script(word, calls("shell", cmd="echo ran"))
        with files.api.stream(
            "POST", f"/api/sessions/{session}/agent/{key}", {"messages": [{"role": "user", "content": word}]}
        ) as stream:
            assert stream.until("tool_call_confirmation").data["tool_call"]["function"]["name"] == "shell"
        return
    ended = files.turn(key, calls("shell", cmd="echo ran"), session=session)
    assert outcome in ended.results[0]


def test_every_call_says_what_it_is_for(files: AgentFiles) -> None:
    agent = files.agent(toolsets=[SHELL], add_description_parameter=True)
    ended = files.turn(agent, calls("shell", cmd="echo $1", description="to see"))
    [shell] = [tool["function"] for tool in ended.requests[0]["tools"]]
    assert "description" in shell["parameters"]["required"]
    assert ended.answer == "Done."


def test_answers_have_the_shape_that_the_file_says(files: AgentFiles) -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    output = {"name": "person", "description": "A person", "schema": schema, "strict": True, "mode": "native"}
    ended = files.turn(files.agent(structured_output=output), says('{"name": "Ada"}'))
    asked = {"name": "person", "schema": schema, "strict": True, "description": "A person"}
    assert ended.requests[0]["response_format"] == {"type": "json_schema", "json_schema": asked}


# -- teams -------------------------------------------------------------------------------------


def test_a_sub_agent_does_a_task_and_returns_its_result(files: AgentFiles) -> None:
    helper = {"model": "m", "description": "helps out", "instruction": "You help."}
    key = files.serve(agents={"root": {"model": "m", "sub_agents": ["helper"]}, "helper": helper})
    task = files.script("the task", says("helped"))
    ended = files.turn(key, calls("transfer_task", agent="helper", task="the task"))
    assert "- helper: helps out" in ended.requests[0]["messages"][0]["content"]
    assert "You help." in task.requests[0]["messages"][0]["content"]
    assert ended.results == ["helped"]


def test_agents_may_share_a_to_do_list(files: AgentFiles) -> None:
    """It lasts beyond the turn, and a list that is not shared is another one."""
    shared, own = {"type": "todo", "shared": True}, {"type": "todo"}
    helper = {"model": "m", "toolsets": [shared]}
    root = {"model": "m", "sub_agents": ["first", "second"], "toolsets": [own]}
    key = files.serve(agents={"root": root, "first": helper, "second": helper})
    files.script("add it", calls("create_todo", description="milk"), says("added"))
    seen = files.script("look", calls("list_todos"), says("seen"))
    session = files.api.session(key)
    tasks = [
        calls("transfer_task", agent=name, task=text)
        for name, text in (("first", "add it"), ("second", "look"))
    ]
    ended = files.turn(key, *tasks, calls("list_todos"), session=session)
    assert "milk" in seen.requests[-1]["messages"][-1]["content"]
    assert "milk" not in ended.results[-1]
    assert ended.results[0].startswith("added\n\nThe shared to-do list is now: ")
    seen.then(calls("list_todos"), says("seen"))
    files.turn(key, tasks[1], session=session)
    assert "milk" in seen.requests[-1]["messages"][-1]["content"]


def test_a_handoff_makes_another_agent_answer_from_then_on(files: AgentFiles) -> None:
    other = {"model": "m", "description": "takes over", "instruction": "You took over."}
    key = files.serve(agents={"root": {"model": "m", "handoffs": ["other"]}, "other": other})
    ended = files.turn(key, calls("handoff", agent="other"))
    assert "- other: takes over" in ended.requests[0]["messages"][0]["content"]
    assert "You took over." in ended.system
    assert "You took over." in files.turn(key, session=ended.session).system


def test_a_forced_handoff_makes_the_next_agent_of_the_chain_answer(files: AgentFiles) -> None:
    chain = {
        "root": {"model": "m", "instruction": "You list facts.", "force_handoff": "writer"},
        "writer": {"model": "m", "instruction": "You write.", "force_handoff": "editor"},
        "editor": {"model": "m", "instruction": "You edit."},
    }
    key = files.serve(agents=chain)
    written = files.script("handed over to writer", says("draft one"), says("draft two"))
    edited = files.script("handed over to editor", says("text one"), says("text two"))
    session = files.api.session(key)
    for number, word in enumerate(("one", "two")):
        ended = files.turn(key, says("facts"), session=session)
        assert ended.answer == f"text {word}"
        # Each turn begins with the first agent again, and nobody was asked twice.
        assert "You list facts." in ended.system
        assert [len(one.requests) for one in (ended, written, edited)] == [1, number + 1, number + 1]
    first = edited.requests[0]["messages"]
    assert "You edit." in first[0]["content"]
    assert [one["content"] for one in first if one["role"] == "assistant"] == ["facts", "draft one"]


def test_a_shared_skill_runs_on_its_model(files: AgentFiles) -> None:
    skill = {"name": "job", "description": "Does it", "instructions": "JOB: do it.", "context": "fork"}
    key = files.serve(
        models={"second": files.model_at("second")},
        skills={"team": [{**skill, "model": "second"}]},
        agents={"root": {"model": "m", "use_skills": ["team"]}},
    )
    task = files.script("the task", says("did it"))
    ended = files.turn(key, calls("run_skill", name="job", task="the task"))
    assert ended.results == ["did it"]
    assert [one["model"] for one in task.requests] == ["second"]


# -- models ------------------------------------------------------------------------------------


def test_the_next_model_answers_after_the_retries_and_the_first_one_is_skipped(files: AgentFiles) -> None:
    fallback = {"models": ["second"], "retries": -1, "cooldown": "1h"}
    models = {"second": files.model_at("second")}
    key = files.serve(models=models, agents={"root": {"model": "m", "fallback": fallback}})
    ended = files.turn(key, refuses(429))
    assert [one["model"] for one in ended.requests] == ["first", "second"]
    assert [one["model"] for one in files.turn(key).requests] == ["second"]
    retried = files.serve(agents={"root": {"model": "m", "fallback": {"retries": 1}}})
    failed = files.turn(retried, refuses(503), refuses(503), refuses(503))
    assert (failed.given.status >= 500, len(failed.requests)) == (True, 2)


# -- the file ----------------------------------------------------------------------------------


def test_clients_see_how_an_agent_presents_itself(files: AgentFiles) -> None:
    commands = {"fix": {"description": "Fixes it", "instruction": "Fix."}, "go": "Go."}
    key = files.serve(
        agents={
            "root": {
                "model": "m",
                "description": "An agent",
                "welcome_message": "Hello!",
                "use_commands": ["common"],
                "commands": commands,
            }
        },
        commands={"common": {"list": {"description": "Lists it", "instruction": "List."}}},
    )
    [listed] = [one for one in files.api.get("/api/agents") if one["name"] == key]
    assert (listed["description"], listed["welcome_message"]) == ("An agent", "Hello!")
    assert {name: one["description"] for name, one in listed["commands"].items()} == {
        "fix": "Fixes it",
        "go": "",
        "list": "Lists it",
    }


def test_the_first_agent_answers_if_there_is_no_root(files: AgentFiles) -> None:
    for names, answers in ((("a", "b"), "a"), (("a", "root"), "root")):
        agents = {name: {"model": "m", "instruction": f"I am {name}."} for name in names}
        assert files.turn(files.serve(agents=agents)).system == f"I am {answers}."


def test_toolsets_of_the_file_are_used_by_name(files: AgentFiles) -> None:
    key = files.serve(
        agents={"root": {"model": "m", "toolsets": [{"type": "think"}], "use_toolsets": ["list"]}},
        toolsets={"list": {"type": "todo", "tools": ["create_todo"]}},
    )
    assert files.turn(key).tools == ["think", "create_todo"]


def test_the_oldest_version_has_other_keys(files: AgentFiles) -> None:
    model = {"type": "openai", "model": "first", "base_url": files.model.url}
    root = {"name": "root", "model": "m", "think": True, "todo": True}
    ended = files.turn(files.serve(version="0", models={"m": model}, agents={"root": root}))
    assert {"think", "create_todo"} <= set(ended.tools)
    assert json.loads(files.api.ask("GET", "/api/agents").body)

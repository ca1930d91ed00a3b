"""Hooks of an agent file: every event runs its hooks, and every key of a hook does what it says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lastgood.agents.schema.hooks import HOOKS
from lastgood.core.hooks import CONTRACTS
from tests.e2e.agent_files import AgentFiles, Ended, calls, open_agent_files
from tests.e2e.command import until
from tests.e2e.fake_model import Gate, refuses, says

pytestmark = pytest.mark.slow

EVENTS = {name for name, key in HOOKS.keys.items() if not key.later}
MATCHED = {event.value for event, contract in CONTRACTS.items() if contract.matched}
THINK = {"type": "think"}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentFiles]:
    folder = tmp_path_factory.mktemp("keys")
    with open_agent_files(folder, "--safety", "autonomous", GREETING="hello you") as opened:
        yield opened


def hooks(event: str, *those: dict[str, Any], matcher: str = "*") -> dict[str, Any]:
    return {event: [{"matcher": matcher, "hooks": list(those)}] if event in MATCHED else list(those)}


def command(line: str, **keys: Any) -> dict[str, Any]:
    return {"type": "command", "command": line, **keys}


def logging(events: set[str], log: Path) -> dict[str, Any]:
    """Hooks that write down their events, and do nothing else."""
    found: dict[str, Any] = {}
    for event in events:
        found |= hooks(event, command(f"echo {event} >>{log}"))
    return found


def logged(log: Path) -> set[str]:
    return set(log.read_text().split()) if log.exists() else set()


def test_every_event_runs_its_hooks(files: AgentFiles, tmp_path: Path) -> None:
    log = tmp_path / "log"
    every = logging(EVENTS, log)
    every |= hooks("permission_request", command(f"echo permission_request >>{log}; {APPROVE}"))
    root = {"model": "m", "hooks": every, "max_iterations": 3, "sub_agents": ["other"]}
    root |= {"toolsets": [THINK, {"type": "user_prompt"}]}
    agents = {"root": root, "other": {"model": "m"}}
    key = files.serve(agents=agents, permissions={"ask": ["think"]})
    files.script("the task", says("helped"))
    ended = files.turn(
        key, calls("think", thought="a"), calls("transfer_task", agent="other", task="the task")
    )
    assert ended.answer == "Done."
    # One turn that fails, one that does not end, and one that waits for a person.
    files.turn(key, refuses(400))
    assert files.turn(key, *(calls("think", thought=str(number)) for number in range(4))).given.status == 500
    waiting = files.turn(key, calls("user_prompt", message="Which one?"), wait=False)
    until(lambda: "on_user_input" in logged(log))
    assert waiting.given.status == 202
    # A turn from the queue, and a message to a running one.
    gate = Gate()
    running = files.turn(key, says("slow", gate, calls=[("c1", "think", '{"thought": "x"}')]), wait=False)
    gate.until_reached()
    path = f"/api/sessions/{running.session}"
    for kind in ("steer", "followup"):
        body = {"messages": [{"role": "user", "content": f"{kind}-word"}]}
        files.script(f"{kind}-word")
        assert files.api.post(f"{path}/{kind}", body).status in (200, 202)
    gate.open()
    until(lambda: EVENTS - logged(log) == set())


APPROVE = """echo '{"hook_specific_output": {"permission_decision": "allow"}}'"""


def blocked(files: AgentFiles, *replies: Any, **those: Any) -> Ended:
    return files.turn(files.agent(toolsets=[THINK], hooks=those), *replies)


def test_a_command_has_the_variables_and_the_folder_of_the_file(files: AgentFiles, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    line = 'echo "$(basename $PWD) $ONE $TWO $THREE"'
    env = {"ONE": "1", "TWO": "${env.GREETING}", "THREE": "pa$$word"}
    hook = command(line, env=env, working_dir="sub", name="places")
    key = files.agent(hooks=hooks("turn_start", hook))
    ended = files.turn(key, made_with={"working_dir": str(tmp_path)})
    assert "sub 1 [GREETING] pa$$word" in ended.system


@pytest.mark.parametrize(
    ("hook", "status", "words"),
    [
        (command("exit 1", on_error="block", name="mine"), 422, "the user_prompt_submit hook 'mine' failed"),
        (command("exit 1", on_error="warn"), 200, ""),
        (command("exit 1", on_error="ignore"), 200, ""),
        (command("exit 2"), 422, ""),
        (command("sleep 30", timeout=1, on_error="block"), 422, "1 s"),
        (command("echo text", strict_output=True, on_error="block"), 422, "failed"),
        (command("echo text", strict_output=False, on_error="block"), 200, ""),
    ],
)
def test_what_a_hook_that_fails_does_is_in_the_file(
    files: AgentFiles, hook: dict[str, Any], status: int, words: str
) -> None:
    ended = files.turn(files.agent(hooks=hooks("user_prompt_submit", hook)))
    assert ended.given.status == status, ended.given.body
    assert words in str(ended.given.json.get("error", {}).get("message", ""))


def test_a_matcher_chooses_the_tools(files: AgentFiles) -> None:
    for matcher, result in (("think", "a hook denied think"), ("shell|fetch", "a")):
        those = hooks("pre_tool_use", command("exit 2"), matcher=matcher)
        ended = files.turn(files.agent(toolsets=[THINK], hooks=those), calls("think", thought="a"))
        assert result in ended.results[0]
        assert ("denied" in ended.results[0]) == (matcher == "think")


def test_built_in_hooks_have_arguments(files: AgentFiles, tmp_path: Path) -> None:
    (tmp_path / "NOTES.md").write_text("Mind the gap.")
    hook = {"type": "builtin", "command": "add_prompt_files", "args": ["NOTES.md"]}
    ended = files.turn(files.agent(hooks=hooks("turn_start", hook)), made_with={"working_dir": str(tmp_path)})
    assert "Mind the gap." in ended.system


def test_a_model_is_asked_as_the_file_says(files: AgentFiles) -> None:
    judge = files.script("JUDGE think", says('{"decision": "deny", "reason": "not today"}'))
    hook = {
        "type": "model",
        "model": "m",
        "prompt": "JUDGE {{ .ToolName }}",
        "system_prompt": "You are strict.",
        "schema": "pre_tool_use_decision",
    }
    those = hooks("pre_tool_use", hook)
    ended = files.turn(files.agent(toolsets=[THINK], hooks=those), calls("think", thought="a"))
    assert "a hook denied think: not today" in ended.results[0]
    [asked] = judge.requests
    assert asked["messages"][0]["content"].startswith("You are strict.")
    assert json.dumps(asked["messages"][1]["content"]) == '"JUDGE think"'

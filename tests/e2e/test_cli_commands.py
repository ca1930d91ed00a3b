"""The commands of an agent file in the terminal: as the message of `lastgood run`, and in a chat."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.e2e.command import Command
from tests.e2e.test_cli import CTRL_D, Terminal
from tests.forkserver import Process

AGENTS = """
commands:
  shared:
    greet: "Say hello to ${env.PERSON || 'nobody'}, ${env.NOT_SET}you"
agents:
  root:
    model: builtin/scripted
    sub_agents: [planner]
    use_commands: [shared]
    commands:
      fix:
        description: Fixes a file
        instruction: "Fix ${args[0]} with ${args[1]}"
      every: 'All: ${args.join("+")}'
      tidy: Tidy up
      plan: {agent: planner}
      start: {agent: planner, instruction: "Plan ${args}"}
      docs: {description: Opens the manual, url: "https://example.com/manual"}
      feedback: {url: "https://example.com/?session={{session_id}}"}
      call: "Now: ${shell({cmd: 'ls'})}"
  planner:
    model: builtin/scripted
    instruction: You plan.
    commands:
      - back: {agent: root}
"""


@pytest.fixture
def lastgood(tmp_path: Path) -> Command:
    command = Command(tmp_path)
    command.env["PERSON"] = "Ada"
    return command


@pytest.fixture
def agent(tmp_path: Path) -> str:
    path = tmp_path / "agent.yaml"
    path.write_text(AGENTS)
    return str(path)


@pytest.fixture
def started() -> Iterator[list[Process]]:
    processes: list[Process] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("typed", "prompt"),
    [
        ("/greet", "Say hello to Ada, you"),
        ('/fix main.go "two words"', "Fix main.go with two words"),
        ("/every a b", "All: a+b"),
        ("/tidy the attic", "Tidy up the attic"),
        ("/start a trip", "Plan a trip"),
        ("/unknown x", "/unknown x"),
        ("tell /greet", "tell /greet"),
    ],
)
def test_a_command_is_the_prompt_that_its_file_says(
    lastgood: Command, agent: str, typed: str, prompt: str
) -> None:
    done = lastgood("run", agent, typed)
    assert (done.code, done.out) == (0, f"You said: {prompt}\n"), done.err


def test_a_command_of_another_agent_is_sent_to_it(lastgood: Command, agent: str) -> None:
    assert lastgood("run", agent, "/plan a trip").out == "You said: a trip\n"
    assert "You plan." in lastgood.prompt_log.read_text()
    refused = lastgood("run", agent, "/plan")
    assert (refused.code, refused.out) == (2, "")
    assert "/plan switches the agent only; add a message" in refused.err


def test_a_call_in_a_command_is_reported_and_sent_as_text(lastgood: Command, agent: str) -> None:
    done = lastgood("run", agent, "/call")
    assert done.out == "You said: Now: ${shell({cmd: 'ls'})}\n"
    assert "agent.yaml:20: `${shell({cmd: 'ls'})}` in a command is not supported yet" in done.err


@pytest.mark.slow
def test_a_command_may_name_a_page_to_open(lastgood: Command, agent: str, started: list[Process]) -> None:
    """There may be no browser where the chat runs. Nothing is sent, and no session is created."""
    done = lastgood("run", agent, "/docs")
    assert (done.code, done.out) == (0, "https://example.com/manual\n"), done.err
    assert "session" not in done.err
    assert lastgood.prompt_log.read_text() == ""
    assert lastgood("run", agent, "/feedback").out == "https://example.com/?session=\n"
    with closing(Terminal(lastgood, started, "run", agent)) as chat:
        chat.send("hello\n")
        chat.expect("You said: hello")
        chat.send("/feedback\n")
        chat.expect("open https://example.com/?session=ses_")
        chat.send(CTRL_D)
        assert chat.process.wait(20) == 0
    assert len(lastgood.prompt_log.read_text().splitlines()) == 1


@pytest.mark.slow
def test_a_chat_stays_with_the_agent_that_a_command_named(
    lastgood: Command, agent: str, started: list[Process]
) -> None:
    with closing(Terminal(lastgood, started, "run", agent)) as chat:
        chat.send("/help\n")
        chat.expect("/fix       Fixes a file")
        chat.send("/plan\n")
        chat.expect("planner answers from now on")
        chat.send("first\n")
        chat.expect("You said: first")
        chat.send("/fix x y\n")
        chat.expect("unknown command /fix")
        chat.send("/back and on\n")
        chat.expect("You said: and on")
        chat.send(CTRL_D)
        chat.expect("session ses_")
        assert chat.process.wait(20) == 0
    asked = lastgood.prompt_log.read_text().splitlines()
    assert ["You plan." in one for one in asked] == [True, False]

"""Real CLIs behind a real server: a worker process each, driven through the session API.

What a CLI remembered, and which files it found, is read from what its model received.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.clis.conftest import real_cli
from tests.clis.model_server import Conversation, ModelServer
from tests.clis.real_worker import RealWorker
from tests.e2e.command import until
from tests.e2e.office import Office
from tests.forkserver import fork_server

CLIS = ("claude", "codex", "goose")
Hire = Callable[..., RealWorker]


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    office = Office(tmp_path / "office")
    with office.server:
        yield office


@pytest.fixture
def hire(office: Office, model: ModelServer, tmp_path: Path) -> Iterator[Hire]:
    """Starts a worker with this CLI on a machine of its own; the agent is bound to the first one's."""
    with ExitStack() as stack:

        def hired(name: str, *options: str, port: int | None = None, **more: Any) -> RealWorker:
            folder = tmp_path / name
            folder.mkdir()
            cli = real_cli(name, folder, model)
            cli.port = port
            worker = stack.enter_context(RealWorker(folder / "worker", office, cli, *options, **more))
            until(lambda: worker.runtime() is not None)
            if len(office.runtimes()) == 1:
                office.bind()
            return worker

        yield hired


def move(office: Office, session: str, worker: RealWorker) -> None:
    office.call("PATCH", f"/api/sessions/{session}/runtime", {"runtime_id": worker.runtime()})


def decision(turn: dict[str, Any]) -> str:
    return str(turn["decision"]["resume"]["decision"])


def heard(model: ModelServer, mark: str) -> Conversation:
    """What the model received last of the turn with this mark."""
    return model.about(mark)[-1]


# --- turns and moves ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("here", "there"), [("goose", "codex"), ("claude", "goose"), ("codex", "claude")])
def test_a_session_works_on_one_cli_moves_to_another_and_comes_back(
    office: Office, hire: Hire, model: ModelServer, here: str, there: str
) -> None:
    first, second = hire(here), hire(there)
    session = office.session()
    for mark in ("one", "two", "three"):
        command = first.run_command(f"echo line-{mark} >> notes.txt; cat notes.txt")
        turn = office.turn(session, f"MARK-{mark} {command}")
        assert decision(turn) == ("fresh" if mark == "one" else "native")
    assert (first.work_dir() / "notes.txt").read_text().split() == ["line-one", "line-two", "line-three"]
    last = heard(model, "MARK-three")
    assert last.marks == ["MARK-one", "MARK-two", "MARK-three"]  # native: each in a message of its own
    assert not any("MARK-one" in text and "MARK-three" in text for text in last.users)
    assert "line-one" in last.tool_results[-1]

    move(office, session, second)
    command = second.run_command("cat notes.txt; echo line-four >> notes.txt")
    turn = office.turn(session, f"MARK-four {command}")
    assert decision(turn) == "replay"
    moved = heard(model, "MARK-four")
    assert any("> MARK-one" in text and "> MARK-three" in text for text in moved.users)
    assert all(f"line-{mark}" in moved.tool_results[-1] for mark in ("one", "two", "three"))
    assert (second.work_dir() / "notes.txt").read_text().split()[-1] == "line-four"

    move(office, session, first)
    turn = office.turn(session, f"MARK-five {first.run_command('cat notes.txt')}")
    assert decision(turn) == "native"
    back = heard(model, "MARK-five")
    assert any("> MARK-four" in text for text in back.users[-1:])
    assert not any("> MARK-one" in text for text in back.users)
    assert back.marks[:3] == ["MARK-one", "MARK-two", "MARK-three"]
    assert "line-four" in back.tool_results[-1]
    assert office.attempts(session) == ["committed"] * 5


# --- questions, steers and cancels --------------------------------------------------------------------------


def answer(office: Office, task: str, *, allowed: bool) -> dict[str, Any]:
    """Answers the one question of the task, and returns it."""
    office.until_task(task, "waiting")
    (question,) = office.call("GET", f"/api/tasks/{task}/questions")
    body = {"allowed": allowed, "reason": "" if allowed else "not on a Friday"}
    office.call("POST", f"/api/tasks/{task}/questions/{question['id']}", body)
    return dict(question)


@pytest.mark.parametrize(
    ("name", "safety"), [("claude", "strict"), ("codex", "balanced"), ("goose", "strict")]
)
def test_a_question_is_answered_over_the_api_and_the_cli_goes_on(
    office: Office, hire: Hire, model: ModelServer, name: str, safety: str
) -> None:
    worker = hire(name)
    session = office.session(safety=safety)
    task = office.begin(session, f"MARK-yes {worker.run_command('echo yes > yes.txt')}")
    assert "yes.txt" in str(answer(office, task, allowed=True))
    office.until_task(task, "completed")
    task = office.begin(session, f"MARK-no {worker.run_command('echo no > no.txt')}")
    assert "no.txt" in str(answer(office, task, allowed=False))
    office.until_task(task, "completed")
    assert [one.name for one in worker.work_dir().iterdir() if one.suffix == ".txt"] == ["yes.txt"]
    told = [text for one in model.about("MARK-no") for text in (*one.tool_results, *one.users)]
    assert any("not on a Friday" in text for text in told)
    assert len(office.history(session)) == 4


@pytest.mark.parametrize("name", CLIS)
def test_the_server_cannot_raise_the_ceiling_of_a_worker(office: Office, hire: Hire, name: str) -> None:
    """The server's mode is autonomous, and the session allows everything."""
    worker = hire(name, ceiling="restricted")
    session = office.session(permissions={"allow": ["*"]})
    turn = office.turn(session, f"MARK-raise {worker.run_command('echo x > raised.txt')}")
    assert "MARK-raise" in turn["messages"][-1]["content"]
    assert list(worker.work_dir().glob("*.txt")) == []
    (task,) = office.call("GET", f"/api/tasks?session={session}")
    assert any("ceiling" in str(one) for one in worker.activity(task["id"]))


def test_the_default_ceiling_asks_although_the_server_is_autonomous(office: Office, hire: Hire) -> None:
    worker = hire("claude", ceiling="balanced")
    session = office.session(permissions={"allow": ["*"]})
    task = office.begin(session, f"MARK-raise {worker.run_command('echo x > raised.txt')}")
    office.until_task(task, "waiting")
    words = ["tasks", "answer", task, "--server", office.server.url]
    asked = fork_server().run(words, env=worker.env)
    assert "raised.txt" in asked.stdout
    denied = fork_server().run([*words, "--deny", "--reason", "not here"], env=worker.env)
    assert "denied" in denied.stdout, denied.stderr
    office.until_task(task, "completed")
    assert list(worker.work_dir().glob("*.txt")) == []
    again = fork_server().run([*words, "--allow"], env=worker.env)
    assert (again.returncode, "asks nothing" in again.stderr) == (1, True)


def test_a_steer_reaches_the_running_turn_of_claude(office: Office, hire: Hire, model: ModelServer) -> None:
    worker = hire("claude")
    session = office.session(safety="balanced")
    task = office.begin(session, f"MARK-first {worker.run_command('echo x > x.txt')}")
    office.until_task(task, "waiting")
    steer = {"messages": [{"role": "user", "content": "also MARK-steer"}]}
    office.call("POST", f"/api/sessions/{session}/steer", steer)
    until(lambda: office.server.rows("SELECT n FROM queued WHERE heard") != [])
    answer(office, task, allowed=True)
    office.until_task(task, "completed")
    assert "MARK-steer" in office.history(session)[-1][1]
    assert ("user", "also MARK-steer") in office.history(session)
    assert any("MARK-steer" in one.marks for one in model.conversations)


@pytest.mark.parametrize("name", CLIS)
def test_a_cancel_leaves_no_process_and_no_turn(
    office: Office, hire: Hire, model: ModelServer, name: str
) -> None:
    worker = hire(name)
    session = office.session()
    office.turn(session, "MARK-one")
    task = office.begin(session, "MARK-two SLOW")
    until(model.slow.is_set)
    assert worker.cli.processes()
    office.call("POST", f"/api/tasks/{task}/cancel")
    assert office.task(task)["status"] == "cancelled"
    until(lambda: not worker.cli.processes())
    until(lambda: not worker.outbox())
    turn = office.turn(session, "MARK-three")
    assert decision(turn) == "native"
    assert "MARK-one" in heard(model, "MARK-three").marks
    assert office.attempts(session) == ["committed", "cancelled", "committed"]


# --- models that fail ---------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.mark.parametrize("how", ["500", "refused"])
def test_a_model_that_fails_commits_nothing_whatever_the_cli(
    office: Office, hire: Hire, model: ModelServer, how: str
) -> None:
    model.fail_with = 500 if how == "500" else None
    sessions = {}
    for name in CLIS:
        worker = hire(name, port=free_port() if how == "refused" else None)
        sessions[name] = office.session()
        move(office, sessions[name], worker)
        office.begin(sessions[name], f"MARK-{name} hello")
    for session in sessions.values():
        until(lambda one=session: office.attempts(one)[:1] == ["failed"])  # type: ignore[misc]
        assert office.history(session) == []
        (task,) = office.call("GET", f"/api/tasks?session={session}")
        assert task["status"] in ("deferred", "claimed", "running", "failed"), task
        assert "model_error" in f"{task['why']} {task['error']}"
    if how == "500":
        model.fail_with = None
        for session in sessions.values():
            until(lambda one=session: len(office.history(one)) == 2)  # type: ignore[misc]
            assert office.attempts(session).count("committed") == 1

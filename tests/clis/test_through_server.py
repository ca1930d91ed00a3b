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
from tests.e2e.task_server import TaskServer
from tests.forkserver import fork_server

CLIS = ("claude", "codex", "goose")
Hire = Callable[..., RealWorker]


@pytest.fixture
def task_server(tmp_path: Path) -> Iterator[TaskServer]:
    task_server = TaskServer(tmp_path / "task_server")
    with task_server.server:
        yield task_server


@pytest.fixture
def hire(task_server: TaskServer, model: ModelServer, tmp_path: Path) -> Iterator[Hire]:
    """Starts a worker with this CLI on a machine of its own; the agent is bound to the first one's."""
    with ExitStack() as stack:

        def hired(name: str, *options: str, port: int | None = None, **more: Any) -> RealWorker:
            folder = tmp_path / name
            folder.mkdir()
            cli = real_cli(name, folder, model)
            cli.port = port
            worker = stack.enter_context(RealWorker(folder / "worker", task_server, cli, *options, **more))
            until(lambda: worker.runtime() is not None)
            if len(task_server.runtimes()) == 1:
                task_server.bind()
            return worker

        yield hired


def move(task_server: TaskServer, session: str, worker: RealWorker) -> None:
    task_server.call("PATCH", f"/api/sessions/{session}/runtime", {"runtime_id": worker.runtime()})


def decision(turn: dict[str, Any]) -> str:
    return str(turn["decision"]["resume"]["decision"])


def received(model: ModelServer, mark: str) -> Conversation:
    """What the model received last of the turn with this mark."""
    return model.about(mark)[-1]


# --- turns and moves ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("here", "there"), [("goose", "codex"), ("claude", "goose"), ("codex", "claude")])
def test_a_session_works_on_one_cli_moves_to_another_and_comes_back(
    task_server: TaskServer, hire: Hire, model: ModelServer, here: str, there: str
) -> None:
    first, second = hire(here), hire(there)
    session = task_server.session()
    for mark in ("one", "two", "three"):
        command = first.run_command(f"echo line-{mark} >> notes.txt; cat notes.txt")
        turn = task_server.turn(session, f"MARK-{mark} {command}")
        assert decision(turn) == ("fresh" if mark == "one" else "native")
    assert (first.work_dir() / "notes.txt").read_text().split() == ["line-one", "line-two", "line-three"]
    last = received(model, "MARK-three")
    assert last.marks == ["MARK-one", "MARK-two", "MARK-three"]  # native: each in a message of its own
    assert not any("MARK-one" in text and "MARK-three" in text for text in last.users)
    assert "line-one" in last.tool_results[-1]

    move(task_server, session, second)
    command = second.run_command("cat notes.txt; echo line-four >> notes.txt")
    turn = task_server.turn(session, f"MARK-four {command}")
    assert decision(turn) == "replay"
    moved = received(model, "MARK-four")
    assert any("> MARK-one" in text and "> MARK-three" in text for text in moved.users)
    assert all(f"line-{mark}" in moved.tool_results[-1] for mark in ("one", "two", "three"))
    assert (second.work_dir() / "notes.txt").read_text().split()[-1] == "line-four"

    move(task_server, session, first)
    turn = task_server.turn(session, f"MARK-five {first.run_command('cat notes.txt')}")
    assert decision(turn) == "native"
    back = received(model, "MARK-five")
    assert any("> MARK-four" in text for text in back.users[-1:])
    assert not any("> MARK-one" in text for text in back.users)
    assert back.marks[:3] == ["MARK-one", "MARK-two", "MARK-three"]
    assert "line-four" in back.tool_results[-1]
    assert task_server.attempts(session) == ["committed"] * 5


# --- questions, steers and cancels --------------------------------------------------------------------------


def answer(task_server: TaskServer, task: str, *, allowed: bool) -> dict[str, Any]:
    """Answers the one question of the task, and returns it."""
    task_server.until_task(task, "waiting")
    (question,) = task_server.call("GET", f"/api/tasks/{task}/questions")
    body = {"allowed": allowed, "reason": "" if allowed else "not on a Friday"}
    task_server.call("POST", f"/api/tasks/{task}/questions/{question['id']}", body)
    return dict(question)


@pytest.mark.parametrize(
    ("name", "safety"), [("claude", "strict"), ("codex", "balanced"), ("goose", "strict")]
)
def test_a_question_is_answered_over_the_api_and_the_cli_continues(
    task_server: TaskServer, hire: Hire, model: ModelServer, name: str, safety: str
) -> None:
    worker = hire(name)
    session = task_server.session(safety=safety)
    task = task_server.begin(session, f"MARK-yes {worker.run_command('echo yes > yes.txt')}")
    assert "yes.txt" in str(answer(task_server, task, allowed=True))
    task_server.until_task(task, "completed")
    task = task_server.begin(session, f"MARK-no {worker.run_command('echo no > no.txt')}")
    assert "no.txt" in str(answer(task_server, task, allowed=False))
    task_server.until_task(task, "completed")
    assert [one.name for one in worker.work_dir().iterdir() if one.suffix == ".txt"] == ["yes.txt"]
    received = [text for one in model.about("MARK-no") for text in (*one.tool_results, *one.users)]
    assert any("not on a Friday" in text for text in received)
    assert len(task_server.history(session)) == 4


@pytest.mark.parametrize("name", CLIS)
def test_the_server_cannot_raise_the_ceiling_of_a_worker(
    task_server: TaskServer, hire: Hire, name: str
) -> None:
    """The server's mode is autonomous, and the session allows everything."""
    worker = hire(name, ceiling="restricted")
    session = task_server.session(permissions={"allow": ["*"]})
    turn = task_server.turn(session, f"MARK-raise {worker.run_command('echo x > raised.txt')}")
    assert "MARK-raise" in turn["messages"][-1]["content"]
    assert list(worker.work_dir().glob("*.txt")) == []
    (task,) = task_server.call("GET", f"/api/tasks?session={session}")
    assert any("ceiling" in str(one) for one in worker.activity(task["id"]))


def test_the_default_ceiling_asks_although_the_server_is_autonomous(
    task_server: TaskServer, hire: Hire
) -> None:
    worker = hire("claude", ceiling="balanced")
    session = task_server.session(permissions={"allow": ["*"]})
    task = task_server.begin(session, f"MARK-raise {worker.run_command('echo x > raised.txt')}")
    task_server.until_task(task, "waiting")
    words = ["tasks", "answer", task, "--server", task_server.server.url]
    asked = fork_server().run(words, env=worker.env)
    assert "raised.txt" in asked.stdout
    denied = fork_server().run([*words, "--deny", "--reason", "not here"], env=worker.env)
    assert "denied" in denied.stdout, denied.stderr
    task_server.until_task(task, "completed")
    assert list(worker.work_dir().glob("*.txt")) == []
    again = fork_server().run([*words, "--allow"], env=worker.env)
    assert (again.returncode, "No question of this task is pending" in again.stderr) == (1, True)


def test_a_steer_reaches_the_running_turn_of_claude(
    task_server: TaskServer, hire: Hire, model: ModelServer
) -> None:
    worker = hire("claude")
    session = task_server.session(safety="balanced")
    task = task_server.begin(session, f"MARK-first {worker.run_command('echo x > x.txt')}")
    task_server.until_task(task, "waiting")
    steer = {"messages": [{"role": "user", "content": "also MARK-steer"}]}
    task_server.call("POST", f"/api/sessions/{session}/steer", steer)
    until(lambda: task_server.server.rows("SELECT n FROM queued WHERE journaled") != [])
    answer(task_server, task, allowed=True)
    task_server.until_task(task, "completed")
    assert "MARK-steer" in task_server.history(session)[-1][1]
    assert ("user", "also MARK-steer") in task_server.history(session)
    assert any("MARK-steer" in one.marks for one in model.conversations)


@pytest.mark.parametrize("name", CLIS)
def test_a_cancel_leaves_no_process_and_no_turn(
    task_server: TaskServer, hire: Hire, model: ModelServer, name: str
) -> None:
    worker = hire(name)
    session = task_server.session()
    task_server.turn(session, "MARK-one")
    task = task_server.begin(session, "MARK-two SLOW")
    until(model.slow.is_set)
    assert worker.cli.processes()
    task_server.call("POST", f"/api/tasks/{task}/cancel")
    assert task_server.task(task)["status"] == "cancelled"
    until(lambda: not worker.cli.processes())
    until(lambda: not worker.outbox())
    turn = task_server.turn(session, "MARK-three")
    assert decision(turn) == "native"
    assert "MARK-one" in received(model, "MARK-three").marks
    assert task_server.attempts(session) == ["committed", "cancelled", "committed"]


# --- models that fail ---------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.mark.parametrize("how", ["500", "refused"])
def test_a_model_that_fails_commits_nothing_whatever_the_cli(
    task_server: TaskServer, hire: Hire, model: ModelServer, how: str
) -> None:
    model.fail_with = 500 if how == "500" else None
    sessions = {}
    for name in CLIS:
        worker = hire(name, port=free_port() if how == "refused" else None)
        sessions[name] = task_server.session()
        move(task_server, sessions[name], worker)
        task_server.begin(sessions[name], f"MARK-{name} hello")
    for session in sessions.values():
        until(lambda one=session: task_server.attempts(one)[:1] == ["failed"])  # type: ignore[misc]
        assert task_server.history(session) == []
        (task,) = task_server.call("GET", f"/api/tasks?session={session}")
        assert task["status"] in ("deferred", "claimed", "running", "failed"), task
        assert "model_error" in f"{task['why']} {task['error']}"
    if how == "500":
        model.fail_with = None
        for session in sessions.values():
            until(lambda one=session: len(task_server.history(one)) == 2)  # type: ignore[misc]
            assert task_server.attempts(session).count("committed") == 1

"""A real server and real workers: nothing is committed twice, nothing is lost, and a resume is a resume."""

from __future__ import annotations

import json
import shutil
import signal
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.command import until
from tests.e2e.task_server import TaskServer
from tests.e2e.tls_proxy import CompanyNetwork
from tests.forkserver import fork_server
from tests.worker.live_worker import LiveWorker, is_alive


@pytest.fixture
def task_server(tmp_path: Path) -> Iterator[TaskServer]:
    task_server = TaskServer(tmp_path)
    with task_server.server:
        yield task_server


@pytest.fixture
def worker(task_server: TaskServer, tmp_path: Path) -> Iterator[LiveWorker]:
    with LiveWorker(tmp_path / "worker", task_server.server.url) as worker:
        task_server.bind()
        yield worker


def test_three_turns_resume_one_native_session_and_one_directory(
    task_server: TaskServer, worker: LiveWorker
) -> None:
    session = task_server.session()
    for number in (1, 2, 3):
        turn = task_server.turn(session, f"write:log.txt={number} read:log.txt")
    assert turn["messages"][-1]["content"] == "1\n2\n3"
    assert turn["decision"]["resume"]["decision"] == "native"
    assert turn["usage"] == {"input_tokens": 3, "output_tokens": 5, "cost": 0.25}
    jobs = worker.jobs()
    assert jobs[0]["session"] is None
    assert jobs[1]["session"] == jobs[2]["session"] is not None
    assert len({job["cwd"] for job in jobs}) == 1


def test_a_program_is_told_the_model_and_the_effort_of_the_file(tmp_path: Path) -> None:
    """A model that the session names counts more than that of the file."""
    agent = "agents:\n  root:\n    harness: {type: command, model: big, effort: high}\n"
    task_server = TaskServer(tmp_path, agent=agent)
    with task_server.server, LiveWorker(tmp_path / "worker", task_server.server.url) as worker:
        until(lambda: len(task_server.runtimes()) == 1)
        session = task_server.session()
        task_server.turn(session, "say:one")
        other = task_server.session(model="openai/small")
        task_server.turn(other, "say:two")
        assert [(job["model"], job["effort"]) for job in worker.jobs()] == [
            ("big", "high"),
            ("small", "high"),
        ]


def test_a_session_moves_to_another_machine_with_its_files_and_back(
    task_server: TaskServer, worker: LiveWorker, tmp_path: Path
) -> None:
    session = task_server.session()
    task_server.turn(session, "write:a.txt=one")
    with LiveWorker(tmp_path / "other", task_server.server.url) as other:
        until(lambda: len(task_server.runtimes()) == 2)
        first, second = (one["id"] for one in task_server.runtimes())
        task_server.call("PATCH", f"/api/sessions/{session}/runtime", {"runtime_id": second})
        moved = task_server.turn(session, "read:a.txt write:a.txt=two")
        assert moved["messages"][-1]["content"] == "one"
        assert moved["decision"]["resume"]["decision"] == "replay"
        assert [one["content"] for one in other.jobs()[0]["transcript"]] == ["write:a.txt=one", "ok"]
        task_server.call("PATCH", f"/api/sessions/{session}/runtime", {"runtime_id": first})
        back = task_server.turn(session, "say:back")
    assert back["decision"]["resume"]["decision"] == "native"
    assert [one["content"] for one in worker.jobs()[1]["catch_up"]] == ["read:a.txt write:a.txt=two", "one"]


def test_a_worker_with_another_account_is_another_runtime_and_resumes_nothing_of_the_first(
    task_server: TaskServer, tmp_path: Path
) -> None:
    turns = []
    worker = LiveWorker(tmp_path / "worker", task_server.server.url)
    session = task_server.session()
    for number, account in enumerate(("one", "two", "one"), 1):
        worker.options = ("--account", f"here={account}")
        with worker:
            runtime = task_server.runtime_of(account)
            task_server.call("PATCH", f"/api/sessions/{session}/runtime", {"runtime_id": runtime})
            turns.append(task_server.turn(session, f"write:log.txt={number} read:log.txt"))
            until(lambda: not worker.outbox())
            assert worker.stop() == 0
    assert [turn["decision"]["resume"]["decision"] for turn in turns] == ["fresh", "replay", "native"]
    assert turns[1]["messages"][-1]["content"] == "1\n2", "the same directory: only the session is another"
    assert len(task_server.runtimes()) == 2


def test_a_project_folder_of_the_owner_is_used_if_it_is_allowed(tmp_path: Path) -> None:
    project = tmp_path / "projects" / "mine"
    project.mkdir(parents=True)
    (project / "mine.txt").write_text("mine")
    (tmp_path / "on-the-server").mkdir()
    task_server = TaskServer(tmp_path, "--working-dir-root", str(tmp_path / "on-the-server"))
    with (
        task_server.server,
        LiveWorker(tmp_path / "w", task_server.server.url, "--allow-dir", str(project)) as worker,
    ):
        task_server.bind()
        turn = task_server.turn(
            task_server.session(working_dir=str(project)), "read:mine.txt write:new.txt=1"
        )
        assert turn["messages"][-1]["content"] == "mine"
        (tmp_path / "projects" / "other").mkdir()
        session = task_server.session(working_dir=str(tmp_path / "projects" / "other"))
        task = task_server.until_task(task_server.begin(session, "say:hello"), "failed")
        assert "--allow-dir" in task["error"]["message"]
        assert len(worker.jobs()) == 1
        words = ["tasks", "add", "agent", "read:new.txt", "--issue", "7", "--working-dir", str(project)]
        done = fork_server().run([*words, "--json", "--server", task_server.server.url], env=worker.env)
        task_server.until_task(json.loads(done.stdout)["id"], "completed")
        assert worker.jobs()[-1]["cwd"] == str(project)
    assert (project / "new.txt").exists()


def test_a_task_whose_folder_is_in_use_says_that_it_waits_for_it(tmp_path: Path) -> None:
    below = tmp_path / "project" / "part"
    below.mkdir(parents=True)
    task_server = TaskServer(tmp_path)
    with task_server.server:
        options = ("--allow-dir", str(below.parent), "--slots", "2")
        with LiveWorker(tmp_path / "w", task_server.server.url, *options) as worker:
            task_server.bind()
            gate = tmp_path / "gate"
            first = task_server.session(working_dir=str(below.parent))
            running = task_server.begin(first, f"until:{gate} write:part/a.txt=1")
            worker.until_job()
            waiting = task_server.begin(task_server.session(working_dir=str(below)), "read:a.txt say:x")
            until(lambda: f"another task works in {below}" in task_server.task(waiting)["why"])
            assert len(worker.jobs()) == 1
            gate.touch()
            task_server.until_task(running, "completed")
            task_server.until_task(waiting, "completed")
            assert len(worker.jobs()) == 2


def test_what_a_kind_cannot_enforce_is_refused_before_it_is_queued(
    task_server: TaskServer, worker: LiveWorker
) -> None:
    assert task_server.runtimes()[0]["enforces"] == "none"
    session = task_server.session(safety="balanced")
    with pytest.raises(urllib.error.HTTPError) as refused:
        task_server.begin(session, "say:hello")
    with refused.value as answer:
        assert answer.code == 422
        assert "cannot enforce the safety mode balanced" in answer.read().decode()
    assert task_server.call("GET", f"/api/tasks?session={session}") == []
    assert task_server.turn(task_server.session(), "say:hello")["messages"][-1]["content"] == "hello"


# --- kill -9 ------------------------------------------------------------------------------------------------


def test_a_worker_killed_before_its_run_started_loses_nothing(
    task_server: TaskServer, worker: LiveWorker
) -> None:
    session = task_server.session()
    task_server.turn(session, "say:one")
    worker.send(signal.SIGSTOP)  # its long poll gets the claim, and it does not read it
    task = task_server.begin(session, "say:two")
    task_server.until_task(task, "claimed")
    worker.kill()
    worker.start()
    task_server.end_leases()
    task_server.until_task(task, "completed")
    assert task_server.history(session)[-1] == ("assistant", "two")
    assert len(worker.jobs()) == 2


def test_a_worker_killed_in_mid_run_is_replaced_by_its_next_process(
    task_server: TaskServer, worker: LiveWorker, tmp_path: Path
) -> None:
    session, gate = task_server.session(), tmp_path / "gate"
    task = task_server.begin(session, f"say:hello until:{gate}")
    first = worker.until_job()["pid"]
    worker.kill()
    worker.start()
    task_server.end_leases()
    worker.until_job(2)
    assert not is_alive(first), "two CLIs would work in one directory"
    gate.touch()
    task_server.until_task(task, "completed")
    assert task_server.history(session)[1:] == [("assistant", "hello")]
    assert task_server.attempts(session).count("committed") == 1


def test_a_result_that_was_not_reported_survives_both_deaths(
    task_server: TaskServer, worker: LiveWorker, tmp_path: Path
) -> None:
    session, gate = task_server.session(), tmp_path / "gate"
    task = task_server.begin(session, f"until:{gate} say:result")
    worker.until_job()
    task_server.server.kill()
    gate.touch()
    until(lambda: len(worker.outbox()) == 2)  # the snapshot and the result
    kept = tmp_path / "kept"
    shutil.copytree(worker.root / "outbox", kept)
    worker.kill()
    task_server.server.start()
    worker.start()
    task_server.until_task(task, "completed")
    until(lambda: not worker.outbox())
    before = task_server.history(session)
    # Killed after the report was delivered and before it was removed: it is sent a second time.
    worker.kill()
    for file in kept.glob("*.report"):
        shutil.copy(file, worker.root / "outbox")
    worker.start()
    until(lambda: not worker.outbox())
    assert (
        task_server.history(session)
        == before
        == [("user", f"until:{gate} say:result"), ("assistant", "result")]
    )
    assert task_server.attempts(session) == ["committed"]
    assert len(worker.jobs()) == 1


def test_a_server_killed_in_mid_run_finds_the_run_again(
    task_server: TaskServer, worker: LiveWorker, tmp_path: Path
) -> None:
    session, gate = task_server.session(), tmp_path / "gate"
    task = task_server.begin(session, f"say:one until:{gate} say:two")
    worker.until_job()
    task_server.server.restart()
    gate.touch()
    task_server.until_task(task, "completed")
    assert task_server.history(session)[-1] == ("assistant", "one two")
    assert len(worker.jobs()) == 1


def test_a_server_killed_before_the_run_started_costs_nothing(
    task_server: TaskServer, worker: LiveWorker
) -> None:
    session = task_server.session()
    task_server.turn(session, "say:one")
    worker.send(signal.SIGSTOP)
    task = task_server.begin(session, "say:two")
    task_server.until_task(task, "claimed")
    task_server.server.kill()
    worker.send(signal.SIGCONT)
    task_server.server.start()
    until(lambda: task_server.task(task)["status"] in ("completed", "claimed", "queued"))
    task_server.end_leases()
    task_server.until_task(task, "completed")
    assert [text for role, text in task_server.history(session) if role == "assistant"] == ["one", "two"]


# --- two of the same, cancels and tokens --------------------------------------------------------------------


def test_two_workers_with_one_identity_commit_a_turn_once(
    task_server: TaskServer, worker: LiveWorker, tmp_path: Path
) -> None:
    session, gate = task_server.session(), tmp_path / "gate"
    task = task_server.begin(session, f"say:hello until:{gate} say:end")
    first = worker.until_job()["pid"]
    worker.send(signal.SIGSTOP)
    (tmp_path / "twin").mkdir()
    twin = LiveWorker(tmp_path / "twin", task_server.server.url)
    twin.root.mkdir()
    shutil.copy(worker.root / "worker.json", twin.root)
    with twin:
        twin.until_logged("registered")
        task_server.end_leases()
        twin.until_job()
        gate.touch()
        task_server.until_task(task, "completed")
        worker.send(signal.SIGCONT)
        assert worker.wait() == 1
        assert "taken over" in worker.log
        assert not is_alive(first)
        assert task_server.history(session)[1:] == [("assistant", "hello end")]
        assert task_server.attempts(session).count("committed") == 1
        assert len(task_server.runtimes()) == 1


def test_a_cancel_does_not_wait_for_the_worker_and_reaches_it(
    task_server: TaskServer, worker: LiveWorker, tmp_path: Path
) -> None:
    session = task_server.session()
    task = task_server.begin(session, f"say:hello tick:{tmp_path / 'never'}")
    pid = worker.until_job()["pid"]
    task_server.call("POST", f"/api/tasks/{task}/cancel")
    assert task_server.task(task)["status"] == "cancelled"
    until(lambda: not is_alive(pid))
    until(lambda: bool(task_server.task(task).get("cancel_acknowledged")))
    until(lambda: not worker.outbox())
    assert task_server.history(session) == []


def test_a_cancel_that_reaches_a_report_before_the_heartbeat_is_acknowledged(
    task_server: TaskServer, worker: LiveWorker
) -> None:
    session = task_server.session()
    task = task_server.begin(session, "polite repeat")  # reports all the time; a heartbeat is every 15 s
    worker.until_job()
    task_server.call("POST", f"/api/tasks/{task}/cancel")
    until(lambda: bool(task_server.task(task).get("cancel_acknowledged")))
    assert "ended politely" in worker.notes(), "a CLI that is killed loses what it was writing"
    assert task_server.history(session) == []


def test_a_revoked_token_ends_the_run_and_keeps_its_report(tmp_path: Path) -> None:
    token_file = tmp_path / "admin"
    token_file.write_text("an-admin-token-for-this-test\n")
    task_server = TaskServer(tmp_path, "--token-file", str(token_file), token="an-admin-token-for-this-test")
    with task_server.server:
        code = task_server.call("POST", "/api/enrollments", {})["code"]
        worker = LiveWorker(tmp_path / "worker", task_server.server.url)
        enroll = ["worker", "enroll", "--server", task_server.server.url, "--root", str(worker.root), code]
        done = fork_server().run(enroll, env=worker.env)
        assert (done.returncode, "enrolled as" in done.stdout) == (0, True), done.stderr
        assert (worker.root / "token").stat().st_mode & 0o777 == 0o600
        again = fork_server().run(enroll, env=worker.env)
        assert again.returncode == 1
        with worker:
            task_server.bind()
            session = task_server.session()
            task = task_server.begin(session, f"say:hello tick:{tmp_path / 'never'}")
            pid = worker.until_job()["pid"]
            seen = worker.jobs()[0]["env"]
            assert "lg_" not in repr(seen)
            mine = ["tasks", "show", seen["LASTGOOD_TASK"], "--json", "--server", seen["LASTGOOD_SERVER"]]
            shown = fork_server().run(mine, env=worker.env | {"LASTGOOD_TOKEN": seen["LASTGOOD_TOKEN"]})
            assert json.loads(shown.stdout)["task"]["id"] == task, shown.stderr
            found = [one for one in task_server.call("GET", "/api/tokens") if one.get("worker_id")]
            task_server.call("DELETE", f"/api/tokens/{found[0]['id']}")
            assert worker.wait() == 1
            assert not is_alive(pid)
            assert worker.outbox()
            assert "lastgood worker enroll" in worker.log
        assert task_server.task(task)["status"] == "running"
        assert task_server.history(session) == []


# --- a company's network ------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["--ca-file", "SSL_CERT_FILE"])
def test_a_worker_behind_an_authenticated_proxy_and_a_private_ca(tmp_path: Path, how: str) -> None:
    task_server = TaskServer(tmp_path, "--public-url", CompanyNetwork.url)
    with task_server.server, CompanyNetwork(tmp_path, task_server.server.port, "me", "p@ss word") as network:
        proxy = f"http://me:p%40ss%20word@127.0.0.1:{network.proxy_port}"
        env = {"HTTPS_PROXY": proxy, "NO_PROXY": "", "no_proxy": ""}
        options = ("--ca-file", str(network.ca_file)) if how == "--ca-file" else ()
        env |= {} if options else {"SSL_CERT_FILE": str(network.ca_file)}
        with LiveWorker(tmp_path / "worker", network.url, *options, env=env) as worker:
            task_server.bind()
            turn = task_server.turn(task_server.session(), "env:HTTPS_PROXY say:through")
            assert turn["messages"][-1]["content"].endswith("through")
            assert "p%40ss" not in turn["messages"][-1]["content"]
            seen = worker.jobs()[0]["env"]
            assert seen["HTTPS_PROXY"] == proxy
            assert network.ca_file.read_text() in Path(seen["SSL_CERT_FILE"]).read_text()
        assert network.tunnels > 0
        assert network.refused == 0


def test_a_wrong_proxy_password_is_said_and_retried(tmp_path: Path) -> None:
    task_server = TaskServer(tmp_path)
    with task_server.server, CompanyNetwork(tmp_path, task_server.server.port, "me", "right") as network:
        env = {
            "HTTPS_PROXY": f"http://me:wrong@127.0.0.1:{network.proxy_port}",
            "NO_PROXY": "",
            "no_proxy": "",
        }
        with LiveWorker(tmp_path / "w", network.url, "--ca-file", str(network.ca_file), env=env) as worker:
            worker.until_logged("the proxy refused to connect")
            assert "wrong" not in worker.log
            assert worker.stop() == 0

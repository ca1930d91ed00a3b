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
from tests.e2e.office import Office
from tests.e2e.tls_proxy import CompanyNetwork
from tests.forkserver import fork_server
from tests.worker.live_worker import LiveWorker, is_alive


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    office = Office(tmp_path)
    with office.server:
        yield office


@pytest.fixture
def worker(office: Office, tmp_path: Path) -> Iterator[LiveWorker]:
    with LiveWorker(tmp_path / "worker", office.server.url) as worker:
        office.bind()
        yield worker


def test_three_turns_resume_one_native_session_and_one_directory(office: Office, worker: LiveWorker) -> None:
    session = office.session()
    for number in (1, 2, 3):
        turn = office.turn(session, f"write:log.txt={number} read:log.txt")
    assert turn["messages"][-1]["content"] == "1\n2\n3"
    assert turn["decision"]["resume"]["decision"] == "native"
    assert turn["usage"] == {"input_tokens": 3, "output_tokens": 5, "cost": 0.25}
    jobs = worker.jobs()
    assert jobs[0]["session"] is None
    assert jobs[1]["session"] == jobs[2]["session"] is not None
    assert len({job["cwd"] for job in jobs}) == 1


def test_a_session_moves_to_another_machine_with_its_files_and_back(
    office: Office, worker: LiveWorker, tmp_path: Path
) -> None:
    session = office.session()
    office.turn(session, "write:a.txt=one")
    with LiveWorker(tmp_path / "other", office.server.url) as other:
        until(lambda: len(office.runtimes()) == 2)
        first, second = (one["id"] for one in office.runtimes())
        office.call("PATCH", f"/api/sessions/{session}/runtime", {"runtime_id": second})
        moved = office.turn(session, "read:a.txt write:a.txt=two")
        assert moved["messages"][-1]["content"] == "one"
        assert moved["decision"]["resume"]["decision"] == "replay"
        assert [one["content"] for one in other.jobs()[0]["transcript"]] == ["write:a.txt=one", "ok"]
        office.call("PATCH", f"/api/sessions/{session}/runtime", {"runtime_id": first})
        back = office.turn(session, "say:back")
    assert back["decision"]["resume"]["decision"] == "native"
    assert [one["content"] for one in worker.jobs()[1]["catch_up"]] == ["read:a.txt write:a.txt=two", "one"]


def test_a_project_folder_of_the_owner_is_used_if_it_is_allowed(tmp_path: Path) -> None:
    project = tmp_path / "projects" / "mine"
    project.mkdir(parents=True)
    (project / "mine.txt").write_text("mine")
    (tmp_path / "on-the-server").mkdir()
    office = Office(tmp_path, "--working-dir-root", str(tmp_path / "on-the-server"))
    with office.server, LiveWorker(tmp_path / "w", office.server.url, "--allow-dir", str(project)) as worker:
        office.bind()
        turn = office.turn(office.session(working_dir=str(project)), "read:mine.txt write:new.txt=1")
        assert turn["messages"][-1]["content"] == "mine"
        (tmp_path / "projects" / "other").mkdir()
        session = office.session(working_dir=str(tmp_path / "projects" / "other"))
        task = office.until_task(office.begin(session, "say:hello"), "failed")
        assert "--allow-dir" in task["error"]["message"]
        assert len(worker.jobs()) == 1
        words = ["tasks", "add", "agent", "read:new.txt", "--issue", "7", "--working-dir", str(project)]
        done = fork_server().run([*words, "--json", "--server", office.server.url], env=worker.env)
        office.until_task(json.loads(done.stdout)["id"], "completed")
        assert worker.jobs()[-1]["cwd"] == str(project)
    assert (project / "new.txt").exists()


def test_what_a_kind_cannot_enforce_is_refused_before_it_is_queued(
    office: Office, worker: LiveWorker
) -> None:
    assert office.runtimes()[0]["enforces"] == "none"
    session = office.session(safety="balanced")
    with pytest.raises(urllib.error.HTTPError) as refused:
        office.begin(session, "say:hello")
    with refused.value as answer:
        assert answer.code == 422
        assert "cannot enforce the safety mode balanced" in answer.read().decode()
    assert office.call("GET", f"/api/tasks?session={session}") == []
    assert office.turn(office.session(), "say:hello")["messages"][-1]["content"] == "hello"


# --- kill -9 ------------------------------------------------------------------------------------------------


def test_a_worker_killed_before_its_run_started_loses_nothing(office: Office, worker: LiveWorker) -> None:
    session = office.session()
    office.turn(session, "say:one")
    worker.send(signal.SIGSTOP)  # its long poll gets the claim, and it does not read it
    task = office.begin(session, "say:two")
    office.until_task(task, "claimed")
    worker.kill()
    worker.start()
    office.end_leases()
    office.until_task(task, "completed")
    assert office.history(session)[-1] == ("assistant", "two")
    assert len(worker.jobs()) == 2


def test_a_worker_killed_in_mid_run_is_replaced_by_its_next_process(
    office: Office, worker: LiveWorker, tmp_path: Path
) -> None:
    session, gate = office.session(), tmp_path / "gate"
    task = office.begin(session, f"say:hello until:{gate}")
    first = worker.until_job()["pid"]
    worker.kill()
    worker.start()
    office.end_leases()
    worker.until_job(2)
    assert not is_alive(first), "two CLIs would work in one directory"
    gate.touch()
    office.until_task(task, "completed")
    assert office.history(session)[1:] == [("assistant", "hello")]
    assert office.attempts(session).count("committed") == 1


def test_a_result_that_was_not_reported_survives_both_deaths(
    office: Office, worker: LiveWorker, tmp_path: Path
) -> None:
    session, gate = office.session(), tmp_path / "gate"
    task = office.begin(session, f"until:{gate} say:result")
    worker.until_job()
    office.server.kill()
    gate.touch()
    until(lambda: len(worker.outbox()) == 2)  # the snapshot and the result
    kept = tmp_path / "kept"
    shutil.copytree(worker.root / "outbox", kept)
    worker.kill()
    office.server.start()
    worker.start()
    office.until_task(task, "completed")
    until(lambda: not worker.outbox())
    before = office.history(session)
    # Killed after the report was delivered and before it was removed: it is sent a second time.
    worker.kill()
    for file in kept.glob("*.report"):
        shutil.copy(file, worker.root / "outbox")
    worker.start()
    until(lambda: not worker.outbox())
    assert (
        office.history(session) == before == [("user", f"until:{gate} say:result"), ("assistant", "result")]
    )
    assert office.attempts(session) == ["committed"]
    assert len(worker.jobs()) == 1


def test_a_server_killed_in_mid_run_finds_the_run_again(
    office: Office, worker: LiveWorker, tmp_path: Path
) -> None:
    session, gate = office.session(), tmp_path / "gate"
    task = office.begin(session, f"say:one until:{gate} say:two")
    worker.until_job()
    office.server.restart()
    gate.touch()
    office.until_task(task, "completed")
    assert office.history(session)[-1] == ("assistant", "one two")
    assert len(worker.jobs()) == 1


def test_a_server_killed_before_the_run_started_costs_nothing(office: Office, worker: LiveWorker) -> None:
    session = office.session()
    office.turn(session, "say:one")
    worker.send(signal.SIGSTOP)
    task = office.begin(session, "say:two")
    office.until_task(task, "claimed")
    office.server.kill()
    worker.send(signal.SIGCONT)
    office.server.start()
    until(lambda: office.task(task)["status"] in ("completed", "claimed", "queued"))
    office.end_leases()
    office.until_task(task, "completed")
    assert [text for role, text in office.history(session) if role == "assistant"] == ["one", "two"]


# --- two of the same, cancels and tokens --------------------------------------------------------------------


def test_two_workers_with_one_identity_commit_a_turn_once(
    office: Office, worker: LiveWorker, tmp_path: Path
) -> None:
    session, gate = office.session(), tmp_path / "gate"
    task = office.begin(session, f"say:hello until:{gate} say:end")
    first = worker.until_job()["pid"]
    worker.send(signal.SIGSTOP)
    (tmp_path / "twin").mkdir()
    twin = LiveWorker(tmp_path / "twin", office.server.url)
    twin.root.mkdir()
    shutil.copy(worker.root / "worker.json", twin.root)
    with twin:
        twin.until_logged("registered")
        office.end_leases()
        twin.until_job()
        gate.touch()
        office.until_task(task, "completed")
        worker.send(signal.SIGCONT)
        assert worker.wait() == 1
        assert "taken over" in worker.log
        assert not is_alive(first)
        assert office.history(session)[1:] == [("assistant", "hello end")]
        assert office.attempts(session).count("committed") == 1
        assert len(office.runtimes()) == 1


def test_a_cancel_does_not_wait_for_the_worker_and_reaches_it(
    office: Office, worker: LiveWorker, tmp_path: Path
) -> None:
    session = office.session()
    task = office.begin(session, f"say:hello tick:{tmp_path / 'never'}")
    pid = worker.until_job()["pid"]
    office.call("POST", f"/api/tasks/{task}/cancel")
    assert office.task(task)["status"] == "cancelled"
    until(lambda: not is_alive(pid))
    until(lambda: not worker.outbox())
    assert office.history(session) == []


def test_a_revoked_token_ends_the_run_and_keeps_its_report(tmp_path: Path) -> None:
    token_file = tmp_path / "admin"
    token_file.write_text("an-admin-token-for-this-test\n")
    office = Office(tmp_path, "--token-file", str(token_file), token="an-admin-token-for-this-test")
    with office.server:
        code = office.call("POST", "/api/enrollments", {})["code"]
        worker = LiveWorker(tmp_path / "worker", office.server.url)
        enroll = ["worker", "enroll", "--server", office.server.url, "--root", str(worker.root), code]
        done = fork_server().run(enroll, env=worker.env)
        assert (done.returncode, "enrolled as" in done.stdout) == (0, True), done.stderr
        assert (worker.root / "token").stat().st_mode & 0o777 == 0o600
        again = fork_server().run(enroll, env=worker.env)
        assert again.returncode == 1
        with worker:
            office.bind()
            session = office.session()
            task = office.begin(session, f"say:hello tick:{tmp_path / 'never'}")
            pid = worker.until_job()["pid"]
            assert "lg_" not in repr(worker.jobs()[0]["env"])
            found = [one for one in office.call("GET", "/api/tokens") if one.get("worker_id")]
            office.call("DELETE", f"/api/tokens/{found[0]['id']}")
            assert worker.wait() == 1
            assert not is_alive(pid)
            assert worker.outbox()
            assert "lastgood worker enroll" in worker.log
        assert office.task(task)["status"] == "running"
        assert office.history(session) == []


# --- a company's network ------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["--ca-file", "SSL_CERT_FILE"])
def test_a_worker_behind_an_authenticated_proxy_and_a_private_ca(tmp_path: Path, how: str) -> None:
    office = Office(tmp_path, "--public-url", CompanyNetwork.url)
    with office.server, CompanyNetwork(tmp_path, office.server.port, "me", "p@ss word") as network:
        proxy = f"http://me:p%40ss%20word@127.0.0.1:{network.proxy_port}"
        env = {"HTTPS_PROXY": proxy, "NO_PROXY": "", "no_proxy": ""}
        options = ("--ca-file", str(network.ca_file)) if how == "--ca-file" else ()
        env |= {} if options else {"SSL_CERT_FILE": str(network.ca_file)}
        with LiveWorker(tmp_path / "worker", network.url, *options, env=env) as worker:
            office.bind()
            turn = office.turn(office.session(), "env:HTTPS_PROXY say:through")
            assert turn["messages"][-1]["content"].endswith("through")
            assert "p%40ss" not in turn["messages"][-1]["content"]
            seen = worker.jobs()[0]["env"]
            assert seen["HTTPS_PROXY"] == proxy
            assert network.ca_file.read_text() in Path(seen["SSL_CERT_FILE"]).read_text()
        assert network.tunnels > 0
        assert network.refused == 0


def test_a_wrong_proxy_password_is_said_and_retried(tmp_path: Path) -> None:
    office = Office(tmp_path)
    with office.server, CompanyNetwork(tmp_path, office.server.port, "me", "right") as network:
        env = {
            "HTTPS_PROXY": f"http://me:wrong@127.0.0.1:{network.proxy_port}",
            "NO_PROXY": "",
            "no_proxy": "",
        }
        with LiveWorker(tmp_path / "w", network.url, "--ca-file", str(network.ca_file), env=env) as worker:
            worker.until_logged("the proxy refused to connect")
            assert "wrong" not in worker.log
            assert worker.stop() == 0

"""Background jobs on a real server: they outlive the turn, and nothing outlives the session or the server."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.api import Api
from tests.e2e.command import until
from tests.e2e.server import LiveServer

pytestmark = pytest.mark.slow


def agent(**more: Any) -> dict[str, Any]:
    root = {"model": "builtin/scripted", "toolsets": [{"type": "background_jobs", "env": {"WORD": "hi"}}]}
    return {"agents": {"root": root}, **more}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("jobs")
    (folder / "jobs.yaml").write_text(yaml.safe_dump(agent()))
    rules = {"deny": ["run_background_job:cmd=rm *"]}
    (folder / "ruled.yaml").write_text(yaml.safe_dump(agent(permissions=rules)))
    options = ("--safety", "autonomous")
    files = [str(folder / name) for name in ("jobs.yaml", "ruled.yaml")]
    with LiveServer(folder, *files, options=options, env={"CANARY": "canary-77"}) as started:
        yield started


@pytest.fixture
def api(server: LiveServer) -> Api:
    return Api(server)


def result(api: Api, session: str, tool: str, **arguments: Any) -> str:
    turn = api.good(session, f"!tool {tool} {json.dumps(arguments)}\n!say done")
    return str([one["content"] for one in turn["messages"] if one["role"] == "tool"][-1])


def start(api: Api, session: str, cmd: str) -> str:
    started = result(api, session, "run_background_job", cmd=cmd)
    found = re.match(r"Background job started with ID: (job_\w+)\n", started)
    assert found is not None, started
    return found[1]


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def process_of(path: Path) -> int:
    until(lambda: path.exists() and path.read_text().endswith("\n"))
    return int(path.read_text())


def test_a_job_runs_on_after_its_turn_and_is_seen_waited_for_and_stopped(api: Api, tmp_path: Path) -> None:
    session = api.session("jobs")
    gate, log = tmp_path / "gate", tmp_path / "pid"
    waits = f"while [ ! -e {gate} ]; do sleep 0.02; done"
    cmd = f'echo "$WORD $CANARY."; echo $$ > {log}; {waits}; echo end; exit 3'
    job = start(api, session, cmd)
    assert is_alive(process_of(log))
    until(lambda: "hi ." in result(api, session, "view_background_job", job_id=job))
    assert f"Job {job} (running)" in result(api, session, "list_background_jobs")
    gate.touch()
    waited = result(api, session, "wait_background_job", job_id=job)
    assert f"Job {job} (done: exit status 3)" in waited
    assert waited.endswith("hi .\nend")
    assert "canary" not in waited
    again = result(api, session, "wait_background_job", job_id=job)
    assert again == waited

    other = start(api, session, f"echo $$ > {log}.2; sleep 1000")
    process = process_of(Path(f"{log}.2"))
    assert "(stopped)" in result(api, session, "stop_background_job", job_id=other)
    assert not is_alive(process)
    assert "the job is not running" in result(api, session, "stop_background_job", job_id=other)
    assert "still runs after 1 s" in result(
        api, session, "wait_background_job", job_id=start(api, session, "sleep 1000"), timeout=1
    )
    assert "there is no job 'job_x'" in result(api, session, "view_background_job", job_id="job_x")


def test_jobs_of_other_sessions_are_unknown(api: Api) -> None:
    job = start(api, api.session("jobs"), "sleep 1000")
    other = api.session("jobs")
    assert "there is no job" in result(api, other, "view_background_job", job_id=job)
    assert result(api, other, "list_background_jobs") == "No background jobs."


def test_I15_deleting_the_session_ends_its_jobs(api: Api, tmp_path: Path) -> None:
    session = api.session("jobs")
    start(api, session, f"echo $$ > {tmp_path}/pid; sleep 1000 & wait")
    process = process_of(tmp_path / "pid")
    assert api.delete(f"/api/sessions/{session}").status == 200
    until(lambda: not is_alive(process))


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_job_ends_with_the_server_and_the_model_is_told_that_it_is_gone(
    server: LiveServer, api: Api, tmp_path: Path, how: str
) -> None:
    session = api.session("jobs")
    job = start(api, session, f"echo $$ > {tmp_path}/pid; sleep 1000")
    process = process_of(tmp_path / "pid")
    server.kill() if how == "kill" else server.stop()
    until(lambda: not is_alive(process))
    server.start()
    for tool in ("view_background_job", "wait_background_job", "stop_background_job"):
        assert "the job is gone: jobs end when the server restarts" in result(api, session, tool, job_id=job)
    listed = result(api, session, "list_background_jobs")
    assert f"Job {job} (gone)\nCommand: echo" in listed
    assert "Its output is lost" in listed


def test_a_rule_for_commands_holds_for_jobs(api: Api) -> None:
    session = api.session("ruled")
    for cmd in ("rm -r x", "cd x; sudo rm y"):
        assert "run_background_job is not allowed" in result(api, session, "run_background_job", cmd=cmd)
    assert start(api, session, "true")


def test_I40_a_session_runs_so_many_jobs_and_keeps_a_part_of_their_output(api: Api) -> None:
    session = api.session("jobs")
    big = start(api, session, "yes 0123456789abcdef | head -c 5000000")
    waited = result(api, session, "wait_background_job", job_id=big)
    assert len(waited) < 400_000
    for _ in range(10):
        start(api, session, "sleep 1000")
    refused = result(api, session, "run_background_job", cmd="sleep 1000")
    assert "10 jobs of this session run, which is the limit" in refused


def test_a_job_needs_approval_as_a_command_does(tmp_path: Path) -> None:
    (tmp_path / "jobs.yaml").write_text(yaml.safe_dump(agent()))
    with LiveServer(tmp_path, str(tmp_path / "jobs.yaml"), options=("--safety", "balanced")) as server:
        api = Api(server)
        session = api.session("jobs")
        api.begun(
            session, f'!tool run_background_job {{"cmd": "echo $$ > {tmp_path}/pid; sleep 1000"}}\n!say ok'
        )
        until(lambda: api.get(f"/api/sessions/{session}/pending"))
        assert not (tmp_path / "pid").exists()
        assert api.post(f"/api/sessions/{session}/resume", {"confirmation": "approve"}).status == 200
        process = process_of(tmp_path / "pid")
        assert is_alive(process)
        assert server.stop() == 0
        until(lambda: not is_alive(process))
        assert os.path.exists(tmp_path / "pid")

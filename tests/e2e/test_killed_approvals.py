"""An approval and kill -9 at random instants: from the answer to the tool's result and the commit."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.api import Api
from tests.e2e.command import until
from tests.e2e.server import LiveServer
from tests.e2e.test_approvals import asked, resume, write_agent

pytestmark = pytest.mark.slow

KILLS = 8
SEED = 7
#: The call takes a tenth of a second.
LATEST_KILL_SECONDS = 0.35


def test_I33_an_approved_call_runs_at_most_once_whenever_the_server_is_killed(tmp_path: Path) -> None:
    """And never without an approval on record. A call that may have run is not repeated."""
    dice = random.Random(SEED)
    agent = write_agent(tmp_path)
    with (
        LiveServer(tmp_path, agent, options=("--safety", "balanced")) as server,
        ThreadPoolExecutor(1) as pool,
    ):
        for number in range(KILLS):
            api, out = Api(server), tmp_path / f"out{number}"
            session = api.session("shelly")
            call = f'!tool shell {{"cmd": "echo x >> {out}; sleep 0.1"}}\n!say done'
            question = asked(api, session, call)
            answering = pool.submit(_answer, api, session, question["id"])
            time.sleep(dice.random() * LATEST_KILL_SECONDS)  # real time: a random moment
            server.restart()
            answering.result()
            _judge(Api(server), session, out)


def _answer(api: Api, session: str, question: str) -> None:
    with suppress(OSError, HTTPException):  # the server was killed
        resume(api, session, "approve", question=question)


def _judge(api: Api, session: str, out: Path) -> None:
    until(lambda: api.brief(session)["status"] != "running")
    runs = out.read_text().count("x\n") if out.exists() else 0
    decisions = [record["detail"]["decision"] for record in api.get(f"/api/audit?subject={session}")]
    effects: list[dict[str, Any]] = api.get(f"/api/sessions/{session}/effects")
    if api.brief(session)["status"] == "waiting":  # the kill came before the answer
        assert (runs, decisions) == (0, [])
        assert resume(api, session, "approve") == 200
        until(lambda: api.brief(session)["status"] == "idle")
        assert out.read_text() == "x\n"
        return
    assert decisions == ["approve"]
    assert runs <= 1
    assert {one["outcome"] for one in effects} <= {"done", "unknown"}
    assert runs == 1 or "done" not in {one["outcome"] for one in effects}

"""What `lastgood serve` says of itself: its banner, its log, and why it does not start."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.api import while_it_is_down
from tests.e2e.command import Command
from tests.e2e.hand_worker import HandWorker
from tests.e2e.task_server import TaskServer
from tests.e2e.wire import Served, wire_to

pytestmark = pytest.mark.anyio


def _logged(server: Served, message: str) -> list[dict[str, Any]]:
    """Of all its processes: each begins with a greeting."""
    lines = [line for line in server.stderr.read_text().splitlines() if line.startswith("{")]
    return [one for one in map(json.loads, lines) if one["message"].startswith(message)]


def _lines(log: Path) -> list[dict[str, Any]]:
    """Of one process: each begins its file anew."""
    return [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]


async def test_every_failed_turn_is_logged_with_its_code_session_turn_and_attempt(tmp_path: Path) -> None:
    with Served(tmp_path) as server:
        async with wire_to(server) as wire:
            await wire.say("one\n!fail during", x_conversation_id="c1")
            await wire.follow("two\n!fail during", x_conversation_id="c1")
            await wire.say("three\n!fail before")
        assert server.stop() == 0
        failed = _logged(server, "turn not committed")
        assert [(one["code"], one["status"], one["level"]) for one in failed] == [
            ("model_error", "failed", "warning"),
            ("model_error", "failed", "warning"),
        ]
        for one in failed:
            assert one["session"].startswith("ses_")
            assert one["turn"].startswith("turn_")
            assert one["attempt"].startswith("att_")
        [alone] = _logged(server, "stateless turn failed")
        assert alone["code"] == "model_error"
        assert [one["code"] for one in server.requests() if one["status"] == 500] == ["model_error"] * 2
        streamed = [one for one in server.requests() if one["status"] == 200]
        assert [(one["ended"], one["code"]) for one in streamed] == [("broken", "model_error")]


async def test_recovery_is_logged_with_what_it_ended(tmp_path: Path) -> None:
    with Served(tmp_path) as server:
        async with wire_to(server) as wire, wire.stream("one\n!slow 9", x_conversation_id="c1"):
            await asyncio.to_thread(server.until_seen, "one")
            server.kill()
        server.start()
        [ended] = _logged(server, "attempt ended by recovery: its process died")
        assert ended["session"].startswith("ses_")


def test_failures_and_takeovers_of_runtimes_are_logged(tmp_path: Path) -> None:
    task_server = TaskServer(tmp_path)
    with task_server.server as server:
        worker = HandWorker(server.url)
        task_server.bind()
        session = task_server.session()
        task_server.begin(session, "fails")
        failed = worker.claim()
        worker.report(failed, "fail", code="cli_protocol", error="secret words of a user")
        task_server.begin(task_server.session(), "is taken over")
        first = worker.claim()
        lines = _lines(server.stderr)
        with while_it_is_down(server) as database:
            database.execute("UPDATE tasks SET lease_until = 0 WHERE ended_at IS NULL")
        second = worker.claim()
        assert second["task"]["id"] == first["task"]["id"]
        lines += _lines(server.stderr)
    [end] = [one for one in lines if one["message"] == "turn not committed"]
    assert (end["code"], end["session"], end["task"]) == ("cli_protocol", session, failed["task"]["id"])
    assert end["attempt"] == failed["task"]["attempt"]
    [taken] = [one for one in lines if "claimed again" in one["message"]]
    assert (taken["takes_over"], taken["attempt"]) == (first["task"]["attempt"], second["task"]["attempt"])
    assert "secret words" not in str(lines)


def test_the_banner_says_whether_a_token_is_needed(tmp_path: Path) -> None:
    with Served(tmp_path) as server:
        text = server.stderr.read_text()
        assert re.search(r"authentication +off: .*`lastgood tokens create --scope admin` and restart", text)
        assert re.search(r"OpenAI-compatible API +http://127\.0\.0\.1:\d+/v1\n", text)
    env = {"MY_TOKEN": "0123456789abcdef"}
    with Served(tmp_path / "other", options=("--token-env", "MY_TOKEN"), env=env) as server:
        text = server.stderr.read_text()
        assert re.search(r"authentication +on: every request needs a token", text)
        assert re.search(r"console +http://127\.0\.0\.1:\d+/ \(sign in with a token\)\n", text)


def test_a_broken_file_that_was_named_stops_the_start_unless_it_was_good_before(
    tmp_path: Path,
) -> None:
    file = tmp_path / "team.yaml"
    file.write_text("agents: {root: {modle: builtin/scripted}}")
    refused = Command(tmp_path)("serve", str(file), "--listen", "127.0.0.1:0")
    assert refused.code == 1
    assert "cannot serve team" in refused.err
    assert "did you mean 'model'?" in refused.err
    file.write_text("agents: {root: {model: builtin/scripted}}")
    with Served(tmp_path / "server", str(file)) as server:
        server.stop()
        file.write_text("agents: {root: {modle: builtin/scripted}}")
        server.start()
        assert "using the last good definition" in server.stderr.read_text()

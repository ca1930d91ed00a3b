"""A real server whose loop is held: /metrics and the log say so."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from tests.e2e.command import until
from tests.e2e.server import LiveServer

pytestmark = pytest.mark.slow


def test_a_held_loop_is_measured_and_logged(tmp_path: Path) -> None:
    """A process that is stopped for a moment cannot tell that from a loop that is held."""
    with LiveServer(tmp_path) as server:
        before = server.metric("lastgood_event_loop_stalls_total")
        server.tell(signal.SIGSTOP)
        time.sleep(1)  # real time: the length of the stall
        server.tell(signal.SIGCONT)
        until(lambda: server.metric("lastgood_event_loop_stalls_total") > before)
        assert server.metric("lastgood_event_loop_lag_seconds") > 0.8
        logged = [json.loads(line) for line in server.stderr.read_text().splitlines() if line.startswith("{")]
        held = [line for line in logged if line["message"] == "event loop stalled"]
        assert max(line["seconds"] for line in held) > 0.8
        assert held[-1]["request_ids"] == []

"""The delivery of reports shares the event loop with heartbeats and with the watch over the lease."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from lastgood.worker.delivery import ReportSender
from lastgood.worker.outbox import Outbox
from lastgood.worker.server_calls import WorkServer
from tests.worker.work_api import WorkApi

pytestmark = pytest.mark.anyio


async def test_the_event_loop_runs_while_a_slow_disk_reads_a_report(tmp_path: Path, api: WorkApi) -> None:
    box = Outbox(tmp_path, 64 * 1024)
    report = box.put("task_1", "complete", {"claim_token": "c"})
    file = tmp_path / f"{report.id}.report"
    data = file.read_bytes()
    file.unlink()
    os.mkfifo(file)
    loop, ran, did_run = asyncio.get_running_loop(), threading.Event(), []

    def slow_disk() -> None:
        with file.open("wb") as opened:  # waits until somebody reads
            loop.call_soon_threadsafe(ran.set)
            did_run.append(ran.wait(10))
            opened.write(data)

    disk = threading.Thread(target=slow_disk)
    disk.start()
    server = WorkServer(api.url, "t")
    try:
        delivery = ReportSender(server, box, lambda: None)
        assert await delivery.deliver_all()
        assert delivery.live_claims() == {}
    finally:
        await server.close()
        await asyncio.to_thread(disk.join)
    assert did_run == [True]
    assert api.of("complete") == [{"claim_token": "c"}]

"""Serves a worker's metrics as text for Prometheus, on a socket that the caller has opened."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Iterator

from lastgood.worker.outbox import Outbox
from lastgood.worker.process import WorkerProcess

_REQUEST_SECONDS = 5.0


#: Name without its prefix, type and help of each metric.
METRICS = {
    "slots": ("gauge", "tasks that may run at once"),
    "tasks_running": ("gauge", "tasks that are running"),
    "tasks_claimed_total": ("counter", "tasks claimed since the start"),
    "queue_age_seconds": ("gauge", "how long the newest claimed task had waited in the queue"),
    "is_claiming": ("gauge", "1 if the worker claims tasks"),
    "heartbeat_age_seconds": ("gauge", "time since the last confirmed heartbeat; -1 if there was none"),
    "outbox_reports": ("gauge", "reports that wait for delivery"),
    "outbox_oldest_seconds": ("gauge", "age of the oldest report in the outbox"),
}
PREFIX = "lastgood_worker_"


def metrics_text(worker: WorkerProcess, outbox: Outbox, slots: int) -> str:
    beat = worker.last_heartbeat
    values: dict[str, float] = {
        "slots": slots,
        "tasks_running": len(worker.runs),
        "tasks_claimed_total": worker.claimed,
        "queue_age_seconds": round(worker.queue_age, 1),
        "is_claiming": int(not worker.why_not_claiming()),
        "heartbeat_age_seconds": -1 if beat is None else round(time.monotonic() - beat, 1),
        "outbox_reports": len(outbox),
        "outbox_oldest_seconds": round(outbox.oldest_seconds(), 1),
    }
    return "".join(_lines(values))


def _lines(values: dict[str, float]) -> Iterator[str]:
    for name, (kind, about) in METRICS.items():
        full = f"{PREFIX}{name}"
        yield f"# HELP {full} {about}\n# TYPE {full} {kind}\n{full} {values[name]}\n"


@contextlib.asynccontextmanager
async def serve_metrics(
    listener: socket.socket, worker: WorkerProcess, outbox: Outbox, slots: int
) -> AsyncIterator[None]:
    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(
            OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError
        ):
            request = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _REQUEST_SECONDS)
            is_found = request.split(b" ")[1:2] == [b"/metrics"]
            body = metrics_text(worker, outbox, slots).encode() if is_found else b"see /metrics\n"
            status = b"200 OK" if is_found else b"404 Not Found"
            head = b"HTTP/1.1 %b\r\nContent-Type: text/plain; version=0.0.4\r\n" % status
            writer.write(head + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(respond, sock=listener)
    async with server:
        yield

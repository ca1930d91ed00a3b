"""What a worker shows on a terminal: a line per event, and one line about now that is written over itself."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from typing import TextIO

from lastgood.cli.output import count, one_line
from lastgood.worker.outbox import Outbox
from lastgood.worker.process import WorkerProcess

_SECONDS = 1.0


class TerminalLog(logging.Handler):
    """Log lines for people. The status line gives way to them and comes back."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream

    def emit(self, record: logging.LogRecord) -> None:
        fields = getattr(record, "fields", {})
        about = "  ".join(f"{name}={value}" for name, value in fields.items() if value not in (None, ""))
        at = time.strftime("%H:%M:%S", time.localtime(record.created))
        self._stream.write(f"\r\x1b[K{at} {one_line(f'{record.getMessage()}  {about}')}\n")
        self._stream.flush()


async def show_status(worker: WorkerProcess, outbox: Outbox, slots: int, stream: TextIO) -> None:
    """Until it is cancelled."""
    try:
        while True:
            width = shutil.get_terminal_size().columns - 1
            stream.write(f"\r\x1b[K{one_line(status_line(worker, outbox, slots))[:width]}")
            stream.flush()
            await asyncio.sleep(_SECONDS)
    finally:
        stream.write("\r\x1b[K")
        stream.flush()


def status_line(worker: WorkerProcess, outbox: Outbox, slots: int) -> str:
    parts = [f"{len(worker.runs)} of {count(slots, 'slot')} busy"]
    now = time.monotonic()
    if worker.registered is None:
        parts.append("connecting")
    elif worker.last_heartbeat is not None and now - worker.last_heartbeat > 30:
        parts.append(f"no heartbeat for {now - worker.last_heartbeat:.0f} s")
    if why := worker.why_not_claiming():
        parts.append(f"not claiming: {why}")
    if waiting := len(outbox):
        parts.append(f"{count(waiting, 'report')} undelivered, oldest {outbox.oldest_seconds():.0f} s")
    for run in list(worker.runs.values())[:4]:
        state = "halted" if run.groups.halted else run.doing
        parts.append(f"{run.claim.agent or run.claim.key.task} {now - run.started_at:.0f} s: {state}")
    return " | ".join(parts)

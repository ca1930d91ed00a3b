"""Faults inside a process of `lastgood`: the test names one in a variable, and the fork server arms it.

They are of the machine, not of our code: the process dies at a point, or its disk is full.
"""

from __future__ import annotations

import errno
import functools
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

VARIABLE = "TESTS_SABOTAGE"


def arm(given: str) -> None:
    name, _, argument = given.partition("=")
    {"dies": _dies, "worker dies": _worker_dies, "full disk": _full_disk}[name](argument)


#: Where a server can die: the writes of a task's life.
WRITES = ("claim_tasks", "confirm_claim", "start_task", "commit_if_head", "finish_if_held")


def _dies(file: str) -> None:
    """kill -9 `before NAME` or `after NAME` of a write of the SQLite store, once the file says so."""
    from lastgood.store.sqlite.store import SqliteStore

    for name in WRITES:
        setattr(SqliteStore, name, _dying(name, getattr(SqliteStore, name), Path(file)))


def _dying(name: str, write: Callable[..., Awaitable[Any]], file: Path) -> Callable[..., Awaitable[Any]]:
    def die_if(when: str) -> None:
        if file.exists() and file.read_text() == f"{when} {name}":
            os.kill(os.getpid(), signal.SIGKILL)

    @functools.wraps(write)
    async def dying(*args: Any, **more: Any) -> Any:
        if name != "claim_tasks":  # most of these find nothing
            die_if("before")
        answer = await write(*args, **more)
        if answer:
            die_if("after")
        return answer

    return dying


def _worker_dies(file: str) -> None:
    """kill -9 `before CALL` or `after CALL` of storing that report in the outbox, once the file says so."""
    from lastgood.worker.outbox import Outbox, Report

    put = Outbox.put

    def dying(self: Outbox, task: str, call: str, body: dict[str, Any]) -> Report:
        wanted = Path(file).read_text() if Path(file).exists() else ""
        if wanted == f"before {call}":
            os.kill(os.getpid(), signal.SIGKILL)
        report = put(self, task, call, body)
        if wanted == f"after {call}":
            os.kill(os.getpid(), signal.SIGKILL)
        return report

    setattr(Outbox, "put", dying)  # noqa: B010


def _full_disk(folder: str) -> None:
    """The disk of the worker's root is full while the file `full` is in this folder: nothing can be written
    to it, unless its reserve was given up. While `fuller` is there, nothing can be written at all."""
    full, fuller = Path(folder) / "full", Path(folder) / "fuller"
    reserve = Path(folder) / "root" / "outbox" / "reserve"
    fsync, allocate = os.fsync, os.posix_fallocate

    def fsync_or_fail(fd: Any) -> None:
        if fuller.exists() or (full.exists() and reserve.exists()):
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(fd)

    def allocate_or_fail(file: int, start: int, size: int) -> None:
        if fuller.exists() or full.exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        allocate(file, start, size)

    os.fsync = fsync_or_fail
    os.posix_fallocate = allocate_or_fail

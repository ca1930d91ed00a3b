"""Reports that must reach the server, one file each, until the server has acknowledged them.

A report is on disk before its first try: a worker that is killed afterwards sends it when it starts again.
Space for reports is reserved in advance, because a full disk is when a result is easiest to lose.

Every heartbeat asks which claims have a report here, and a report may have 22 MB. So what is asked is kept in
memory, and stands at the start of each file; the rest is read only to be sent. Methods that read or write
whole reports belong into a thread.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

RESERVED_BYTES = 16 * 1024 * 1024
_SUFFIX = ".report"
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
#: A checksum and a few ids.
_HEAD_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class ReportHead:
    """What is known of a report without reading it. `call`: complete, fail or snapshot."""

    id: str  # sorts by time
    task: str
    call: str
    claim_token: str = ""

    @property
    def is_final(self) -> bool:
        return self.call != "snapshot"

    @property
    def created_at(self) -> float:
        return int(self.id.partition("-")[0]) / 1e9


@dataclass(frozen=True, slots=True)
class Report(ReportHead):
    body: dict[str, Any] = field(default_factory=dict)


class Outbox:
    def __init__(self, folder: Path, reserved_bytes: int = RESERVED_BYTES) -> None:
        self._folder = folder
        self._reserve = folder / "reserve"
        self._reserved_bytes = reserved_bytes
        self._lock = threading.Lock()  # runs put their reports from threads
        self._newest = 0
        self._waiting: dict[str, ReportHead] = {}
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for torn in folder.glob("*.tmp"):  # of a worker that was killed before the report counted
            torn.unlink()
        for file in folder.glob(f"*{_SUFFIX}"):
            if found := self._read_head(file):
                self._waiting[found.id] = found
        self.reserve()

    def put(self, task: str, call: str, body: dict[str, Any]) -> Report:
        """Returns when the report survives a crash. Raises OSError if the disk is full for snapshots, too."""
        report = Report(self._new_id(), task, call, str(body.get("claim_token", "")), body)
        try:
            self._write(report)
        except OSError as error:
            # The reserve is for what cannot be made again; a snapshot can be left out.
            if error.errno not in _NO_SPACE or not report.is_final:
                raise
            self._reserve.unlink(missing_ok=True)
            self._write(report)
        with self._lock:
            self._waiting[report.id] = ReportHead(report.id, task, call, report.claim_token)
        return report

    def waiting(self) -> list[ReportHead]:
        """Oldest first, from memory."""
        with self._lock:
            return [self._waiting[number] for number in sorted(self._waiting)]

    def read(self, waiting: ReportHead) -> Report | None:
        """None: it is damaged. It is set aside then: it must not stop the others, nor be deleted."""
        file = self._file(waiting)
        try:
            checksum, _, data = file.read_bytes().partition(b"\n")
            if hashlib.sha256(data).hexdigest().encode() == checksum:
                body = orjson.loads(data.partition(b"\n")[2])
                return Report(waiting.id, waiting.task, waiting.call, waiting.claim_token, body)
            self._set_aside_damaged(file)
        except FileNotFoundError:  # somebody has deleted it
            pass
        self._forget(waiting)
        return None

    def reports(self) -> Iterator[Report]:
        """Oldest first."""
        for waiting in self.waiting():
            if report := self.read(waiting):
                yield report

    def __len__(self) -> int:
        return len(self._waiting)

    def oldest_seconds(self) -> float:
        """The age of the oldest report; 0 if there is none."""
        waiting = self.waiting()
        return max(0.0, time.time() - waiting[0].created_at) if waiting else 0.0

    def damaged(self) -> list[Path]:
        return sorted(self._folder.glob("*.damaged"))

    def remove(self, waiting: ReportHead) -> None:
        self._file(waiting).unlink(missing_ok=True)
        self._forget(waiting)
        _sync(self._folder)
        self.reserve()

    def set_aside(self, waiting: ReportHead) -> Path:
        """Keeps a report that the server refused, for people."""
        kept = self._folder / f"{waiting.id}.refused"
        self._file(waiting).rename(kept)
        self._forget(waiting)
        return kept

    def reserve(self) -> bool:
        """Sets space aside for reports. Returns False if the disk is too full for that."""
        with contextlib.suppress(OSError):
            if self._reserve.stat().st_blocks * 512 >= self._reserved_bytes:
                return True
        descriptor = os.open(self._reserve, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            _allocate(descriptor, self._reserved_bytes)
        except OSError:
            self._reserve.unlink(missing_ok=True)
            return False
        finally:
            os.close(descriptor)
        return True

    def _file(self, waiting: ReportHead) -> Path:
        return self._folder / f"{waiting.id}{_SUFFIX}"

    def _forget(self, waiting: ReportHead) -> None:
        with self._lock:
            self._waiting.pop(waiting.id, None)

    def _new_id(self) -> str:
        with self._lock:
            self._newest = max(time.time_ns(), self._newest + 1)  # the wall clock may be set back
            return f"{self._newest:020d}-{secrets.token_hex(4)}"

    def _write(self, report: Report) -> None:
        head = {"task": report.task, "call": report.call, "claim_token": report.claim_token}
        data = orjson.dumps(head) + b"\n" + orjson.dumps(report.body)
        temporary = self._folder / f"{report.id}.tmp"
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(hashlib.sha256(data).hexdigest().encode() + b"\n" + data)
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(self._file(report))
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        _sync(self._folder)

    def _read_head(self, file: Path) -> ReportHead | None:
        """The rest is checked when it is read."""
        with file.open("rb") as opened:
            start = opened.read(_HEAD_BYTES)
        try:
            plain = orjson.loads(start.split(b"\n", 2)[1])
            number = file.name.removesuffix(_SUFFIX)
            return ReportHead(number, plain["task"], plain["call"], plain["claim_token"])
        except (IndexError, KeyError, TypeError, orjson.JSONDecodeError):
            self._set_aside_damaged(file)
            return None

    def _set_aside_damaged(self, file: Path) -> None:
        file.rename(file.with_suffix(".damaged"))


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _allocate(descriptor: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return
    chunk = b"\0" * (1 << 20)  # macOS has no such call
    for _ in range(0, size, len(chunk)):
        os.write(descriptor, chunk)

"""Reports that must reach the server, one file each, until the server has acknowledged them.

A report is on disk before its first try: a worker that is killed afterwards sends it when it starts again.
Space for reports is reserved in advance, because a full disk is when a result is easiest to lose.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

RESERVED_BYTES = 16 * 1024 * 1024
_SUFFIX = ".report"
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class Report:
    """`call` is the last part of the route: complete, fail or snapshot."""

    id: str  # sorts by time
    task: str
    call: str
    body: dict[str, Any]

    @property
    def is_final(self) -> bool:
        return self.call != "snapshot"

    @property
    def created_at(self) -> float:
        return int(self.id.partition("-")[0]) / 1e9


class Outbox:
    def __init__(self, folder: Path, reserved_bytes: int = RESERVED_BYTES) -> None:
        self._folder = folder
        self._reserve = folder / "reserve"
        self._reserved_bytes = reserved_bytes
        self._newest = 0
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for torn in folder.glob("*.tmp"):  # of a worker that was killed before the report counted
            torn.unlink()
        self.reserve()

    def put(self, task: str, call: str, body: dict[str, Any]) -> Report:
        """Returns when the report survives a crash. Raises OSError if the disk is full for snapshots, too."""
        report = Report(self._new_id(), task, call, body)
        try:
            self._write(report)
        except OSError as error:
            # The reserve is for what cannot be made again; a snapshot can be left out.
            if error.errno not in _NO_SPACE or not report.is_final:
                raise
            self._reserve.unlink(missing_ok=True)
            self._write(report)
        return report

    def reports(self) -> Iterator[Report]:
        """Oldest first. A damaged file is set aside: it must not stop the others, nor be deleted."""
        for file in sorted(self._folder.glob(f"*{_SUFFIX}")):
            if report := self._read(file):
                yield report

    def __len__(self) -> int:
        return sum(1 for _ in self._folder.glob(f"*{_SUFFIX}"))

    def oldest_seconds(self) -> float:
        """The age of the oldest report; 0 if there is none."""
        first = min((file.name for file in self._folder.glob(f"*{_SUFFIX}")), default=None)
        return 0.0 if first is None else max(0.0, time.time() - int(first.partition("-")[0]) / 1e9)

    def damaged(self) -> list[Path]:
        return sorted(self._folder.glob("*.damaged"))

    def remove(self, report: Report) -> None:
        (self._folder / f"{report.id}{_SUFFIX}").unlink(missing_ok=True)
        _sync(self._folder)
        self.reserve()

    def set_aside(self, report: Report) -> Path:
        """Keeps a report that the server refused, for people."""
        kept = self._folder / f"{report.id}.refused"
        (self._folder / f"{report.id}{_SUFFIX}").rename(kept)
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

    def _new_id(self) -> str:
        self._newest = max(time.time_ns(), self._newest + 1)  # the wall clock may be set back
        return f"{self._newest:020d}-{secrets.token_hex(4)}"

    def _write(self, report: Report) -> None:
        data = orjson.dumps({"task": report.task, "call": report.call, "body": report.body})
        temporary = self._folder / f"{report.id}.tmp"
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(hashlib.sha256(data).hexdigest().encode() + b"\n" + data)
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(self._folder / f"{report.id}{_SUFFIX}")
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        _sync(self._folder)

    def _read(self, file: Path) -> Report | None:
        checksum, _, data = file.read_bytes().partition(b"\n")
        if hashlib.sha256(data).hexdigest().encode() != checksum:
            file.rename(file.with_suffix(".damaged"))
            return None
        plain = orjson.loads(data)
        return Report(file.name.removesuffix(_SUFFIX), plain["task"], plain["call"], plain["body"])


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

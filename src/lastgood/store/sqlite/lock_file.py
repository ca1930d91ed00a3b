"""The lock file of a SQLite database: one process writes to it, and others learn which."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from lastgood.errors import StoreError, StoreFull, StoreLocked


class Lock:
    """An advisory lock that dies with its process, however that dies.

    `address`: where its owner can be reached; it is part of the error of processes that cannot get the lock.
    """

    def __init__(self, path: Path, address: str = "") -> None:
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise cannot_open(path, error) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            owner, address = owner_of(path)
            raise StoreLocked(
                f"Another Lastgood process{f' ({owner})' if owner else ''} uses {path.with_suffix('')}; "
                "stop it, or use another --data-dir",
                **({"address": address} if address else {}),
            ) from None
        os.ftruncate(self._file, 0)
        os.write(self._file, f"pid {os.getpid()}\n{address}".encode())

    def release(self) -> None:
        os.close(self._file)


def owner_of(lock: Path) -> tuple[str, str]:
    """The process that took this lock last, and its address; empty where they are not known."""
    try:
        with lock.open("rb") as file:
            owner, _, address = file.read(512).decode(errors="replace").partition("\n")
    except OSError:
        return "", ""
    return owner.strip(), address.strip()


def cannot_open(path: Path, error: OSError) -> StoreError:
    return StoreFull(
        f"Cannot write {path}: {error.strerror}; make the folder writable, or choose another database"
    )

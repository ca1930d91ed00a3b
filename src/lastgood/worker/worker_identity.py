"""Who a worker is: an id per root, which stays, and an instance per process, which does not.

The root is locked by the running worker: two processes on one root would report each other's work.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import orjson

from lastgood.errors import WrongUsage


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    worker_id: str
    instance: str


@contextmanager
def locked_root(root: Path) -> Iterator[None]:
    """Raises WrongUsage if another process uses the root."""
    make_root(root)
    descriptor = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise WrongUsage(
                f"another worker uses {root}; stop it, or start this one with another --root"
            ) from None
        yield
    finally:
        os.close(descriptor)


def make_root(root: Path) -> None:
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        root.chmod(0o700)
    except OSError as error:
        raise WrongUsage(f"cannot use --root {root}: {error.strerror}; choose another directory") from None


def identify(root: Path, wanted: str | None = None) -> WorkerIdentity:
    """Reads the id of the root, or makes one. `wanted` replaces it: a token may be bound to an id."""
    file = root / "worker.json"
    worker_id = wanted or (str(orjson.loads(file.read_bytes())["worker_id"]) if file.exists() else "")
    worker_id = worker_id or f"wrk_{secrets.token_hex(12)}"
    store_private(file, orjson.dumps({"worker_id": worker_id}))
    return WorkerIdentity(worker_id, f"ins_{secrets.token_hex(12)}")


def stored_token(root: Path) -> str | None:
    """The token that `lastgood worker enroll` has stored."""
    file = root / "token"
    return file.read_text().strip() if file.is_file() else None


def store_private(file: Path, data: bytes) -> None:
    """Readable by its owner alone from its first moment; a crash leaves the old or the new one."""
    temporary = file.with_name(f"{file.name}.tmp")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(data)
        opened.flush()
        os.fsync(opened.fileno())
    temporary.rename(file)

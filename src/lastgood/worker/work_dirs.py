"""Working directories: those that the worker makes under its root, and folders of its owner.

A path that comes from the server is only a wish. It is used if it is a directory that this worker made, or
one at or below a folder that its owner allowed; symbolic links are resolved first. The owner's folders are
never created, emptied or deleted here.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

_LOCK_POLL_SECONDS = 0.5
#: Directories whose files were not uploaded are kept this many times longer.
_UNSAVED_FACTOR = 4


class WorkDirRefused(Exception):
    """The directory of a task may not be used on this machine; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class WorkDir:
    path: Path
    is_owned: bool  # made by this worker
    is_new: bool = False


class WorkDirs:
    def __init__(self, root: Path, allowed: Sequence[Path] = ()) -> None:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._home = (root / "work").resolve()
        self._states = root / "work-states"
        self._allowed = tuple(_resolved(folder, "--allow-dir") for folder in allowed)
        for folder in self._allowed:
            if root.resolve().is_relative_to(folder) or folder.is_relative_to(root.resolve()):
                raise WorkDirRefused(
                    f"--allow-dir {folder} and the worker's root {root} contain one another; choose "
                    "another --root"
                )
        for made in (self._home, self._states):
            made.mkdir(mode=0o700, exist_ok=True)

    def create(self, session: str) -> WorkDir:
        """Makes an empty directory. Its name starts with that of its session, and no two are the same."""
        digest = hashlib.sha256(session.encode()).hexdigest()[:12]
        path = self._home / f"{digest}-{secrets.token_hex(4)}"
        path.mkdir(mode=0o700)
        return WorkDir(path, is_owned=True, is_new=True)

    def replace(self, old: WorkDir, new: WorkDir) -> WorkDir:
        """The new one gets the path of the old one, whose files stay beside it until they are cleaned up.
        Both must be locked: nobody may work in the old one, nor in the new one before its run does."""
        os.rename(old.path, old.path.with_name(f"{old.path.name}-{secrets.token_hex(4)}"))
        os.rename(new.path, old.path)
        return old

    def find(self, given: str) -> WorkDir:
        """Raises WorkDirRefused if the path does not exist or may not be used."""
        path = _resolved(Path(given), "the working directory")
        if path.parent == self._home:
            return WorkDir(path, is_owned=True)
        if any(path.is_relative_to(folder) for folder in self._allowed):
            return WorkDir(path, is_owned=False)
        raise WorkDirRefused(
            f"the working directory {given} is not below a folder that this worker allows; start the worker "
            "with --allow-dir, or use another folder"
        )

    @contextlib.asynccontextmanager
    async def locked(
        self, work_dir: WorkDir, waits: Callable[[WorkDir], None] = lambda _: None
    ) -> AsyncIterator[None]:
        """Waits for its turn, and says so: two runs in one folder, or one below the other, would mix their
        changes. WorkDirRefused: it was deleted meanwhile."""
        while (held := _try_locks(work_dir)) is None:
            waits(work_dir)
            await asyncio.sleep(_LOCK_POLL_SECONDS)
        with held:
            yield

    def used(self, work_dir: WorkDir, *, is_saved: bool) -> None:
        """Notes the end of a task. `is_saved`: the server has a snapshot of it."""
        if work_dir.is_owned:
            state = orjson.dumps({"used_at": time.time(), "saved": is_saved})
            # It only decides about clean-up; a full disk must not fail a task over it.
            with contextlib.suppress(OSError):
                (self._states / work_dir.path.name).write_bytes(state)

    def clean_up(self, keep_seconds: float, now: float) -> list[Path]:
        """Deletes directories that were not used for so long, and returns them."""
        return [path for path in self._outdated(keep_seconds, now) if self._delete(path)]

    def _outdated(self, keep_seconds: float, now: float) -> Iterator[Path]:
        for path in sorted(self._home.iterdir()):
            used_at, is_saved = path.lstat().st_mtime, False
            with contextlib.suppress(OSError, orjson.JSONDecodeError, KeyError, TypeError):
                state = orjson.loads((self._states / path.name).read_bytes())
                used_at, is_saved = float(state["used_at"]), bool(state["saved"])
            if now - used_at > keep_seconds * (1 if is_saved else _UNSAVED_FACTOR):
                yield path

    def _delete(self, path: Path) -> bool:
        try:
            held = _try_locks(WorkDir(path, is_owned=True))
        except WorkDirRefused:
            return False
        if held is None:
            return False
        with held:
            shutil.rmtree(path, ignore_errors=True)
            (self._states / path.name).unlink(missing_ok=True)
            return not path.exists()


def _resolved(path: Path, what: str) -> Path:
    try:
        resolved = path.expanduser().resolve(strict=True)
    except (OSError, RuntimeError, ValueError):
        raise WorkDirRefused(f"{what} {path} does not exist on this machine; create it first") from None
    if not resolved.is_dir():
        raise WorkDirRefused(f"{what} {path} is not a directory")
    return resolved


def _try_locks(work_dir: WorkDir) -> contextlib.ExitStack | None:
    """All of them or none, so that no two runs wait for each other. None: somebody else is in there.

    A folder is locked alone, and those above it are shared: another run may work beside it, and not above it.
    What this worker made has no folder of a run above it.
    """
    with contextlib.ExitStack() as stack:
        for folder in () if work_dir.is_owned else reversed(work_dir.path.parents):
            # One that its user may not read, or on a file system without locks, is no project of theirs.
            with contextlib.suppress(OSError):
                if not _is_locked(_opened(folder, stack), fcntl.LOCK_SH):
                    return None
        try:
            descriptor = _opened(work_dir.path, stack)
        except OSError as error:
            raise WorkDirRefused(
                f"{work_dir.path} was deleted or moved meanwhile: {error.strerror}"
            ) from None
        if not _is_locked(descriptor, fcntl.LOCK_EX):
            return None
        # Its holder may have put another directory in its place: that one is not locked.
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), os.lstat(work_dir.path)):
                return stack.pop_all()
    return None


def _opened(folder: Path, stack: contextlib.ExitStack) -> int:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    stack.callback(os.close, descriptor)
    return descriptor


def _is_locked(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

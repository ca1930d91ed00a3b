"""Agent files on disk: regular files up to a size limit, read again when they have changed.

If a file cannot be read or is invalid, its last good definition keeps serving, after a restart from its copy.
A folder is listed again when it has changed: new files are served, removed ones are not.
"""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from lastgood.agents.file_copies import FileCopies, FileCopy
from lastgood.agents.sources import SUFFIXES, Definition, FileSource
from lastgood.errors import AgentInvalid

#: Size limit of an agent file, and of a file next to it.
LIMIT_BYTES = 1024 * 1024
#: A file changed this recently may change again without a new modification time.
_SETTLED_NS = 2_000_000_000

#: When it was changed, its size and its inode; None: it is not there.
Stamp = tuple[int, int, int] | None


class UnreadableFile(Exception):
    """A source cannot be read; the message says why, in one line."""


class FileAgent:
    """One file and its last good definition. One load at a time."""

    def __init__(self, source: FileSource, copies: FileCopies | None = None) -> None:
        self._source = source
        self._copies = copies
        self._saved: FileCopy | None = None
        self._good: Definition | None = None
        self._seen: dict[Path, Stamp] = {}  # the file, and what its definition takes from beside it
        self._settled = False

    def known(self) -> Definition | None:
        """Returns the definition if the file has not changed; None: it has to be loaded. Compares the
        modification times of a few files, which is quicker than a thread.
        """
        if not self._settled or any(stamp(path) != seen for path, seen in self._seen.items()):
            return None
        return self._good

    @property
    def changed_at(self) -> float | None:
        """The newest change of the file, and of what its definition takes from beside it, as last read."""
        changes = [seen[0] for seen in tuple(self._seen.values()) if seen is not None]
        return max(changes) / 1e9 if changes else None

    async def load(self) -> Definition:
        return await asyncio.to_thread(self._load)

    def _load(self) -> Definition:
        known = self.known()
        if known is None:
            self._settled, self._seen = False, {}
            known = self._good = self._read()
            self._settled = _are_settled(self._seen.values())
        return known

    def _read(self) -> Definition:
        try:
            return self._from_disk()
        except (UnreadableFile, AgentInvalid) as error:
            good = self._good or self._from_copy()
            if good is None:
                raise
            reason = " ".join(str(error).split())
            return replace(good, stale=f"{reason}; using the last good definition")

    def _from_disk(self) -> Definition:
        path = self._source.path
        read, found = beside(path), dict[str, bytes | None]()

        def look(name: str) -> bytes | None:
            self._seen[path.parent / name] = stamp(path.parent / name)
            found[name] = read(name)
            return found[name]

        # The stamp is taken before the reading: what is written in between shows at the next load.
        self._seen[path] = stamp(path)
        body = read_file(path)
        good = self._parsed(body, look)
        copy = FileCopy(body, found, time.time())
        if self._copies is not None and not copy.says_the_same(self._saved):
            self._copies.write(path, copy)
            self._saved = copy
        return good

    def _from_copy(self) -> Definition | None:
        """Returns the copy of an earlier process, unless this version does not accept it."""
        copy = None if self._copies is None else self._copies.read(self._source.path)
        if copy is None:
            return None
        try:
            return self._parsed(copy.body, copy.beside.get)
        except AgentInvalid:
            return None

    def _parsed(self, body: bytes, read_beside: Callable[[str], bytes | None]) -> Definition:
        from lastgood.agents.agent_file import read_agent_file  # YAML only where a file is read

        where, key = str(self._source.path), self._source.key
        file = read_agent_file(body, where=where, key=key, trusted=True, read_beside=read_beside)
        return Definition(file.root, file.agents)


class Folder:
    """The agent files of a folder, as of the last scan."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: Stamp = None
        self.files = self._list(stamp(path))

    def look(self) -> tuple[FileSource, ...]:
        """Returns the current files; while the folder cannot be read, those of the last scan."""
        now = stamp(self._path)
        if now is not None and now != self._seen:
            with suppress(UnreadableFile):
                self.files = self._list(now)
        return self.files

    def _list(self, now: Stamp) -> tuple[FileSource, ...]:
        files = tuple(map(FileSource, list_folder(self._path)))
        self._seen = now if _are_settled([now]) else None
        return files


def stamp(path: Path) -> Stamp:
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _are_settled(stamps: Iterable[Stamp]) -> bool:
    """False: too recent to detect a change by, because clocks of file systems are coarse."""
    now = time.time_ns()
    return all(one is None or abs(now - one[0]) > _SETTLED_NS for one in stamps)


def list_folder(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [folder / name for name in sorted(entry.name for entry in entries if _is_agent(entry))]
    except OSError as error:
        raise UnreadableFile(f"cannot read the folder {folder}: {error.strerror}") from None


def _is_agent(entry: os.DirEntry[str]) -> bool:
    # Hidden ones are what editors leave behind while they write.
    return entry.name.lower().endswith(SUFFIXES) and not entry.name.startswith(".") and entry.is_file()


def read_file(path: Path, limit: int = LIMIT_BYTES) -> bytes:
    return _read(lambda flags: os.open(path, flags), str(path), limit)


def beside(file: Path) -> Callable[[str], bytes | None]:
    """Reads a file in the agent file's own folder or below it, never outside (I38). None: there is no such
    file.
    """
    folder = file.parent.resolve()

    def read(name: str) -> bytes | None:
        try:
            path = (folder / name).resolve(strict=True)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RuntimeError):  # a loop of links, a NUL, a name too long
            raise AgentInvalid(f"{name!r} beside {file} is not a valid file name") from None
        if not path.is_relative_to(folder):
            raise AgentInvalid(f"{name!r} is outside the folder of {file}; move the file into that folder")
        try:
            return _read(
                lambda flags: _open_under(folder, path.relative_to(folder), flags), str(path), LIMIT_BYTES
            )
        except UnreadableFile as error:
            raise AgentInvalid(str(error)) from None

    return read


def _open_under(folder: Path, path: Path, flags: int) -> int:
    """Opens the path step by step and follows no symlink: one that appears after the check leads nowhere."""
    here = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in path.parts[:-1]:
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
            os.close(here)
            here = below
        return os.open(path.name or ".", flags | os.O_NOFOLLOW, dir_fd=here)
    finally:
        os.close(here)


def _read(opened: Callable[[int], int], where: str, limit: int) -> bytes:
    try:
        # Not blocking: opening a pipe that nobody writes to would wait forever.
        file = opened(os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise UnreadableFile(f"{where} is not a regular file")
            body = bytearray()
            while len(body) <= limit and (piece := os.read(file, limit)):
                body += piece
        finally:
            os.close(file)
    except FileNotFoundError:
        raise UnreadableFile(f"file {where} not found") from None
    except OSError as error:
        raise UnreadableFile(f"cannot read {where}: {error.strerror}") from None
    if len(body) > limit:
        raise UnreadableFile(f"{where} is larger than {limit} bytes")
    return bytes(body)

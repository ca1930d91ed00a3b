"""Copies of a database file: of one that a server uses, and into the place of one that nobody uses.

A copy gets its name only when it is whole and on the disk. A process that dies leaves a file whose name
ends in `.partial`, and nothing else.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import apsw

from lastgood.errors import InvalidRequest, NoDatabase, StoreFull
from lastgood.store.sqlite.database import open_source
from lastgood.store.sqlite.lock_file import Lock
from lastgood.store.sqlite.writer import translate

#: Copied at a time: 4 MiB, so that progress can be shown and Ctrl-C works.
_PAGES = 1024

#: Pages done, and pages in all.
Progress = Callable[[int, int], None]


@contextmanager
def partial_file(target: Path) -> Iterator[Path]:
    """A new file beside `target`, readable by its owner only. Whatever is left of it is removed."""
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}.partial")
    try:
        os.close(os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError as error:
        raise _cannot_write(target, error) from error
    try:
        yield partial
    finally:
        for ending in ("", "-wal", "-shm", "-journal", ".lock"):
            with suppress(OSError):
                partial.with_name(partial.name + ending).unlink()


def copy_database(source: Path, target: Path, progress: Progress) -> None:
    """Copies one moment of `source` into the empty file `target`."""
    if not source.exists():
        raise NoDatabase(f"No database at {source}")
    try:
        with closing(open_source(source)) as reader, closing(apsw.Connection(str(target))) as writer:
            # One read transaction around all slices. Without it, every commit of the server would make SQLite
            # start again at the first page, and the copy of a busy database would never end.
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM sqlite_schema").fetchall()
            # Nobody reads the file before it is whole, so nothing of it need be flushed before.
            writer.pragma("synchronous", "off")
            with writer.backup("main", reader, "main") as copying:
                while not copying.done:
                    copying.step(_PAGES)
                    progress(copying.page_count - copying.remaining, copying.page_count)
            # One file that can be moved and read alone, without a log beside it.
            writer.pragma("journal_mode", "delete")
    except apsw.FullError as error:
        raise StoreFull(
            f"The disk of {target.parent} is full; free some space, or choose another folder"
        ) from error
    except apsw.Error as error:
        raise translate(error) from error


def publish(partial: Path, target: Path) -> None:
    """Gives a finished copy its name, unless that is taken: a link fails where a rename would replace."""
    try:
        _flush(partial)
        try:
            os.link(partial, target)
        except FileExistsError:
            raise InvalidRequest(f"{target} exists; choose another name") from None
        except OSError:  # a file system without links
            if target.exists():
                raise InvalidRequest(f"{target} exists; choose another name") from None
            os.rename(partial, target)
        _flush(target.parent)
    except OSError as error:
        raise _cannot_write(target, error) from error


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """StoreLocked: a server uses the database."""
    lock = Lock(path.with_name(path.name + ".lock"))
    try:
        yield
    finally:
        lock.release()


def is_there(path: Path) -> bool:
    """A log without its file counts: it holds what the file had not yet."""
    return any(one.exists() and one.stat().st_size for one in (path, _log_of(path)))


def replace(partial: Path, path: Path, kept: Path) -> bool:
    """Puts a finished copy at `path`; what was there is at `kept`. Returns False if nothing was there.

    The caller has the lock. At any moment `path` is the old file or the new one. The old log must be gone
    before the new file comes: SQLite would apply it to that. Usually it is empty: its pages were moved into
    the old file just before.
    """
    try:
        _flush(partial)
        was_there = is_there(path)
        if was_there:
            _empty_log(path)
            if path.exists():
                os.link(path, kept)
            log = _log_of(path)
            if log.exists() and log.stat().st_size:
                os.rename(log, _log_of(kept))
            for ending in ("-wal", "-shm"):
                with suppress(FileNotFoundError):
                    path.with_name(path.name + ending).unlink()
            _flush(path.parent)
        os.rename(partial, path)
        _flush(path.parent)
    except OSError as error:
        raise _cannot_write(path, error) from error
    return was_there


def _log_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def _empty_log(path: Path) -> None:
    """A file that is damaged keeps its log: both are moved away as they are."""
    if path.exists() and path.stat().st_size:
        with suppress(apsw.Error), closing(apsw.Connection(str(path))) as connection:
            connection.pragma("wal_checkpoint(truncate)")


def _flush(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _cannot_write(path: Path, error: OSError) -> StoreFull:
    return StoreFull(f"Cannot write {path}: {error.strerror}; choose a folder that exists and is writable")

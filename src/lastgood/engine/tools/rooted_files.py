"""Opens files under a root and nowhere else.

A path is straightened as text, then walked name by name with open folders in hand. No
step follows a symlink by itself: a link is read, and its target walked in the same way,
from the root. So swapping a folder for a link meanwhile does not lead out: the
kernel refuses the swapped name, or we hold the folder that was there before.

Only regular files are opened. Everything that goes wrong is a ToolFailed that says what.
What an operator opened or closed is compared with where a path has really led to.
"""

from __future__ import annotations

import errno
import os
import posixpath
import secrets
import stat
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from lastgood.engine.tools.cancellation import StopSignal
from lastgood.engine.tools.tool import ToolFailed

#: As many as Linux follows.
_MOST_LINKS = 40
#: Each is an open file while the path is walked.
_DEEPEST = 128
#: To pass through a folder, the right to list it is not needed where the system knows the difference.
_PASS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: Opening a pipe that nobody writes to must not wait, and a terminal must not become ours.
_CAREFULLY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

_WORDS = {
    errno.ENOENT: "not found",
    errno.ENOTDIR: "a part of the path is not a folder",
    errno.EISDIR: "it is a folder, not a file",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.EROFS: "the file system is read-only",
    errno.ENAMETOOLONG: "the name is too long",
    errno.ELOOP: "it changed while it was opened, or is a chain of too many symbolic links",
    errno.ENXIO: "it is not a regular file",
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk is full",
    errno.ENOTEMPTY: "the folder is not empty",
    errno.EEXIST: "it already exists",
}


@dataclass(frozen=True, slots=True)
class Root:
    """The folder that bounds everything. `open` and `closed` are folders within it; closed wins."""

    path: Path
    open: tuple[str, ...] = ()  # none: all of it
    closed: tuple[str, ...] = ()

    def shuts(self, below: str) -> bool:
        """Names that were walked and were no links. Resolving them again could meet what was swapped."""
        return any(self._holds(folder, below) for folder in self.closed)

    def opens(self, below: str) -> bool:
        listed = not self.open or any(self._holds(folder, below) for folder in self.open)
        return listed and not self.shuts(below)

    def _holds(self, folder: str, below: str) -> bool:
        real = os.path.realpath(os.path.join(self.path, folder))
        return _is_within(posixpath.join(os.path.realpath(self.path), below), real)


def _is_within(path: str, folder: str) -> bool:
    return f"{path}/".startswith(folder.rstrip("/") + "/")


@dataclass(frozen=True, slots=True)
class RootedPath:
    """A name in an open folder; the empty name is the folder itself. No link stands there, or did not."""

    folder: int
    name: str
    path: Path

    def entry(self) -> str:
        if not self.name:
            raise IsADirectoryError(errno.EISDIR, "a folder")
        return self.name


@dataclass(frozen=True, slots=True)
class Content:
    data: bytes
    size: int  # of all of it
    version: tuple[int, ...]  # another one means that the file was written

    @property
    def is_cut(self) -> bool:
        return self.size > len(self.data)


# -- what can be done under a root -------------------------------------------------------


def read_under(root: Root, path: str, most_bytes: int) -> Content:
    with place_under(root, path) as place:
        return read_at(place.folder, place.entry(), most_bytes)


def read_text_under(root: Path, path: str, most_bytes: int) -> str:
    """The beginning of a file, as text."""
    return read_under(Root(root), path, most_bytes).data.decode(errors="replace")


def write_under(
    root: Root, path: str, data: bytes, stop: StopSignal, expected: tuple[int, ...] | None = None
) -> Path:
    """Whole or not at all. With `expected`, only over that version. Returns where it is."""
    with place_under(root, path, make=True) as place:
        _replace(place, data, stop, expected)
        return place.path


def make_folder_under(root: Root, path: str) -> None:
    with place_under(root, path, make=True) as place:
        if place.name:
            try:
                os.mkdir(place.name, dir_fd=place.folder)
            except FileExistsError:
                os.close(os.open(place.name, _PASS, dir_fd=place.folder))


def remove_folder_under(root: Root, path: str) -> None:
    with place_under(root, path, follow=False) as place:
        if not place.name:
            raise ToolFailed(f"{path}: the working directory itself cannot be removed")
        os.rmdir(place.name, dir_fd=place.folder)


@contextmanager
def folder_under(root: Root, path: str) -> Iterator[tuple[int, Path]]:
    """An open folder that can be listed, and where it is."""
    with place_under(root, path) as place:
        folder = os.open(place.name or ".", _LIST, dir_fd=place.folder)
        try:
            yield folder, place.path
        finally:
            os.close(folder)


def open_folder_at(folder: int, name: str) -> int:
    """A folder in an open folder. Raises OSError, also if it is a link."""
    return os.open(name, _LIST, dir_fd=folder)


def read_at(folder: int, name: str, most_bytes: int) -> Content:
    """A regular file in an open folder."""
    with os.fdopen(_open_regular(folder, name, os.O_RDONLY), "rb") as file:
        found = os.fstat(file.fileno())
        data = file.read(most_bytes)
        return Content(data, max(found.st_size, len(data)), _version(found))


# -- finding the place -------------------------------------------------------------------


@contextmanager
def place_under(root: Root, path: str, *, make: bool = False, follow: bool = True) -> Iterator[RootedPath]:
    """`make`: folders on the way that are missing. `follow`: the last name too, if it is a link."""
    with _telling(path):
        walk = _Walk(root, _names_under(root.path, path), path)
        try:
            name = walk.to_the_end(make, follow)
            if not root.opens(walk.below(name)):
                raise walk.not_open()
            yield RootedPath(walk.here, name, root.path / walk.below(name))
        finally:
            walk.close()


def _names_under(root: Path, path: str) -> list[str]:
    if "\x00" in path:
        raise ToolFailed("a path cannot contain a NUL character")
    names = _names_below(root, posixpath.normpath(posixpath.join(root, path)))
    if names is None:
        raise _outside(root, path)
    return names


def _names_below(root: Path, path: str) -> list[str] | None:
    """The names that lead from the root to an absolute path; None if they do not."""
    path = "/" + path.lstrip("/")
    for top in (str(root), os.path.realpath(root)):
        if path == top:
            return []
        if path.startswith(top.rstrip("/") + "/"):
            return [name for name in path[len(top) :].split("/") if name not in ("", ".")]
    return None


def _outside(root: Path, path: str) -> ToolFailed:
    return ToolFailed(f"{path} is outside the working directory {root}; use a path inside it")


class _Walk:
    def __init__(self, root: Root, names: list[str], path: str) -> None:
        self._bounds = root
        self._root = root.path
        self._path = path
        self._names = deque(names)
        self._passed: list[str] = []
        # The root is the operator's choice, and may be a link.
        self._folders = [os.open(root.path, _PASS & ~os.O_NOFOLLOW)]

    @property
    def here(self) -> int:
        return self._folders[-1]

    def below(self, name: str) -> str:
        """The way from the root."""
        return posixpath.join(*self._passed, name) if self._passed else name

    def not_open(self) -> ToolFailed:
        return ToolFailed(
            f"{self._path} is in a folder that this tool may not access (allow_list or deny_list)"
        )

    def close(self) -> None:
        while self._folders:
            os.close(self._folders.pop())

    def to_the_end(self, make: bool, follow: bool) -> str:
        """Walks until one name is left and returns it. An empty one: the walk ended in a folder."""
        links = 0
        while self._names:
            name = self._names.popleft()
            if name == "..":  # only a link says so
                self._up()
                continue
            target = self._link(name) if self._names or follow else None
            if target is not None:
                links += 1
                if links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, "too many links")
                self._turn(target)
            elif not self._names:
                return name
            else:
                self._down(name, make)
        return ""

    def _link(self, name: str) -> str | None:
        try:
            return os.readlink(name, dir_fd=self.here)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT):
                return None  # no link, or nothing at all
            raise

    def _turn(self, target: str) -> None:
        names: list[str] | None = [name for name in target.split("/") if name not in ("", ".")]
        if target.startswith("/"):
            names = _names_below(self._root, target)
            while len(self._folders) > 1:
                self._up()
        if names is None:
            raise _outside(self._root, f"{self._path}, by a symbolic link,")
        self._names.extendleft(reversed(names))

    def _up(self) -> None:
        if len(self._folders) == 1:
            raise _outside(self._root, f"{self._path}, by a symbolic link,")
        os.close(self._folders.pop())
        self._passed.pop()

    def _down(self, name: str, make: bool) -> None:
        if len(self._folders) > _DEEPEST:
            raise ToolFailed(f"{self._path}: more than {_DEEPEST} folders deep")
        try:
            folder = os.open(name, _PASS, dir_fd=self.here)
        except FileNotFoundError:
            if not make:
                raise
            if not self._bounds.opens(self.below(name)):
                raise self.not_open() from None
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=self.here)
            folder = os.open(name, _PASS, dir_fd=self.here)
        self._folders.append(folder)
        self._passed.append(name)


# -- the file itself ----------------------------------------------------------------------


def _open_regular(folder: int, name: str, flags: int) -> int:
    opened = os.open(name, flags | _CAREFULLY, dir_fd=folder)
    kind = os.fstat(opened).st_mode
    if not stat.S_ISREG(kind):
        os.close(opened)
        raise OSError(errno.EISDIR if stat.S_ISDIR(kind) else errno.ENXIO, "no regular file")
    return opened


def _version(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _replace(place: RootedPath, data: bytes, stop: StopSignal, expected: tuple[int, ...] | None) -> None:
    name = place.entry()
    old = _writable(place.folder, name)
    # In the same folder, or the rename would be a copy. A name of its own length: the target's may be as
    # long as names can be.
    draft = f".lastgood-{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    opened = os.open(draft, flags, 0o666 if old is None else 0o600, dir_fd=place.folder)
    try:
        with os.fdopen(opened, "wb") as file:
            file.write(data)
            if old is not None:
                with suppress(OSError):  # somebody else's file that we may write stays writable for us
                    os.fchown(file.fileno(), old.st_uid, old.st_gid)
                os.fchmod(file.fileno(), stat.S_IMODE(old.st_mode) & 0o777)
            file.flush()
            os.fsync(file.fileno())
        stop.check()
        if expected is not None:
            current = _writable(place.folder, name)
            if current is None or _version(current) != expected:
                raise ToolFailed(f"{place.path.name} has changed since it was read; read it again")
        os.rename(draft, name, src_dir_fd=place.folder, dst_dir_fd=place.folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft, dir_fd=place.folder)
        raise


def _writable(folder: int, name: str) -> os.stat_result | None:
    """What is to be replaced. A rename would replace a file that may not be written, so we ask."""
    try:
        opened = _open_regular(folder, name, os.O_WRONLY)
    except FileNotFoundError:
        return None
    try:
        return os.fstat(opened)
    finally:
        os.close(opened)


@contextmanager
def _telling(path: str) -> Iterator[None]:
    """Describes an OSError for the model."""
    try:
        yield
    except OSError as error:
        words = _WORDS.get(error.errno or 0) or os.strerror(error.errno or 0)
        raise ToolFailed(f"{path}: {words}") from None

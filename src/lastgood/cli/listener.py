"""Opens the listening socket: a port, a unix socket, or an inherited file descriptor.

A unix socket is accessible to its owner only, from the moment it exists. The socket file of a dead server is
replaced; that of a live server is not, and neither is a file that is not a socket.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from lastgood.errors import InvalidRequest, WrongUsage

#: Connections that wait to be accepted.
BACKLOG = 2048
#: Of the path of a unix socket, in bytes, on every system that has them.
_LONGEST_PATH = 103
#: How long to wait for another server that starts in the same folder.
_WAIT_SECONDS = 5.0

_Inode = tuple[int, int]


@dataclass(slots=True)
class Listener:
    """`host` is under which address it can be reached; `localhost` for a unix socket, whose clients say so.

    `place` is what a person would call it: `http://127.0.0.1:8080`, `unix:///run/lastgood.sock`.
    """

    socket: socket.socket
    host: str
    place: str
    _file: tuple[Path, _Inode] | None = None  # what it made, and has to take away

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()
        self.socket.close()

    def leave(self) -> None:
        """Removes the socket file, unless it was replaced. Done while still listening: otherwise the next
        server could find it dead, create its own file, and we would remove that.
        """
        if self._file is None:
            return
        path, made = self._file
        self._file = None
        try:
            if _inode(path) == made:
                path.unlink()
        except FileNotFoundError:
            pass

    @property
    def address(self) -> str:
        """What clients name as `--server`; empty for a socket without a name."""
        return "" if self.place.startswith("fd://") else self.place

    def url(self, path: str) -> str:
        """Returns the URL of a path on this listener."""
        if self.place.startswith("http://"):
            return f"{self.place}{path}"
        return f"http://localhost{path} on {self.place}"


def listen_on(address: str, flag: str) -> Listener:
    """Called before anything else is opened: a server that cannot listen need not recover a database."""
    try:
        if address.startswith("unix://") and address != "unix://":
            return _on_file(Path(address.removeprefix("unix://")), flag)
        if number := re.fullmatch(r"fd://(0|[1-9][0-9]{0,5})", address):
            return _given(int(number[1]), address)
        return _on_port(address, flag)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or "invalid address"
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            why = "another program uses this address; if it is your own server, stop it first, or"
        else:
            why += ";"
        variable = f"LASTGOOD_{flag.removeprefix('--').replace('-', '_').upper()}"
        raise InvalidRequest(
            f"cannot listen on {address}: {why} choose another {flag} (or {variable})"
        ) from None


# -- a port --------------------------------------------------------------------------------


def _on_port(address: str, flag: str) -> Listener:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if not host or "/" in host or not port.isdecimal() or int(port) > 65535:
        raise WrongUsage(
            f"{flag} must be HOST:PORT, unix://PATH or fd://N, for example 127.0.0.1:8080, not {address!r}"
        )
    found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, int(port)))
        # Two that have bound the same port find out only when they listen on it.
        found.listen(BACKLOG)
    except BaseException:
        found.close()
        raise
    return Listener(found, host, _url_of(found))


def _url_of(found: socket.socket) -> str:
    host, port = found.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


# -- a socket that was given ---------------------------------------------------------------


def _given(number: int, address: str) -> Listener:
    """Its own address decides who can reach it."""
    found = socket.socket(fileno=number)
    if (
        found.family not in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6)
        or found.type != socket.SOCK_STREAM
        or not found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    ):
        found.detach()  # it is not ours to close
        raise OSError(errno.EINVAL, "not a listening stream socket")
    # A tool's process must not inherit the listening socket.
    found.set_inheritable(False)
    if found.family != socket.AF_UNIX:
        return Listener(found, found.getsockname()[0], _url_of(found))
    path = found.getsockname()
    return Listener(found, "localhost", f"unix://{path}" if isinstance(path, str) and path else address)


# -- a file --------------------------------------------------------------------------------


def _on_file(path: Path, flag: str) -> Listener:
    length = len(os.fsencode(path))
    if length > _LONGEST_PATH:
        raise WrongUsage(
            f"{flag}: the socket path {path} is {length} bytes long (limit {_LONGEST_PATH}); "
            "choose a shorter path"
        )
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _alone_in(path.parent):
            _remove_dead(path, flag)
            # Afterwards would be too late: until then, anybody could connect.
            before = os.umask(0o177)
            try:
                found.bind(str(path))
            finally:
                os.umask(before)
            made = _inode(path)
            found.listen(BACKLOG)
    except BaseException:
        found.close()
        raise
    return Listener(found, "localhost", f"unix://{path}", (path, made))


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Two that start at once both find the file of a dead server, and the second would remove what the
    first has put in its place. So they look and replace one after the other."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + _WAIT_SECONDS
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise OSError(errno.EBUSY, f"another process has locked {folder}") from None
                time.sleep(0.02)
        yield
    finally:
        os.close(handle)


def _remove_dead(path: Path, flag: str) -> None:
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise InvalidRequest(f"{path} exists and is not a socket; choose another {flag}")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
            asking.setblocking(False)
            asking.connect(str(path))
    except FileNotFoundError:
        return
    except ConnectionRefusedError:
        path.unlink()
        return
    except BlockingIOError:
        pass  # its backlog is full, so it is alive
    raise InvalidRequest(f"another server is listening on unix://{path}; stop it, or choose another {flag}")


def _inode(path: Path) -> _Inode:
    """A number is not given away while we listen: our socket holds on to it."""
    found = path.lstat()
    return found.st_dev, found.st_ino

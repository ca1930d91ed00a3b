"""Starts `lastgood` as a process of its own, without the second that its imports take.

One process per test run imports the package and waits. For each command it forks a child, which gets the
command's arguments, environment, folder and files, runs `lastgood.cli.main` and exits with its code. To the
kernel it is a process like any other: it has its own pid, can be stopped, and is killed by kill -9.

What a fork cannot show is how the interpreter starts: tests of that use `Command.executed`. A command whose
environment configures the interpreter is executed, too.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import importlib
import io
import json
import os
import pkgutil
import selectors
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

PIPE, DEVNULL, STDOUT = subprocess.PIPE, subprocess.DEVNULL, subprocess.STDOUT

_ROOT = Path(__file__).parents[1]
_MOST_FILES = 16
_MOST_BYTES = 1_000_000
#: Variables that an interpreter reads when it starts.
_INTERPRETER = ("PYTHON", "LC_", "LANG", "LD_")
#: Imported only by those who use them, and slow to import.
_RARE = ("lastgood.engine.providers.direct", "lastgood.tracing")


# -- the side of the tests -----------------------------------------------------------------


class Process:
    """What a test needs of `subprocess.Popen`, for a process that another one has started."""

    def __init__(self, report: socket.socket, pipes: Sequence[IO[bytes] | None]) -> None:
        self.stdin, self.stdout, self.stderr = pipes
        self.returncode: int | None = None
        self._report = report
        self.pid = int(self._next())

    def _next(self) -> bytes:
        said = self._report.recv(100)
        if not said:
            raise RuntimeError("the fork server has ended")
        return said

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._report.settimeout(timeout)
            try:
                self.returncode = int(self._next())
            except (BlockingIOError, TimeoutError):
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0) from None
            self._report.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended since
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, stdin: bytes = b"", timeout: float | None = None) -> tuple[bytes, bytes]:
        """Everything that it still prints, until it ends."""
        deadline = None if timeout is None else time.monotonic() + timeout
        writer = threading.Thread(target=self._feed, args=(stdin,), daemon=True)
        writer.start()
        said: dict[IO[bytes] | None, bytearray] = {self.stdout: bytearray(), self.stderr: bytearray()}
        with selectors.DefaultSelector() as selector:
            for pipe in said:
                if pipe is not None and not pipe.closed:
                    selector.register(pipe, selectors.EVENT_READ)
            while selector.get_map():
                ready = selector.select(None if deadline is None else max(0, deadline - time.monotonic()))
                if not ready:
                    raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
                for key, _ in ready:
                    source: Any = key.fileobj
                    if piece := os.read(key.fd, 65536):
                        said[source] += piece
                    else:
                        selector.unregister(source)
                        source.close()
        writer.join()
        self.wait(None if deadline is None else max(0, deadline - time.monotonic()))
        return bytes(said[self.stdout]), bytes(said[self.stderr]) if self.stderr else b""

    def _feed(self, stdin: bytes) -> None:
        if self.stdin is not None and not self.stdin.closed:
            with contextlib.suppress(BrokenPipeError):  # it does not read to the end
                self.stdin.write(stdin)
            with contextlib.suppress(BrokenPipeError):
                self.stdin.close()


class ForkServer:
    """The process that imports. It ends, and its children with it, when the process that started it does."""

    def __init__(self) -> None:
        self._control, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST_BYTES)
        with control:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(control.fileno())],
                cwd=_ROOT,
                pass_fds=[control.fileno()],
                stdin=subprocess.DEVNULL,
            )

    def start(
        self,
        args: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path | None = None,
        stdin: int = DEVNULL,
        stdout: int = DEVNULL,
        stderr: int = DEVNULL,
        pass_fds: Sequence[int] = (),
        own_terminal: bool = False,
    ) -> Process:
        """`own_terminal`: its stdin becomes the terminal of a session of its own, as in a new window."""
        report, reports = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = {
            "args": list(args),
            "env": dict(env),
            "cwd": str(cwd or Path.cwd()),
            "umask": _umask(),
            "pass_fds": list(pass_fds),
            "own_terminal": own_terminal,
        }
        with contextlib.ExitStack() as closing:
            closing.enter_context(reports)
            files, ours = _standard_files(stdin, stdout, stderr, closing)
            sent = [reports.fileno(), *files, *pass_fds]
            socket.send_fds(self._control, [json.dumps(request).encode()], sent)
        return Process(report, ours)

    def run(
        self, args: Sequence[str], *, env: Mapping[str, str], cwd: Path | None = None, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        process = self.start(args, env=env, cwd=cwd, stdout=PIPE, stderr=PIPE)
        out, err = process.communicate(timeout=timeout)
        return subprocess.CompletedProcess(list(args), process.wait(), out.decode(), err.decode())

    def close(self) -> None:
        self._control.close()
        self._process.wait()


def _standard_files(
    stdin: int, stdout: int, stderr: int, closing: contextlib.ExitStack
) -> tuple[list[int], list[IO[bytes] | None]]:
    """The files of the child, which are closed here once it has them, and our ends of its pipes."""
    files: list[int] = []
    ours: list[IO[bytes] | None] = []
    for number, wanted in enumerate((stdin, stdout, stderr)):
        pipe: IO[bytes] | None = None
        if wanted == PIPE:
            read, write = os.pipe()
            theirs, mine, mode = (read, write, "wb") if number == 0 else (write, read, "rb")
            pipe = os.fdopen(mine, mode, buffering=0 if number == 0 else -1)
            closing.callback(os.close, theirs)
        elif wanted == DEVNULL:
            theirs = os.open(os.devnull, os.O_RDWR)
            closing.callback(os.close, theirs)
        elif wanted == STDOUT:
            theirs = files[1]
        else:
            theirs = wanted
        files.append(theirs)
        ours.append(pipe)
    return files, ours


def _umask() -> int:
    """Without changing it, as os.umask() would: another thread may be making files."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("Umask:")[2].split()[0], 8)


_lock = threading.Lock()
_servers: list[ForkServer] = []


def fork_server() -> ForkServer:
    """The one of this test run."""
    with _lock:
        if not _servers:
            _servers.append(ForkServer())
            atexit.register(_servers[0].close)
        return _servers[0]


# -- the process that forks ----------------------------------------------------------------


def _import_everything() -> None:
    import lastgood

    for module in pkgutil.walk_packages(lastgood.__path__, "lastgood."):
        if not module.name.startswith(_RARE) and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    _describe_bodies()
    assert threading.active_count() == 1, "a fork would lose the other threads"
    gc.collect()
    gc.freeze()


def _describe_bodies() -> None:
    """Makes the JSON schemas that each server makes while it starts, which takes it most of the time."""
    from pydantic import BaseModel

    from lastgood.surfaces.http.json_schema import schema_of

    models = BaseModel.__subclasses__()
    for model in models:
        models += model.__subclasses__()
        if model.__module__.startswith("lastgood.surfaces."):
            schema_of(model)


def _serve(control: socket.socket) -> None:
    """Returns when the tests have ended."""
    awake, wakes = socket.socketpair()
    for end in (awake, wakes):
        end.setblocking(False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, and for the children
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes.fileno())
    reports: dict[int, socket.socket] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        selector.register(awake, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in selector.select()}
            if awake in ready:
                awake.recv(1000)
                _report_the_ended(reports)
            if control in ready:
                request, files, _, _ = socket.recv_fds(control, _MOST_BYTES, _MOST_FILES)
                if not request:
                    break
                child = os.fork()
                if child == 0:
                    selector.close()
                    for held in (control, awake, wakes, *reports.values()):
                        held.close()
                    _run_child(json.loads(request), files)
                reports[child] = socket.socket(fileno=files[0])
                for file in files[1:]:
                    os.close(file)
    for child in reports:
        os.kill(child, signal.SIGKILL)


def _report_the_ended(reports: dict[int, socket.socket]) -> None:
    while reports:
        child, status = os.waitpid(-1, os.WNOHANG)
        if child == 0:
            return
        with reports.pop(child) as report, contextlib.suppress(BrokenPipeError):
            report.send(str(os.waitstatus_to_exitcode(status)).encode())


# -- the child -----------------------------------------------------------------------------


def _run_child(request: dict[str, Any], files: list[int]) -> NoReturn:
    """Ends like a child of multiprocessing: nothing is left out but the destruction of every module."""
    code = 1
    try:
        report = _take_files(files, request["pass_fds"])
        is_executed = _becomes(request)
        with socket.socket(fileno=report) as started:
            started.send(str(os.getpid()).encode())  # from here on, signals find it as it should be
        if is_executed:
            os.execv(sys.executable, [sys.executable, "-m", "lastgood", *request["args"]])
        if "TESTS_SABOTAGE" in os.environ:
            from tests.process_faults import arm

            arm(os.environ.pop("TESTS_SABOTAGE"))
        from lastgood.cli import main

        code = main(request["args"])
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(code)


def _take_files(files: list[int], pass_fds: list[int]) -> int:
    """Gives each its number. Returns the file to report to."""
    numbers = [0, 1, 2, *pass_fds]
    above = max(numbers) + 1  # out of each other's way first
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, above) for file in files]
    for file in files:
        os.close(file)
    report, *moved = moved
    for file, number in zip(moved, numbers, strict=True):
        os.dup2(file, number)
        os.close(file)
    return report


def _becomes(request: dict[str, Any]) -> bool:
    """Gives the child what an executed program would have. True: its interpreter must be another one."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request["own_terminal"]:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    before = interpreter_variables()
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    os.chdir(request["cwd"])
    os.umask(request["umask"])
    sys.argv = [str(_ROOT / "src/lastgood/__main__.py"), *request["args"]]
    for name, file, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        old: io.TextIOWrapper = getattr(sys, name)
        new = os.fdopen(file, mode, encoding=old.encoding, errors=old.errors, newline="\n", closefd=False)
        assert isinstance(new, io.TextIOWrapper)
        new.reconfigure(line_buffering=file == 2 or new.line_buffering)
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)
    return before != interpreter_variables()


def interpreter_variables() -> dict[str, str]:
    """Of this process. A command that is started without them is executed."""
    return {name: value for name, value in os.environ.items() if name.startswith(_INTERPRETER)}


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as given:
        _import_everything()
        _serve(given)

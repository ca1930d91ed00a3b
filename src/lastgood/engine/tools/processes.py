"""Runs a command and ensures that none of its processes is left.

A command leads a session and a process group of its own. Whatever ends it (its own
exit, its time limit, a cancelled turn, the death of this server), the whole group is
killed: what it left in the background is killed with it. Only what makes itself a
group or a session of its own gets away (`setsid`, `set -m`); no portable means reaches it.

Output is read as fast as it comes and kept up to a limit, its beginning and its end.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from lastgood.engine.tools.cancellation import finish
from lastgood.engine.tools.command_output import HEAD_BYTES, Capture, OutputStream
from lastgood.engine.tools.tool import ToolFailed

#: Between asking a group to end and killing it.
GRACE_SECONDS = 2.0
#: For output that children of an ended command still write.
LAST_WORDS_SECONDS = 0.5
#: A process that does not even die when killed hangs in the kernel. It is left to it.
_DEATH_SECONDS = 5.0
#: Killed processes need a moment to end. After that, they only have not been reaped.
_DISPERSE_SECONDS = 0.1
_LOOK_AGAIN_SECONDS = 0.005
READ_BYTES = 64 * 1024

# A server that is killed cannot kill what it started. So a watcher in the group waits for the end of a
# pipe that only the server holds. The shell around both ends with the command, and takes the watcher with
# it: nobody is left for others to reap. It does not end before the command does when that is asked to end,
# and says nothing of its own.
_WITH_LIFELINE = (
    "exec 3<&0 4>&2 </dev/null 2>/dev/null; trap : TERM INT HUP; "
    '(trap "" TERM INT HUP; read -r _ <&3; kill -9 "-$$") >/dev/null 4>&- & '
    '(exec "$@" 2>&4 3<&- 4>&-); code=$?; kill -9 $!; wait $!; exit $code'
)

#: The file that the command reads is opened again and read from its start.
_WITH_INPUT = 'exec "$@" <"$0"'


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    words: Sequence[str]
    folder: Path
    environment: Mapping[str, str]
    seconds: float
    #: Takes keys out of what is shown, and how long the longest of them is.
    scrub: Callable[[str], str] = field(default=lambda text: text)
    longest_key: int = 0
    #: What it reads. None: nothing, and what it says on stderr is part of its output.
    stdin: bytes | None = None
    #: Of the beginning of its output, and of its end.
    kept_bytes: int = HEAD_BYTES
    #: Between two reads. A command that says more than that waits for its reader.
    pause_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ProcessResult:
    output: str
    code: int | None  # None: its time was up; negative: the signal that ended it
    left_some: bool = False  # it ended before its children did
    errors: str = ""  # its stderr, if that was kept apart

    @property
    def failure(self) -> str:
        """How it ended, if not well and not at its time limit."""
        code = self.code or 0
        return f"exit status {code}" if code >= 0 else f"ended by signal {-code} ({signal.strsignal(-code)})"


async def run(command: ProcessSpec, say: Callable[[str], None]) -> ProcessResult:
    return await until_ended(RunningProcess(command, say))


async def until_ended(running: RunningProcess) -> ProcessResult:
    """Ends it when its time is up, or when this is cancelled."""
    command = running.command
    try:
        running.watch()
        in_time = await running.exits_within(command.seconds)
        left_some = in_time and not await running.closes_within(LAST_WORDS_SECONDS)
    finally:
        # Also when cancelled: it comes back when the group is gone, and not before.
        await finish(running.end())
    code = running.process.returncode if in_time else None
    errors = command.scrub(running.errors.text())
    return ProcessResult(running.output_so_far(), code, left_some, errors)


class RunningProcess:
    """Started; `until_ended` must be awaited."""

    def __init__(self, command: ProcessSpec, say: Callable[[str], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self.command = command
        self.capture = Capture(command.kept_bytes, command.kept_bytes)
        self.errors = Capture()
        self._stream = OutputStream(self._loop, say, command.scrub, command.longest_key)
        self._exited: asyncio.Future[None] = self._loop.create_future()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._stderr: int | None = None
        self._pause: asyncio.TimerHandle | None = None
        self._is_ending = False
        opened: list[int] = []
        try:
            opened += os.pipe()
            opened += os.pipe()
            self._output, output, lifeline, self._lifeline = opened
            if command.stdin is None:
                self.process = self._start(command.words, command, lifeline, output, output)
            else:
                opened += os.pipe()
                self._stderr, errors = opened[4:]
                self.process = self._start_fed(command, lifeline, output, errors)
                os.close(errors)
        except (OSError, ValueError) as error:
            for file in opened:
                os.close(file)
            raise _not_started(error) from None
        os.close(output)
        os.close(lifeline)

    @staticmethod
    def _start(
        words: Sequence[str],
        command: ProcessSpec,
        lifeline: int,
        output: int,
        errors: int,
        passed: Sequence[int] = (),
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ["/bin/sh", "-c", _WITH_LIFELINE, "sh", *words],
            cwd=command.folder,
            env=dict(command.environment),
            stdin=lifeline,
            stdout=output,
            stderr=errors,
            start_new_session=True,
            pass_fds=passed,
        )

    def _start_fed(
        self, command: ProcessSpec, lifeline: int, output: int, errors: int
    ) -> subprocess.Popen[bytes]:
        """Its input is a file without a name: a pipe would have to be fed while the command does not read,
        and a file with one would be left behind by a server that is killed."""
        with tempfile.TemporaryFile() as given:
            given.write(command.stdin or b"")
            given.seek(0)
            words = ("/bin/sh", "-c", _WITH_INPUT, f"/dev/fd/{given.fileno()}", *command.words)
            return self._start(words, command, lifeline, output, errors, (given.fileno(),))

    def output_so_far(self) -> str:
        return self.command.scrub(self.capture.text())

    def watch(self) -> None:
        os.set_blocking(self._output, False)
        self._loop.add_reader(self._output, self._read)
        if self._stderr is not None:
            os.set_blocking(self._stderr, False)
            self._loop.add_reader(self._stderr, self._read_errors)
        threading.Thread(target=self._wait, name="lastgood-command", daemon=True).start()

    def _wait(self) -> None:
        """In a thread. Until the process is reaped its number is its own, so none but its group is killed."""
        if hasattr(os, "waitid"):
            with suppress(ChildProcessError):
                os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        else:
            self.process.wait()
        with suppress(RuntimeError):  # the loop is closed; the server is going
            self._loop.call_soon_threadsafe(_settle, self._exited)

    def _read(self) -> None:
        try:
            data = os.read(self._output, READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._loop.remove_reader(self._output)
            _settle(self._closed)
            return
        self.capture.feed(data)
        self._stream.feed(data)
        seconds = self.command.pause_seconds
        if seconds and not self._is_ending:
            self._loop.remove_reader(self._output)
            self._pause = self._loop.call_later(seconds, self._read_on)

    def _read_on(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
            self._loop.add_reader(self._output, self._read)

    def _read_errors(self) -> None:
        assert self._stderr is not None
        try:
            data = os.read(self._stderr, READ_BYTES)
        except BlockingIOError:
            return
        if data:
            self.errors.feed(data)
        else:
            self._loop.remove_reader(self._stderr)

    async def exits_within(self, seconds: float) -> bool:
        await asyncio.wait({self._exited}, timeout=seconds)
        return self._exited.done()

    async def closes_within(self, seconds: float) -> bool:
        await asyncio.wait({self._closed}, timeout=seconds)
        return self._closed.done()

    async def end(self) -> None:
        self._is_ending = True
        self._read_on()
        if not self._exited.done():
            self._signal(signal.SIGTERM)
            await asyncio.wait({self._exited, self._closed}, timeout=GRACE_SECONDS)
        self._signal(signal.SIGKILL)
        await self.exits_within(_DEATH_SECONDS)
        await self.closes_within(LAST_WORDS_SECONDS)
        self.process.poll()
        await self._disperses_within(_DISPERSE_SECONDS)
        self._loop.remove_reader(self._output)
        self._stream.close()
        if self._stderr is not None:
            self._read_errors()  # what the loop has not come to yet
            self._loop.remove_reader(self._stderr)
            os.close(self._stderr)
        os.close(self._output)
        os.close(self._lifeline)

    async def _disperses_within(self, seconds: float) -> None:
        """Waits until the process group is empty."""
        until = self._loop.time() + seconds
        while self._is_populated() and self._loop.time() < until:
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)

    def _is_populated(self) -> bool:
        with suppress(ChildProcessError):
            # Orphans become our children only if we are process 1, as in a container.
            os.waitpid(-self.process.pid, os.WNOHANG)
        try:
            os.killpg(self.process.pid, 0)
        except OSError:
            return False
        return True

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _not_started(error: OSError | ValueError) -> ToolFailed:
    if isinstance(error, OSError) and error.errno == errno.E2BIG:
        return ToolFailed(
            "the command line is too long for the operating system; put it or its arguments into a file"
        )
    return ToolFailed(f"the command could not be started: {error}")

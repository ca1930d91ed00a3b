"""Starts a CLI in its own process group, reads it in bounded memory, and ends all of it.

A CLI starts processes of its own, some of them in groups of their own. Halting or ending a CLI concerns all
of them, so the groups of every descendant get the signal, too. On Linux they are also found by a variable
that they inherit: a process whose parent has exited is nobody's descendant. Knows no protocol and no job.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MAX_LINE_BYTES = 16 * 1024 * 1024
STDERR_TAIL_BYTES = 8 * 1024
TERM_GRACE_SECONDS = 3.0
REAP_SECONDS = 10.0
EXIT_POLL_SECONDS = 0.3
#: Set for each CLI to a value of its own; the only variable that it does not get from its job.
MARKER = "STARTED_BY_LASTGOOD"
_CHUNK_BYTES = 64 * 1024


class CliNotStarted(Exception):
    """The command does not exist or cannot be executed."""


class CliGone(ConnectionError):
    """The CLI closed its input or exited."""


@dataclass(frozen=True, slots=True)
class CliLine:
    """One line of output without its end. A line over the limit keeps its first bytes only."""

    data: bytes
    size: int

    @property
    def whole(self) -> bool:
        return self.size == len(self.data)


class CliLineSplitter:
    """Splits chunks into lines and holds at most `limit` bytes of an unfinished one."""

    def __init__(self, limit: int = MAX_LINE_BYTES) -> None:
        self._limit = limit
        self._kept = bytearray()
        self._size = 0

    def feed(self, chunk: bytes) -> Iterator[CliLine]:
        *complete, rest = chunk.split(b"\n")
        for part in complete:
            self._keep(part)
            yield self._take()
        self._keep(rest)

    def end(self) -> Iterator[CliLine]:
        if self._size:
            yield self._take()

    def _keep(self, part: bytes) -> None:
        self._kept += part[: self._limit - len(self._kept)]
        self._size += len(part)

    def _take(self) -> CliLine:
        line = CliLine(bytes(self._kept), self._size)
        self._kept, self._size = bytearray(), 0
        return line


class CliProcess:
    """A started CLI. `stderr_tail` is what it wrote last to its standard error."""

    def __init__(self, process: asyncio.subprocess.Process, marker: str) -> None:
        self._marker = marker
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process, self._stdin, self._stdout = process, process.stdin, process.stdout
        self._tail = bytearray()
        self._stderr_task = asyncio.create_task(self._keep_stderr(process.stderr))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    @property
    def stderr_tail(self) -> str:
        return self._tail.decode(errors="replace").strip()

    async def lines(self) -> AsyncIterator[CliLine]:
        """Ends when the CLI closes its output or exits, even if a process that it left holds the output."""
        splitter = CliLineSplitter()
        while chunk := await self._chunk():
            for line in splitter.feed(chunk):
                yield line
        for line in splitter.end():
            yield line

    async def _chunk(self) -> bytes:
        reading = asyncio.ensure_future(self._stdout.read(_CHUNK_BYTES))
        try:
            had_exited = False
            while not (await asyncio.wait({reading}, timeout=EXIT_POLL_SECONDS))[0]:
                if had_exited:
                    return b""
                had_exited = self.returncode is not None  # once more: its last bytes may be on their way
            return reading.result()
        finally:
            reading.cancel()

    async def write_line(self, data: bytes) -> None:
        """Raises CliGone if nobody reads it."""
        try:
            self._stdin.write(data + b"\n")
            await self._stdin.drain()
        except (ConnectionError, RuntimeError) as error:
            raise CliGone("the CLI closed its input") from error

    def close_input(self) -> None:
        with contextlib.suppress(ConnectionError, RuntimeError):
            self._stdin.close()

    async def wait(self, timeout: float) -> int | None:
        """Returns the exit code, and None if it is still running after `timeout` seconds."""
        # Some versions of asyncio end Process.wait() only when the pipes are closed, too.
        waiting = asyncio.create_task(self._process.wait())
        until = asyncio.get_running_loop().time() + timeout
        try:
            while self.returncode is None and asyncio.get_running_loop().time() < until:
                await asyncio.wait({waiting}, timeout=min(timeout, 0.05))
        finally:
            waiting.cancel()
        if self.returncode is not None:
            await asyncio.wait({self._stderr_task}, timeout=EXIT_POLL_SECONDS)
        return self.returncode

    def signal(self, number: signal.Signals) -> None:
        for group in self._groups():
            _signal_group(group, number)

    async def end(self, grace: float = TERM_GRACE_SECONDS) -> None:
        """Ends the process group and the groups of its descendants: SIGTERM, then SIGKILL.

        Without a grace only SIGKILL is sent: a halted CLI whose claim is lost must not run for a moment more.
        """
        self.close_input()
        # Collected before the leader dies: without /proc, orphans are found no more.
        groups = self._groups()
        # A stopped process sees SIGTERM only when it continues.
        for number in (signal.SIGTERM, signal.SIGCONT) if grace > 0 else ():
            for group in groups:
                _signal_group(group, number)
        try:
            if grace > 0 and self._process.returncode is None:
                await self.wait(grace)
        finally:
            for group in groups | self._groups():
                _signal_group(group, signal.SIGKILL)
            await self.wait(REAP_SECONDS)
            self._stderr_task.cancel()
            self._close_pipes()

    def _close_pipes(self) -> None:
        """A process that escaped may keep the other ends open forever."""
        transport = getattr(self._process, "_transport", None)
        if isinstance(transport, asyncio.BaseTransport):
            transport.close()

    def _groups(self) -> set[int]:
        return (_descendant_groups(self.pid) | _marked_groups(self._marker)) - {os.getpgrp(), 0, 1}

    async def _keep_stderr(self, stderr: asyncio.StreamReader) -> None:
        while chunk := await stderr.read(_CHUNK_BYTES):
            self._tail += chunk
            del self._tail[:-STDERR_TAIL_BYTES]


class ProcessGroups:
    """The CLIs that a worker has started, to halt, resume or end all of them.

    While halted, a new CLI is not started: a worker whose lease is unconfirmed must cause no effect.
    """

    def __init__(self) -> None:
        self._live: set[CliProcess] = set()
        self._may_run = asyncio.Event()
        self._may_run.set()

    @property
    def live(self) -> int:
        return len(self._live)

    @property
    def halted(self) -> bool:
        return not self._may_run.is_set()

    def halt(self) -> None:
        """Stops every process of every CLI until `resume`."""
        self._may_run.clear()
        for process in self._live:
            process.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._may_run.set()
        for process in self._live:
            process.signal(signal.SIGCONT)

    async def kill_all(self) -> None:
        await asyncio.gather(*(process.end(grace=0) for process in tuple(self._live)))

    @contextlib.asynccontextmanager
    async def started(
        self, command: Sequence[str], work_dir: Path, environment: Mapping[str, str]
    ) -> AsyncIterator[CliProcess]:
        """Runs the CLI for the time of the block, and ends it however the block is left."""
        await self._may_run.wait()
        process = await _start(command, work_dir, environment)
        self._live.add(process)
        if self.halted:  # halted while it was being started
            process.signal(signal.SIGSTOP)
        try:
            yield process
        finally:
            try:
                await process.end()
            finally:
                self._live.discard(process)


async def _start(command: Sequence[str], work_dir: Path, environment: Mapping[str, str]) -> CliProcess:
    pipe, marker = asyncio.subprocess.PIPE, secrets.token_hex(16)
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=work_dir,
            env={**environment, MARKER: marker},
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise CliNotStarted(f"Could not start {command[0]!r}: {error}") from error
    return CliProcess(process, marker)


async def output_of(
    command: Sequence[str], environment: Mapping[str, str], timeout: float = 20
) -> str | None:
    """Returns the first line that a command prints; None if it fails, hangs or does not exist."""
    try:
        async with ProcessGroups().started(command, Path("/"), environment) as process:
            process.close_input()
            async with asyncio.timeout(timeout):
                lines = [line.data.decode(errors="replace").strip() async for line in process.lines()]
            return lines[0] if await process.wait(timeout) == 0 and lines else None
    except (CliNotStarted, TimeoutError):
        return None


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _descendant_groups(pid: int) -> set[int]:
    """The process groups of a group leader and its descendants."""
    table = _process_table()
    children: dict[int, list[int]] = {}
    for child, (parent, _) in table.items():
        children.setdefault(parent, []).append(child)
    groups, todo = {pid}, [pid]
    while todo:
        for child in children.get(todo.pop(), ()):
            groups.add(table[child][1])
            todo.append(child)
    return groups


def _marked_groups(marker: str) -> set[int]:
    """The process groups of all processes that have inherited the marker; empty where there is no /proc."""
    wanted, groups = f"{MARKER}={marker}".encode(), set()
    for pid in _pids():
        with contextlib.suppress(OSError):
            if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                groups.add(os.getpgid(pid))
    return groups


def _pids() -> list[int]:
    with contextlib.suppress(OSError):
        return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    return []


def _process_table() -> dict[int, tuple[int, int]]:
    """Process id to its parent and its group."""
    if Path("/proc/self/stat").exists():
        return dict(_proc_entries())
    listing = subprocess.run(["ps", "-axo", "pid=,ppid=,pgid="], capture_output=True, text=True, check=False)
    rows = (tuple(map(int, row.split())) for row in listing.stdout.splitlines())
    return {pid: (parent, group) for pid, parent, group in rows}


def _proc_entries() -> Iterator[tuple[int, tuple[int, int]]]:
    for pid in _pids():
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The command's name stands in parentheses and may hold spaces and more parentheses.
            fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
            yield pid, (int(fields[1]), int(fields[2]))

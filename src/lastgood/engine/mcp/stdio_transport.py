"""A transport of the MCP SDK over the pipes of a process: lines of JSON-RPC, in bounded memory.

The SDK has one of its own. This one bounds the length of a line, so that a server that never ends its line
cannot fill the memory, reads a long line in linear time, and gives the process an environment that we chose
whole. What a line holds is decided in `stdio_lines.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client._transport import TransportStreams
from mcp.shared.message import SessionMessage

from lastgood.engine.mcp.mcp_errors import ServerUnavailable
from lastgood.engine.mcp.orphan_guard import OrphanGuard
from lastgood.engine.mcp.stdio_lines import LineBuffer, OpenRequests
from lastgood.engine.tools.cancellation import finish

#: For a process to exit after its input was closed, and again after SIGTERM.
GRACE_SECONDS = 2.0
STDERR_TAIL_BYTES = 4096
_CHUNK_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """`config`: it gets a file with this content, with `--config`, for as long as it runs."""

    words: Sequence[str]
    folder: Path
    environment: Mapping[str, str]
    config: bytes | None = None


class ServerProcess:
    """Knows when the process has ended, and what it wrote last to its standard error."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._tail = bytearray()
        self.has_closed = False  # its output: it will answer nothing more

    @property
    def has_ended(self) -> bool:
        """Asked before a call: a call that was never sent did not take effect, and one that was may have."""
        if self.has_closed or self._process.returncode is not None:
            return True
        try:
            # The end of its output may not have been read yet. Other code collects its exit status.
            return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        return self._process.returncode

    @property
    def stderr_tail(self) -> str:
        return self._tail.decode(errors="replace").strip()

    async def keep_stderr(self) -> None:
        assert self._process.stderr is not None
        while chunk := await self._process.stderr.read(_CHUNK_BYTES):
            self._tail = (self._tail + chunk)[-STDERR_TAIL_BYTES:]

    async def end(self) -> None:
        """Closes its input, then SIGTERM, then SIGKILL to its whole group."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, RuntimeError):
            self._process.stdin.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            if await self._exits_within(GRACE_SECONDS):
                break
            self._signal(number)
        await self._exits_within(GRACE_SECONDS)
        self._signal(signal.SIGKILL)  # what it left in its group

    async def _exits_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), seconds)
        return self._process.returncode is not None

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


@contextlib.asynccontextmanager
async def stdio_transport(
    command: ServerCommand, on_started: Callable[[ServerProcess], None], guard: OrphanGuard
) -> AsyncGenerator[TransportStreams, None]:
    async with contextlib.AsyncExitStack() as stack:
        words = command.words
        if command.config is not None:
            words = [*words, "--config", str(await _config_file(command.config, stack))]
        async with _process_transport(replace(command, words=words), on_started, guard) as streams:
            yield streams


async def _config_file(config: bytes, stack: contextlib.AsyncExitStack) -> Path:
    """Not on the command line, where every user of the machine reads it."""
    folder = await asyncio.to_thread(tempfile.TemporaryDirectory, prefix="lastgood-mcp-")
    stack.push_async_callback(asyncio.to_thread, folder.cleanup)
    path = Path(folder.name) / "config.yaml"
    await asyncio.to_thread(path.write_bytes, config)
    return path


@contextlib.asynccontextmanager
async def _process_transport(
    command: ServerCommand, on_started: Callable[[ServerProcess], None], guard: OrphanGuard
) -> AsyncGenerator[TransportStreams, None]:
    pipe = asyncio.subprocess.PIPE
    try:
        started = await asyncio.create_subprocess_exec(
            *command.words,
            cwd=command.folder,
            env=dict(command.environment),
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ServerUnavailable(f"could not start {command.words[0]!r}: {why}") from None
    process = ServerProcess(started)
    on_started(process)
    incoming, read_stream = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write_stream, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    requests = OpenRequests()
    tasks = [
        asyncio.create_task(work)
        for work in (
            _read(started, process, incoming, requests),
            _write(started, process, outgoing, incoming, requests),
            process.keep_stderr(),
        )
    ]
    try:
        await guard.add(started.pid)
        yield read_stream, write_stream
    finally:
        await finish(_close(process, tasks, (incoming, read_stream, write_stream, outgoing)))
        guard.remove(started.pid)


async def _close(
    process: ServerProcess, tasks: Sequence[asyncio.Task[None]], streams: Sequence[anyio.abc.AsyncResource]
) -> None:
    await process.end()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for stream in streams:
        await stream.aclose()


async def _read(
    process: asyncio.subprocess.Process,
    state: ServerProcess,
    incoming: MemoryObjectSendStream[SessionMessage | Exception],
    requests: OpenRequests,
) -> None:
    assert process.stdout is not None
    line = LineBuffer()
    with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
        async with incoming:
            while chunk := await process.stdout.read(_CHUNK_BYTES):
                *ends, rest = chunk.split(b"\n")
                for end in ends:
                    line.add(end)
                    for message in line.messages(requests):
                        await incoming.send(SessionMessage(message))
                    line = LineBuffer()
                line.add(rest)
            state.has_closed = True


async def _write(
    process: asyncio.subprocess.Process,
    state: ServerProcess,
    outgoing: MemoryObjectReceiveStream[SessionMessage],
    incoming: MemoryObjectSendStream[SessionMessage | Exception],
    requests: OpenRequests,
) -> None:
    assert process.stdin is not None
    try:
        async with outgoing:
            async for session_message in outgoing:
                requests.note_sent(session_message.message)
                text = session_message.message.model_dump_json(by_alias=True, exclude_unset=True)
                process.stdin.write(text.encode() + b"\n")
                await process.stdin.drain()
    except (OSError, RuntimeError):
        # The process may be alive and read nothing: without this, a request would wait forever.
        state.has_closed = True
        await incoming.aclose()

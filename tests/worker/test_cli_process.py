"""Processes of CLIs: only the given environment, bounded lines, and nothing left behind."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from lastgood.worker.runtimes.cli_process import (
    MARKER,
    CliGone,
    CliLineSplitter,
    CliNotStarted,
    ProcessGroups,
    output_of,
)
from tests.polls import a_few_rounds
from tests.worker.fake_runtime import FakeRuntime

pytestmark = pytest.mark.anyio


async def gone(pid: int) -> None:
    """Waits until a process has ended; init reaps orphans in its own time."""
    async with asyncio.timeout(10):
        while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            await asyncio.sleep(0.01)


async def written(file: Path) -> int:
    async with asyncio.timeout(10):
        while not (found := content_of(file)):
            await asyncio.sleep(0.01)
    return int(found)


def children() -> list[int]:
    return [child.pid for child in psutil.Process().children() if child.name() == "sleep"]


def content_of(file: Path) -> str:
    return file.read_text() if file.exists() else ""


@pytest.mark.parametrize("kind", ["command", "claude", "codex", "acp"])
async def test_a_cancelled_job_ends_children_that_left_the_group(tmp_path: Path, kind: str) -> None:
    runtime = FakeRuntime(kind, tmp_path)
    running = asyncio.create_task(runtime.run({"spawn": str(tmp_path / "pid")}, {"hang": 1}))
    child = await written(tmp_path / "pid")
    assert os.getpgid(child) == child
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await gone(child)
    assert runtime.groups.live == 0


async def test_what_a_finished_cli_left_behind_is_ended(tmp_path: Path) -> None:
    """The CLI has exited, and the child is in a session of its own: it is nobody's descendant any more."""
    runtime = FakeRuntime("command", tmp_path)
    done = {"write": {"type": "result", "output": "done"}}
    await runtime.failure({"read": "job"}, {"spawn": str(tmp_path / "pid")}, {"exit": 0})
    await gone(await written(tmp_path / "pid"))
    await runtime.run({"read": "job"}, {"spawn": str(tmp_path / "pid2")}, done)
    await gone(await written(tmp_path / "pid2"))


async def test_a_stopped_cli_is_ended_too(tmp_path: Path) -> None:
    groups = ProcessGroups()
    async with groups.started(["sleep", "1000"], tmp_path, {"PATH": os.environ["PATH"]}) as process:
        process.signal(signal.SIGSTOP)
    await gone(process.pid)


async def test_a_cli_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    script = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(1000)"
    )
    async with ProcessGroups().started([sys.executable, "-c", script], tmp_path, {}) as process:
        async for line in process.lines():
            assert line.data == b"up"
            break
        await process.end(grace=0.1)
    assert process.returncode == -signal.SIGKILL


async def test_while_halted_nothing_runs_and_nothing_starts(tmp_path: Path) -> None:
    groups = ProcessGroups()
    path = {"PATH": os.environ["PATH"]}
    async with groups.started(["sleep", "1000"], tmp_path, path) as process:
        groups.halt()
        async with asyncio.timeout(10):
            while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
                await asyncio.sleep(0.01)
        second = asyncio.create_task(groups.started(["sleep", "1000"], tmp_path, path).__aenter__())
        await a_few_rounds()
        assert (groups.live, children()) == (1, [process.pid])
        groups.resume()
        await second
        assert groups.live == 2
        await groups.kill_all()


async def test_a_cli_sees_only_the_given_environment(tmp_path: Path) -> None:
    given = {"ONE": "1", "PATH": os.environ["PATH"]}
    async with ProcessGroups().started(["env"], tmp_path, given) as process:
        lines = {line.data.decode() async for line in process.lines()}
    assert {line.partition("=")[0] for line in lines} == {"ONE", "PATH", MARKER}


async def test_a_command_that_does_not_exist_is_not_started(tmp_path: Path) -> None:
    with pytest.raises(CliNotStarted, match="no-such-cli"):
        async with ProcessGroups().started(["no-such-cli"], tmp_path, {"PATH": "/bin"}):
            pass
    assert await output_of(["no-such-cli"], {"PATH": "/bin"}) is None
    assert await output_of(["false"], {"PATH": "/bin:/usr/bin"}) is None
    assert await output_of(["sleep", "1000"], {"PATH": "/bin:/usr/bin"}, timeout=0.1) is None


async def test_writing_to_a_cli_that_has_exited_is_an_error(tmp_path: Path) -> None:
    async with ProcessGroups().started(["true"], tmp_path, {"PATH": os.environ["PATH"]}) as process:
        await process.wait(10)
        with pytest.raises(CliGone):
            await process.write_line(b"x" * 1_000_000)


async def test_standard_error_is_kept_by_its_end(tmp_path: Path) -> None:
    script = "import sys; sys.stderr.write('x' * 100000 + 'the end')"
    async with ProcessGroups().started([sys.executable, "-c", script], tmp_path, {}) as process:
        assert await process.wait(10) == 0
    assert process.stderr_tail.endswith("the end")
    assert len(process.stderr_tail) <= 8 * 1024


def test_a_line_over_the_limit_keeps_its_beginning_and_its_size() -> None:
    splitter = CliLineSplitter(limit=4)
    lines = [*splitter.feed(b"ab\ncdefgh"), *splitter.feed(b"ij\nkl"), *splitter.end()]
    assert [(line.data, line.size, line.whole) for line in lines] == [
        (b"ab", 2, True),
        (b"cdef", 8, False),
        (b"kl", 2, True),
    ]

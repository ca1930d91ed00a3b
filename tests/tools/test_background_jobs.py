"""Background jobs without a server: how they end, and what is kept of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lastgood.engine.tools import background_jobs
from lastgood.engine.tools.background_jobs import (
    IDLE_SECONDS,
    KEPT_BYTES,
    MOST_ENDED,
    JobToolset,
    SessionJobs,
)
from lastgood.engine.tools.command_environment import Environment
from lastgood.engine.tools.processes import READ_BYTES
from lastgood.engine.tools.program_tools import LiveProgram, SessionPlace
from lastgood.engine.tools.tool import ToolFailed, ToolUse
from lastgood.model.agents import ToolsetSpec
from lastgood.model.ids import DEFAULT_TENANT, AttemptId, SessionId, TenantId, TurnId
from lastgood.outside.secrets import Secrets
from tests.polls import eventually
from tests.tools.toolkit import PATH

pytestmark = pytest.mark.anyio


class Jobs:
    def __init__(self, folder: Path) -> None:
        self.now = 0.0
        self.folder = folder
        self.calls = 0
        secrets = {"TOKEN": "canary-4411"}
        self.toolset = JobToolset(Environment({"PATH": PATH}, Secrets(secrets)), clock=lambda: self.now)

    def program(self, session: str = "s", tenant: str = DEFAULT_TENANT, **options: Any) -> LiveProgram:
        spec = ToolsetSpec("background_jobs", options=options)
        return self.toolset.program(spec, SessionPlace(TenantId(tenant), SessionId(session), self.folder))

    async def __call__(self, program: LiveProgram, name: str, key: str = "", **arguments: Any) -> str:
        self.calls += 1
        tools = {tool.name: tool for tool in (await program.offer()).tools}
        return await tools[name].run(self.use(key or f"t:{self.calls}:c", arguments))

    def use(self, key: str, arguments: dict[str, Any]) -> ToolUse:
        use = ToolUse(arguments, key, SessionId("s"), TurnId("t"), AttemptId("a"), 1)
        return replace(use, working_dir=self.folder)

    async def start(self, program: LiveProgram, cmd: str, **more: Any) -> str:
        text = await self(program, "run_background_job", cmd=cmd, **more)
        return text.splitlines()[0].rpartition(" ")[2]


@pytest.fixture
async def jobs(tmp_path: Path) -> AsyncIterator[Jobs]:
    jobs = Jobs(tmp_path)
    yield jobs
    await jobs.toolset.close()


async def process_in(path: Path) -> int:
    """The number that a command writes when it runs."""
    return int(await eventually(lambda: path.exists() and path.read_text().strip()))


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_jobs_end_an_hour_after_their_session_was_last_used(jobs: Jobs, tmp_path: Path) -> None:
    program = jobs.program()
    job = await jobs.start(program, f"sleep 1000 & echo $! > {tmp_path}/pid; wait")
    process = await process_in(tmp_path / "pid")
    jobs.now += IDLE_SECONDS - 1
    assert "(running)" in await jobs(program, "view_background_job", job_id=job)
    jobs.now += IDLE_SECONDS - 1  # since it was looked at
    await jobs.toolset.stop_idle()
    assert "(running)" in await jobs(program, "view_background_job", job_id=job)
    jobs.now += IDLE_SECONDS + 1
    await jobs.toolset.stop_idle()
    await eventually(lambda: not is_alive(process))
    with pytest.raises(ToolFailed, match="there is no job"):
        await jobs(program, "view_background_job", job_id=job)


async def test_closing_the_program_of_a_session_ends_its_jobs_and_no_others(
    jobs: Jobs, tmp_path: Path
) -> None:
    one, other = jobs.program("one"), jobs.program("other")
    await jobs.start(one, f"echo $$ > {tmp_path}/pid; sleep 1000")
    process = await process_in(tmp_path / "pid")
    kept = await jobs.start(other, "sleep 1000")
    await one.close()
    await eventually(lambda: not is_alive(process))
    assert "(running)" in await jobs(other, "view_background_job", job_id=kept)


async def test_I40_output_is_kept_at_both_ends(jobs: Jobs) -> None:
    program = jobs.program()
    job = await jobs.start(program, f"echo first; yes | head -c {5 * KEPT_BYTES}; echo last")
    text = await jobs(program, "wait_background_job", job_id=job)
    assert "first" in text
    assert text.endswith("last")
    assert "bytes of output omitted" in text
    assert len(text) < 2.1 * KEPT_BYTES


async def test_I40_the_oldest_ended_jobs_are_forgotten(jobs: Jobs) -> None:
    program = jobs.program()
    started = []
    for _ in range(MOST_ENDED + 3):
        started.append(await jobs.start(program, "true"))
        await jobs(program, "wait_background_job", job_id=started[-1])
    listed = await jobs(program, "list_background_jobs")
    assert [job in listed for job in started].count(False) == 2  # the newest has ended since


async def test_I40_a_tenant_runs_so_many_jobs(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_jobs, "MOST_OF_TENANT", 2)
    for session in ("a", "b"):
        await jobs.start(jobs.program(session), "sleep 1000")
    with pytest.raises(ToolFailed, match="2 jobs run on this server"):
        await jobs.start(jobs.program("c"), "sleep 1000")
    await jobs.start(jobs.program("c", tenant="another"), "sleep 1000")


async def test_I41_keys_of_the_environment_are_removed_from_the_output(jobs: Jobs) -> None:
    program = jobs.program(env={"KEY": "${env.TOKEN}"})
    job = await jobs.start(program, 'echo "it is $KEY."')
    text = await jobs(program, "wait_background_job", job_id=job)
    assert "it is " in text
    assert "canary" not in text


async def test_I33_the_same_call_does_not_start_a_second_job(jobs: Jobs, tmp_path: Path) -> None:
    program = jobs.program()
    cmd = f"echo x >> {tmp_path}/log; sleep 1000"
    assert await jobs.start(program, cmd, key="t:1:c") == await jobs.start(program, cmd, key="t:1:c")
    assert (await jobs(program, "list_background_jobs")).count("Job ") == 1


async def test_a_command_that_cannot_run_says_why(jobs: Jobs, tmp_path: Path) -> None:
    program = jobs.program()
    for arguments, words in (
        ({"cmd": " "}, "`cmd` is empty"),
        ({"cmd": "a\x00b"}, "NUL"),
        ({"cmd": "true", "cwd": "../.."}, "outside the working directory"),
    ):
        with pytest.raises(ToolFailed, match=words):
            await jobs(program, "run_background_job", **arguments)
    (tmp_path / "sub").mkdir()
    job = await jobs.start(program, "pwd", cwd="sub")
    assert str(tmp_path / "sub") in await jobs(program, "wait_background_job", job_id=job)


async def test_another_command_at_the_same_place_is_another_job(jobs: Jobs, tmp_path: Path) -> None:
    """A turn that is tried again has the same keys, and the model may ask for something else."""
    program = jobs.program()
    first = await jobs.start(program, "sleep 1000", key="t:1:c")
    second = await jobs.start(program, f"echo x > {tmp_path}/ran; sleep 1000", key="t:1:c")
    assert first != second
    await eventually(lambda: (tmp_path / "ran").exists())
    (tmp_path / "sub").mkdir()
    assert await jobs.start(program, "sleep 1000", key="t:1:c", cwd="sub") not in (first, second)


async def test_a_job_that_is_stopped_as_it_starts_leaves_no_process(jobs: Jobs, tmp_path: Path) -> None:
    program = jobs.program()
    assert isinstance(program, SessionJobs)
    tools = {tool.name: tool for tool in (await program.offer()).tools}
    line = f"echo $$ > {tmp_path}/pid; trap '' TERM; sleep 1000"
    text = await tools["run_background_job"].run(jobs.use("t:1:c", {"cmd": line}))
    [process] = [job.process.process.pid for job in program._jobs.values()]
    job = text.splitlines()[0].rpartition(" ")[2]
    assert "(stopped)" in await tools["stop_background_job"].run(jobs.use("t:2:c", {"job_id": job}))
    assert not is_alive(process)


async def test_I40_a_job_that_never_stops_talking_waits_for_its_reader(jobs: Jobs, tmp_path: Path) -> None:
    program = jobs.program()
    loop = asyncio.get_running_loop()
    began = loop.time()
    line = f"yes | head -c {40 * READ_BYTES}; echo; echo last"
    text = await jobs(program, "wait_background_job", job_id=await jobs.start(program, line))
    assert text.endswith("last")
    assert loop.time() - began > 20 * background_jobs.PAUSE_SECONDS


async def test_I40_output_that_comes_while_a_job_is_stopped_is_kept(jobs: Jobs) -> None:
    program = jobs.program()
    job = await jobs.start(program, "trap 'echo last; exit' TERM; echo first; yes & wait")
    assert isinstance(program, SessionJobs)
    [running] = program._jobs.values()
    await eventually(lambda: running.process.capture.size > READ_BYTES)
    text = await jobs(program, "stop_background_job", job_id=job)
    assert "first" in text


async def test_I40_a_tenant_keeps_so_much_output_of_ended_jobs(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background_jobs, "MOST_ENDED_BYTES", 3 * READ_BYTES)
    started = []
    for number in range(6):
        program = jobs.program(f"s{number}")
        job = await jobs.start(program, f"yes | head -c {READ_BYTES}")
        jobs.now += 1
        await jobs(program, "wait_background_job", job_id=job)
        started.append((program, job))
    kept = [len(await jobs(program, "view_background_job", job_id=job)) for program, job in started]
    assert [size > READ_BYTES for size in kept] == [False, False, True, True, True, True]
    dropped = await jobs(*started[0][:1], "view_background_job", job_id=started[0][1])
    assert "(done: exit status 0)" in dropped
    assert "Its output was dropped" in dropped

"""Background jobs without a server: how they end, and what is kept of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lastgood.engine.tools import background_jobs
from lastgood.engine.tools.background_jobs import IDLE_SECONDS, KEPT_BYTES, MOST_ENDED, JobToolset
from lastgood.engine.tools.command_environment import Environment
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

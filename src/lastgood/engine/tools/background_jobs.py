"""`background_jobs`: commands that keep running while the agent goes on.

A job belongs to its session and to this process: it ends with either, and when nobody has used the session
for a while. A job that the conversation has started and that is not here is reported as gone, not as unknown.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lastgood.core.background_jobs import RUN_JOB, STARTED, job_id, started_jobs
from lastgood.engine.tools.arguments import checked
from lastgood.engine.tools.cancellation import in_thread
from lastgood.engine.tools.command_environment import Environment
from lastgood.engine.tools.processes import ProcessResult, RunningProcess, until_ended
from lastgood.engine.tools.program_tools import LiveProgram, Offer, SessionPlace
from lastgood.engine.tools.shell import SHELL, Shell
from lastgood.engine.tools.tool import Tool, ToolFailed, ToolUse
from lastgood.model.agents import Effect, OnUnknown, ToolsetSpec

#: Of one session, and of a tenant in this process.
MOST_RUNNING = 10
MOST_OF_TENANT = 200
#: Ended jobs whose output is kept, of one session.
MOST_ENDED = 20
#: Of the output of a tenant's ended jobs in this process.
MOST_ENDED_BYTES = 64 * 1024 * 1024
#: Of the beginning of a job's output, and of its end.
KEPT_BYTES = 128 * 1024
#: Between two reads of a job's output. A job that says more than a pipe holds waits for its reader. Otherwise
#: a few of them would keep the event loop from everything else.
PAUSE_SECONDS = 0.05
#: The longest that a job may run, and how long it runs on while nobody uses its session.
JOB_SECONDS = 24 * 3600.0
IDLE_SECONDS = 3600.0
WAIT_SECONDS = 60
#: Less than the watchdog of a turn: waiting is silent.
MOST_WAIT_SECONDS = 240

FORGOTTEN = "[Its output was dropped: the ended jobs on this server had too much of it.]"
GONE = (
    "the job is gone: jobs end when the server restarts, when the agent file changes and when nobody uses "
    "the session for an hour. Its output is lost; start it again if you need it"
)


class JobToolset:
    def __init__(self, environment: Environment, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.environment, self.clock = environment, clock
        self._open: set[SessionJobs] = set()
        self._sweeper: asyncio.Task[None] | None = None

    def program(self, spec: ToolsetSpec, place: SessionPlace) -> LiveProgram:
        return SessionJobs(self, spec, place)

    def check_room(self, place: SessionPlace) -> None:
        ours = [one for one in self._open if one.place.tenant == place.tenant]
        if sum(one.running for one in ours) >= MOST_OF_TENANT:
            raise ToolFailed(f"{MOST_OF_TENANT} jobs run on this server, which is the limit; stop some first")
        # Sessions are many. Without this, one tenant could fill the memory of all with what its jobs said.
        ended = sorted((job for one in ours for job in one.ended), key=lambda job: job.began_at)
        surplus = sum(job.process.capture.size for job in ended) - MOST_ENDED_BYTES
        for job in ended:
            if surplus <= 0:
                break
            surplus -= job.process.capture.size
            job.process.capture.clear()

    def keep(self, jobs: SessionJobs) -> None:
        self._open.add(jobs)
        if self._sweeper is None or self._sweeper.done():
            self._sweeper = asyncio.create_task(self._stop_idle())

    def forget(self, jobs: SessionJobs) -> None:
        self._open.discard(jobs)

    async def _stop_idle(self) -> None:
        while self._open:
            await asyncio.sleep(IDLE_SECONDS / 60)
            await self.stop_idle()

    async def stop_idle(self) -> None:
        for jobs in list(self._open):
            if self.clock() - jobs.used_at > IDLE_SECONDS:
                await jobs.close()

    async def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        await asyncio.gather(*(jobs.close() for jobs in list(self._open)))


@dataclass(slots=True)
class BackgroundJob:
    id: str
    line: str
    folder: str
    process: RunningProcess
    began_at: float
    ended: asyncio.Task[ProcessResult] = field(init=False)
    is_stopped: bool = False
    _is_watched: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.ended = asyncio.create_task(self._until_ended())

    async def _until_ended(self) -> ProcessResult:
        self._is_watched.set()
        # Its output is kept once, where it was captured.
        return replace(await until_ended(self.process), output="")

    @property
    def is_running(self) -> bool:
        return not self.ended.done()

    @property
    def state(self) -> str:
        if self.is_running:
            return "running"
        if self.is_stopped or self.ended.cancelled():
            return "stopped"
        if (error := self.ended.exception()) is not None:
            return f"failed: {error}"
        result = self.ended.result()
        return "stopped: it ran too long" if result.code is None else f"done: {result.failure}"

    async def stop(self) -> None:
        """Returns when its process group is gone."""
        self.is_stopped = self.is_stopped or self.is_running
        # A task that is cancelled before it has begun does nothing at all: the process would be left.
        await self._is_watched.wait()
        self.ended.cancel()
        await asyncio.wait({self.ended})

    async def report(self) -> str:
        """With its output so far."""
        about, capture, scrub = self.about(), self.process.capture.copy(), self.process.command.scrub
        # The copy: more output may come while a thread makes text of it.
        output = await in_thread(lambda stop: scrub(capture.text()).strip())
        return f"{about}\n\n{output or ('<no output>' if capture.is_whole else FORGOTTEN)}"

    def about(self) -> str:
        return f"Job {self.id} ({self.state})\nCommand: {self.line}\nWorking directory: {self.folder}"


class SessionJobs:
    """The jobs of one session."""

    def __init__(self, toolset: JobToolset, spec: ToolsetSpec, place: SessionPlace) -> None:
        self._toolset, self._spec, self.place = toolset, spec, place
        self._shell = Shell(spec, toolset.environment)
        self._jobs: dict[str, BackgroundJob] = {}
        self.used_at = toolset.clock()

    @property
    def running(self) -> int:
        return sum(job.is_running for job in self._jobs.values())

    @property
    def ended(self) -> Sequence[BackgroundJob]:
        return [job for job in self._jobs.values() if not job.is_running]

    async def offer(self) -> Offer:
        self.used_at = self._toolset.clock()
        wanted = self._spec.tools
        tools = tuple(tool for tool in self._tools() if wanted is None or tool.name in wanted)
        return Offer(tools, self._spec.instruction, label="jobs")

    async def close(self) -> None:
        self._toolset.forget(self)
        jobs, self._jobs = list(self._jobs.values()), {}
        await asyncio.gather(*(job.stop() for job in jobs))

    # -- the tools -------------------------------------------------------------------------

    async def _run(self, use: ToolUse) -> str:
        line: str = use.arguments["cmd"]
        if not line.strip():
            raise ToolFailed("`cmd` is empty")
        folder = use.arguments.get("cwd", ".")
        id = job_id(use.key, line, folder)
        if (known := self._jobs.get(id)) is not None and known.is_running:
            return _started(known)
        if self.running >= MOST_RUNNING:
            raise ToolFailed(f"{MOST_RUNNING} jobs of this session run, which is the limit; stop one first")
        self._toolset.check_room(self.place)
        spec = self._shell.process_of(use, line, folder=folder, seconds=JOB_SECONDS, kept_bytes=KEPT_BYTES)
        spec = replace(spec, pause_seconds=PAUSE_SECONDS)
        job = BackgroundJob(id, line, folder, RunningProcess(spec, _silent), self._toolset.clock())
        self._jobs.pop(id, None)
        self._jobs[id] = job
        self._toolset.keep(self)
        for surplus in self.ended[:-MOST_ENDED]:
            del self._jobs[surplus.id]
        return _started(job)

    async def _list(self, use: ToolUse) -> str:
        gone = [
            f"Job {id} (gone)\nCommand: {line}"
            for id, line in started_jobs(use.messages).items()
            if id not in self._jobs
        ]
        here = [
            f"{job.about()}\nStarted: {self._toolset.clock() - job.began_at:.0f} s ago"
            for job in self._jobs.values()
        ]
        if gone:
            gone.append(f"[{GONE[0].upper()}{GONE[1:]}.]")
        return "\n\n".join([*here, *gone]) or "No background jobs."

    async def _view(self, use: ToolUse) -> str:
        return await self._job(use).report()

    async def _stop(self, use: ToolUse) -> str:
        job = self._job(use)
        if not job.is_running:
            raise ToolFailed(f"the job is not running: it {job.state}")
        await job.stop()
        return await job.report()

    async def _wait(self, use: ToolUse) -> str:
        job, seconds = self._job(use), use.arguments.get("timeout", WAIT_SECONDS)
        await asyncio.wait({job.ended}, timeout=seconds)
        report = await job.report()
        return f"The job still runs after {seconds} s.\n\n{report}" if job.is_running else report

    def _job(self, use: ToolUse) -> BackgroundJob:
        id = use.arguments["job_id"]
        job = self._jobs.get(id)
        if job is None:
            raise ToolFailed(
                GONE if id in started_jobs(use.messages) else f"there is no job {id!r}; list_background_jobs"
            )
        return job

    def _tools(self) -> Iterator[Tool]:
        text, job = {"type": "string"}, {"job_id": {"type": "string", "description": "The id of the job"}}
        yield _tool(
            RUN_JOB,
            f"Starts a shell command with {SHELL} and returns at once. Use it for servers, watchers and long "
            "builds. Jobs end with the session's server.",
            self._run,
            {
                "cmd": {**text, "description": "The shell command to run in the background"},
                "cwd": {**text, "description": 'The working directory (default: ".")'},
            },
            ["cmd"],
            Effect.UNKNOWN,
            OnUnknown.FAIL,
        )
        yield _tool("list_background_jobs", "Lists the background jobs and their states.", self._list, {})
        yield _tool("view_background_job", "Shows the output of a background job so far.", self._view, job)
        yield _tool(
            "stop_background_job",
            "Stops a background job and all processes that it started.",
            self._stop,
            job,
            ["job_id"],
            Effect.DESTRUCTIVE,
        )
        seconds = {
            "type": "integer",
            "description": f"The longest time to wait, in seconds (default: {WAIT_SECONDS})",
            "minimum": 1,
            "maximum": MOST_WAIT_SECONDS,
        }
        yield _tool(
            "wait_background_job",
            "Waits until a background job has ended, and returns its output. Use it instead of looking again "
            "and again.",
            self._wait,
            {**job, "timeout": seconds},
            ["job_id"],
        )


def _started(job: BackgroundJob) -> str:
    return f"{STARTED}{job.id}\nCommand: {job.line}\nWorking directory: {job.folder}"


def _silent(text: str) -> None:
    """Nobody watches a job; its output is read when the model asks for it."""


def _tool(
    name: str,
    about: str,
    run: Callable[[ToolUse], Awaitable[str]],
    properties: dict[str, Any],
    required: list[str] | None = None,
    effect: Effect = Effect.SAFE,
    on_unknown: OnUnknown = OnUnknown.REPEAT,
) -> Tool:
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
    }
    return checked(Tool(name, about, schema, run, on_unknown=on_unknown, effect=effect))

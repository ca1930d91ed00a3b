"""Runs one claimed task: prepares its directory, drives the CLI, and leaves the final report in the outbox.

A run ends in one of three ways: the kind's result, the kind's failure, or a stop from outside. Whatever comes
first is reported; the report is on disk before it is sent.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import time
from dataclasses import replace
from typing import Any

from lastgood.worker.claim_calls import ClaimCalls, StopReason
from lastgood.worker.claims import Claim
from lastgood.worker.cli_environment import task_environment
from lastgood.worker.cli_mcp_servers import Machine, passed_on
from lastgood.worker.final_report import RunFacts, TextTail, final_report
from lastgood.worker.job import (
    Activity,
    ActivityType,
    FailureCode,
    Job,
    JobAnswer,
    JobFailed,
    JobQuestion,
    JobResult,
    RuntimeKind,
    Steering,
)
from lastgood.worker.preparation import RunTools, prepared_directory
from lastgood.worker.progress import ProgressWatch
from lastgood.worker.runtimes.cli_process import ProcessGroups
from lastgood.worker.snapshots import KIND, MAX_BYTES, Baseline, make_snapshot, remember
from lastgood.worker.transcript_sender import TranscriptSender
from lastgood.worker.work_dirs import WorkDir, WorkDirRefused

log = logging.getLogger(__name__)

_TICK_SECONDS = 1.0


class TaskRun:
    """One claim. `groups` are its CLI's processes, to halt and resume them."""

    def __init__(self, claim: Claim, kind: RuntimeKind, groups: ProcessGroups, tools: RunTools) -> None:
        self.claim, self.groups = claim, groups
        self.started_at = time.monotonic()
        self.doing = "starting"  # for the status display
        self.waits_for = ""  # before its start, for people on the server
        self._kind, self._tools = kind, tools
        self._redaction = tools.redaction.knowing(claim.task_token)
        self._stopped: asyncio.Future[tuple[StopReason, str]] = asyncio.get_running_loop().create_future()
        self._calls = ClaimCalls(tools.server, claim.key, self.stop)
        self._sender = TranscriptSender(self._calls.send_messages)
        self._steering = Steering()
        self._progress = ProgressWatch(self.started_at, tools.options.idle_seconds)
        self._tool_calls = 0
        self._native_session: str | None = None
        self._said = TextTail()
        self._work_dir: WorkDir | None = None
        self._questions = 0
        self._background: set[asyncio.Task[Any]] = set()

    @property
    def stop_reason(self) -> StopReason | None:
        return self._stopped.result()[0] if self._stopped.done() else None

    def stop(self, reason: StopReason, message: str) -> None:
        """Ends the run; the first reason counts."""
        if self._stopped.done():
            return
        self._stopped.set_result((reason, message))
        if reason is StopReason.TOKEN_REJECTED:
            self._tools.token_rejected()  # the other runs, too

    # -- the run -------------------------------------------------------------------------

    async def run(self) -> None:
        """Returns when the final report is in the outbox. Raises OSError if the disk does not take it."""
        try:
            outcome = await self._outcome()
        finally:
            for task in self._background:
                task.cancel()
        await self._report(outcome)

    async def _outcome(self) -> JobResult | JobFailed:
        try:
            refusal = self._kind.cannot_enforce(self.claim.permissions)
            if refusal is not None:
                return JobFailed(FailureCode.UNENFORCEABLE, refusal)
            async with contextlib.AsyncExitStack() as stack:
                preparing = prepared_directory(self.claim, self._tools, self._waits_for)
                work_dir, notes = await self._unless_stopped(stack.enter_async_context(preparing))
                self.waits_for, self._work_dir = "", work_dir
                return await self._in_directory(work_dir, notes)
        except WorkDirRefused as error:
            return JobFailed(FailureCode.UNENFORCEABLE, str(error))
        except _Stopped:
            return self._failure_of_stop()
        except OSError as error:  # a full disk, a directory without rights
            return JobFailed(FailureCode.NOT_STARTED, f"the working directory cannot be used: {error}")

    def _waits_for(self, work_dir: WorkDir) -> None:
        self.doing = f"waiting for the folder {work_dir.path}"
        self.waits_for = f"another task works in {work_dir.path}, in a folder above it or in one below it"

    async def _in_directory(self, work_dir: WorkDir, notes: tuple[str, ...]) -> JobResult | JobFailed:
        self._spawn(self._sender.run())
        if await self._unless_stopped(self._calls.call("start", {})) is None:
            self.stop(StopReason.LOST, "the server did not accept the start")
            raise _Stopped
        wants_snapshot = work_dir.is_owned or self._tools.options.snapshots_allowed_dirs
        before = await asyncio.to_thread(remember, work_dir) if wants_snapshot else None
        self._spawn(self._watch())
        if self._kind.can_steer:
            self._spawn(self._calls.pass_on_steers(self._steering))
        outcome = await self._drive(await self._job(work_dir, notes))
        is_saved = before is not None and await self._snapshot(work_dir, before)
        self._tools.work_dirs.used(work_dir, is_saved=is_saved)
        left = await self._sender.flush(self._tools.options.times.flush_seconds)
        if left:
            log.warning("transcript cut", extra={"fields": {"task": self.claim.key.task, "messages": left}})
        return outcome

    async def _drive(self, job: Job) -> JobResult | JobFailed:
        self.doing = "running"
        running = asyncio.create_task(self._kind.run(job, self, self._steering))
        try:
            await self._until_stopped(running)
            if not running.done() and (self.groups.halted or self.stop_reason in _AT_ONCE):
                # Killed while it is halted: a CLI whose claim is lost must have no further effect.
                await self.groups.kill_all()
        finally:
            running.cancel()
            await asyncio.wait({running})
        self.doing = "reporting"
        if running.cancelled():
            return self._failure_of_stop()
        match running.exception():
            case None:
                return running.result()
            case JobFailed() as failed:
                return self._failure_of_stop() if self._stopped.done() else failed
            case error:
                log.error("internal error in a runtime kind", exc_info=error)
                return JobFailed(FailureCode.CLI_PROTOCOL, f"internal error in the worker: {error!r}")

    def _failure_of_stop(self) -> JobFailed:
        reason, message = self._stopped.result()
        failed = JobFailed(FailureCode.TIMEOUT, message, tool_calls=self._tool_calls)
        if reason is not StopReason.TIMEOUT:
            failed.message = f"{reason}: {message}"
        return failed

    async def _unless_stopped(self, waited: Any) -> Any:
        """Waits for it; raises _Stopped if the run is stopped first."""
        task = asyncio.ensure_future(waited)
        await self._until_stopped(task)
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
            raise _Stopped
        return task.result()

    async def _until_stopped(self, task: asyncio.Future[Any]) -> None:
        """Returns when it is done or the run is stopped."""
        both: set[asyncio.Future[Any]] = {task, self._stopped}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _job(self, work_dir: WorkDir, notes: tuple[str, ...]) -> Job:
        claim, options = self.claim, self._tools.options
        machine = Machine(options.ceiling, options.allow_mcp, self._tools.environment)
        servers, left_out = await asyncio.to_thread(passed_on, claim.mcp_servers, machine, work_dir.path)
        for reason in left_out:
            await self.activity(Activity(ActivityType.ERROR, reason))
        own = task_environment(self._tools.server.url, claim.key.task, claim.session, claim.task_token)
        return Job(
            prompt=claim.prompt,
            work_dir=work_dir.path,
            native_session=claim.native_session,
            transcript=claim.transcript,
            catch_up=claim.catch_up,
            disclosures=(*claim.disclosures, *notes, *left_out),
            instruction=claim.instruction,
            model=claim.model,
            effort=claim.effort,
            environment={**self._tools.environment, **own},
            permissions=claim.permissions,
            mcp_servers=servers,
        )

    # -- while it runs -------------------------------------------------------------------

    async def pin(self, native_session: str) -> None:
        self._native_session = native_session
        # Not awaited: an unreachable server must not hold up the CLI.
        self._spawn(self._calls.call("session", {"native_session": native_session, **self._dir_field()}))

    async def activity(self, activity: Activity) -> None:
        now = time.monotonic()
        self._progress.saw(activity, now)
        if activity.type is ActivityType.TOOL_USE:
            self._tool_calls += 1
            self.doing = activity.tool or "tool"
        elif activity.type is ActivityType.TEXT:
            self._said.add(activity.content)
        redact = self._redaction
        self._sender.add(
            Activity(
                activity.type,
                redact.text(activity.content),
                redact.text(activity.tool),
                activity.call,
                redact.plain(activity.input),
                redact.text(activity.output),
            )
        )

    async def ask(self, question: JobQuestion) -> JobAnswer:
        redact = self._redaction
        shown = replace(question, input=redact.plain(question.input), title=redact.text(question.title))
        self._questions += 1
        doing, self.doing = self.doing, "waiting for an answer"
        try:
            return await self._calls.ask(shown)
        finally:
            self._questions -= 1
            self.doing = doing

    async def _watch(self) -> None:
        """The deadline, and progress: not bytes, and not while a person is asked or the CLI is halted."""
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            now = time.monotonic()
            if now - self.started_at > self.claim.deadline_seconds:
                self.stop(StopReason.TIMEOUT, f"the task took longer than {self.claim.deadline_seconds:g} s")
            if self._questions or self.groups.halted:
                self._progress.excuse(now)
            elif self._progress.is_stuck(now):
                idle = self._tools.options.idle_seconds
                self.stop(StopReason.TIMEOUT, f"the CLI made no progress for {idle:g} s")

    # -- after it ------------------------------------------------------------------------

    async def _snapshot(self, work_dir: WorkDir, before: Baseline) -> bool:
        """Puts it into the outbox, before the final report. False: there is none."""
        if self.stop_reason in (StopReason.LOST, StopReason.CANCELLED):
            return False
        try:
            made = await asyncio.to_thread(make_snapshot, work_dir, before, self._redaction)
            if len(made.body) > MAX_BYTES:
                return False
            body = {
                "claim_token": self.claim.key.token,
                "kind": KIND,
                "summary": made.summary,
                "body": base64.b64encode(made.body).decode(),
            }
            await asyncio.to_thread(self._tools.outbox.put, self.claim.key.task, "snapshot", body)
        except OSError as error:
            fields = {"task": self.claim.key.task, "reason": str(error)}
            log.warning("no snapshot of the working directory", extra={"fields": fields})
            return False
        return True

    async def _report(self, outcome: JobResult | JobFailed) -> None:
        facts = RunFacts(
            self.claim.key.token,
            self.stop_reason,
            None if self._work_dir is None else str(self._work_dir.path),
            self._native_session,
            self._tool_calls,
            self._said.text,
            tuple(self._calls.delivered),
        )
        call, body = final_report(outcome, facts, self._redaction)
        await asyncio.to_thread(self._tools.outbox.put, self.claim.key.task, call, body)

    def _dir_field(self) -> dict[str, str]:
        return {} if self._work_dir is None else {"work_dir": str(self._work_dir.path)}


_AT_ONCE = (StopReason.LOST, StopReason.TOKEN_REJECTED)


class _Stopped(Exception):
    """The run was stopped before its CLI was started."""

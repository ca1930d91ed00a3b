"""The life of a worker process: registers, delivers old reports, claims and runs tasks, and drains.

One loop each for heartbeats, claims, deliveries and the lease watch. They share the table of runs and the
reason why nothing is claimed; everything else belongs to one of them.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Mapping
from typing import Any

from lastgood.errors import Forbidden, LastgoodError, NotFound, Unauthorized, WrongUsage
from lastgood.worker.claim_calls import StopReason
from lastgood.worker.claims import ClaimUnreadable, read_claim, read_key
from lastgood.worker.delivery import ReportSender, backoff_seconds
from lastgood.worker.lease_watch import LeaseWatch, now
from lastgood.worker.preparation import RunTools
from lastgood.worker.registration import OfferedRuntime, RegistrationRequest
from lastgood.worker.runtimes.cli_process import ProcessGroups
from lastgood.worker.runtimes.runtime_kinds import RuntimeChoice, kind_named
from lastgood.worker.server_calls import CallFailure, HeartbeatAnswer, RegisteredWorker, failure_of
from lastgood.worker.task_run import TaskRun
from lastgood.worker.worker_identity import WorkerIdentity

log = logging.getLogger(__name__)

_TICK_SECONDS = 1.0
_PAUSE_SECONDS = 2.0
#: A worker whose reports do not get through must not produce more of them.
_MOST_REPORTS = 100
#: The server takes no more in one call.
_MOST_CLAIMS = 16
_STATUS_CHARACTERS = 500


class WorkerProcess:
    def __init__(
        self, identity: WorkerIdentity, runtimes: tuple[OfferedRuntime, ...], tools: RunTools
    ) -> None:
        self._identity, self._tools = identity, tools
        self._options, self._server = tools.options, tools.server
        self._registration = RegistrationRequest(identity, tools.options.name, runtimes, tools.environment)
        self.delivery = ReportSender(tools.server, tools.outbox, tools.token_rejected)
        self.runs: dict[str, TaskRun] = {}
        self.registered: RegisteredWorker | None = None
        self.claimed = 0
        self.queue_age = 0.0  # of the newest claim
        self.last_heartbeat: float | None = None
        self._offered: dict[str, RuntimeChoice] = {}
        self._sent_waits: dict[str, str] = {}  # by task
        self._watch = LeaseWatch(now(), tools.options.times.lease_seconds)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._beat_now = asyncio.Event()
        self._confirmed = asyncio.Event()  # by a heartbeat, after the last call that failed
        self._freed = asyncio.Event()
        self.stopping = asyncio.Event()  # claims nothing more
        self.stop_message = ""
        self.exit_code = 0

    # -- its life ------------------------------------------------------------------------

    async def run(self, hurry: asyncio.Event) -> int:
        """Returns the exit code, after everything that was claimed has been reported or kept."""
        if not await self._register():
            return self.exit_code
        loops = [
            asyncio.create_task(work)
            for work in (self.delivery.run(), self._beat(), self._tick(), self._clean_up(), self._claim())
        ]
        failing = asyncio.create_task(_first_failure(loops))
        stopping = asyncio.create_task(self.stopping.wait())
        await asyncio.wait({failing, stopping}, return_when=asyncio.FIRST_COMPLETED)
        loops[-1].cancel()
        await self._finish(hurry)
        failed = failing.done() and failing.exception()
        for task in (*loops, failing, stopping):
            task.cancel()
        await asyncio.gather(*loops, failing, stopping, return_exceptions=True)
        if failed:
            raise failed
        return self.exit_code

    def drain(self, message: str, exit_code: int = 0) -> None:
        """Claims nothing more; what runs may finish within the grace period."""
        if not self.stopping.is_set():
            self.stop_message, self.exit_code = message, exit_code
            log.info(message)
            self.stopping.set()

    def reject_token(self) -> None:
        """Stops at once: after its token was revoked, nothing more may happen here."""
        self.delivery.can_deliver = False
        self.drain("the server rejected the token", 1)
        for run in self.runs.values():
            if run.stop_reason is None:
                run.stop(StopReason.TOKEN_REJECTED, "the server rejected the worker's token")

    async def _register(self) -> bool:
        """Tries for as long as it takes. False: stopped, or the server will never accept it."""
        tries = 0
        while not self.stopping.is_set():
            try:
                self.registered = await self._server.register(await self._registration.body())
            except (Unauthorized, Forbidden):
                self.drain("the server rejected the token", 1)
            except LastgoodError as error:
                never = isinstance(error, NotFound | WrongUsage)
                if never or failure_of(error) is CallFailure.REFUSED:
                    raise
                tries += 1
                log.warning("cannot register", extra={"fields": {"reason": error.message}})
                await _first_of(self.stopping.wait(), asyncio.sleep(backoff_seconds(tries)))
            else:
                ids = self.registered.runtime_ids
                offered = zip(ids, self._registration.runtimes, strict=True)
                self._offered = {number: one.choice for number, one in offered}
                log.info(
                    "registered", extra={"fields": {"worker": self._identity.worker_id, "runtimes": ids}}
                )
                return True
        return False

    async def _finish(self, hurry: asyncio.Event) -> None:
        times = self._options.times
        running: asyncio.Future[Any] = asyncio.gather(*self._tasks.values(), return_exceptions=True)
        hurried: asyncio.Future[Any] = asyncio.ensure_future(hurry.wait())
        await asyncio.wait({running, hurried}, timeout=self._options.drain_seconds, return_when=_FIRST)
        for run in self.runs.values():
            run.stop(StopReason.WORKER_STOPPED, "the worker was stopped before the task had ended")
        if hurried.done():
            await asyncio.gather(*(run.groups.kill_all() for run in self.runs.values()))
        await running
        if not hurried.done() and self.delivery.can_deliver:
            await asyncio.wait(
                {asyncio.ensure_future(self.delivery.idle.wait()), hurried},
                timeout=times.farewell_seconds,
                return_when=_FIRST,
            )
            await self._deregister()
        hurried.cancel()

    async def _deregister(self) -> None:
        try:
            await asyncio.wait_for(self._server.deregister(self._who()), self._options.times.farewell_seconds)
        except (LastgoodError, TimeoutError):
            log.warning("could not deregister; the server will mark the worker offline")

    def _who(self) -> dict[str, Any]:
        epoch = self.registered.epoch if self.registered else 0
        return {"worker_id": self._identity.worker_id, "epoch": epoch}

    # -- heartbeats and the lease ----------------------------------------------------------

    async def _beat(self) -> None:
        times, tries = self._options.times, 0
        while True:
            sent = now()
            try:
                answer = await self._server.heartbeat(self._heartbeat())
            except LastgoodError as error:
                if failure_of(error) is CallFailure.TOKEN_REJECTED:
                    self._tools.token_rejected()
                    return
                tries += 1
                self._confirmed.clear()
                log.warning("heartbeat failed", extra={"fields": {"reason": error.message}})
                pause = min(backoff_seconds(tries), times.heartbeat_seconds)
            else:
                tries, pause = 0, times.heartbeat_seconds
                self.last_heartbeat = time.monotonic()
                self._watch.confirm(sent)
                self._obey(answer)
                self._confirmed.set()
            await _first_of(self._beat_now.wait(), asyncio.sleep(pause))
            self._beat_now.clear()

    def _heartbeat(self) -> dict[str, Any]:
        live = self.delivery.live_claims() | {
            run.claim.key.task: run.claim.key.token for run in self.runs.values()
        }
        self._sent_waits = self._waits()
        return self._who() | {
            "runtime_ids": list(self._offered),
            "live": [
                {"task_id": task, "claim_token": token, "why": self._sent_waits.get(task) or None}
                for task, token in live.items()
            ],
            "status": self.why_not_claiming()[:_STATUS_CHARACTERS],
        }

    def _waits(self) -> dict[str, str]:
        return {task: run.waits_for[:_STATUS_CHARACTERS] for task, run in self.runs.items() if run.waits_for}

    def _obey(self, answer: HeartbeatAnswer) -> None:
        # Those that are lost are stopped before the others may go on: `stop` kills halted ones.
        for task in answer.cancel & self.runs.keys():
            self.runs[task].stop(StopReason.CANCELLED, "the task was cancelled")
        for task in answer.lost & self.runs.keys():
            self.runs[task].stop(StopReason.LOST, "another worker has taken over the task")
        if not self._watch.must_halt:
            for run in self.runs.values():
                if run.stop_reason is None and run.groups.halted:
                    run.groups.resume()
        for runtime in answer.unknown_runtimes & self._offered.keys():
            choice = self._offered.pop(runtime)
            log.warning("this runtime was removed on the server", extra={"fields": {"runtime": choice.name}})
        if not self._offered:
            self.drain("all runtimes were removed on the server; start the worker again to add them", 1)
        if answer.replaced:
            self.drain(
                "another process with the same worker id has taken over; this one finishes and stops", 1
            )

    async def _tick(self) -> None:
        """Halts the CLIs when the process wakes up past its lease. Reports what a run waits for."""
        while True:
            if self._watch.tick(now()):
                for run in self.runs.values():
                    run.groups.halt()
                log.warning(
                    "lease expired while suspended; CLIs are paused until a heartbeat confirms the claims"
                )
                self._beat_now.set()
            if self._waits() != self._sent_waits:
                self._beat_now.set()
            await asyncio.sleep(_TICK_SECONDS)

    # -- claims ----------------------------------------------------------------------------

    def why_not_claiming(self) -> str:
        """For people, on the server, too; empty: it claims."""
        if self.stopping.is_set():
            return self.stop_message
        free = shutil.disk_usage(self._options.root).free
        if free < self._options.min_free_bytes:
            least = self._options.min_free_bytes >> 20
            return (
                f"only {free >> 20} MiB of disk space are free, and the limit is {least} MiB; free some space"
            )
        if not self._tools.outbox.reserve():
            return "no disk space can be reserved for reports; free some space"
        if len(self._tools.outbox) >= _MOST_REPORTS:
            return f"{len(self._tools.outbox)} reports wait for delivery"
        return ""

    async def _claim(self) -> None:
        await self.delivery.tried_all.wait()
        tries, logged = 0, ""
        while True:
            # After an outage its own leases may have ended, and it would claim away from itself what it runs.
            await self._confirmed.wait()
            free, why = self._options.slots - len(self.runs), self.why_not_claiming()
            if why != logged:
                logged = why
                self._beat_now.set()  # people on the server look for the reason
            if free <= 0 or why:
                await _first_of(self._freed.wait(), asyncio.sleep(_PAUSE_SECONDS))
                self._freed.clear()
                continue
            if await self._registration.is_outdated():
                log.warning("a CLI was logged in with another account, which is another runtime")
                await self._register()
                continue
            body = self._who() | {
                "runtime_ids": list(self._offered),
                "max_tasks": min(free, _MOST_CLAIMS),
                "status": "",
            }
            try:
                claims = await self._server.claim(body, self._options.times.poll_seconds)
                tries = 0
            except LastgoodError as error:
                if failure_of(error) is CallFailure.TOKEN_REJECTED:
                    self._tools.token_rejected()
                    return
                self._confirmed.clear()
                self._beat_now.set()  # its answer says what has happened
                tries += 1
                await asyncio.sleep(backoff_seconds(tries))
                continue
            for plain in claims:
                self._start(plain)

    def _start(self, plain: Mapping[str, Any]) -> None:
        try:
            key = read_key(plain)
        except ClaimUnreadable as error:
            log.error("a claim cannot be read; its lease will end", extra={"fields": {"reason": str(error)}})
            return
        if key.task in self.runs:
            return  # the answer to an earlier call arrived twice
        self.claimed += 1
        try:
            claim = read_claim(plain, self._options.ceiling)
            choice = self._choice(key.runtime_id)
        except ClaimUnreadable as error:
            body = {"claim_token": key.token, "code": "unenforceable", "error": str(error)}
            self._tools.outbox.put(key.task, "fail", body)
            self.delivery.wake()
            return
        groups = ProcessGroups()
        kind = kind_named(choice.kind, choice.command, self._tools.environment, groups)
        self._watch.lease_seconds = claim.lease_seconds
        self.queue_age = claim.queued_seconds
        run = TaskRun(claim, kind, groups, self._tools)
        self.runs[key.task] = run
        self._tasks[key.task] = asyncio.create_task(self._follow(run))

    def _choice(self, runtime: str) -> RuntimeChoice:
        if runtime not in self._offered:
            raise ClaimUnreadable(f"this worker does not offer the runtime {runtime}")
        return self._offered[runtime]

    async def _follow(self, run: TaskRun) -> None:
        task = run.claim.key.task
        log.info("task started", extra={"fields": {"task": task, "agent": run.claim.agent}})
        try:
            await run.run()
        except OSError as error:
            # Also the reserved space is used up: the lease ends, and the task is claimed again.
            log.error("the report of a task could not be stored", extra={"fields": {"reason": str(error)}})
        except Exception:
            log.exception("internal error in a run")
        finally:
            self.runs.pop(task, None)
            self._tasks.pop(task, None)
            self._freed.set()
            self.delivery.wake()
            log.info("task ended", extra={"fields": {"task": task, "stopped": run.stop_reason}})

    async def _clean_up(self) -> None:
        while True:
            keep = self._options.keep_seconds
            if keep > 0:
                deleted = await asyncio.to_thread(self._tools.work_dirs.clean_up, keep, time.time())
                for path in deleted:
                    log.info("deleted an unused working directory", extra={"fields": {"path": str(path)}})
            await asyncio.sleep(self._options.times.clean_up_seconds)


_FIRST = asyncio.FIRST_COMPLETED


async def _first_of(*waits: Any) -> None:
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=_FIRST)
    finally:
        for task in tasks:
            task.cancel()


async def _first_failure(loops: list[asyncio.Task[None]]) -> None:
    """Raises the first error of a loop: a worker without heartbeats must not go on as if it had them."""
    done, _ = await asyncio.wait(loops, return_when=asyncio.FIRST_EXCEPTION)
    for task in done:
        task.result()

"""Delivers the reports of the outbox, oldest first, until the server has acknowledged each of them.

A report that the server cannot answer now stays and is tried again; later ones of its task wait for it, those
of other tasks do not.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Any

from lastgood.errors import LastgoodError
from lastgood.worker.outbox import Outbox, Report, ReportHead
from lastgood.worker.server_calls import CallFailure, WorkServer, failure_of, is_of_cancelled_task

log = logging.getLogger(__name__)

_FIRST_SECONDS = 0.5
_MOST_SECONDS = 30.0
#: The reports that end a run.
_ENDS = ("complete", "fail")


def backoff_seconds(tries: int) -> float:
    """With jitter: many workers lose a server at the same moment."""
    return min(_FIRST_SECONDS * 2.0 ** min(tries, 10), _MOST_SECONDS) * (1 + random.random() / 4)


class ReportSender:
    def __init__(self, server: WorkServer, outbox: Outbox, token_rejected: Callable[[], None]) -> None:
        self._server, self._outbox, self._token_rejected = server, outbox, token_rejected
        self._new = asyncio.Event()
        self.can_deliver = True  # until the token is rejected
        self.tried_all = asyncio.Event()  # each report that was there at the start was tried
        self.idle = asyncio.Event()  # nothing waits

    def wake(self) -> None:
        self.idle.clear()
        self._new.set()

    def live_claims(self) -> dict[str, str]:
        """Tasks whose final report waits, with their claim tokens: they are held until it is delivered."""
        return {report.task: report.claim_token for report in self._outbox.waiting() if report.is_final}

    async def run(self) -> None:
        """Until it is cancelled."""
        tries = 0
        while True:
            self._new.clear()
            done = await self.deliver_all()
            if done is None:
                return
            if done:
                tries = 0
                self.tried_all.set()
                if not self._new.is_set():
                    self.idle.set()
                await self._new.wait()
            else:
                tries += 1
                await asyncio.sleep(backoff_seconds(tries))

    async def deliver_all(self) -> bool | None:
        """Tries each report once. False: some must be tried again; None: the token was rejected."""
        failed: set[str] = set()
        answered = True
        for waiting in self._outbox.waiting():
            if waiting.task in failed:
                continue
            report = await asyncio.to_thread(self._outbox.read, waiting)
            if report is None:
                log.error("a report on the disk is damaged; it is kept", extra=_about(waiting))
                continue
            try:
                await self._deliver(report)
            except LastgoodError as error:
                match failure_of(error):
                    case CallFailure.TOKEN_REJECTED:
                        self.can_deliver = False
                        self._token_rejected()
                        return None
                    case CallFailure.RETRY:
                        failed.add(report.task)
                        answered = answered and error.detail.get("request_id") is not None
                        log.warning(
                            "report not delivered; it stays in the outbox", extra=_fields(report, error)
                        )
                    case failure:
                        await asyncio.to_thread(self._give_up, report, failure, error)
                        self.wake()
            else:
                await asyncio.to_thread(self._outbox.remove, report)
        if answered:
            self.tried_all.set()
        return not failed

    async def _deliver(self, report: Report) -> None:
        try:
            await self._server.report(report.task, report.call, report.body)
        except LastgoodError as error:
            if is_of_cancelled_task(error) and report.call in _ENDS:
                # The run is over, however it learned of the cancel. The report stays in the outbox until
                # this is acknowledged, too, so it needs no space on a disk that may be full.
                token = {"claim_token": report.claim_token}
                await self._server.report(report.task, "cancel-ack", token)
            raise

    def _give_up(self, report: Report, failure: CallFailure, error: LastgoodError) -> None:
        if failure is not CallFailure.REFUSED:
            # The server keeps the output of a late report; another worker has the task, or it has ended.
            log.warning("late report: the task was ended or taken over", extra=_fields(report, error))
            self._outbox.remove(report)
            return
        kept = self._outbox.set_aside(report)
        log.error("the server refused a report; it is kept", extra=_fields(report, error, file=str(kept)))
        if report.call == "complete":
            # Without this the task would wait for its deadline.
            body = {
                "claim_token": report.body["claim_token"],
                "code": "cli_protocol",
                "error": f"the server refused the result: {error.message}",
                "native_session": report.body.get("native_session"),
                "work_dir": report.body.get("work_dir"),
            }
            self._outbox.put(report.task, "fail", body)


def _fields(report: Report, error: LastgoodError, **more: Any) -> dict[str, Any]:
    return _about(report, code=error.code, reason=error.message, **more)


def _about(report: ReportHead, **more: Any) -> dict[str, Any]:
    return {"fields": {"task": report.task, "report": report.call, **more}}

"""The calls about one claim, each repeated until the server has answered, and what the answers carry.

Any response may say that the task was ended from elsewhere, or carry messages of a person for the run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from lastgood.errors import LastgoodError
from lastgood.worker.claims import ClaimKey
from lastgood.worker.delivery import backoff_seconds
from lastgood.worker.job import JobAnswer, JobQuestion, Steering
from lastgood.worker.server_calls import CallFailure, WorkServer, failure_of, is_of_cancelled_task

log = logging.getLogger(__name__)

_ASK_SECONDS = 2.0
_STEER_SECONDS = 3.0


class StopReason(StrEnum):
    """Why a run is stopped before its CLI has ended."""

    CANCELLED = "cancelled"  # the server reported that the task was ended from elsewhere
    LOST = "lost"  # another worker has the task
    TOKEN_REJECTED = "token_rejected"
    WORKER_STOPPED = "worker_stopped"
    TIMEOUT = "timeout"


Stop = Callable[[StopReason, str], None]


class ClaimCalls:
    """`steers` are messages of a person, by number. The server repeats them until they are acknowledged."""

    def __init__(self, server: WorkServer, key: ClaimKey, stop: Stop) -> None:
        self._server, self._key, self._stop = server, key, stop
        self.steers: dict[int, str] = {}
        self.delivered: list[int] = []

    async def call(self, name: str, body: Mapping[str, Any]) -> dict[str, Any] | None:
        """Returns the answer; None if the claim is not ours any more, or the server refuses this call."""
        tries = 0
        while True:
            try:
                answer = await self._server.report(
                    self._key.task, name, {"claim_token": self._key.token, **body}
                )
            except LastgoodError as error:
                if failure_of(error) is not CallFailure.RETRY:
                    self._refused(name, error)
                    return None
                tries += 1
                await asyncio.sleep(backoff_seconds(tries))
            else:
                self._take(answer)
                return answer

    def _refused(self, name: str, error: LastgoodError) -> None:
        match failure_of(error):
            case CallFailure.TOKEN_REJECTED:
                self._stop(StopReason.TOKEN_REJECTED, error.message)
            # Reports come more often than heartbeats, so most runs learn of their cancel here.
            case CallFailure.STALE if is_of_cancelled_task(error):
                self._stop(StopReason.CANCELLED, error.message)
            case CallFailure.STALE | CallFailure.GONE:
                self._stop(StopReason.LOST, error.message)
            case _:  # a report that is only for people must not end a run
                fields = {"task": self._key.task, "call": name, "reason": error.message}
                log.error("server rejected a call", extra={"fields": fields})

    def _take(self, answer: Mapping[str, Any]) -> None:
        if answer.get("cancel"):
            self._stop(StopReason.CANCELLED, "the task was cancelled")
        for steer in answer.get("steers") or ():
            if steer["id"] not in self.delivered:
                self.steers[steer["id"]] = str(steer["text"])

    async def send_messages(self, messages: Sequence[dict[str, Any]]) -> int | None:
        answer = await self.call("messages", {"messages": list(messages)})
        last = int(messages[-1]["seq"])
        return None if answer is None else int(answer.get("acked_seq") or last)

    async def pass_on_steers(self, steering: Steering) -> None:
        """Looks for messages of a person, and acknowledges those that the run has taken. Until cancelled."""
        while True:
            for number, text in list(self.steers.items()):
                if await steering.send(text):
                    del self.steers[number]
                    self.delivered.append(number)
            # Without messages: it asks for news and says what was delivered.
            await self.call("messages", {"messages": [], "delivered": self.delivered})
            await asyncio.sleep(_STEER_SECONDS)

    async def ask(self, question: JobQuestion) -> JobAnswer:
        """Waits for a person. The server ends the question at its deadline."""
        asked = {
            "id": question.id,
            "tool": question.tool,
            "input": question.input,
            "title": question.title,
            "name": question.name,
            "renamed": dict(question.renamed),
            "effect": question.effect,
        }
        while True:
            answer = await self.call("ask", {"question": asked})
            if answer is None:
                return JobAnswer(False, "the question could not be asked: the server did not accept it")
            shown = answer.get("question") or {}
            given = shown.get("answer") or {}
            match shown.get("status"):
                case "pending":
                    await asyncio.sleep(_ASK_SECONDS)
                case "answered":
                    return JobAnswer(bool(given.get("allowed")), str(given.get("reason") or ""))
                case status:
                    return JobAnswer(False, str(given.get("reason") or f"the question is {status}"))

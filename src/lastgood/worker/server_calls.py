"""The calls of the work API, one try each, and what a failed one means.

Knows no loop and no task: callers decide when to try again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from lastgood.client.transport import ApiCall, Transport, escaped, with_query
from lastgood.core.work_protocol import FIRST_PROTOCOL, WORK_PROTOCOL, why_incompatible
from lastgood.errors import (
    Forbidden,
    InvalidRequest,
    LastgoodError,
    NotFound,
    ResponseUnreadable,
    Unauthorized,
    WrongUsage,
)

CALL_SECONDS = 30.0
#: Uploads and downloads of snapshots: up to 16 MiB over a slow line.
TRANSFER_SECONDS = 300.0


class CallFailure(StrEnum):
    """What a failed call means for its caller."""

    RETRY = "retry"  # nothing is known about the outcome, or the server is not able to answer now
    TOKEN_REJECTED = "token_rejected"
    GONE = "gone"  # the server does not know the task
    STALE = "stale"  # the task was ended, or another worker has it
    REFUSED = "refused"  # the server will never accept this body


def failure_of(error: LastgoodError) -> CallFailure:
    if isinstance(error, Unauthorized | Forbidden):
        return CallFailure.TOKEN_REJECTED
    if error.code == "stale_claim":
        return CallFailure.STALE
    if isinstance(error, NotFound) or error.code.endswith("_not_found"):
        return CallFailure.GONE
    # The client raises InvalidRequest, too: a certificate that cannot be verified must not lose a report.
    if isinstance(error, InvalidRequest) and "request_id" in error.detail:
        return CallFailure.REFUSED
    return CallFailure.RETRY


def is_of_cancelled_task(error: LastgoodError) -> bool:
    """Whether a call failed because its task was cancelled: its run is unwanted, and nobody else runs it."""
    return failure_of(error) is CallFailure.STALE and error.detail.get("status") == "cancelled"


@dataclass(frozen=True, slots=True)
class RegisteredWorker:
    epoch: int
    runtime_ids: tuple[str, ...]  # in the order of the registration


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    renewed: frozenset[str]
    lost: frozenset[str]
    cancel: frozenset[str]
    unknown_runtimes: frozenset[str]
    replaced: bool


class WorkServer:
    def __init__(self, url: str, token: str | None, ca_file: Path | None = None) -> None:
        self._transport = Transport(url, token, CALL_SECONDS, uses_proxy=True, ca_file=ca_file)
        self.url = url

    async def close(self) -> None:
        await self._transport.close()

    async def enroll(self, code: str, name: str) -> dict[str, Any]:
        return await self._post("/api/worker/enroll", {"code": code, "name": name})

    async def register(self, body: Mapping[str, Any]) -> RegisteredWorker:
        plain = await self._post("/api/worker/register", body)
        try:
            runtimes = tuple(str(one["id"]) for one in plain["runtimes"])
            spoken = int(plain.get("protocol") or FIRST_PROTOCOL)
            registered = RegisteredWorker(int(plain["worker"]["epoch"]), runtimes)
        except (KeyError, TypeError, ValueError):
            raise _unreadable(self.url) from None
        if problem := why_incompatible(worker=WORK_PROTOCOL, server=spoken):
            raise WrongUsage(f"{self.url}: {problem}")
        return registered

    async def heartbeat(self, body: Mapping[str, Any]) -> HeartbeatAnswer:
        plain = await self._post("/api/worker/heartbeat", body)
        return HeartbeatAnswer(
            renewed=_ids(plain, "renewed"),
            lost=_ids(plain, "lost"),
            cancel=_ids(plain, "cancel"),
            unknown_runtimes=_ids(plain, "unknown_runtimes"),
            replaced=bool(plain.get("replaced")),
        )

    async def claim(self, body: Mapping[str, Any], wait_seconds: float) -> Sequence[dict[str, Any]]:
        plain = await self._post(
            "/api/worker/claim", {**body, "wait_seconds": wait_seconds}, CALL_SECONDS + wait_seconds
        )
        tasks = plain.get("tasks")
        if not isinstance(tasks, list):
            raise _unreadable(self.url)
        return tasks

    async def deregister(self, body: Mapping[str, Any]) -> None:
        await self._post("/api/worker/deregister", body)

    async def report(self, task: str, call: str, body: Mapping[str, Any]) -> dict[str, Any]:
        seconds = TRANSFER_SECONDS if call == "snapshot" else CALL_SECONDS
        return await self._post(f"/api/worker/tasks/{escaped(task)}/{call}", body, seconds)

    async def download(self, task: str, claim_token: str, attempt: str) -> dict[str, Any]:
        query = {"claim_token": claim_token, "attempt": attempt}
        path = with_query(f"/api/worker/tasks/{escaped(task)}/snapshot", query)
        return self._object(await self._transport.call_once(ApiCall("GET", path), TRANSFER_SECONDS))

    async def _post(
        self, path: str, body: Mapping[str, Any], seconds: float = CALL_SECONDS
    ) -> dict[str, Any]:
        call = ApiCall("POST", path, dict(body))
        return self._object(await self._transport.call_once(call, seconds))

    def _object(self, plain: Any) -> dict[str, Any]:
        if not isinstance(plain, dict):
            raise _unreadable(self.url)
        return plain


def _ids(plain: Mapping[str, Any], name: str) -> frozenset[str]:
    return frozenset(str(one) for one in plain.get(name) or ())


def _unreadable(url: str) -> ResponseUnreadable:
    return ResponseUnreadable(
        f"{url} sent a response that this worker cannot read; upgrade the older of the two"
    )

"""Handlers for workers: register, heartbeat, claim and report.

A worker's token is good for one worker id: the one it was created for, or the first that registers with it.
A principal that is bound to no worker (an admin, or a server
without tokens) may register any worker id that is free, and act for the workers that it owns.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from typing import Any, TypeVar

from lastgood.core.history import valid_text
from lastgood.errors import Forbidden, InvalidRequest, NotFound, ShuttingDown
from lastgood.flows.work.assembly import WorkFlows
from lastgood.flows.work.claim_tokens import stored_form
from lastgood.flows.work.claims import ClaimCall
from lastgood.flows.work.enrollment import Enroller, check_worker
from lastgood.flows.work.questions import AskedCall, answer_json
from lastgood.flows.work.report_content import ClaimRef, Completion, RunFailure
from lastgood.model.ids import AttemptId, TaskId
from lastgood.model.runtimes import (
    Enforcement,
    Heartbeat,
    LiveClaim,
    NewRuntime,
    Registration,
    RuntimeIdentity,
)
from lastgood.model.sessions import MOST_TOKENS, Usage
from lastgood.model.tasks import TaskMessage
from lastgood.model.tokens import Scope
from lastgood.surfaces.http.asgi import Request, Response, json_reply
from lastgood.surfaces.http.body_parser import parse
from lastgood.surfaces.work.schemas import (
    MOST_CLAIMS,
    AskBody,
    ClaimBody,
    CompleteBody,
    DeregisterBody,
    EnrollBody,
    FailBody,
    HeartbeatBody,
    MessageBody,
    MessagesBody,
    PinBody,
    RegisterBody,
    ReportBody,
    SnapshotBody,
    UsageBody,
    UsageFields,
)

_Report = TypeVar("_Report", bound=ReportBody)


class WorkerHandlers:
    def __init__(self, work: WorkFlows, enroller: Enroller, is_draining: Callable[[], bool]) -> None:
        self._work = work
        self._enroller = enroller
        self._is_draining = is_draining

    # -- the worker --------------------------------------------------------------------

    async def register(self, request: Request) -> Response:
        body = parse(RegisterBody, await _report_json(request))
        self._work.runtimes.check_protocol(body.protocol)
        caller = request.caller
        if caller.worker is None and Scope.ADMIN not in caller.scopes:
            await self._enroller.bind(caller.tenant, caller.name, caller.user, body.worker_id)
            worker = body.worker_id
        else:
            worker = _worker(request, body.worker_id)
        registered = await self._work.runtimes.register(
            Registration(
                tenant=request.caller.tenant,
                worker=worker,
                name=body.name or worker,
                owner=request.caller.user,
                instance=body.instance or "",
                version=body.version or "",
                runtimes=tuple(
                    NewRuntime(
                        RuntimeIdentity("", worker, one.provider, one.account or "", one.format or ""),
                        one.name,
                        one.profile or "",
                        one.cli_version or "",
                        bool(one.steerable),
                        _enforcement(one.enforces),
                    )
                    for one in body.runtimes
                ),
            ),
            request.caller.name,
        )
        return json_reply(
            {
                "protocol": self._work.runtimes.protocol,
                "worker": {"epoch": registered.epoch, "took_over": registered.took_over},
                "runtimes": [
                    {"id": one.id, "name": one.name, "provider": one.identity.provider}
                    for one in registered.runtimes
                ],
            }
        )

    async def heartbeat(self, request: Request) -> Response:
        body = parse(HeartbeatBody, await _report_json(request))
        worker = _worker(request, body.worker_id)
        beat = await self._work.runtimes.beat(
            Heartbeat(
                tenant=request.caller.tenant,
                worker=worker,
                epoch=await self._epoch(request, worker, body.epoch),
                runtimes=tuple(body.runtime_ids),
                live=tuple(
                    LiveClaim(TaskId(one.task_id), stored_form(one.claim_token), one.why or "")
                    for one in body.live or ()
                ),
                status=body.status or "",
                owner=request.caller.user,
            )
        )
        return json_reply(
            {
                "renewed": beat.renewed,
                "lost": beat.lost,
                "cancel": beat.cancel,
                "unknown_runtimes": beat.unknown_runtimes,
                "replaced": beat.replaced,
            }
        )

    async def deregister(self, request: Request) -> Response:
        body = parse(DeregisterBody, await _report_json(request))
        worker = _worker(request, body.worker_id)
        done = await self._work.runtimes.deregister(
            request.caller.tenant,
            worker,
            request.caller.user,
            await self._epoch(request, worker, body.epoch),
        )
        return json_reply({"status": "offline" if done else "replaced"})

    async def claim(self, request: Request) -> Response:
        """A worker that disconnects while it waits claims nothing."""
        if self._is_draining():
            raise ShuttingDown()
        body = parse(ClaimBody, await _report_json(request))
        worker = _worker(request, body.worker_id)
        call = ClaimCall(
            tenant=request.caller.tenant,
            worker=worker,
            epoch=await self._epoch(request, worker, body.epoch),
            runtimes=tuple(dict.fromkeys(body.runtime_ids)),
            max_tasks=min(body.max_tasks or 1, MOST_CLAIMS),
            wait_seconds=body.wait_seconds or 0.0,
            token=request.caller.name,
            user=request.caller.user,
        )
        sent = await request.unless_gone(self._work.claims.claim(call, self._is_draining))
        return json_reply({"tasks": [one.content for one in sent]})

    async def _epoch(self, request: Request, worker: str, given: int | None) -> int:
        """A client that does not track epochs acts as the newest instance of its worker. Forbidden: the
        worker belongs to another user."""
        newest = await self._work.runtimes.newest_epoch(request.caller.tenant, worker, request.caller.user)
        return newest if given is None else given

    async def enroll(self, request: Request) -> Response:
        body = parse(EnrollBody, await request.json())
        enrolled = await self._enroller.exchange(body.code, body.name)
        plain = {"token": enrolled.plain, "worker_id": enrolled.token.worker, "tenant": enrolled.token.tenant}
        return json_reply(plain, 201)

    # -- reports -----------------------------------------------------------------------

    async def start(self, request: Request) -> Response:
        body = await _report(request, ReportBody)
        return json_reply(await self._work.reports.start(_key(request, body.claim_token)))

    async def session(self, request: Request) -> Response:
        body = await _report(request, PinBody)
        key = _key(request, body.claim_token)
        return json_reply(await self._work.reports.pin(key, body.native_session, body.work_dir))

    async def messages(self, request: Request) -> Response:
        body = await _report(request, MessagesBody)
        messages = [TaskMessage(one.seq, _message_json(one)) for one in body.messages]
        key = _key(request, body.claim_token)
        return json_reply(await self._work.reports.messages(key, messages, body.delivered or ()))

    async def usage(self, request: Request) -> Response:
        body = await _report(request, UsageBody)
        key = _key(request, body.claim_token)
        return json_reply(await self._work.reports.usage(key, _usage(body.usage), body.model))

    async def ask(self, request: Request) -> Response:
        body = await _report(request, AskBody)
        asked = body.question
        plain = {"tool": asked.tool or "", "input": asked.input, "title": asked.title or ""}
        call = None  # of an earlier release, which does not say what the call can do
        if asked.effect:
            call = AskedCall(
                asked.tool or "", asked.input, asked.name or "", asked.renamed or {}, asked.effect
            )
        question = await self._work.questions.ask(
            _key(request, body.claim_token), asked.id, plain, asked.deadline_seconds, call
        )
        return json_reply({"question": answer_json(question)})

    async def upload(self, request: Request) -> Response:
        body = await _report(request, SnapshotBody)
        try:
            content = base64.b64decode(body.body, validate=True)
        except (binascii.Error, ValueError):
            raise InvalidRequest("`body` is not valid base64", param="body") from None
        key = _key(request, body.claim_token)
        return json_reply(await self._work.reports.snapshot(key, body.kind, body.summary or {}, content))

    async def download(self, request: Request) -> Response:
        """Only a snapshot of the session that the claim is about."""
        key = _key(request, request.query.get("claim_token", ""))
        attempt = AttemptId(request.query.get("attempt", ""))
        found = await self._work.reports.read_snapshot(key, attempt)
        if found is None:
            raise NotFound("Snapshot not found")
        body = base64.b64encode(found.body).decode()
        return json_reply(
            {"attempt": found.attempt, "kind": found.kind, "summary": found.summary, "body": body}
        )

    async def complete(self, request: Request) -> Response:
        body = await _report(request, CompleteBody)
        done = Completion(
            output=body.output,
            native_session=body.native_session,
            work_dir=body.work_dir,
            usage=_usage(body.usage),
            model=body.model,
            retired_session=body.retired_session,
            disclosure=body.disclosure or "",
            delivered=tuple(body.delivered or ()),
            cli_version=body.cli_version or "",
        )
        return json_reply(await self._work.final_reports.complete(_key(request, body.claim_token), done))

    async def fail(self, request: Request) -> Response:
        body = await _report(request, FailBody)
        failure = RunFailure(
            code=body.code,
            error=body.error,
            native_session=body.native_session,
            work_dir=body.work_dir,
            retired_session=body.retired_session,
            resume_failed=bool(body.resume_failed),
            tool_calls=body.tool_calls or 0,
            retry_after_seconds=body.retry_after_seconds,
            cli_version=body.cli_version or "",
        )
        return json_reply(await self._work.final_reports.fail(_key(request, body.claim_token), failure))

    async def acknowledge(self, request: Request) -> Response:
        body = await _report(request, ReportBody)
        return json_reply(await self._work.reports.acknowledge_cancel(_key(request, body.claim_token)))

    async def status(self, request: Request) -> Response:
        key = _key(request, request.query.get("claim_token", ""))
        return json_reply(await self._work.reports.status(key))


def _worker(request: Request, given: str) -> str:
    """The worker id of a request. Forbidden: the token is another worker's."""
    caller = request.caller
    if caller.worker is None and Scope.ADMIN not in caller.scopes:
        raise Forbidden(f"This token is bound to no worker yet; register worker {given!r} with it first")
    if caller.worker is not None and caller.worker != given:
        raise Forbidden(f"This token is bound to worker {caller.worker!r}, not to {given!r}")
    return check_worker(given)


def _key(request: Request, token: str) -> ClaimRef:
    caller = request.caller
    if caller.worker is None and Scope.ADMIN not in caller.scopes:
        raise Forbidden("This token is bound to no worker; use the token of the worker that has the claim")
    return ClaimRef(caller.tenant, TaskId(request.path["task"]), token, caller.worker, caller.user)


async def _report(request: Request, model: type[_Report]) -> _Report:
    return parse(model, await _report_json(request))


async def _report_json(request: Request) -> Any:
    """As `request.json`, but halves of surrogates and invalid UTF-8 are replaced: a report that can never be
    accepted would stay in its worker's outbox, and nothing behind it would be reported."""
    try:
        return _valid_json(await request.json())
    except InvalidRequest:
        try:
            return _valid_json(json.loads((await request.body()).decode("utf-8", "replace")))
        except (ValueError, RecursionError):
            pass
        raise


def _valid_json(value: Any) -> Any:
    match value:
        case str():
            return valid_text(value)
        case dict():
            return {valid_text(name): _valid_json(one) for name, one in value.items()}
        case list():
            return [_valid_json(one) for one in value]
        case float() if value != value or value in (float("inf"), float("-inf")):
            return None  # no JSON
        case _:
            return value


def _enforcement(given: str | None) -> Enforcement:
    """A word of a later release is one that this server cannot rely on."""
    try:
        return Enforcement(given or "")
    except ValueError:
        return Enforcement.NONE


def _usage(fields: UsageFields | None) -> Usage:
    if fields is None:
        return Usage()
    read, written = (min(n or 0, MOST_TOKENS) for n in (fields.input_tokens, fields.output_tokens))
    return Usage(read, written, fields.cost or 0.0)


def _message_json(message: MessageBody) -> dict[str, Any]:
    names = ("type", "content", "tool", "call", "input", "output")
    plain = {name: getattr(message, name) for name in names}
    return {name: value for name, value in plain.items() if value is not None} | (message.model_extra or {})

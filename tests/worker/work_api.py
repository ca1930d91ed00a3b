"""The server's side of the work API, as a test wants it: it loses answers, refuses, and takes tasks away.

The real server is in `tests/e2e/test_worker.py`. This one makes happen what a real one does once in a year.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable
from typing import Any, Self

from aiohttp import web

from tests.e2e.command import until
from tests.polls import eventually


class WorkApi:
    """Runs in a thread. `calls` are all that arrived, in order: (path below /api/worker, body)."""

    def __init__(self, lease_seconds: float = 90.0) -> None:
        self.lease_seconds = lease_seconds
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.queued: list[dict[str, Any]] = []
        self.renews = True
        self.beat: dict[str, Any] = {}
        #: By call name: what to answer instead. An HTTP status; "drop": close without an answer; "hold": wait
        #: until the fault is gone; "cancelled": the 409 of a task that was cancelled.
        self.faults: dict[str, int | str] = {}
        self.steers: list[dict[str, Any]] = []
        self.answers: dict[str, Any] = {"status": "answered", "answer": {"allowed": True, "reason": ""}}
        self.snapshot: dict[str, Any] = {}
        #: Added to every object of every answer.
        self.more: dict[str, Any] = {}
        self.protocol: int | None = None
        self._numbers = itertools.count(1)
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def queue(self, prompt: str, **more: Any) -> str:
        number = next(self._numbers)
        task = f"task_{number}"
        self.queued.append(
            {
                "task": {
                    "id": task,
                    "agent": "a",
                    "session_id": more.pop("session", f"ses_{number}"),
                    "runtime_id": "rt_0",
                    "deadline_seconds": more.pop("deadline_seconds", 3600),
                    "queued_seconds": more.pop("queued_seconds", 0.5),
                },
                "claim_token": f"token_{number}",
                "lease_seconds": self.lease_seconds,
                "prompt": prompt,
                "agent": {"name": "a", "permissions": {"mode": "autonomous"}},
                "resume": {"decision": "fresh", "reason": "", "rejected": []},
                **more,
            }
        )
        return task

    def of(self, name: str, task: str | None = None) -> list[dict[str, Any]]:
        """The bodies of the calls with this name."""
        return [
            body
            for path, body in list(self.calls)
            if path.split("/")[-1] == name and (task is None or f"/{task}/" in path)
        ]

    def until_called(self, name: str, task: str | None = None, times: int = 1) -> dict[str, Any]:
        until(lambda: len(self.of(name, task)) >= times)
        return self.of(name, task)[times - 1]

    def until_true(self, what: Callable[[], bool]) -> None:
        until(what)

    # -- the thread ----------------------------------------------------------------------

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        runner = self._loop.run_until_complete(self._start())
        self._started.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()

    async def _start(self) -> web.AppRunner:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/api/worker/{path:.*}", self._handle)
        runner = web.AppRunner(app, shutdown_timeout=0)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.port = runner.addresses[0][1]
        return runner

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        path = request.match_info["path"]
        name = path.split("/")[-1]
        body = await request.json() if request.can_read_body else dict(request.query)
        self.calls.append((path, body))
        await eventually(lambda: self.faults.get(name) != "hold")
        match self.faults.get(name):
            case None:
                return web.json_response(_with_more(await self._answer(name, body, request), self.more))
            case "drop":
                assert request.transport is not None
                request.transport.abort()
                return web.Response()
            case "cancelled":
                detail = {"status": "cancelled", "cancel": True}
                error = {"code": "stale_claim", "message": "no", "detail": detail, "request_id": "r"}
                return web.json_response({"error": error}, status=409)
            case int() as status:
                codes = {
                    401: "unauthorized",
                    404: "task_not_found",
                    409: "stale_claim",
                    400: "invalid_request",
                }
                error = {"code": codes.get(status, "internal_error"), "message": "no", "request_id": "r"}
                return web.json_response({"error": error}, status=status)
            case other:
                raise AssertionError(other)

    async def _answer(self, name: str, body: dict[str, Any], request: web.Request) -> dict[str, Any]:
        match name:
            case "register":
                ids = [{"id": f"rt_{number}"} for number, _ in enumerate(body["runtimes"])]
                spoken = {} if self.protocol is None else {"protocol": self.protocol}
                return {"worker": {"epoch": 1, "took_over": False}, "runtimes": ids, **spoken}
            case "heartbeat":
                live = [one["task_id"] for one in body["live"]]
                return {"renewed": live, "lost": [], "cancel": [], "unknown_runtimes": [], **self.beat}
            case "claim":
                for _ in range(int(min(body["wait_seconds"], 1) * 100)):
                    if self.queued:
                        break
                    await asyncio.sleep(0.01)
                if request.transport is None or request.transport.is_closing():
                    return {}  # a worker that is gone claims nothing
                taken = self.queued[: body["max_tasks"]]
                del self.queued[: body["max_tasks"]]
                return {"tasks": taken}
            case "messages":
                numbers = [message["seq"] for message in body["messages"]]
                unseen = [one for one in self.steers if one["id"] not in (body.get("delivered") or ())]
                return {"acked_seq": max(numbers, default=0), "steers": unseen}
            case "ask":
                return {"question": {"id": body["question"]["id"], **self.answers}}
            case "snapshot" if request.method == "GET":
                return self.snapshot
            case _:
                return {}


def _with_more(value: Any, more: dict[str, Any]) -> Any:
    match value:
        case dict() if more:
            return {name: _with_more(one, more) for name, one in value.items()} | more
        case list() if more:
            return [_with_more(one, more) for one in value]
        case _:
            return value

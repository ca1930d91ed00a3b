"""A worker as the server sees it: what it would send, over the work API."""

from dataclasses import dataclass
from typing import Any

from tests.surfaces.in_process_server import InProcessServer

Plain = dict[str, Any]


@dataclass(frozen=True)
class WorkerCalls:
    inside: InProcessServer
    token: str | None
    worker: str
    epoch: int
    runtime: str

    async def claim(self, wait_seconds: float = 0.0) -> Plain:
        body = {
            "worker_id": self.worker,
            "epoch": self.epoch,
            "runtime_ids": [self.runtime],
            "max_tasks": 1,
            "wait_seconds": wait_seconds,
        }
        (claim,) = (await self.inside.good("POST", "/api/worker/claim", body, self.token))["tasks"]
        found: Plain = claim
        return found

    async def report(self, claim: Plain, name: str, **fields: Any) -> Any:
        path = f"/api/worker/tasks/{claim['task']['id']}/{name}"
        return await self.inside.good(
            "POST", path, {"claim_token": claim["claim_token"], **fields}, self.token
        )

    async def answer(self, output: str, **fields: Any) -> Plain:
        """Claims the next task and completes it."""
        claim = await self.claim(20.0)
        await self.report(claim, "complete", output=output, **fields)
        return claim


async def registered(
    inside: InProcessServer, user: str | None, worker: str = "laptop", **fields: Any
) -> WorkerCalls:
    """A worker of that user, enrolled and online. `user` is the name of a token; None: no token is needed."""
    token = None
    if user is not None:
        code = await inside.good("POST", "/api/enrollments", {"worker_id": worker}, user)
        enrolled = await inside.good("POST", "/api/worker/enroll", {"code": code["code"], "name": worker})
        token = enrolled["token"]
    runtime = {"name": worker, "provider": "claude", **fields}
    body = {"worker_id": worker, "instance": "one", "version": "1", "runtimes": [runtime]}
    made = await inside.good("POST", "/api/worker/register", body, token)
    return WorkerCalls(inside, token, worker, made["worker"]["epoch"], made["runtimes"][0]["id"])

"""A task token reads its own task and session while its claim holds the task, and nothing else (I34, I36)."""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest

from tests.surfaces.in_process_server import AGENT, InProcessServer, open_inside

pytestmark = pytest.mark.anyio

OPEN = {
    "GET /api/tasks/{task}",
    "GET /api/sessions/{session}",
    "GET /api/sessions/{session}/turns",
    "GET /api/sessions/{session}/turns/{turn}",
}

_numbers = count(1)


@dataclass
class Run:
    """A claim that a worker holds; the session has one committed turn before it."""

    runtime: str
    claim: dict[str, Any]
    turn: str

    @property
    def token(self) -> str:
        return str(self.claim["task_token"])

    def fill(self, path: str) -> str:
        task = self.claim["task"]
        names = {
            "task": task["id"],
            "session": task["session_id"],
            "turn": self.turn,
            "runtime": self.runtime,
        }
        names |= {"attempt": task["attempt"], "agent": AGENT.replace("/", "%2F")}
        return re.sub(r"{(\w+)}", lambda hole: names.get(hole[1], "x"), path)


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def inside(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcessServer]:
    tokens = {
        "ann": ("a", ("session", "approve"), "ann", None),
        "laptop": ("a", ("worker",), "ann", "laptop"),
    }
    async with open_inside(tmp_path_factory.mktemp("task-tokens"), tokens=tokens) as opened:
        yield opened


async def claimed(inside: InProcessServer) -> Run:
    body = {"worker_id": "laptop", "runtimes": [{"name": "laptop-1", "provider": "claude"}]}
    made = await inside.good("POST", "/api/worker/register", body, "laptop")
    runtime, epoch = made["runtimes"][0]["id"], made["worker"]["epoch"]
    task = {"agent": AGENT, "scope": {"kind": "issue", "id": f"i{next(_numbers)}"}, "runtime": runtime}
    ask = {"worker_id": "laptop", "epoch": epoch, "runtime_ids": [runtime], "max_tasks": 1}

    async def claim(prompt: str) -> dict[str, Any]:
        await inside.good("POST", "/api/tasks", {**task, "prompt": prompt}, "ann")
        (sent,) = (await inside.good("POST", "/api/worker/claim", ask, "laptop"))["tasks"]
        return dict(sent)

    first = await complete(inside, await claim("one"))
    return Run(runtime, await claim("two"), str(first["turn"]))


async def complete(inside: InProcessServer, claim: dict[str, Any]) -> Any:
    body = {"claim_token": claim["claim_token"], "output": "done"}
    return await inside.good("POST", f"/api/worker/tasks/{claim['task']['id']}/complete", body, "laptop")


async def test_I34_a_task_token_is_good_for_four_routes_and_refused_on_every_other(
    inside: InProcessServer,
) -> None:
    run = await claimed(inside)
    refused = 0
    for route in inside.routes:
        if route.scope is None:
            continue
        name = f"{route.method} {route.path}"
        plain: Any = {} if route.method in ("POST", "PUT", "PATCH") and not route.is_page else None
        given = await inside.ask(route.method, run.fill(route.path), plain, run.token)
        if name in OPEN:
            assert given.status == 200, (name, given.body)
        elif not route.is_page:
            assert given.status == 403, (name, given.body)
            refused += 1
        else:
            assert given.status in (403, 415), (name, given.body)
    assert refused > 80
    await complete(inside, run.claim)


async def test_I34_another_task_of_the_same_owner_looks_like_an_unknown_one(inside: InProcessServer) -> None:
    mine, other = await claimed(inside), await claimed(inside)
    unknown = Run("rt_0", {"task": {"id": "task_0", "session_id": "ses_0", "attempt": "att_0"}}, "turn_0")
    for name in OPEN:
        method, path = name.split(" ")
        theirs = await inside.ask(method, other.fill(path), None, mine.token)
        nobodys = await inside.ask(method, unknown.fill(path), None, mine.token)
        assert (theirs.status, theirs.json["message"]) == (404, nobodys.json["message"])
    foreign = f"/api/sessions/{mine.claim['task']['session_id']}/turns/{other.turn}"
    assert (await inside.ask("GET", foreign, None, mine.token)).status == 404
    for run in (mine, other):
        await complete(inside, run.claim)


@pytest.mark.parametrize("end", ["complete", "fail", "cancel"])
async def test_a_task_token_ends_with_its_claim(inside: InProcessServer, end: str) -> None:
    run = await claimed(inside)
    path = run.fill("/api/tasks/{task}")
    assert (await inside.ask("GET", path, None, run.token)).json["status"] == "claimed"
    report = {"claim_token": run.claim["claim_token"], "code": "unenforceable", "error": "no"}
    match end:
        case "complete":
            await complete(inside, run.claim)
        case "fail":
            await inside.good("POST", run.fill("/api/worker/tasks/{task}/fail"), report, "laptop")
        case _:
            await inside.good("POST", f"{path}/cancel", None, "ann")
    assert (await inside.ask("GET", path, None, run.token)).status == 401


async def test_a_task_token_ends_when_the_task_is_claimed_again(inside: InProcessServer) -> None:
    run = await claimed(inside)
    path = run.fill("/api/tasks/{task}")
    stopped = {"claim_token": run.claim["claim_token"], "code": "worker_stopped", "error": "stopped"}
    await inside.good("POST", run.fill("/api/worker/tasks/{task}/fail"), stopped, "laptop")
    worker = {"worker_id": "laptop", "runtimes": [{"name": "laptop-1", "provider": "claude"}]}
    epoch = (await inside.good("POST", "/api/worker/register", worker, "laptop"))["worker"]["epoch"]
    body = {"worker_id": "laptop", "epoch": epoch, "runtime_ids": [run.runtime], "wait_seconds": 25}
    (again,) = (await inside.good("POST", "/api/worker/claim", body, "laptop"))["tasks"]
    assert again["task"]["id"] == run.claim["task"]["id"]
    assert (await inside.ask("GET", path, None, run.token)).status == 401
    assert (await inside.ask("GET", path, None, again["task_token"])).status == 200
    await complete(inside, again)


async def test_I37_neither_token_of_a_claim_is_stored_and_neither_replaces_the_other(
    inside: InProcessServer,
) -> None:
    run = await claimed(inside)
    stored = repr(inside.dump())
    assert run.token not in stored
    assert run.claim["claim_token"] not in stored
    start = run.fill("/api/worker/tasks/{task}/start")
    assert (await inside.ask("POST", start, {"claim_token": run.token}, "laptop")).status == 409
    assert (
        await inside.ask("GET", run.fill("/api/tasks/{task}"), None, run.claim["claim_token"])
    ).status == 401
    await complete(inside, run.claim)

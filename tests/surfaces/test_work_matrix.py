"""Every route of the work API × {owner, shared with, same tenant, other tenant, chat} (I34, I35).

Made from the routes of the server: a new one fails the first test until it is in a table here.
"""

import base64
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.surfaces.in_process_server import AGENT, InProcessServer, NewTokens, open_inside

pytestmark = pytest.mark.anyio

TOKENS: NewTokens = {
    "owner": ("a", ("session", "approve"), "ann", None),
    "shared": ("a", ("session", "approve"), "bob", None),
    "same tenant": ("a", ("session", "approve"), "cat", None),
    "other tenant": ("b", ("session", "approve"), "ann", None),
    "chat": ("a", ("chat",), "ann", None),
    "admin": ("a", ("admin",), "root", None),
    "laptop": ("a", ("worker",), "ann", "laptop"),
    "another worker": ("a", ("worker",), "bob", "theirs"),
    "worker of another tenant": ("b", ("worker",), "ann", "laptop"),
    "unbound worker": ("a", ("worker",), "bob", None),
    "impostor": ("a", ("worker",), "bob", "laptop"),
}
USERS = ("owner", "shared", "same tenant", "other tenant", "chat")
WORKERS = (
    "laptop", "another worker", "worker of another tenant", "unbound worker", "impostor", "admin",
    "owner", "chat",
)  # fmt: skip

_numbers = count(1)


@dataclass
class Ids:
    """Of ann's laptop: a task that a worker runs and that waits for an answer, and all that belongs to it."""

    runtime: str
    epoch: int
    scope: str
    task: str
    session: str
    attempt: str
    claim: str
    question: str = "q1"
    token: str = "tok_unknown"

    def fill(self, path: str) -> str:
        names = {"agent": AGENT.replace("/", "%2F"), "kind": "issue", "id": self.scope}
        return re.sub(r"{(\w+)}", lambda hole: names.get(hole[1]) or getattr(self, hole[1]), path)


UNKNOWN = Ids("rt_0", 1, "nothing", "task_0", "ses_0", "att_0", "lgc_0", "q0", "tok_0")


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def inside(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcessServer]:
    folder: Path = tmp_path_factory.mktemp("work-matrix")
    async with open_inside(folder, tokens=TOKENS, only=("work", "api", "chat")) as opened:
        yield opened


async def register(inside: InProcessServer) -> tuple[str, int]:
    body = {"worker_id": "laptop", "runtimes": [{"name": "laptop-1", "provider": "claude"}]}
    made = await inside.good("POST", "/api/worker/register", body, "laptop")
    runtime, epoch = made["runtimes"][0]["id"], made["worker"]["epoch"]
    await inside.good("PATCH", f"/api/runtimes/{runtime}", {"shared_with": ["bob"]}, "owner")
    return runtime, epoch


async def ids_of(inside: InProcessServer) -> Ids:
    runtime, epoch = await register(inside)
    scope = f"issue-{next(_numbers)}"
    task = await inside.good("POST", "/api/tasks", new_task(runtime, scope), "owner")
    claim = {"worker_id": "laptop", "epoch": epoch, "runtime_ids": [runtime], "max_tasks": 16}
    sent = (await inside.good("POST", "/api/worker/claim", claim, "laptop"))["tasks"]
    (mine,) = [one for one in sent if one["task"]["id"] == task["id"]]
    ids = Ids(
        runtime,
        epoch,
        scope,
        task["id"],
        task["session_id"],
        mine["task"]["attempt"],
        mine["claim_token"],
    )
    start = f"/api/worker/tasks/{ids.task}"
    await inside.good("POST", f"{start}/start", {"claim_token": ids.claim}, "laptop")
    snapshot = {"claim_token": ids.claim, "kind": "tar", "body": base64.b64encode(b"x").decode()}
    await inside.good("POST", f"{start}/snapshot", snapshot, "laptop")
    asked = {"claim_token": ids.claim, "question": {"id": "q1", "tool": "Bash"}}
    await inside.good("POST", f"{start}/ask", asked, "laptop")
    return ids


def new_task(runtime: str, scope: str) -> dict[str, Any]:
    where = {"kind": "issue", "id": scope}
    return {"agent": AGENT, "scope": where, "prompt": "fix it", "runtime": runtime}


#: Of routes that name something of the owner: what each of USERS gets. 404 is the answer to an unknown id.
HIDDEN = (200, 200, 404, 404, 403)
OWNERS_ONLY = (200, 403, 404, 404, 403)
QUEUED = (201, 201, 404, 404, 403)
#: Everybody may ask, and sees only what is theirs.
LISTED = (200, 200, 200, 200, 403)
OF_USERS: dict[str, tuple[int, ...]] = {
    "POST /api/tasks": QUEUED,
    "GET /api/tasks": LISTED,
    "GET /api/tasks/{task}": HIDDEN,
    "POST /api/tasks/{task}/cancel": HIDDEN,
    "POST /api/tasks/{task}/rerun": QUEUED,
    "POST /api/tasks/{task}/continue": HIDDEN,
    "GET /api/tasks/{task}/messages": HIDDEN,
    "GET /api/tasks/{task}/diff": HIDDEN,
    "GET /api/tasks/{task}/questions": HIDDEN,
    "POST /api/tasks/{task}/questions/{question}": HIDDEN,
    "GET /api/runtimes": LISTED,
    "GET /api/runtimes/explain": HIDDEN,
    "GET /api/runtimes/{runtime}": HIDDEN,
    "PATCH /api/runtimes/{runtime}": OWNERS_ONLY,
    "DELETE /api/runtimes/{runtime}": OWNERS_ONLY,
    "PUT /api/agents/{agent}/runtime": HIDDEN,
    "GET /api/agents/{agent}/runtime": (200, 200, 404, 404, 403),
    "PATCH /api/sessions/{session}/runtime": HIDDEN,
    "GET /api/scopes/{kind}/{id}/pointers": HIDDEN,
    "POST /api/scopes/{kind}/{id}/pointers/retire": HIDDEN,
}
#: These name nothing of anybody.
OF_EVERYBODY = {
    "POST /api/enrollments": (201, 201, 201, 201, 403),
    "POST /api/tokens": (201, 201, 201, 201, 403),
    "GET /api/tokens": LISTED,
    "DELETE /api/tokens/{token}": (404, 404, 404, 404, 403),
}
#: What each of WORKERS gets for a worker id, and for a claim, of the laptop's.
BY_WORKER = (200, 403, 200, 403, 403, 403, 403, 403)
BY_CLAIM = (200, 404, 404, 403, 404, 404, 403, 403)
OF_WORKERS = {
    "POST /api/worker/register": BY_WORKER,
    "POST /api/worker/heartbeat": BY_WORKER,
    "POST /api/worker/claim": BY_WORKER,
    "POST /api/worker/deregister": BY_WORKER,
    **{
        f"POST /api/worker/tasks/{{task}}/{name}": BY_CLAIM
        for name in ("start", "session", "messages", "usage", "ask", "snapshot", "complete", "fail")
    },
    "POST /api/worker/tasks/{task}/cancel-ack": BY_CLAIM,
    "GET /api/worker/tasks/{task}/snapshot": BY_CLAIM,
    "GET /api/worker/tasks/{task}/status": BY_CLAIM,
}
#: With a one-time code instead of a token.
WITHOUT_TOKEN = {"POST /api/worker/enroll"}

STARTS = ("/api/worker/", "/api/tasks", "/api/runtimes", "/api/scopes/", "/api/enrollments", "/api/tokens")


def request_for(name: str, ids: Ids) -> tuple[str, Any]:
    """The address and the body of a request for what the ids name."""
    _, path = name.split(" ")
    query = {
        "GET /api/runtimes/explain": f"?session={ids.session}&runtime={ids.runtime}",
        "GET /api/scopes/{kind}/{id}/pointers": f"?agent={AGENT}",
        "GET /api/worker/tasks/{task}/snapshot": f"?claim_token={ids.claim}&attempt={ids.attempt}",
        "GET /api/worker/tasks/{task}/status": f"?claim_token={ids.claim}",
    }.get(name, "")
    claim = {"claim_token": ids.claim}
    worker = {"worker_id": "laptop", "epoch": ids.epoch}
    bodies: dict[str, Any] = {
        "POST /api/tasks": new_task(ids.runtime, ids.scope),
        "POST /api/tasks/{task}/questions/{question}": {"allowed": True},
        "PATCH /api/runtimes/{runtime}": {"shared_with": ["bob"]},
        "PUT /api/agents/{agent}/runtime": {"runtime_id": ids.runtime},
        "PATCH /api/sessions/{session}/runtime": {"runtime_id": ids.runtime},
        "POST /api/scopes/{kind}/{id}/pointers/retire": {"native_session": "n", "agent": AGENT},
        "POST /api/tokens": {"name": "mine", "scopes": ["worker"], "worker_id": f"w-{next(_numbers)}"},
        "POST /api/worker/register": {**worker, "runtimes": [{"name": "laptop-1", "provider": "claude"}]},
        "POST /api/worker/heartbeat": {**worker, "runtime_ids": [ids.runtime]},
        "POST /api/worker/claim": {**worker, "runtime_ids": [ids.runtime]},
        "POST /api/worker/deregister": worker,
        "POST /api/worker/tasks/{task}/start": claim,
        "POST /api/worker/tasks/{task}/session": {**claim, "native_session": "n"},
        "POST /api/worker/tasks/{task}/messages": {**claim, "messages": [{"seq": 1, "type": "text"}]},
        "POST /api/worker/tasks/{task}/usage": {**claim, "usage": {"input_tokens": 1}},
        "POST /api/worker/tasks/{task}/ask": {**claim, "question": {"id": "q1", "tool": "Bash"}},
        "POST /api/worker/tasks/{task}/snapshot": {**claim, "kind": "tar", "body": "eA=="},
        "POST /api/worker/tasks/{task}/complete": {**claim, "output": "fixed"},
        "POST /api/worker/tasks/{task}/fail": {**claim, "code": "timeout", "error": "late"},
        "POST /api/worker/tasks/{task}/cancel-ack": claim,
    }
    return ids.fill(path) + query, bodies.get(name)


def name_of(method: str, path: str) -> str:
    return f"{method} {path}"


async def test_the_matrix_knows_every_route_of_the_work_api(inside: InProcessServer) -> None:
    known = {*OF_USERS, *OF_EVERYBODY, *OF_WORKERS, *WITHOUT_TOKEN}
    served = {name_of(route.method, route.path) for route in inside.routes}
    assert known <= served
    work = {name for name in served if name.split(" ")[1].startswith(STARTS) or name.endswith("/runtime")}
    assert work - known == set(), "these routes are in no table"


@pytest.mark.parametrize("who", USERS)
@pytest.mark.parametrize("name", OF_USERS)
async def test_I34_a_private_runtime_is_its_owners_and_those_it_is_shared_with(
    inside: InProcessServer, name: str, who: str
) -> None:
    ids = await ids_of(inside)
    if name.startswith("GET /api/agents"):
        await inside.good(*_bind(ids), token="owner")
    method = name.split(" ")[0]
    path, body = request_for(name, ids)
    given = await inside.ask(method, path, body, who)
    assert given.status == OF_USERS[name][USERS.index(who)], given.body
    if given.status == 404:
        missing = await inside.ask(method, *request_for(name, UNKNOWN), who)
        assert (missing.status, missing.json["message"]) == (404, given.json["message"])
    if given.status == 200 and who in ("same tenant", "other tenant"):
        assert ids.task.encode() not in given.body
        assert ids.runtime.encode() not in given.body


def _bind(ids: Ids) -> tuple[str, str, Any]:
    path, body = request_for("PUT /api/agents/{agent}/runtime", ids)
    return "PUT", path, body


@pytest.mark.parametrize("who", USERS)
@pytest.mark.parametrize("name", OF_EVERYBODY)
async def test_one_time_codes_and_worker_tokens_are_everybodys_own(
    inside: InProcessServer, name: str, who: str
) -> None:
    path, body = request_for(name, UNKNOWN)
    given = await inside.ask(name.split(" ")[0], path, body, who)
    assert given.status == OF_EVERYBODY[name][USERS.index(who)], given.body


@pytest.mark.parametrize("who", WORKERS)
@pytest.mark.parametrize("name", OF_WORKERS)
async def test_I34_a_worker_token_is_good_for_its_worker_and_its_claims(
    inside: InProcessServer, name: str, who: str
) -> None:
    ids = await ids_of(inside)
    path, body = request_for(name, ids)
    given = await inside.ask(name.split(" ")[0], path, body, who)
    assert given.status == OF_WORKERS[name][WORKERS.index(who)], given.body
    assert who == "laptop" or ids.task.encode() not in given.body
    if name == "POST /api/worker/claim" and who == "worker of another tenant":
        assert given.json == {"tasks": []}


@pytest.mark.parametrize("name", [*OF_USERS, *OF_EVERYBODY, *OF_WORKERS])
async def test_I37_requests_without_a_token_reveal_nothing(inside: InProcessServer, name: str) -> None:
    path, body = request_for(name, UNKNOWN)
    given = await inside.ask(name.split(" ")[0], path, body, None)
    assert given.status == 401


@pytest.mark.parametrize("queued", ["keep", "move"])
async def test_I34_a_binding_leaves_the_tasks_of_others_and_their_agent(
    inside: InProcessServer, queued: str
) -> None:
    ids = await ids_of(inside)
    waits = await inside.good("POST", "/api/tasks", new_task(ids.runtime, f"issue-{next(_numbers)}"), "owner")
    await inside.good("PATCH", f"/api/runtimes/{ids.runtime}", {"shared_with": []}, "owner")
    body = {"worker_id": "theirs", "runtimes": [{"name": "theirs", "provider": "claude"}]}
    made = await inside.good("POST", "/api/worker/register", body, "another worker")
    path = request_for("PUT /api/agents/{agent}/runtime", ids)[0]
    await inside.good("PUT", path, {"runtime_id": None}, "admin")
    mine = {"runtime_id": made["runtimes"][0]["id"], "queued": queued}
    assert (await inside.good("PUT", path, mine, "shared"))["moved"] == 0
    shown = await inside.good("GET", f"/api/tasks/{waits['id']}", token="owner")
    assert shown["runtime_id"] == ids.runtime
    for who, status in (("owner", 403), ("same tenant", 404)):
        given = await inside.ask("PUT", path, {"runtime_id": ids.runtime}, who)
        assert given.status == status, given.body
    assert (await inside.ask("GET", path, None, "owner")).status == 404
    assert (await inside.good("GET", path, token="admin"))["bound_by"] == "bob"
    await inside.good("PUT", path, {"runtime_id": None}, "admin")
    await inside.good("PUT", path, {"runtime_id": ids.runtime}, "owner")
    await inside.good("PUT", path, {"runtime_id": None}, "owner")


async def test_an_admin_lists_and_removes_runtimes_and_uses_none(inside: InProcessServer) -> None:
    ids = await ids_of(inside)
    listed = await inside.good("GET", "/api/runtimes", token="admin")
    assert ids.runtime in {one["id"] for one in listed}
    given = await inside.ask("GET", f"/api/tasks/{ids.task}", None, "admin")
    assert given.status == 404
    await inside.good("DELETE", f"/api/runtimes/{ids.runtime}", token="admin")

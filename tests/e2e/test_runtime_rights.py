"""Routes of a session on a private runtime × {owner, shared with, same tenant, other tenant, chat} (I35).

Whoever may not use the runtime gets the answer of an unknown session, byte for byte: also if something else
is wrong with the request.
"""

import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from lastgood.model.tokens import Scope
from lastgood.surfaces.http.app import Route
from tests.e2e.test_api_matrix import BODIES, ENDLESS, UNKNOWN, Ids, name_of
from tests.surfaces.asgi import Given
from tests.surfaces.in_process_server import InProcessServer, NewTokens, open_inside
from tests.surfaces.worker_calls import WorkerCalls, registered

pytestmark = pytest.mark.anyio

_USES = ("session", "approve")
TOKENS: NewTokens = {
    "ann": ("a", _USES, "ann", None),  # whose laptop it is
    "bea": ("a", _USES, "bea", None),  # with whom it is shared
    "cat": ("a", _USES, "cat", None),
    "admin": ("a", ("admin",), "root", None),
    "nobody": ("a", _USES),  # a token without a user
    "dan": ("b", _USES, "ann", None),  # another tenant's, with the same name
    "chat": ("a", ("chat",), "cat", None),
}
#: They may not use the runtime. `admin` may remove it, and nothing else.
STRANGERS = ("cat", "admin", "nobody", "dan")
AGENT = "coder"
CODER = """
agents:
  root:
    model: builtin/scripted
    description: Writes code
"""


@dataclass(frozen=True)
class Laptop:
    inside: InProcessServer
    worker: WorkerCalls
    ids: Ids


async def _ids(inside: InProcessServer, worker: WorkerCalls, *, busy: bool = False) -> Ids:
    """A session of Ann's with a turn, a failed attempt, and a task that is held."""
    session = await inside.session("ann", agent=AGENT)
    turns = f"/api/sessions/{session}/turns"
    body = {"messages": [{"content": "hello"}]}
    await inside.good("POST", turns, body, "ann")
    await worker.answer("hi")
    (turn,) = await inside.good("GET", turns, token="ann")
    await inside.good("POST", turns, body, "ann")
    claim = await worker.claim()
    await worker.report(claim, "fail", code="cli_protocol", error="no answer")
    if busy:
        await inside.good("POST", turns, body, "ann")
        await worker.claim()
    return Ids(session, turn["id"], claim["task"]["attempt"], "1", AGENT, "root", AGENT)


@pytest.fixture(scope="module")
async def laptop(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Laptop]:
    folder = tmp_path_factory.mktemp("rights")
    (folder / "coder.yaml").write_text(CODER)
    async with open_inside(folder, str(folder / "coder.yaml"), tokens=TOKENS, safety="autonomous") as inside:
        worker = await registered(inside, "ann", steerable=True)
        await inside.good("PATCH", f"/api/runtimes/{worker.runtime}", {"shared_with": ["bea"]}, "ann")
        bound = {"runtime_id": worker.runtime, "queued": "keep"}
        await inside.good("PUT", f"/api/agents/{AGENT}/runtime", bound, "ann")
        yield Laptop(inside, worker, await _ids(inside, worker))


def routes_of(inside: InProcessServer) -> Iterator[Route]:
    """Of one session, and those of the session API alone: the work API has its own table."""
    for route in inside.routes:
        if "{session}" in route.path and route.scope in (Scope.READ, Scope.SESSION):
            yield route


def bodies_of(route: Route, ids: Ids) -> list[Any]:
    """A good one, and bad ones: what is wrong with them must not be found out first."""
    if route.takes is None:
        return [None]
    good = ids.body(route) if name_of(route) in BODIES else {"runtime_id": None, "queued": "keep"}
    return [good, {}, {"messages": 7, "nonsense": []}, []]


async def send(laptop: Laptop, route: Route, ids: Ids, body: Any, token: str) -> Given:
    given = await laptop.inside.ask(
        route.method,
        ids.fill(route),
        body,
        token,
        leaves=name_of(route) in ENDLESS,
        x_request_id="the-same",
    )
    assert given.status < 500, (name_of(route), given.body)
    return given


async def test_other_users_get_the_answer_of_an_unknown_session(laptop: Laptop) -> None:
    before = laptop.inside.dump()
    for route in routes_of(laptop.inside):
        for token in STRANGERS:
            for body in bodies_of(route, laptop.ids):
                answers = []
                for session in (laptop.ids.session, UNKNOWN.session):
                    ids = Ids(session, *list(vars(laptop.ids).values())[1:])
                    given = await send(laptop, route, ids, body, token)
                    answers.append((given.status, given.headers, given.body))
                assert answers[0] == answers[1], (name_of(route), token, body)
                assert answers[0][0] in (400, 404, 422), (name_of(route), token, answers[0])
    assert laptop.inside.dump() == before, "a stranger changed something"


async def test_a_chat_token_is_refused_by_its_scope_whatever_the_session_is(laptop: Laptop) -> None:
    for route in routes_of(laptop.inside):
        answers = [await send(laptop, route, ids, None, "chat") for ids in (laptop.ids, UNKNOWN)]
        assert {given.status for given in answers} == {403}, name_of(route)
        assert answers[0].body == answers[1].body


@pytest.mark.parametrize("token", ["ann", "bea"])
async def test_the_owner_and_shared_users_use_every_route(laptop: Laptop, token: str) -> None:
    for route in routes_of(laptop.inside):
        busy = route.path.endswith(("/cancel", "/steer"))
        ids = await _ids(laptop.inside, laptop.worker, busy=busy)
        body = bodies_of(route, ids)[0]
        if route.path.endswith("/turns") and route.method == "POST":
            body = {**body, "wait": False}
        if route.path.endswith(("/agent/{agent}", "/agent/{agent}/{name}")):
            continue  # it streams until the worker has answered; the next test does
        given = await send(laptop, route, ids, body, token)
        known = given.status in route.gives or (given.status, given.code) in (
            (409, "conflict"),  # the queue has no such entry
            (404, "agent_not_found"),  # the other agent is not served here
            (422, "model_unknown"),
        )
        assert known, (name_of(route), given.status, given.body)
        await laptop.inside.ask("DELETE", f"/api/sessions/{ids.session}", token="ann")


async def test_lists_batches_and_bodies_show_nothing_to_other_tenants(laptop: Laptop) -> None:
    inside, session = laptop.inside, laptop.ids.session
    for token in ("ann", "bea", *STRANGERS):
        listed = await inside.good("GET", "/api/sessions?limit=200", token=token)
        assert (session in {one["id"] for one in listed}) == (token in ("ann", "bea")), token
    for token in STRANGERS:
        for path in ("batch/export", "batch/delete"):
            answers = []
            for id in (session, UNKNOWN.session):
                given = await inside.ask("POST", f"/api/sessions/{path}", {"session_ids": [id]}, token)
                body = re.sub(rb'"timestamp":"[^"]*"', b"", given.body).replace(id.encode(), b"ID")
                answers.append((given.status, body))
            assert answers[0] == answers[1], (path, token)
    assert (await inside.good("GET", f"/api/sessions/{session}", token="ann"))["turns"] == 1


async def test_a_page_is_filled_up_with_sessions_that_the_caller_may_read(laptop: Laptop) -> None:
    inside = laptop.inside
    mine = [await inside.session("cat", agent="coder", title=f"mine {n}") for n in range(3)]
    hidden = [await _ids(inside, laptop.worker) for _ in range(3)]
    found: list[str] = []
    path = "/api/sessions?limit=2"
    while path:
        given = await inside.ask("GET", path, token="cat")
        found += [one["id"] for one in given.json]
        cursor = given.headers.get("x-next-cursor")
        path = f"/api/sessions?limit=2&cursor={cursor}" if cursor else ""
    assert [id for id in found if id in mine] == mine[::-1]
    assert not {ids.session for ids in hidden} & set(found)


async def test_a_fork_is_as_private_as_its_source(laptop: Laptop) -> None:
    fork = await laptop.inside.good("POST", f"/api/sessions/{laptop.ids.session}/fork", {}, "ann")
    assert (fork["runtime"], fork["owner"]) == (laptop.worker.runtime, "ann")
    given = await laptop.inside.ask("GET", f"/api/sessions/{fork['id']}", token="cat")
    assert (given.status, given.code) == (404, "session_not_found")


async def test_requests_of_other_users_find_no_runtime(laptop: Laptop) -> None:
    inside = laptop.inside
    body = {"messages": [{"content": "rm -rf"}]}
    sessions = []
    for path in ("turns", "followup", f"agent/{AGENT}"):
        sessions.append(await inside.session("cat", agent=AGENT))
        given = await inside.ask("POST", f"/api/sessions/{sessions[-1]}/{path}", body, "cat")
        assert given.status in (200, 202, 404), (path, given.body)
    assert not [row for row in inside.dump()["tasks"] if row["session_id"] in sessions]


async def test_access_ends_when_sharing_ends(laptop: Laptop) -> None:
    inside, path = laptop.inside, f"/api/sessions/{laptop.ids.session}"
    shared = f"/api/runtimes/{laptop.worker.runtime}"
    assert (await inside.ask("GET", path, token="bea")).status == 200
    await inside.good("PATCH", shared, {"shared_with": []}, "ann")
    assert (await inside.ask("GET", path, token="bea")).status == 404
    await inside.good("PATCH", shared, {"shared_with": ["bea"]}, "ann")

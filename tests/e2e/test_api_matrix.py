"""Every route × {own, foreign, unknown, malformed} id × {no token, wrong scope, right scope} (I35, I36, I37).

Made from the routes of the server. A new one is in it at once, or this file says what it has to learn
first: how to fill a hole of its address, or what a body for it looks like.
The routes of work on runtimes have a matrix of their own: tests/surfaces/test_work_matrix.py. So have those
of webhooks: tests/surfaces/test_webhook_rights.py.
"""

import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pytest

from lastgood.model.tokens import Scope
from lastgood.surfaces.http.app import Route
from tests.surfaces.asgi import Given
from tests.surfaces.in_process_server import AGENT, InProcessServer, Rows, of_tenant, open_inside

pytestmark = pytest.mark.anyio

#: By the name of a token, its tenant and scopes. Each scope is also there alone.
TOKENS = {
    "ours": ("a", ("session", "chat", "approve")),
    "theirs": ("b", ("session", "chat", "approve")),
    "others": ("c", ("session",)),
    **{scope.value: ("a", (scope.value,)) for scope in Scope},
}
#: Which tokens a route takes, by the scope that it asks for.
TAKEN = {
    Scope.CHAT: {"chat", "admin"},
    Scope.READ: {"read", "session", "admin"},
    Scope.SESSION: {"session", "admin"},
    Scope.APPROVE: {"approve", "admin"},
    Scope.ADMIN: {"admin"},
}

SAID = {"messages": [{"role": "user", "content": "hello"}]}

#: A good body for each route that takes one. `$session` and `$turn` become ids.
BODIES: dict[str, Any] = {
    "POST /v1/chat/completions": {"model": AGENT, **SAID},
    "POST /api/sessions": {"agent": AGENT},
    "POST /api/sessions/import": None,  # made from an export
    "POST /api/sessions/batch/delete": {"session_ids": ["$session"]},
    "POST /api/sessions/batch/export": {"session_ids": ["$session"]},
    "POST /api/sessions/{session}/agent/{agent}": SAID,
    "POST /api/sessions/{session}/agent/{agent}/{name}": SAID,
    "POST /api/sessions/{session}/turns": {**SAID, "wait": True},
    "POST /api/sessions/{session}/attempts/{attempt}/continue": {"wait": False},
    "POST /api/sessions/{session}/steer": SAID,
    "POST /api/sessions/{session}/followup": SAID,
    "POST /api/sessions/{session}/messages": SAID,
    "POST /api/sessions/{session}/summaries": {"summary": "all is well"},
    "POST /api/sessions/{session}/fork": {"turn": "$turn"},
    "POST /api/sessions/{session}/rebind": {"agent": AGENT},
    "PATCH /api/sessions/{session}/title": {"title": "a title"},
    "PATCH /api/sessions/{session}/starred": {"starred": True},
    "PATCH /api/sessions/{session}/metadata": {"metadata": {"a": 1}},
    "PATCH /api/sessions/{session}/model": {"model": AGENT},
    "PATCH /api/sessions/{session}/permissions": {"permissions": {"deny": ["shell"]}},
    "PATCH /api/sessions/{session}/safety-policy": {"safety_policy": "strict"},
    "PATCH /api/sessions/{session}/tokens": {"input_tokens": 1, "output_tokens": 1},
    "POST /api/sessions/{session}/resume": {"confirmation": "approve"},
    "POST /api/sessions/{session}/elicitation": {"action": "decline"},
}
#: In an ordinary session there is nothing to answer.
NOTHING_PENDING = {"POST /api/sessions/{session}/resume", "POST /api/sessions/{session}/elicitation"}
#: Routes for a session in which something runs.
BUSY = {"POST /api/sessions/{session}/cancel", "POST /api/sessions/{session}/steer"}
#: Their answer has no end of its own.
ENDLESS = {"GET /api/sessions/{session}/events"}

TEAM = """
agents:
  root:
    model: builtin/scripted
    sub_agents: [clerk]
  clerk:
    model: builtin/scripted
    description: Files things
"""


@dataclass(frozen=True)
class Ids:
    """What the holes of an address are filled with."""

    session: str
    turn: str
    attempt: str
    entry: str
    agent: str = "team"
    name: str = "clerk"
    model: str = "team"

    def fill(self, route: Route, **instead: str) -> str:
        """Escaped, but for what is put in `instead`: that is sent as it is."""
        return re.sub(
            r"{(\w+)}",
            lambda hole: instead.get(hole[1], quote(str(getattr(self, hole[1])), safe="")),
            route.path,
        )

    def body(self, route: Route) -> Any:
        plain = BODIES.get(name_of(route))
        return None if plain is None else _filled(plain, self)


UNKNOWN = Ids("ses_" + "0" * 32, "turn_" + "0" * 32, "att_" + "0" * 32, "999999")
#: Those that belong to somebody. Agents are the server's.
OWNED = ("session", "turn", "attempt", "entry")

#: Sent as they are written here.
MALFORMED = {
    "empty": "",
    "dots": "..",
    "escaped dots": "%2e%2e",
    "one dot": ".",
    "NUL": "%00",
    "NUL in it": "ses%00_0",
    "long": "x" * 10_000,
    "no UTF-8": "%ff%fe",
    "no UTF-8, not escaped": "\xff\xfe",
    "half a surrogate": "%ed%a0%80",
    "a slash": "%2F",
    "a way out": "..%2F..%2Fetc%2Fpasswd",
    "unicode": "%F0%9F%98%80%C3%BC",
    "unicode, not escaped": "ü".encode().decode("latin-1"),
    "no escape": "%zz%",
    "SQL": "x'%20OR%20'1'='1",
    "a pattern": "%25",
    "a line": "a%0d%0ax-evil:%201",
    "a hole": "{session}",
    "a number": "-1",
    "a large number": "9" * 30,
    "a number elsewhere": "%D9%A3",
}


def name_of(route: Route) -> str:
    return f"{route.method} {route.path}"


def holes_of(route: Route) -> list[str]:
    return re.findall(r"{(\w+)}", route.path)


def _filled(value: Any, ids: Ids) -> Any:
    match value:
        case str() if value.startswith("$"):
            return getattr(ids, value[1:])
        case dict():
            return {key: _filled(item, ids) for key, item in value.items()}
        case list():
            return [_filled(item, ids) for item in value]
        case _:
            return value


async def ids_of(inside: InProcessServer, token: str, *, busy: bool = False) -> Ids:
    """A session with a bit of everything: a turn, an attempt that failed, an entry that is parked."""
    session = await inside.session(token)
    turn = await inside.turn(session, token=token)
    attempt = await inside.failed(session, token)
    entry = await inside.parked(session, token)
    if busy:
        attempt = await inside.begun(session, token=token)
    return Ids(session, turn["id"], attempt, str(entry))


@pytest.fixture(scope="module")
async def inside(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcessServer]:
    folder = tmp_path_factory.mktemp("matrix")
    (folder / "team.yaml").write_text(TEAM)
    agents = (AGENT, str(folder / "team.yaml"))
    only = ("api", "chat")
    async with open_inside(folder, *agents, tokens=TOKENS, safety="autonomous", only=only) as opened:
        yield opened


@pytest.fixture(scope="module")
async def own(inside: InProcessServer) -> Ids:
    return await ids_of(inside, "ours")


@pytest.fixture(scope="module")
async def other(inside: InProcessServer) -> Ids:
    """Our own, too."""
    return await ids_of(inside, "ours")


@pytest.fixture(scope="module")
async def foreign(inside: InProcessServer) -> Ids:
    """Of another tenant. Something runs in it all the time."""
    return await ids_of(inside, "theirs", busy=True)


@pytest.fixture(scope="module", autouse=True)
async def judged(inside: InProcessServer, own: Ids, other: Ids, foreign: Ids) -> AsyncIterator[Rows]:
    """After the whole matrix nothing of the other tenant has changed."""
    await inside.settled()
    before = inside.dump()
    theirs = of_tenant(before, "b")
    assert all(theirs[table] for table in ("sessions", "turns", "attempts", "events", "queued", "requests"))
    yield before
    await inside.settled()
    assert of_tenant(inside.dump(), "b") == theirs


@pytest.fixture
async def unchanged(inside: InProcessServer, judged: Rows) -> AsyncIterator[None]:
    """Nothing of anybody changes."""
    await inside.settled()
    before = inside.dump()
    yield
    await inside.settled()
    assert inside.dump() == before


async def send(inside: InProcessServer, route: Route, path: str, body: Any, token: str | None) -> Given:
    given = await inside.ask(
        route.method, path, body, token, leaves=name_of(route) in ENDLESS, x_request_id="the-same"
    )
    assert given.status < 500, (name_of(route), path[:200], given.body)
    return given


def received(given: Given) -> tuple[int, dict[str, str], bytes]:
    return given.status, given.headers, given.body


def token_for(route: Route) -> str | None:
    """One of ours that may ask."""
    if route.scope is None:
        return None
    return "admin" if route.scope is Scope.ADMIN else "ours"


def routes_of(inside: InProcessServer) -> list[Route]:
    return [route for route in inside.routes if not route.path.startswith("/api/webhooks")]


def asked(inside: InProcessServer) -> Iterator[Route]:
    """Those that ask for a token."""
    return (route for route in routes_of(inside) if route.scope is not None)


def check_refusal(route: Route, given: Given, *codes: str) -> None:
    """Typed, short, and in the words of its surface."""
    error = given.json["error"]
    assert error["code"] in codes, (name_of(route), given.body)
    assert len(given.body) < 3000, name_of(route)
    if not route.path.startswith("/v1/"):
        assert given.json["message"] == error["message"]
        assert error["request_id"] == given.headers["x-request-id"]


# -- what the matrix knows --------------------------------------------------------------


async def test_the_matrix_knows_every_route(inside: InProcessServer) -> None:
    names = {name_of(route) for route in routes_of(inside)}
    holes = {hole for route in routes_of(inside) for hole in holes_of(route)}
    assert holes <= set(Ids.__dataclass_fields__), "Ids has to learn how to fill these holes"
    takes = {name_of(route) for route in routes_of(inside) if route.takes is not None}
    assert takes - set(BODIES) == set(), "BODIES has to learn what these routes take"
    assert (set(BODIES) | BUSY | ENDLESS) - names == set(), "these routes are gone"
    assert {route.scope for route in asked(inside)} <= set(TAKEN), "TAKEN has to learn who may"
    assert sum(route.path.startswith("/api/") for route in routes_of(inside)) > 40


# -- own ids -------------------------------------------------------------------------------


async def test_own_ids_and_the_right_scope_are_accepted(inside: InProcessServer) -> None:
    """And what comes back is what the description announces."""
    for route in routes_of(inside):
        ids = await ids_of(inside, "ours", busy=name_of(route) in BUSY)
        body = ids.body(route)
        if name_of(route) == "POST /api/sessions/import":
            body = await inside.good("GET", f"/api/sessions/{ids.session}/export", token="ours")
        given = await send(inside, route, ids.fill(route), body, token_for(route))
        if name_of(route) in NOTHING_PENDING:
            assert (given.status, given.code) == (409, "nothing_pending")
            continue
        assert given.status in route.gives, (name_of(route), given.status, given.body)
        kind = given.headers["content-type"].partition(";")[0]
        assert kind in route.gives[given.status], name_of(route)
        if name_of(route) in BUSY:
            await inside.good("DELETE", f"/api/sessions/{ids.session}", token="ours")


# -- tokens --------------------------------------------------------------------------------


@pytest.mark.usefixtures("unchanged")
async def test_requests_without_a_token_reveal_no_id(inside: InProcessServer, own: Ids, foreign: Ids) -> None:
    for route in asked(inside):
        for token in (None, "lg_" + "x" * 43, "not a token"):
            answers = []
            for ids in (own, foreign, UNKNOWN):
                given = await send(inside, route, ids.fill(route), ids.body(route), token)
                assert given.status == 401, (name_of(route), token)
                assert given.headers["www-authenticate"] == "Bearer"
                check_refusal(route, given, "unauthorized", "invalid_api_key")
                answers.append(received(given))
            assert answers[0] == answers[1] == answers[2]


@pytest.mark.usefixtures("unchanged")
async def test_the_wrong_scope_reveals_no_id(inside: InProcessServer, own: Ids, foreign: Ids) -> None:
    for route in asked(inside):
        assert route.scope is not None
        refused = {scope.value for scope in Scope} - TAKEN[route.scope]
        assert "worker" in refused
        for token in sorted(refused):
            answers = []
            for ids in (own, foreign, UNKNOWN):
                given = await send(inside, route, ids.fill(route), ids.body(route), token)
                assert given.status == 403, (name_of(route), token)
                check_refusal(route, given, "forbidden")
                answers.append(received(given))
            assert answers[0] == answers[1] == answers[2]


async def test_each_scope_alone_opens_what_it_is_for(inside: InProcessServer, own: Ids) -> None:
    for route in asked(inside):
        assert route.scope is not None
        for token in sorted(TAKEN[route.scope]):
            if route.scope not in (Scope.SESSION, Scope.APPROVE):  # what changes nothing is asked as it is
                given = await send(inside, route, own.fill(route), own.body(route), token)
                assert given.status in route.gives, (name_of(route), token, given.body)
            elif holes_of(route):
                given = await send(inside, route, UNKNOWN.fill(route), UNKNOWN.body(route), token)
                assert given.status == 404, (name_of(route), token, given.body)


# -- foreign and unknown ids -----------------------------------------------------------------


@pytest.mark.usefixtures("unchanged")
async def test_a_foreign_id_answers_like_an_unknown_one(
    inside: InProcessServer, own: Ids, foreign: Ids
) -> None:
    """Byte for byte: in each hole alone, beside ids of our own, and in all of them."""
    for route in asked(inside):
        holes = [hole for hole in holes_of(route) if hole in OWNED]
        for hole in holes:
            for around in (own, None):
                answers = []
                for ids in (foreign, UNKNOWN):
                    path = (around or ids).fill(route, **{hole: getattr(ids, hole)})
                    given = await send(inside, route, path, (around or ids).body(route), "ours")
                    assert given.status in (404, 409), (name_of(route), hole, given.body)
                    assert (given.status == 409) == (hole == "entry" and around is own), name_of(route)
                    answers.append(received(given))
                assert answers[0] == answers[1], (name_of(route), hole)


async def test_a_foreign_id_in_a_body_answers_like_an_unknown_one(
    inside: InProcessServer, own: Ids, foreign: Ids
) -> None:
    for route in asked(inside):
        plain = BODIES.get(name_of(route))
        if plain is None or "$" not in str(plain):
            continue
        answers = []
        for ids in (foreign, UNKNOWN):
            given = await send(inside, route, own.fill(route), ids.body(route), "ours")
            body = re.sub(rb'"timestamp":"[^"]*"', b"", given.body)
            for id in (ids.session, ids.turn):  # what was sent may be sent back
                body = body.replace(id.encode(), b"ID")
            answers.append((given.status, body))
        assert answers[0] == answers[1], name_of(route)


@pytest.mark.usefixtures("unchanged")
async def test_a_part_of_another_session_of_ours_is_unknown_here(
    inside: InProcessServer, own: Ids, other: Ids
) -> None:
    """Its attempt, turn or queue entry under the wrong session, although both are ours."""
    for route in asked(inside):
        for hole in holes_of(route):
            if hole in ("turn", "attempt", "entry"):
                answers = [
                    received(
                        await send(inside, route, own.fill(route, **{hole: getattr(ids, hole)}), None, "ours")
                    )
                    for ids in (other, UNKNOWN)
                ]
                assert answers[0] == answers[1], (name_of(route), hole)
                assert answers[0][0] in (404, 409), name_of(route)
    given = await inside.ask("POST", f"/api/sessions/{own.session}/fork", {"turn": other.turn}, "ours")
    assert (given.status, given.code) == (404, "turn_not_found")


async def test_a_list_shows_nothing_of_another_tenant(
    inside: InProcessServer, own: Ids, foreign: Ids
) -> None:
    for route in asked(inside):
        if route.method == "GET" and not holes_of(route):
            given = await send(inside, route, f"{route.path}?limit=200", None, "ours")
            assert foreign.session.encode() not in given.body
    listed = await inside.good("GET", "/api/sessions?limit=200", token="ours")
    assert own.session in {session["id"] for session in listed}


async def test_a_key_of_another_tenant_is_as_good_as_new(inside: InProcessServer) -> None:
    """Idempotency keys belong to their tenant: whoever guesses one learns nothing and breaks nothing."""
    for verb in ("turns", "followup", "messages", "reset", "summaries"):
        body = {**SAID, "summary": "all is well"} if verb != "reset" else None
        for token in ("others", "ours"):
            path = f"/api/sessions/{await inside.session(token)}/{verb}"
            given = await inside.ask("POST", path, body, token, idempotency_key=f"key-{verb}")
            assert given.status in (200, 201, 202), (verb, token, given.body)
            assert "idempotent-replayed" not in given.headers
            assert not given.json.get("duplicate")


# -- malformed ids and methods ---------------------------------------------------------------


@pytest.mark.usefixtures("unchanged")
async def test_a_malformed_id_is_refused(inside: InProcessServer, own: Ids) -> None:
    """400 or 404, with a token and without one, in every hole; nothing is echoed at length."""
    codes = [*("invalid_request", "not_found", "session_not_found", "turn_not_found", "attempt_not_found")]
    codes += ["agent_not_found", "model_not_found", "conflict", "method_not_allowed", "unauthorized"]
    for route in asked(inside):
        for hole in holes_of(route):
            for what, malformed in MALFORMED.items():
                path = own.fill(route, **{hole: malformed})
                for token in ("ours", None):
                    given = await send(inside, route, path, own.body(route), token)
                    statuses = (400, 404, 405, 409) if token else (400, 401, 404, 405)
                    assert given.status in statuses, (name_of(route), hole, what, given.body)
                    check_refusal(route, given, *codes, "invalid_api_key")
                    assert "x-evil" not in given.headers


@pytest.mark.usefixtures("unchanged")
async def test_other_methods_are_rejected_with_the_allowed_ones(inside: InProcessServer, own: Ids) -> None:
    by_path: dict[str, list[Route]] = {}
    for route in routes_of(inside):
        by_path.setdefault(own.fill(route), []).append(route)
    for path, routes in by_path.items():
        known = {route.method for route in routes}
        for method in {"GET", "POST", "PUT", "PATCH", "DELETE", "TRACE", "BREW"} - known:
            given = await inside.ask(method, path, None, "ours")
            assert (given.status, given.code) == (405, "method_not_allowed"), path
            more = {"HEAD", "OPTIONS"} if "GET" in known else {"OPTIONS"}
            assert set(given.headers["allow"].split(", ")) == known | more, path


async def test_HEAD_is_GET_without_a_body(inside: InProcessServer, own: Ids) -> None:
    for route in routes_of(inside):
        if route.method == "GET":
            leaves, token = name_of(route) in ENDLESS, token_for(route)
            given = await inside.ask("HEAD", own.fill(route), None, token, leaves=leaves)
            assert (given.status, given.body) == (200, b""), name_of(route)


# -- ids ---------------------------------------------------------------------------------------


async def test_ids_are_random(inside: InProcessServer, own: Ids) -> None:
    """I36: 128 bits, nothing of which follows from another."""
    made = [await inside.session("ours") for _ in range(50)]
    made += [own.session]
    assert all(re.fullmatch(r"ses_[0-9a-f]{32}", id) for id in made)
    assert re.fullmatch(r"turn_[0-9a-f]{32}", own.turn)
    assert re.fullmatch(r"att_[0-9a-f]{32}", own.attempt)
    for place in range(4, 36):  # no digit of it stands still
        assert len({id[place] for id in made}) > 4

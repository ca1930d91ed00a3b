"""Access control (I37): hosts, origins, other origins' rights, tokens and scopes."""

from dataclasses import replace
from pathlib import Path

import pytest

from lastgood.errors import InvalidRequest
from lastgood.model.ids import TenantId
from lastgood.model.tokens import Scope
from lastgood.server.access_policy import hosts_of, is_loopback, origins_of
from lastgood.settings import Settings
from lastgood.surfaces.http.access import AccessControl, host_of
from lastgood.surfaces.http.app import Route
from lastgood.surfaces.http.asgi import Request, Response, json_reply
from lastgood.surfaces.http.principal import Principal
from tests.surfaces.asgi import ACCESS, Client, app_of, ask, route

pytestmark = pytest.mark.anyio

PAGE = "https://app.example.com"
TOKEN = "a-token-of-somebody"


async def who(request: Request) -> Response:
    return json_reply({"tenant": request.caller.tenant, "name": request.caller.name})


async def boom(request: Request) -> Response:
    raise RuntimeError


ROUTES: tuple[Route, ...] = (
    route("GET", "/probe", who, probe=True),
    route("GET", "/open", who),
    route("POST", "/open", who),
    route("GET", "/chat", who, scope=Scope.CHAT),
    route("GET", "/read", who, scope=Scope.READ),
    route("GET", "/admin", who, scope=Scope.ADMIN),
    route("GET", "/boom", boom),
)


async def find(given: str) -> Principal | None:
    name, _, scope = given.partition(":")
    return Principal(TenantId("t1"), name, frozenset({Scope(scope)})) if name == TOKEN else None


# -- hosts -------------------------------------------------------------------------------

HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]"})
OURS = ["127.0.0.1", "127.0.0.1:8080", "localhost", "LOCALHOST:1", "[::1]", "[::1]:80", "[0:0::1]:80"]
# fmt: off
NAMES = [
    "", "evil.test", "evil.test:8080", "127.evil.com", "127.0.0.1.evil.com", "localhost.evil.com",
    "evil-localhost", "127.0.0.1@evil.com", "evil.com@127.0.0.1", "127.0.0.1:8080@evil.com",
    "127.0.0.1/evil.com", "127.0.0.1#evil.com", "127.0.0.1:evil.com", "127.0.0.1:", "127.0.0.1:123456",
    "127.0.0.1 evil.com", " 127.0.0.1", "127.0.0.1,evil.com", "http://127.0.0.1", "[::1", "::1",
    "[::1]evil.com", "[::1].evil.com", "[evil.com]", "[]", "[::1%25lo]", "0", "127.1", "2130706433",
    "0x7f000001", "0177.0.0.1", "0.0.0.0", "[::]", "localhost.", "127.0.0.1.", ".localhost",
    "local\thost", "localhost\xa0", "\xe9vil.com", "xn--localhost", "*", "null",
]
ADDRESSES = ["127.0.0.2", "10.0.0.1:8080", "169.254.169.254", "[::ffff:10.0.0.1]", "[fe80::1]:8080"]
# fmt: on


@pytest.mark.parametrize("host", OURS)
async def test_an_allowed_host_is_accepted(host: str) -> None:
    async with app_of(*ROUTES, access=replace(ACCESS, hosts=HOSTS)) as app:
        assert (await ask(app, "GET", "/open", {"host": host})).status == 200


@pytest.mark.parametrize(
    ("host", "any_address"),
    [
        *((host, False) for host in NAMES + ADDRESSES),
        *((host, True) for host in NAMES),
    ],
)
async def test_a_host_that_is_not_ours_is_refused(host: str, any_address: bool) -> None:
    """A page whose name was made to point here (DNS rebinding) says its own name."""
    async with app_of(*ROUTES, access=AccessControl(HOSTS, frozenset(), None, any_address)) as app:
        for path in ("/open", "/nowhere"):
            given = await ask(app, "GET", path, {"host": host})
            assert (given.status, given.code) == (403, "forbidden")
            assert "--allowed-host" in given.json["message"]
        assert (await ask(app, "GET", "/probe", {"host": host})).status == 200  # probes know no name


@pytest.mark.parametrize("host", ADDRESSES)
async def test_a_wildcard_listener_accepts_every_host(host: str) -> None:
    """Nobody can make an address point elsewhere."""
    async with app_of(*ROUTES, access=AccessControl(HOSTS, frozenset(), None, any_address=True)) as app:
        assert (await ask(app, "GET", "/open", {"host": host})).status == 200


def settings(**given: object) -> Settings:
    return replace(Settings(Path("/nowhere"), "sqlite:////nowhere"), **given)  # type: ignore[arg-type]


def test_hosts_are_where_it_listens_what_is_allowed_and_the_public_one() -> None:
    always = {"localhost", "127.0.0.1", "[::1]"}
    assert hosts_of(settings(), "127.0.0.1") == always
    assert hosts_of(settings(), "10.1.2.3") == {*always, "10.1.2.3"}
    assert hosts_of(settings(listen="unix:///a.sock"), "localhost") == {*always, "agent", "unix", "_"}
    assert hosts_of(settings(), "fd00::0001") == {*always, "[fd00::1]"}
    assert hosts_of(settings(), "0.0.0.0") == hosts_of(settings(), "::") == always
    assert hosts_of(settings(allowed_host=("A.example", "b.example:1")), "127.0.0.1") == {
        *always,
        "a.example",
        "b.example",
    }
    assert hosts_of(settings(public_url="https://Agents.example:8443/x"), "::1") == {
        *always,
        "agents.example",
    }


@pytest.mark.parametrize(
    "bad",
    [
        {"allowed_host": ("https://a.example",)},
        {"allowed_host": ("*",)},
        {"public_url": "agents.example"},
        {"public_url": "ftp://agents.example"},
        {"cors_origin": ("*",)},
        {"cors_origin": ("https://a.example/",)},
        {"cors_origin": ("a.example",)},
        {"cors_origin": ("null",)},
    ],
)
def test_a_name_that_cannot_be_one_is_refused_at_the_start(bad: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match=r"must be an? "):
        assert not (hosts_of(settings(**bad), "127.0.0.1") and origins_of(settings(**bad)))


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("127.evil.com", False),
        ("localhost.evil.com", False),
    ],
)
def test_loopback_is_an_address_and_no_prefix(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_a_host_has_one_spelling() -> None:
    assert host_of("[0:0:0:0:0:0:0:1]:80") == host_of("[::1]") == "[::1]"
    assert host_of("A.example:80") == "a.example"


# -- origins -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://127.0.0.1:8080", 200),  # our own page
        ("https://127.0.0.1:8080", 200),  # our own page, behind a proxy
        (PAGE, 200),
        ("http://127.0.0.1:3000", 403),  # another server on this machine
        ("http://127.0.0.1", 403),
        ("http://localhost:8080", 403),
        ("null", 403),
        ("", 403),
        ("https://evil.test", 403),
        ("https://evil.test/127.0.0.1:8080", 403),
        ("http://127.0.0.1:8080@evil.test", 403),
        ("http://127.0.0.1:8080.evil.test", 403),
        (f"{PAGE}.evil.test", 403),
        (PAGE.replace("https", "http"), 403),
        ("file://", 403),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_page_of_another_origin_is_refused(origin: str, status: int, method: str) -> None:
    access = replace(ACCESS, origins=frozenset({PAGE}))
    async with app_of(*ROUTES, access=access) as app:
        given = await ask(app, method, "/open", {"origin": origin})
    assert given.status == status


@pytest.mark.parametrize(
    ("site", "mode", "method", "origin", "status"),
    [
        ("cross-site", "no-cors", "GET", None, 403),  # a picture, a script
        ("cross-site", "no-cors", "POST", None, 403),
        ("cross-site", "cors", "GET", None, 403),
        ("cross-site", None, "GET", None, 403),
        ("cross-site", "navigate", "POST", None, 403),  # a form
        ("cross-site", "navigate", "GET", None, 200),  # a link that somebody followed
        ("cross-site", "cors", "POST", PAGE, 200),
        ("cross-site", "navigate", "GET", "https://evil.test", 403),
        ("same-origin", "cors", "POST", None, 200),
        ("none", "navigate", "GET", None, 200),  # typed in
    ],
)
async def test_a_page_of_another_site_is_refused_also_where_it_says_no_origin(
    site: str, mode: str | None, method: str, origin: str | None, status: int
) -> None:
    named = {"sec-fetch-site": site, "sec-fetch-mode": mode, "origin": origin}
    headers = {name: value for name, value in named.items() if value is not None}
    async with app_of(*ROUTES, access=replace(ACCESS, origins=frozenset({PAGE}))) as app:
        given = await ask(app, method, "/open", headers)
        assert (await ask(app, "GET", "/probe", {"sec-fetch-site": site})).status == 200
    assert given.status == status
    assert status == 200 or given.code == "forbidden"


async def test_without_origins_nothing_is_said_about_them() -> None:
    async with app_of(*ROUTES) as app:
        for headers in ({}, {"origin": "http://127.0.0.1:8080"}, {"origin": PAGE}):
            given = await ask(app, "GET", "/open", headers)
            assert not any(name.startswith("access-control") for name in given.headers)
        preflight = await ask(app, "OPTIONS", "/open", preflight_of("POST"))
    assert preflight.status == 403
    assert not any(name.startswith("access-control") for name in preflight.headers)


def preflight_of(method: str, headers: str = "authorization, content-type") -> dict[str, str]:
    return {
        "origin": PAGE,
        "access-control-request-method": method,
        "access-control-request-headers": headers,
    }


async def test_an_allowed_page_may_ask_and_read() -> None:
    access = replace(ACCESS, origins=frozenset({PAGE}))
    async with app_of(*ROUTES, access=access) as app:
        preflight = await ask(
            app,
            "OPTIONS",
            "/open",
            preflight_of("POST", "authorization,x-stainless-os,x-evil, idempotency-key"),
        )
        asked = await ask(app, "GET", "/open", {"origin": PAGE})
        other = await ask(app, "GET", "/open")
    assert preflight.status == 204
    assert "POST" in preflight.headers["access-control-allow-methods"]
    allowed = preflight.headers["access-control-allow-headers"].split(", ")
    assert {"authorization", "content-type", "idempotency-key", "x-conversation-id", "x-stainless-os"} <= {
        *allowed
    }
    assert "x-evil" not in allowed
    for given in (preflight, asked):
        assert given.headers["access-control-allow-origin"] == PAGE
        assert given.headers["vary"] == "origin"
        assert "access-control-allow-credentials" not in given.headers  # tokens are sent, never cookies
    assert "x-conversation-id" in asked.headers["access-control-expose-headers"]
    assert other.headers["vary"] == "origin"  # a cache must not give this one to a page
    assert "access-control-allow-origin" not in other.headers


# fmt: off
SDK = [
    "authorization", "content-type", "openai-organization", "openai-project", "x-stainless-arch",
    "x-stainless-async", "x-stainless-helper-method", "x-stainless-lang", "x-stainless-os",
    "x-stainless-package-version", "x-stainless-retry-count", "x-stainless-runtime",
    "x-stainless-runtime-version", "x-stainless-timeout",
]
# fmt: on


async def test_openais_sdk_in_an_allowed_page_may_send_all_it_sends() -> None:
    """A browser asks for what the request has, in one list; one name that is missing, and nothing is sent."""
    access = replace(ACCESS, origins=frozenset({PAGE}))
    async with app_of(*ROUTES, access=access) as app:
        preflight = await ask(app, "OPTIONS", "/open", preflight_of("POST", ",".join(SDK)))
    assert preflight.status == 204
    assert set(SDK) <= set(preflight.headers["access-control-allow-headers"].split(", "))


@pytest.mark.parametrize("path", ["/nowhere", "/boom", "/chat"])
async def test_errors_can_be_read_by_an_allowed_page_too(path: str) -> None:
    access = replace(ACCESS, origins=frozenset({PAGE}), find_caller=find)
    async with app_of(*ROUTES, access=access) as app:
        given = await ask(app, "GET", path, {"origin": PAGE})
    assert given.status >= 400
    assert given.headers["access-control-allow-origin"] == PAGE


# -- tokens ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        f"Basic {TOKEN}:chat",
        f"{TOKEN}:chat",
        f"Bearer{TOKEN}:chat",
        "Bearer \xe4\xf6\xfc",
        "Bearer " + "x" * 10_000,
    ],
)
async def test_requests_without_a_valid_token_reveal_nothing(authorization: str | None) -> None:
    headers = {} if authorization is None else {"authorization": authorization}
    async with app_of(*ROUTES, access=replace(ACCESS, find_caller=find)) as app:
        given = await ask(app, "GET", "/chat", headers)
        assert (await ask(app, "GET", "/open", headers)).status == 200
    assert (given.status, given.code) == (401, "unauthorized")
    assert given.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    ("scope", "lets_in"),
    [
        (Scope.CHAT, {"/chat"}),
        (Scope.READ, {"/read"}),
        (Scope.SESSION, {"/read"}),
        (Scope.WORKER, set()),
        (Scope.APPROVE, set()),
        (Scope.ADMIN, {"/chat", "/read", "/admin"}),
    ],
)
async def test_a_token_is_good_for_its_scopes_alone(scope: Scope, lets_in: set[str]) -> None:
    headers = {"authorization": f"bearer  {TOKEN}:{scope.value}"}
    async with app_of(*ROUTES, access=replace(ACCESS, find_caller=find)) as app:
        for path in ("/chat", "/read", "/admin"):
            given = await ask(app, "GET", path, headers)
            assert given.status == (200 if path in lets_in else 403)
            if path in lets_in:
                assert given.json == {"tenant": "t1", "name": TOKEN}
            else:
                assert given.code == "forbidden"


async def test_a_body_is_not_read_without_a_token() -> None:
    async def read(request: Request) -> Response:
        return json_reply(await request.json())

    access = replace(ACCESS, find_caller=find)
    async with app_of(route("POST", "/chat", read, scope=Scope.CHAT), access=access) as app:
        client = Client(app, "POST", "/chat", {"content-type": "application/json"}, [b"{}"])
        assert (await client.end()).status == 401
        assert client.unread == [b"{}"]

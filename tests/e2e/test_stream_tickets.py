"""Tickets for event streams, and users that a proxy names: who may read what, on real servers."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apsw
import pytest

from tests.e2e.api import Api
from tests.e2e.command import until
from tests.e2e.server import LiveServer

TOKEN = "a-token-of-the-server-itself"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("tickets")
    options = ("--token-env", "OWN_TOKEN", "--cors-origin", "https://pages.example")
    with LiveServer(folder, options=options, env={"OWN_TOKEN": TOKEN}, api_key=TOKEN) as started:
        yield started


@pytest.fixture
def api(server: LiveServer) -> Api:
    return Api(server, TOKEN)


def test_a_ticket_opens_the_stream_of_its_session_and_nothing_else(server: LiveServer, api: Api) -> None:
    session, other = api.session(), api.session()
    given = api.post(f"/api/sessions/{session}/events/ticket")
    assert given.status == 201, given.body
    url, ticket = given.json["url"], given.json["ticket"]
    page = Api(server, token=None)
    headers = {"origin": "https://pages.example"}
    with page.stream("GET", f"{url}&since=0", **headers) as stream:
        assert stream.headers["access-control-allow-origin"] == "https://pages.example"
        api.good(session, "seen by a page without a header")
        stream.until("turn_committed")
    for path in (
        f"/api/sessions/{other}/events?ticket={ticket}",
        f"/api/sessions/{session}/turns?ticket={ticket}",
        f"/api/sessions/{session}?ticket={ticket}",
        f"/api/sessions/{session}/events?ticket={ticket}x",
        f"/api/sessions/{session}/events?ticket=",
        f"/api/sessions/{session}/events",
    ):
        assert page.ask("GET", path).refusal == (401, "unauthorized"), path
    assert page.ask("POST", f"/api/sessions/{session}/cancel?ticket={ticket}").refusal[0] == 401
    assert page.ask("POST", f"/api/sessions/{session}/events/ticket").refusal[0] == 401
    assert api.post("/api/sessions/ses_unknown/events/ticket").refusal == (404, "session_not_found")
    assert ticket.encode() not in server.stderr.read_bytes(), "it is in the log"
    database = apsw.Connection(str(server.data_dir / "lastgood.db"), flags=apsw.SQLITE_OPEN_READONLY)
    stored = str(list(database.execute("SELECT * FROM stream_tickets")))
    database.close()
    assert ticket not in stored


def test_a_ticket_expires_and_ends_with_the_token_behind_it(tmp_path: Path) -> None:
    with LiveServer(tmp_path, options=("--token-env", "OWN"), env={"OWN": TOKEN}, api_key=TOKEN) as server:
        admin = Api(server, TOKEN)
        made = admin.post("/api/tokens", {"name": "page", "scopes": ["session"]})
        assert made.status == 201, made.body
        owner, page = Api(server, token=made.json["token"]), Api(server, token=None)
        session = owner.session()
        url = owner.post(f"/api/sessions/{session}/events/ticket").json["url"]
        with page.stream("GET", f"{url}&since=0") as stream, ThreadPoolExecutor(1) as pool:
            assert admin.delete(f"/api/tokens/{made.json['id']}").status in (200, 204)
            read = pool.submit(list, stream)

            def has_ended() -> bool:
                admin.good(session, "is anybody there?")  # events are when an open stream is looked at again
                return read.done()

            until(has_ended)
        assert page.ask("GET", url).refusal == (401, "unauthorized")
        later = admin.post(f"/api/sessions/{session}/events/ticket").json["url"]
        database = apsw.Connection(str(server.data_dir / "lastgood.db"))
        database.set_busy_timeout(5000)
        database.execute("UPDATE stream_tickets SET expires_at = 1.0")
        database.close()
        assert page.ask("GET", later).refusal == (401, "unauthorized")
        admin.post(f"/api/sessions/{session}/events/ticket")

        def is_tidied() -> bool:
            return server.rows("SELECT count(*) FROM stream_tickets") == [(1,)]

        until(is_tidied)


# -- users behind a proxy --------------------------------------------------------------------

PAGE = {"sec-fetch-site": "same-origin"}


def test_the_user_of_a_trusted_proxy_is_logged_in_and_may_not_administer(tmp_path: Path) -> None:
    options = ("--trusted-proxy", "127.0.0.1", "--proxy-user-header", "X-Remote-User")
    with LiveServer(tmp_path, options=options) as server:
        proxied = Api(server, token=None)
        named = {**PAGE, "x-remote-user": "mira"}
        assert proxied.ask("GET", "/", **named).status == 200
        assert b"mira" in proxied.ask("GET", "/", **named).body
        made = proxied.ask("POST", "/api/sessions", {}, **named)
        assert (made.status, made.json["owner"]) == (200, "mira")
        assert proxied.ask("GET", "/api/audit", **named).refusal == (403, "forbidden")
        assert proxied.ask("GET", "/api/sessions", **PAGE).status == 401, "the proxy named nobody"
        for given in (
            {"sec-fetch-site": "cross-site", "x-remote-user": "mira"},
            {"sec-fetch-site": "same-site", "x-remote-user": "mira"},
            {**PAGE, "x-remote-user": " "},
            {**PAGE, "x-remote-user": "m" * 300},
        ):
            assert proxied.ask("POST", "/api/sessions", {}, **given).status in (401, 403), given
        assert proxied.ask("POST", "/api/sessions", {}, **{"x-remote-user": "mira"}).status == 401


def test_only_the_configured_proxy_is_trusted(tmp_path: Path) -> None:
    options = ("--trusted-proxy", "10.9.9.9", "--proxy-user-header", "X-Remote-User")
    with LiveServer(tmp_path, options=options) as server:
        api = Api(server, token=None)
        for more in ({}, {"x-forwarded-for": "10.9.9.9"}, {"forwarded": "for=10.9.9.9"}):
            named = {**PAGE, "x-remote-user": "mira", **more}
            assert api.ask("GET", "/api/sessions", **named).refusal == (401, "unauthorized")

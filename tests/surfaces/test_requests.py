"""What may come in, and what is said when it may not (I40)."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator

import pytest

from lastgood.cli.logs import _Lines
from lastgood.errors import AgentInvalid, InvalidRequest
from lastgood.surfaces.http import asgi
from lastgood.surfaces.http.app import AnsweredRequest, ResponseEnd, Route
from lastgood.surfaces.http.asgi import Reply, Request, Response, Stream, json_reply
from tests.surfaces.asgi import Client, app_of, ask, post, route

pytestmark = pytest.mark.anyio

LIMIT = 1000
JSON = {"content-type": "application/json"}


async def tell_body(request: Request) -> Response:
    return json_reply({"value": await request.json()})


async def tell_path(request: Request) -> Response:
    return json_reply({"path": dict(request.path), "query": request.query})


async def say_hello(request: Request) -> Response:
    return json_reply({"hello": "world"})


ROUTES: tuple[Route, ...] = (
    route("POST", "/body", tell_body, limit_bytes=LIMIT),
    route("POST", "/large", tell_body),
    route("GET", "/hello", say_hello),
    route("GET", "/things/{thing}", tell_path),
    route("DELETE", "/things/{thing}", tell_path),
    route("GET", "/things/all", say_hello),
)


def text_of(size: int) -> bytes:
    return b'"' + b"x" * (size - 2) + b'"'


# -- size --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pieces", "status"),
    [
        ([text_of(LIMIT)], 200),
        ([text_of(LIMIT + 1)], 413),
        ([b'"' + b"x" * 600, b"x" * 600 + b'"'], 413),  # no piece of it is too large
        ([b" "] * LIMIT + [b"1"], 413),
    ],
)
async def test_a_body_is_limited_by_the_bytes_that_came(pieces: list[bytes], status: int) -> None:
    async with app_of(*ROUTES) as app:
        given = await post(app, "/body", pieces)
    assert given.status == status
    if status == 413:
        assert given.code == "too_large"


async def test_a_body_is_refused_by_its_declared_length_before_it_is_read() -> None:
    async with app_of(*ROUTES) as app:
        given = await ask(
            app,
            "POST",
            "/body",
            {"content-type": "application/json", "content-length": str(LIMIT + 1)},
            [b"[]"],
        )
    assert (given.status, given.code) == (413, "too_large")


@pytest.mark.parametrize("length", ["1" * 5000, "²", "-1", "x", ""])
async def test_an_invalid_content_length_is_rejected(length: str) -> None:
    async with app_of(*ROUTES) as app:
        headers = {"content-type": "application/json", "content-length": length}
        given = await ask(app, "POST", "/body", headers, [b"1"])
    assert given.status in (200, 413)


@pytest.mark.parametrize("limit", ["BODY_PAUSE_SECONDS", "BODY_SECONDS"])
async def test_a_body_that_stops_coming_is_given_up(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi, limit, 0.02)
    async with app_of(*ROUTES) as app:
        client = Client(app, "POST", "/body", JSON, [b"[1,"], stops=True)
        given = await client.end()
    assert (given.status, given.code) == (400, "invalid_request")


async def test_a_client_that_leaves_in_mid_body_is_answered_by_nobody() -> None:
    seen: list[AnsweredRequest] = []
    async with app_of(*ROUTES, seen=seen) as app:
        client = Client(app, "POST", "/body", JSON, [b"[1,"], stops=True)
        client.leave()
        given = await client.end()
    assert given.status == 0
    assert [(one.status, one.ended) for one in seen] == [(499, ResponseEnd.LEFT)]


# -- what is in it -----------------------------------------------------------------------


def nested(depth: int, open: bytes = b"[", close: bytes = b"]", inside: bytes = b"") -> bytes:
    return open * depth + inside + close * depth


@pytest.mark.parametrize(
    ("body", "status"),
    [
        pytest.param(nested(100), 200, id="100 lists"),
        pytest.param(nested(101), 400, id="101 lists"),
        pytest.param(nested(100, b'{"a":', b"}", b"1"), 200, id="100 objects"),
        pytest.param(nested(101, b'{"a":', b"}", b"1"), 400, id="101 objects"),
        pytest.param(nested(1024), 400, id="as deep as it can be read"),
        pytest.param(nested(100_000), 400, id="100 000 lists"),
        pytest.param(b"[" * 1_000_000, 413, id="a million brackets"),
        pytest.param(b'{"a":' * 100_000, 400, id="100 000 keys"),
        pytest.param(b"", 400, id="nothing"),
        pytest.param(b"{", 400, id="half"),
        pytest.param(b"{}{}", 400, id="two"),
        pytest.param(b"nul", 400, id="no word"),
        pytest.param(b"NaN", 400, id="NaN"),
        pytest.param(b"Infinity", 400, id="infinity"),
        pytest.param(b"1e999", 400, id="more than a number"),
        pytest.param(b"-1e999", 400, id="less than a number"),
        pytest.param(b"9" * 100_000, 400, id="100 000 digits"),
        pytest.param(b"123456789012345678901234567890", 200, id="30 digits"),
        pytest.param(rb'"\ud800"', 400, id="half a surrogate pair"),
        pytest.param(rb'"\ud83d\ude00"', 200, id="a whole one"),
        pytest.param(rb'"\ude00\ud83d"', 400, id="a turned one"),
        pytest.param(b'"\xff"', 400, id="no UTF-8"),
        pytest.param(b'"\xed\xa0\x80"', 400, id="a surrogate as UTF-8"),
        pytest.param(b'"\xc0\x80"', 400, id="an overlong NUL"),
        pytest.param('"ä"'.encode("latin-1"), 400, id="latin-1"),
        pytest.param('"ä"'.encode("utf-16"), 400, id="utf-16"),
        pytest.param(b"\xef\xbb\xbf{}", 400, id="a byte order mark"),
        pytest.param(b"\0", 400, id="a bare NUL"),
        pytest.param(b'"a\0b"', 400, id="a raw NUL in a text"),
        pytest.param(b'"a\\u0000b"', 200, id="a written NUL"),
        pytest.param(b'{"a": 1, "a": 2}', 200, id="one key twice"),
    ],
)
async def test_a_body_is_json_or_refused(body: bytes, status: int) -> None:
    async with app_of(*ROUTES) as app:
        given = await post(app, "/large", body)
    assert given.status == status
    if status == 400:
        assert given.code == "invalid_request"


async def test_of_two_keys_with_one_name_the_last_counts() -> None:
    async with app_of(*ROUTES) as app:
        assert (await post(app, "/body", b'{"a": 1, "a": 2}')).json == {"value": {"a": 2}}


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "multipart/form-data; boundary=x"},
        {"content-type": "text/plain; application/json"},
        {"content-type": "application/jsonp"},
        {"content-type": ""},
        {},
        {"content-type": "application/json", "content-encoding": "gzip"},
        {"content-type": "application/json", "content-encoding": "identity, gzip"},
        {"content-type": "application/json", "content-encoding": "zstd"},
        {"content-type": "application/json", "transfer-encoding": "gzip, chunked"},
    ],
)
@pytest.mark.parametrize("length", [{"content-length": "2"}, {"transfer-encoding": "chunked"}])
async def test_only_uncompressed_json_is_accepted(headers: dict[str, str], length: dict[str, str]) -> None:
    """I37: a form of another page cannot say application/json. I40: nothing is unpacked."""
    async with app_of(*ROUTES) as app:
        given = await ask(app, "POST", "/body", length | headers, b"{}")
    assert (given.status, given.code) == (415, "unsupported_media")


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON ; charset=UTF-8"])
async def test_json_may_be_called_so_in_other_letters(kind: str) -> None:
    async with app_of(*ROUTES) as app:
        assert (await post(app, "/body", b"{}", content_type=kind)).status == 200


@pytest.mark.parametrize(
    "name",
    [
        *("host", "authorization", "origin", "content-type", "idempotency-key", "if-match", "if-none-match"),
        *("x-conversation-id", "x-conversation-mode", "x-openwebui-chat-id"),
    ],
)
async def test_a_header_that_decides_something_may_come_once(name: str) -> None:
    async with app_of(*ROUTES) as app:
        given = await ask(app, "GET", "/hello", [(name, "127.0.0.1"), (name, "127.0.0.1")])
        assert (given.status, given.code) == (400, "invalid_request")
        assert (await ask(app, "GET", "/hello", [("accept", "a"), ("accept", "b")])).status == 200


# -- addresses and methods ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "thing"),
    [
        ("a", "a"),
        ("a%2Fb", "a/b"),
        ("https%3A%2F%2Fexample.com%2Fagent.yaml", "https://example.com/agent.yaml"),
        ("a%252Fb", "a%2Fb"),
        ("%", "%"),
        ("%zz", "%zz"),
        ("%ff", "\ufffd"),
        ("..", ".."),
        ("", ""),
    ],
)
async def test_a_segment_is_split_first_and_decoded_once(raw: str, thing: str) -> None:
    async with app_of(*ROUTES) as app:
        given = await ask(app, "GET", f"/things/{raw}?a=1&a=2&b")
    assert given.json == {"path": {"thing": thing}, "query": {"a": "2", "b": ""}}


async def test_a_word_beats_a_hole() -> None:
    async with app_of(*ROUTES) as app:
        assert (await ask(app, "GET", "/things/all")).json == {"hello": "world"}


@pytest.mark.parametrize("path", ["/things/a%00b", "/things/a?q=%00", "/things/a?%00=q"])
async def test_a_nul_in_an_address_is_refused(path: str) -> None:
    async with app_of(*ROUTES) as app:
        given = await ask(app, "GET", path)
    assert (given.status, given.code) == (400, "invalid_request")


@pytest.mark.parametrize("path", ["/", "//", "/nowhere", "/hello/", "/things/a/b", "/%68ello/x", "", "*"])
async def test_an_unknown_address_is_a_404(path: str) -> None:
    async with app_of(*ROUTES) as app:
        given = await ask(app, "GET", path)
    assert (given.status, given.code) == (404, "not_found")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("POST", "/hello", "GET, HEAD, OPTIONS"),
        ("GET", "/body", "OPTIONS, POST"),
        ("HEAD", "/body", "OPTIONS, POST"),
        ("PUT", "/things/a", "DELETE, GET, HEAD, OPTIONS"),
        ("TRACE", "/hello", "GET, HEAD, OPTIONS"),
        ("get", "/hello", "GET, HEAD, OPTIONS"),
        ("BREW", "/hello", "GET, HEAD, OPTIONS"),
    ],
)
async def test_a_method_that_is_not_taken_is_a_405_that_names_those_that_are(
    method: str, path: str, allow: str
) -> None:
    async with app_of(*ROUTES) as app:
        given = await ask(app, method, path, JSON)
    assert (given.status, given.headers["allow"]) == (405, allow)
    if method != "HEAD":
        assert given.code == "method_not_allowed"
        methods = " or ".join(name for name in allow.split(", ") if name != "OPTIONS")
        assert given.json["message"] == f"Method not allowed on this route; use {methods}"


async def test_head_is_get_without_the_body() -> None:
    async with app_of(*ROUTES) as app:
        head, get = await ask(app, "HEAD", "/hello"), await ask(app, "GET", "/hello")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-length"] == get.headers["content-length"] == str(len(get.body))


async def test_head_of_a_stream_begins_nothing() -> None:
    began = []

    async def stream(request: Request) -> Response:
        async def pieces() -> AsyncGenerator[bytes, None]:
            began.append(True)
            yield b"data: 1\n\n"

        return Stream(pieces())

    async with app_of(route("GET", "/stream", stream)) as app:
        given = await ask(app, "HEAD", "/stream")
    assert (given.status, given.body, began) == (200, b"", [])
    assert given.headers["content-type"].startswith("text/event-stream")


async def test_options_returns_the_methods() -> None:
    async with app_of(*ROUTES) as app:
        given = await ask(app, "OPTIONS", "/things/a")
        assert (given.status, given.headers["allow"]) == (204, "DELETE, GET, HEAD, OPTIONS")
        assert "content-length" not in given.headers  # RFC 9110: a 204 has none
        assert (await ask(app, "OPTIONS", "/nowhere")).status == 404


# -- ids and errors ----------------------------------------------------------------------


async def test_every_answer_has_a_request_id_and_a_good_one_of_the_client_is_kept() -> None:
    seen: list[AnsweredRequest] = []
    async with app_of(*ROUTES, seen=seen) as app:
        first, second = await ask(app, "GET", "/hello"), await ask(app, "GET", "/nowhere")
        kept = await ask(app, "GET", "/hello", {"x-request-id": "a.B-c_1"})
        for bad in ("", "a b", "x" * 65, 'a"b', "ä"):
            assert (await ask(app, "GET", "/hello", {"x-request-id": bad})).headers["x-request-id"] != bad
    assert first.headers["x-request-id"] != second.headers["x-request-id"]
    assert second.json["error"]["request_id"] == second.headers["x-request-id"]
    assert kept.headers["x-request-id"] == "a.B-c_1"
    assert [one.request.id for one in seen][:3] == [
        one.headers["x-request-id"] for one in (first, second, kept)
    ]


SECRET = "what the user said"


@pytest.mark.parametrize("path", ["/boom", "/v1/boom"])
async def test_unexpected_errors_are_500_without_internals(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """I41: neither in the answer nor in the log stands what the error was about."""

    async def boom(request: Request) -> Response:
        raise RuntimeError(SECRET)

    async with app_of(route("GET", path, boom)) as app:
        with caplog.at_level(logging.DEBUG):
            given = await ask(app, "GET", path)
    assert given.status == 500
    assert SECRET not in given.body.decode()
    assert "RuntimeError" not in given.body.decode()
    assert given.headers["x-request-id"] in given.body.decode()
    assert given.code == "internal_error"
    (record,) = caplog.records
    assert record.fields == {"request_id": given.headers["x-request-id"]}  # type: ignore[attr-defined]
    line = _Lines().format(record)
    assert SECRET not in line
    assert json.loads(line)["error"] == "RuntimeError"
    assert any("boom" in frame for frame in json.loads(line)["at"])


@pytest.mark.parametrize("path", ["/api/x", "/v1/x"])
async def test_a_broken_agent_file_is_reported_in_the_log_alone(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The request is fine; where the file is and what is in it is nobody else's business."""

    async def load(request: Request) -> Response:
        raise AgentInvalid("/srv/agents/team.yaml:3: unknown key 'modle'", where="/srv/agents/team.yaml")

    async with app_of(route("POST", path, load)) as app:
        given = await ask(app, "POST", path)
    assert (given.status, given.code) == (500, "agent_unavailable")
    assert "see the server log" in given.json["error"]["message"]
    assert b"/srv" not in given.body
    assert b"modle" not in given.body
    (record,) = caplog.records
    assert "team.yaml:3: unknown key 'modle'" in record.message
    assert record.fields == {"request_id": given.headers["x-request-id"]}  # type: ignore[attr-defined]


async def test_each_surface_has_its_own_envelope() -> None:
    async def refuse(request: Request) -> Response:
        raise InvalidRequest("no", param="x")

    async with app_of(route("GET", "/api/x", refuse), route("GET", "/v1/x", refuse)) as app:
        plain, openai = await ask(app, "GET", "/api/x"), await ask(app, "GET", "/v1/x")
    id = plain.headers["x-request-id"]
    detail = {"code": "invalid_request", "message": "no", "request_id": id, "detail": {"param": "x"}}
    assert plain.json == {"error": detail, "message": "no"}
    assert openai.json == {
        "error": {"message": "no", "type": "invalid_request_error", "param": "x", "code": "invalid_request"}
    }


async def test_work_for_a_client_that_leaves_is_stopped_before_the_request_ends() -> None:
    stopped = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # cleaning up takes a moment
            stopped.append(True)

    async def handler(request: Request) -> Response:
        await request.unless_gone(work())
        return Reply(200)

    async with app_of(route("GET", "/work", handler)) as app:
        client = Client(app, "GET", "/work")
        await asyncio.sleep(0)
        client.leave()
        await client.end()
        assert stopped == [True]
        assert client.given.status == 0


async def test_work_that_may_not_end_is_answered_when_the_server_ends() -> None:
    async def handler(request: Request) -> Response:
        await request.unless_gone(asyncio.Event().wait())
        return Reply(200)

    async with app_of(route("GET", "/work", handler)) as app:
        client = Client(app, "GET", "/work")
        await asyncio.sleep(0)
        assert app.running == 1
        app.end()
        given = await client.end()
        client.leave()
        await app.until_idle(0.01)
    assert (given.status, given.code) == (503, "shutting_down")
    assert (given.headers["retry-after"], given.headers["x-should-retry"]) == ("1", "true")

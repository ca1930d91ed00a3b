"""What may be said to the session API: a typed 4xx for everything else, and nothing of it is stored (I40)."""

import json
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest

from lastgood.core.input_checks import MOST_IN_METADATA_BYTES, MOST_IN_TITLE
from tests.reference_hash import exported_hash
from tests.surfaces.asgi import Client, Given, ask
from tests.surfaces.in_process_server import AGENT, InProcessServer, open_inside

pytestmark = pytest.mark.anyio

NUL = "a\0b"
ONE = {"role": "user", "content": "hello"}


@pytest.fixture(scope="module")
async def inside(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcessServer]:
    folder = tmp_path_factory.mktemp("wire")
    root = folder / "root"
    (root / "inside").mkdir(parents=True)
    (folder / "outside").mkdir()
    (folder / "root-not").mkdir()
    (root / "way-out").symlink_to(folder / "outside")
    (root / "loop").symlink_to(root / "loop")
    (root / "file").write_text("")
    async with open_inside(folder, working_dir_root=root, max_request_size=2_000_000) as opened:
        yield opened


@pytest.fixture(scope="module")
async def session(inside: InProcessServer) -> str:
    made = await inside.session()
    await inside.turn(made)
    return made


@pytest.fixture
async def unchanged(inside: InProcessServer, session: str) -> AsyncIterator[None]:
    await inside.settled()
    before = inside.dump()
    yield
    await inside.settled()
    assert inside.dump() == before


def refused(given: Given, status: int, code: str) -> None:
    assert (given.status, given.code) == (status, code), given.body[:500]
    assert len(given.body) < 2000  # what was sent is not sent back
    assert given.json["message"] == given.json["error"]["message"]


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


# -- messages ----------------------------------------------------------------------------

BAD_MESSAGES: dict[str, Any] = {
    "none": [],
    "no list": {},
    "a text": "hello",
    "null": None,
    "one that is null": [None],
    "one that is a list": [[]],
    "more than a thousand": [ONE] * 1001,
    "blank": [{"role": "user", "content": " \n\t "}],
    "empty": [{"role": "user", "content": ""}],
    "one of two is blank": [ONE, {"role": "user", "content": ""}],
    "without content": [{"role": "user"}],
    "content that is null": [{"role": "user", "content": None}],
    "content that is a number": [{"role": "user", "content": 7}],
    "content that is an object": [{"role": "user", "content": {"text": "x"}}],
    "no parts": [{"role": "user", "content": []}],
    "a part of no type": [{"role": "user", "content": [{"text": "x"}]}],
    "a part of an unknown type": [{"role": "user", "content": [{"type": "video", "video": "x"}]}],
    "a blank part": [{"role": "user", "content": [{"type": "text", "text": " "}]}],
    "parts of docker-agent's": [{"role": "user", "multi_content": [{"type": "video"}]}],
    "parts of docker-agent's beside no content": [
        {"role": "user", "content": "", "multi_content": [{"type": "text"}]}
    ],
    "a file of ours": [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}
    ],
    "a file that is none": [
        {"role": "user", "content": [{"type": "file", "file": {"file_data": "/etc/passwd"}}]}
    ],
    "an unknown role": [{"role": "root", "content": "x"}],
    "NUL": [{"role": "user", "content": NUL}],
    "NUL in a part": [{"role": "user", "content": [{"type": "text", "text": NUL}]}],
    "a result of no call": [{"role": "tool", "content": "x", "tool_call_id": "nobody"}],
    "a result without an id": [{"role": "tool", "content": "x"}],
    "deep": [{"role": "user", "content": nested(98)}],
}


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("what", BAD_MESSAGES)
async def test_bad_messages_are_refused(inside: InProcessServer, session: str, what: str) -> None:
    for path in ("turns", "messages", "followup", f"agent/{AGENT.replace('/', '%2F')}"):
        if path in ("messages", "followup") and what == "a result of no call":
            continue  # without a model it need not answer anything; later, more is known
        given = await inside.ask("POST", f"/api/sessions/{session}/{path}", {"messages": BAD_MESSAGES[what]})
        refused(given, 400, "invalid_request")


@pytest.mark.usefixtures("unchanged")
async def test_the_last_word_must_be_the_users(inside: InProcessServer, session: str) -> None:
    said = {"messages": [ONE, {"role": "assistant", "content": "hi"}]}
    for path in ("turns", "followup"):
        refused(await inside.ask("POST", f"/api/sessions/{session}/{path}", said), 400, "invalid_request")


async def test_a_thousand_messages_are_taken(inside: InProcessServer) -> None:
    session = await inside.session()
    turn = await inside.good("POST", f"/api/sessions/{session}/messages", {"messages": [ONE] * 1000})
    assert len(turn["messages"]) == 1000


async def test_messages_may_be_sent_without_an_envelope(inside: InProcessServer) -> None:
    """docker-agent's clients do; the role may be missing, too."""
    session = await inside.session()
    path = f"/api/sessions/{session}/agent/{AGENT.replace('/', '%2F')}"
    assert (await inside.ask("POST", path, [{"content": "hello"}])).status == 200
    parts = [{"type": "text", "text": "hello"}]
    assert (await inside.ask("POST", path, [{"content": "", "multi_content": parts}])).status == 200
    refused(await inside.ask("POST", path, []), 400, "invalid_request")


async def test_the_place_of_an_error_is_reported(inside: InProcessServer, session: str) -> None:
    for messages, param in (
        ([ONE, {"role": "user", "content": [{"type": "text"}]}], "messages[1].content[0].text"),
        ([ONE, {"role": "user", "multi_content": [{"type": "text"}]}], "messages[1]"),
        ([ONE, {"role": 7}], "messages[1].role"),
        ("x", "messages"),
    ):
        given = await inside.ask("POST", f"/api/sessions/{session}/turns", {"messages": messages})
        assert given.json["error"]["detail"]["param"] == param


async def test_any_unicode_comes_back_as_it_was(inside: InProcessServer) -> None:
    text = "\ufffe\uffff\U0010ffff\u202e\x7f\x01 ünï ﷽ " + "e\u0301" * 10
    session = await inside.session(title=text, metadata={text: text})
    turn = await inside.turn(session, text)
    assert turn["messages"][0]["content"] == text
    read = await inside.good("GET", f"/api/sessions/{session}")
    assert read["messages"][0]["content"] == text
    assert read["metadata"] == {text: text}
    assert read["title"] == " ".join(text.split())


# -- bodies ------------------------------------------------------------------------------

NOT_JSON = {
    "nothing": b"",
    "a word": b"hello",
    "half": b'{"messages": [',
    "brackets": b"[" * 100_000,
    "pairs of brackets": b"[" * 100_000 + b"]" * 100_000,
    "no UTF-8": b'{"a": "\xff"}',
    "half a surrogate": b'{"messages": [{"content": "\\ud800"}]}',
    "no number": b'{"a": NaN}',
    "an endless number": b'{"a": 1e400}',
    "two values": b"{} {}",
    "a deep value": json.dumps(nested(101)).encode(),
}


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("what", NOT_JSON)
async def test_invalid_or_too_deep_JSON_is_rejected(inside: InProcessServer, session: str, what: str) -> None:
    for method, path in (
        ("POST", f"{session}/turns"),
        ("POST", f"{session}/steer"),
        ("PATCH", f"{session}/metadata"),
        ("POST", "import"),
        ("POST", "batch/delete"),
    ):
        given = await inside.ask(method, f"/api/sessions/{path}", raw=NOT_JSON[what])
        refused(given, 400, "invalid_request")


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("plain", [[], 7, "x", True, None], ids=str)
async def test_a_body_must_be_an_object(inside: InProcessServer, session: str, plain: Any) -> None:
    for route in inside.routes:
        if route.path.startswith("/api/") and route.takes is not None:
            path = route.path.replace("{session}", session).replace("{agent}", "builtin%2Fscripted")
            path = path.replace("{attempt}", "x").replace("/{name}", "/x")
            given = await inside.ask(route.method, path, raw=json.dumps(plain).encode())
            refused(given, 400, "invalid_request")


async def test_depth_a_hundred_is_taken(inside: InProcessServer) -> None:
    session = await inside.session(metadata=nested(97))
    assert (await inside.good("GET", f"/api/sessions/{session}"))["metadata"] == nested(97)
    assert await inside.good("GET", "/api/sessions")
    assert (await inside.good("GET", f"/api/sessions/{session}/export"))["session"]["metadata"] == nested(97)


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"content-type": "text/plain"}, 415, "unsupported_media"),
        ({"content-type": "application/x-www-form-urlencoded"}, 415, "unsupported_media"),
        ({"content-type": "multipart/form-data"}, 415, "unsupported_media"),
        ({"content-type": ""}, 415, "unsupported_media"),
        ({"content-type": "application/json", "content-encoding": "gzip"}, 415, "unsupported_media"),
        ({"content-type": "application/json", "origin": "http://evil.test"}, 403, "forbidden"),
        ({"content-type": "application/json", "host": "evil.test"}, 403, "forbidden"),
    ],
)
async def test_JSON_is_taken_as_JSON_only(
    inside: InProcessServer, session: str, headers: dict[str, str], status: int, code: str
) -> None:
    """I37: a page that makes a browser send something cannot send that."""
    for route in inside.routes:
        if route.path.startswith("/api/") and route.method != "GET":
            path = route.path.replace("{session}", session)
            sent = {"transfer-encoding": "chunked", **headers}
            refused(await ask(inside.server.app, route.method, path, sent, b"{}"), status, code)


@pytest.mark.usefixtures("unchanged")
async def test_a_body_that_is_too_large_is_refused_before_it_is_read(
    inside: InProcessServer, session: str
) -> None:
    for path in (f"{session}/turns", f"{session}/messages", "import"):
        for said in ({"content-length": str(100 * 1024**3)}, {"transfer-encoding": "chunked"}):
            pieces = [b'{"messages": [{"content": "'] + [b"x" * 1_000_000] * 20
            client = Client(
                inside.server.app,
                "POST",
                f"/api/sessions/{path}",
                {"content-type": "application/json", **said},
                pieces,
            )
            refused(await client.end(), 413, "too_large")
            assert len(client.unread) >= 10
            client.leave()


# -- conditions and numbers ----------------------------------------------------------------


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("value", ["", " ", '""', 'W/""', '"a", "b"', "a b", '"a', 'a"', ",", '"a"b', "a,b"])
async def test_an_If_Match_that_names_no_turn_is_refused(
    inside: InProcessServer, session: str, value: str
) -> None:
    """An empty one must not become no condition at all."""
    for path, body in (
        ("turns", {"messages": [ONE]}),
        ("messages", {"messages": [ONE]}),
        ("reset", None),
        ("summaries", {"summary": "x"}),
    ):
        given = await inside.ask("POST", f"/api/sessions/{session}/{path}", body, if_match=value)
        refused(given, 400, "invalid_request")


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("name", ["if-match", "x-user-id", "idempotency-key", "authorization"])
async def test_what_two_could_read_differently_comes_once(
    inside: InProcessServer, session: str, name: str
) -> None:
    headers = [
        ("content-type", "application/json"),
        ("transfer-encoding", "chunked"),
        (name, "a"),
        (name, "b"),
    ]
    body = json.dumps({"messages": [ONE]}).encode()
    path = f"/api/sessions/{session}/turns"
    refused(await ask(inside.server.app, "POST", path, headers, body), 400, "invalid_request")


async def test_If_Match_names_the_head(inside: InProcessServer) -> None:
    session = await inside.session()
    path = f"/api/sessions/{session}/messages"
    first = await inside.turn(session)
    stale = await inside.ask("POST", path, {"messages": [ONE]}, if_match='"turn_nobody"')
    refused(stale, 412, "stale_head")
    head = first["id"]
    for form in (head, f'"{head}"', f'W/"{head}"', f'  "{head}" ', "*"):
        given = await inside.ask("POST", path, {"messages": [ONE]}, if_match=form)
        assert given.status == (201 if form in (head, "*") else 412), form
        if form == head:
            etag = (await inside.ask("GET", f"/api/sessions/{session}")).headers["etag"]
            assert etag == f'"{given.json["id"]}"'
    etag = (await inside.ask("GET", f"/api/sessions/{session}?messages=0")).headers["etag"]
    assert (await inside.ask("POST", path, {"messages": [ONE]}, if_match=etag)).status == 201


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    "value", ["x", "-1", "1.5", "%D9%A3", "1e3", "9" * 19, "0x1", "1%202", "%00", "%2B1"]
)
async def test_a_place_in_the_events_is_a_number(inside: InProcessServer, session: str, value: str) -> None:
    path = f"/api/sessions/{session}/events"
    refused(await inside.ask("GET", f"{path}?since={value}"), 400, "invalid_request")
    refused(await inside.ask("GET", path, last_event_id=value), 400, "invalid_request")


async def test_an_unreached_place_is_reported(inside: InProcessServer, session: str) -> None:
    for since in ("999999", "9" * 18):
        client = Client(inside.server.app, "GET", f"/api/sessions/{session}/events?since={since}")
        await client.until(b"resync")
        client.leave()
        assert (await client.end()).status == 200


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("value", ["", "x" * 256, "a b", "\xe4", "a\tb"])
async def test_keys_are_short_and_can_be_seen(inside: InProcessServer, session: str, value: str) -> None:
    for path, body in (
        ("turns", {"messages": [ONE]}),
        ("messages", {"messages": [ONE]}),
        ("followup", {"messages": [ONE]}),
        ("reset", None),
    ):
        given = await inside.ask("POST", f"/api/sessions/{session}/{path}", body, idempotency_key=value)
        refused(given, 400, "invalid_request")


BAD_PAGES = ("limit=0", "limit=201", "limit=-1", "limit=x", "limit=1.0", "limit=%D9%A3", "limit=" + "9" * 40)


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("query", [*BAD_PAGES, "cursor=-1", "cursor=x", "cursor=" + "9" * 30, "limit=%00"])
async def test_pages_have_bounds(inside: InProcessServer, session: str, query: str) -> None:
    for path in ("", f"/{session}/turns", f"/{session}/attempts"):
        refused(await inside.ask("GET", f"/api/sessions{path}?{query}"), 400, "invalid_request")


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("value", ["2", "yes", "null", "%00", "01"])
async def test_a_switch_is_0_or_1(inside: InProcessServer, session: str, value: str) -> None:
    run = f"agent/{AGENT.replace('/', '%2F')}?named"
    for method, path, body in (
        ("GET", "?messages", None),
        ("GET", "/events?named", None),
        ("POST", f"/{run}", {"messages": [ONE]}),
    ):
        given = await inside.ask(method, f"/api/sessions/{session}{path}={value}", body)
        refused(given, 400, "invalid_request")


async def test_pages_join_to_the_whole(inside: InProcessServer) -> None:
    session = await inside.session()
    for number in range(7):
        await inside.good(
            "POST", f"/api/sessions/{session}/messages", {"message": {"content": f"message {number}"}}
        )
    for what in ("turns", "attempts"):
        whole = await inside.good("GET", f"/api/sessions/{session}/{what}")
        assert len(whole) == 7
        for limit in (1, 2, 6, 7, 8):
            found, cursor = [], "0"
            while cursor:
                path = f"/api/sessions/{session}/{what}?limit={limit}&cursor={cursor}"
                page = await inside.ask("GET", path)
                assert len(page.json) <= limit
                found += page.json
                cursor = page.headers.get("x-next-cursor", "")
            assert found == whole, (what, limit)
        assert await inside.good("GET", f"/api/sessions/{session}/{what}?cursor=7") == []
        assert await inside.good("GET", f"/api/sessions/{session}/{what}?cursor=999999999") == []


async def test_a_query_is_looked_for_as_it_is(inside: InProcessServer) -> None:
    """% and _ are characters, not patterns; so is a backslash."""
    titles = {
        name: await inside.session(title=name)
        for name in ("100% wild", "100x wild", "a_b", "axb", r"c\d", "Ünder")
    }
    for query, found in (
        ("100%25", ["100% wild"]),
        ("%25", ["100% wild"]),
        ("_", ["a_b"]),
        ("a_b", ["a_b"]),
        ("%5C", [r"c\d"]),
        ("%C3%BCnder", ["Ünder"]),
        ("WILD", ["100x wild", "100% wild"]),
        ("'%20OR%201=1", []),
    ):
        listed = await inside.good("GET", f"/api/sessions?limit=200&q={query}")
        assert [session["id"] for session in listed] == [titles[name] for name in found], query


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("query", ["status=asleep", "status=IDLE", "q=%00", "agent=%00"])
async def test_bad_filters_are_refused(inside: InProcessServer, session: str, query: str) -> None:
    refused(await inside.ask("GET", f"/api/sessions?{query}"), 400, "invalid_request")


# -- fields of a session ---------------------------------------------------------------------

BAD_FIELDS: dict[str, tuple[Any, int, str]] = {
    "title that is too long": ({"title": "x" * (MOST_IN_TITLE + 1)}, 400, "invalid_request"),
    "title with NUL": ({"title": NUL}, 400, "invalid_request"),
    "title that is a number": ({"title": 7}, 400, "invalid_request"),
    "agent nobody serves": ({"agent": "nobody"}, 404, "agent_not_found"),
    "agent that is a file of ours": ({"agent": "../../etc/passwd"}, 404, "agent_not_found"),
    "agent with NUL": ({"agent": NUL}, 400, "invalid_request"),
    "agent without a name": ({"agent": ""}, 400, "invalid_request"),
    "agent that is too long": ({"agent": "x" * 3000}, 400, "invalid_request"),
    "model nobody serves": ({"model": "nobody/knows"}, 422, "model_unknown"),
    "model with NUL": ({"model": NUL}, 400, "invalid_request"),
    "metadata that are a list": ({"metadata": []}, 400, "invalid_request"),
    "metadata that are too large": (
        {"metadata": {"a": "x" * MOST_IN_METADATA_BYTES}},
        413,
        "too_large",
    ),
    "metadata with too many keys": ({"metadata": {f"{n}": n for n in range(20_000)}}, 413, "too_large"),
    "rules that are a list": ({"permissions": []}, 400, "invalid_request"),
    "a rule with NUL": ({"permissions": {"deny": [NUL]}}, 400, "invalid_request"),
    "a rule that is a number": ({"permissions": {"deny": [7]}}, 400, "invalid_request"),
    "too many rules": ({"permissions": {"deny": ["x"] * 101, "ask": ["y"] * 100}}, 400, "invalid_request"),
    "a rule that is too long": ({"permissions": {"deny": ["x" * 401]}}, 400, "invalid_request"),
    "a mode nobody knows": ({"safety": "reckless"}, 400, "invalid_request"),
    "a mode above the server's": ({"safety": "autonomous"}, 403, "forbidden"),
    "a folder with NUL": ({"working_dir": NUL}, 400, "invalid_request"),
    "a relative folder": ({"working_dir": "root"}, 400, "invalid_request"),
    "a folder of no name": ({"working_dir": ""}, 400, "invalid_request"),
    "a folder that is a number": ({"working_dir": 7}, 400, "invalid_request"),
    "a folder with a long name": ({"working_dir": "/" + "x" * 300}, 400, "invalid_request"),
    "the root of everything": ({"working_dir": "/"}, 400, "invalid_request"),
    "a folder elsewhere": ({"working_dir": "/etc"}, 400, "invalid_request"),
    "a folder that is not there": ({"working_dir": "/nobody/was/here"}, 400, "invalid_request"),
}


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("what", BAD_FIELDS)
async def test_a_bad_field_makes_no_session(inside: InProcessServer, what: str) -> None:
    plain, status, code = BAD_FIELDS[what]
    refused(await inside.ask("POST", "/api/sessions", {"agent": AGENT, **plain}), status, code)


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    "name",
    [
        "outside",
        "root/../outside",
        "root/way-out",
        "root-not",
        "root/loop",
        "root/file",
        "root/new",
        "root/./../..",
    ],
)
async def test_a_working_folder_is_under_the_root(inside: InProcessServer, name: str) -> None:
    """I38: resolved, symlinks too. Nothing is made, in the database or on the disk."""
    folder = inside.path.parent
    before = sorted(folder.rglob("root*/**"))
    given = await inside.ask("POST", "/api/sessions", {"agent": AGENT, "working_dir": f"{folder}/{name}"})
    refused(given, 400, "invalid_request")
    assert sorted(folder.rglob("root*/**")) == before


@pytest.mark.usefixtures("unchanged")
async def test_paths_outside_the_root_reveal_nothing(inside: InProcessServer) -> None:
    """Not even whether it is there, or is a file."""
    answers = set()
    for path in ("/etc", "/etc/passwd", "/etc/nobody-made-this", f"{inside.path.parent}/outside/x"):
        given = await inside.ask("POST", "/api/sessions", {"agent": AGENT, "working_dir": path})
        answers.add(given.json["message"].replace(path, "PATH"))
    assert len(answers) == 1


async def test_a_working_folder_that_is_there_is_taken(inside: InProcessServer) -> None:
    folder = inside.path.parent / "root" / "inside"
    session = await inside.session(working_dir=f"{folder}/")
    assert (await inside.good("GET", f"/api/sessions/{session}"))["working_dir"] == str(folder)


BAD_PATCHES: dict[str, tuple[str, Any, int, str]] = {
    "a blank title": ("title", {"title": " \n"}, 400, "invalid_request"),
    "no title": ("title", {}, 400, "invalid_request"),
    "a title that is too long": ("title", {"title": "x" * (MOST_IN_TITLE + 1)}, 400, "invalid_request"),
    "a title with NUL": ("title", {"title": NUL}, 400, "invalid_request"),
    "a star that is a text": ("starred", {"starred": "yes"}, 400, "invalid_request"),
    "a star that is a number": ("starred", {"starred": 1}, 400, "invalid_request"),
    "no metadata": ("metadata", {}, 400, "invalid_request"),
    "metadata that are too large": (
        "metadata",
        {"metadata": {"a": "ü" * (MOST_IN_METADATA_BYTES // 2)}},
        413,
        "too_large",
    ),
    "a model nobody serves": ("model", {"model": "nobody/knows"}, 422, "model_unknown"),
    "a model of no name": ("model", {"model": ""}, 400, "invalid_request"),
    "no model": ("model", {}, 400, "invalid_request"),
    "a rule with NUL": ("permissions", {"permissions": {"ask": [NUL]}}, 400, "invalid_request"),
    "a mode above the server's": ("safety-policy", {"safety_policy": "autonomous"}, 403, "forbidden"),
    "docker-agent's word for it": ("safety-policy", {"safety_policy": "unsafe"}, 403, "forbidden"),
    "a mode nobody knows": ("safety-policy", {"safety_policy": "x"}, 400, "invalid_request"),
    "tokens below zero": ("tokens", {"input_tokens": -1, "output_tokens": 0}, 400, "invalid_request"),
    "tokens beyond all": ("tokens", {"input_tokens": 10**30, "output_tokens": 0}, 400, "invalid_request"),
}


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("what", BAD_PATCHES)
async def test_a_bad_field_changes_no_session(inside: InProcessServer, session: str, what: str) -> None:
    field, plain, status, code = BAD_PATCHES[what]
    refused(await inside.ask("PATCH", f"/api/sessions/{session}/{field}", plain), status, code)


@pytest.mark.usefixtures("unchanged")
async def test_the_switch_for_all_tools_does_not_pass_the_ceiling(
    inside: InProcessServer, session: str
) -> None:
    refused(await inside.ask("POST", f"/api/sessions/{session}/tools/toggle"), 403, "forbidden")


async def test_metadata_may_have_exactly_so_many_bytes(inside: InProcessServer) -> None:
    """As JSON without spaces. A list of sessions carries them, so there is a bound."""
    session = await inside.session()
    for more, status in ((0, 200), (1, 413)):
        metadata = {"a": "x" * (MOST_IN_METADATA_BYTES - len('{"a":""}') + more)}
        for method, path in (("PATCH", f"/api/sessions/{session}/metadata"), ("POST", "/api/sessions")):
            assert (await inside.ask(method, path, {"metadata": metadata})).status == status


async def test_a_title_may_have_exactly_so_many_characters(inside: InProcessServer) -> None:
    session = await inside.session(title="ü" * MOST_IN_TITLE)
    await inside.good("PATCH", f"/api/sessions/{session}/title", {"title": "🧭" * MOST_IN_TITLE})


# -- the rest ------------------------------------------------------------------------------------

BAD_REQUESTS: list[tuple[str, Any]] = [
    ("fork", {"turn": "x", "user_message_index": 0}),
    ("fork", {"user_message_index": -1}),
    ("fork", {"user_message_index": 2**31}),
    ("fork", {"user_message_index": 99}),
    ("fork", {"user_message_index": True}),
    ("fork", {"turn": ""}),
    ("fork", {"turn": "x" * 300}),
    ("messages", {}),
    ("messages", {"message": ONE, "messages": [ONE]}),
    ("summaries", {"summary": ""}),
    ("summaries", {"summary": " \n"}),
    ("summaries", {"summary": NUL}),
    ("summaries", {"summary": "x", "first_kept_entry": -1}),
    ("turns", {"messages": [ONE], "user": "x" * 513}),
    ("turns", {"messages": [ONE], "user": NUL}),
    ("turns", {"messages": [ONE], "wait": "yes"}),
    ("turns", {"messages": [ONE], "model": NUL}),
    ("turns", {"messages": [ONE], "agent": NUL}),
    ("followup", {"messages": [ONE], "user": NUL}),
    ("followup", {"messages": [ONE], "model": NUL}),
    ("followup", {"messages": [ONE], "agent": NUL}),
    ("steer", {"messages": [ONE], "model": AGENT}),
    ("steer", {"messages": [{"role": "system", "content": "x"}]}),
    ("rebind", {}),
    ("rebind", {"agent": ""}),
]


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(("path", "plain"), BAD_REQUESTS, ids=lambda value: str(value)[:60])
async def test_what_cannot_be_meant_is_refused(
    inside: InProcessServer, session: str, path: str, plain: Any
) -> None:
    given = await inside.ask("POST", f"/api/sessions/{session}/{path}", plain)
    refused(given, 400, "invalid_request")


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    "ids", [[], ["x"] * 101, [""], ["x" * 256], [7], "x", None], ids=lambda v: str(v)[:20]
)
async def test_a_batch_is_a_list_of_ids(inside: InProcessServer, ids: Any) -> None:
    for path in ("delete", "export"):
        given = await inside.ask("POST", f"/api/sessions/batch/{path}", {"session_ids": ids})
        refused(given, 400, "invalid_request")


async def test_a_result_of_no_call_is_parked_with_its_reason(inside: InProcessServer) -> None:
    """Whether it answers anything is known when its turn has come; then it is not shown to a model."""
    session = await inside.session()
    await inside.turn(session)
    body = {"messages": [{"role": "tool", "content": "x", "tool_call_id": "nobody"}]}
    entry = await inside.good("POST", f"/api/sessions/{session}/followup", body)
    await inside.settled()
    (item,) = (await inside.good("GET", f"/api/sessions/{session}/queue"))["items"]
    assert (item["id"], item["failures"]) == (entry["id"], 0)
    assert "No tool calls are open" in item["parked"]
    assert (await inside.good("GET", f"/api/sessions/{session}"))["turns"] == 1


# -- documents -----------------------------------------------------------------------------------


def sealed(document: dict[str, Any]) -> dict[str, Any]:
    """Hashed anew: whoever writes a document can do that, too."""
    hash, parent = b"", None
    for turn in document["turns"]:
        turn["parent"] = parent
        try:
            hash, parent = exported_hash(hash, turn), turn["id"]
        except (AttributeError, KeyError, TypeError, ValueError, struct.error):
            return document
        turn["hash"] = hash.hex()
    return document


BAD_TURNS: dict[str, dict[str, Any]] = {
    "a time beyond all": {"created_at": 1e300},
    "a time before all": {"created_at": -1e300},
    "a time that is a text": {"created_at": "nan"},
    "tokens beyond all": {"usage": {"input_tokens": 2**70, "output_tokens": 0, "cost": 0}},
    "tokens below zero": {"usage": {"input_tokens": -1, "output_tokens": 0, "cost": 0}},
    "a cost that is a text": {"usage": {"input_tokens": 0, "output_tokens": 0, "cost": "inf"}},
    "a cost below zero": {"usage": {"input_tokens": 0, "output_tokens": 0, "cost": -1}},
    "a number that is a text": {"seq": "1"},
    "a number that is a flag": {"seq": True},
    "inputs that are not there": {"inputs": 99},
    "inputs below zero": {"inputs": -1},
    "a decision that left out a text": {"decision": {"left_out": "x"}},
    "a decision that is a list": {"decision": [1]},
    "an unknown kind": {"kind": "x" * 5000},
    "an agent that is a number": {"agent_key": 7},
    "a model with NUL": {"model": NUL},
    "a user with NUL": {"user": NUL},
    "no messages": {"messages": None},
    "a message without a role": {"messages": [{"content": "x"}]},
    "a blank message": {"messages": [{"role": "user", "content": " "}]},
    "a message with NUL": {"messages": [{"role": "user", "content": NUL}]},
    "a message that is a number": {"messages": [7]},
    "a file of ours": {
        "messages": [
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}
        ]
    },
    "an unknown `detail`": {
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": "https://x.test", "detail": {"a": 1}}}
                ],
            }
        ]
    },
    "reasoning that is no text": {
        "messages": [{"role": "assistant", "content": "x", "reasoning": {"model": "m", "text": {"a": 1}}}]
    },
    "a call without a name": {
        "messages": [{"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}]
    },
    "a call with a number": {
        "messages": [
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": "1", "function": {"name": 7, "arguments": "{}"}}],
            }
        ]
    },
}
BAD_HEADS: dict[str, dict[str, Any]] = {
    "an agent that is a number": {"agent_key": 7},
    "an agent with NUL": {"agent_key": NUL},
    "a title that is too long": {"title": "x" * 300},
    "a title that is a list": {"title": ["x"]},
    "an unknown mode": {"safety": ["reckless"]},
    "a mode that is no list": {"safety": "strict"},
    "metadata that are too large": {"metadata": {"a": "x" * MOST_IN_METADATA_BYTES}},
    "metadata that are a text": {"metadata": "x"},
    "rules that are a list": {"permissions": ["x"]},
    "a rule that is a number": {"permissions": {"deny": [7]}},
}


async def exported(inside: InProcessServer, session: str) -> dict[str, Any]:
    document: dict[str, Any] = await inside.good("GET", f"/api/sessions/{session}/export")
    return document


async def test_a_document_comes_back_whole(inside: InProcessServer, session: str) -> None:
    """`sealed` hashes as the server does, or the refusals below would prove nothing."""
    document = await exported(inside, session)
    assert sealed(json.loads(json.dumps(document))) == document
    (turn,) = document["turns"]
    copy = await inside.good("POST", "/api/sessions/import", document)
    assert (await exported(inside, copy["id"]))["turns"][0]["messages"] == turn["messages"]


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("what", BAD_TURNS)
async def test_a_document_with_a_bad_turn_is_refused(
    inside: InProcessServer, session: str, what: str
) -> None:
    """Else it would be stored, and break every later look at it."""
    document = await exported(inside, session)
    document["turns"][0] |= BAD_TURNS[what]
    refused(await inside.ask("POST", "/api/sessions/import", sealed(document)), 400, "invalid_request")


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("what", BAD_HEADS)
async def test_a_document_with_a_bad_session_is_refused(
    inside: InProcessServer, session: str, what: str
) -> None:
    document = await exported(inside, session)
    document["session"] |= BAD_HEADS[what]
    given = await inside.ask("POST", "/api/sessions/import", document)
    assert (given.status, given.code) in ((400, "invalid_request"), (413, "too_large")), given.body[:500]
    assert len(given.body) < 2000


CHANGES: dict[str, Any] = {
    "id": "another",
    "seq": 2,
    "parent": "another",
    "attempt": "another",
    "kind": "reset",
    "hash": "01" + "00" * 32,
    "agent_key": "another",
    "agent_digest": "another",
    "model": "another",
    "decision": {"left_out": 1},
    "usage": {"input_tokens": 7, "output_tokens": 7, "cost": 7.0},
    "user": "another",
    "created_at": 7.0,
    "inputs": 0,
    "messages": [{"role": "user", "content": "another"}],
}


async def test_I6_every_field_of_an_exported_turn_is_tried_below(
    inside: InProcessServer, session: str
) -> None:
    assert set((await exported(inside, session))["turns"][0]) == set(CHANGES)


@pytest.mark.usefixtures("unchanged")
async def test_I6_a_document_that_was_changed_is_refused(inside: InProcessServer, session: str) -> None:
    document = await exported(inside, session)
    for field, value in CHANGES.items():
        changed = json.loads(json.dumps(document))
        assert changed["turns"][0][field] != value
        changed["turns"][0][field] = value
        refused(await inside.ask("POST", "/api/sessions/import", changed), 400, "invalid_request")
    for plain in ({}, {"format": "x" * 9000}, {"format": "lastgood.session", "version": "x" * 9000}):
        refused(await inside.ask("POST", "/api/sessions/import", plain), 400, "invalid_request")


async def test_a_document_brings_no_rights_along(inside: InProcessServer, session: str) -> None:
    document = await exported(inside, session)
    document["session"] |= {
        "safety": ["autonomous"],
        "permissions": {"allow": ["shell"], "deny": ["fetch"]},
        "working_dir": "/etc",
        "id": session,
    }
    copy = await inside.good("POST", "/api/sessions/import", document)
    assert copy["id"] != session
    assert "safety_policy" not in copy
    assert copy["permissions"] == {"allow": [], "ask": [], "deny": ["fetch"]}
    assert copy["working_dir"] is None


# -- optional fields and what is said about wrong ones -------------------------------------


async def test_optional_fields_may_be_null(inside: InProcessServer, session: str) -> None:
    path = f"/api/sessions/{session}/turns"
    body = {"messages": [ONE], "agent": None, "model": None, "wait": None}
    given = await inside.ask("POST", path, body, idempotency_key="nulls")
    assert given.status == 202, given.body
    waited = await inside.ask("POST", path, {**body, "wait": True}, idempotency_key="nulls")
    assert waited.status == 200, waited.body
    answer = {"confirmation": "approve", "reason": None, "question": None, "tool_name": None}
    refused(await inside.ask("POST", f"/api/sessions/{session}/resume", answer), 409, "nothing_pending")
    again = await inside.ask("POST", f"/api/sessions/{session}/attempts/nobody/continue", {"wait": None})
    refused(again, 404, "attempt_not_found")


WORDS: dict[str, tuple[dict[str, Any], str]] = {
    "missing": ({}, "`messages` is required"),
    "empty": ({"messages": []}, "`messages` must not be empty"),
    "no object": ({"messages": ["x"]}, "`messages[0]` must be an object"),
    "no object, many": ({"messages": [*[ONE] * 600, "x"]}, "`messages[600]` must be an object"),
    "a union": ({"messages": [{"content": 5}]}, "`messages[0].content` must be a string or an array"),
    "a part": ({"messages": [{"content": ["x"]}]}, "`messages[0].content[0]` must be an object"),
    "a choice": (
        {"messages": [{"role": "me", "content": "x"}]},
        "`messages[0].role` must be 'system', 'developer', 'user', 'assistant' or 'tool'",
    ),
    "no flag": ({"messages": [ONE], "wait": "x"}, "`wait` must be true or false"),
}


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("what", WORDS)
async def test_invalid_field_is_named_with_its_rule(inside: InProcessServer, session: str, what: str) -> None:
    body, message = WORDS[what]
    given = await inside.ask("POST", f"/api/sessions/{session}/turns", body)
    refused(given, 400, "invalid_request")
    assert given.json["message"] == message


async def test_too_many_stop_sequences_are_counted(inside: InProcessServer) -> None:
    body = {"model": AGENT, "messages": [ONE], "stop": ["a"] * 5}
    given = await inside.ask("POST", "/v1/chat/completions", body)
    assert (given.status, given.json["error"]["param"]) == (400, "stop")
    assert given.json["error"]["message"] == "`stop` must have at most 4 items"

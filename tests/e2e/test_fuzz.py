"""Hostile input at a real server (I40): a typed 4xx or a closed connection, never a 5xx; memory is flat."""

import asyncio
import json
import random
import re
import socket
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from yarl import URL

from tests.e2e.command import AGENT, SECONDS
from tests.e2e.wire import Served, Wire, turn, wire_to

LIMIT = 1024 * 1024
MEGABYTE = b"x" * LIMIT


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Judged at its end: whatever it was sent, it has logged no error and can still end well."""
    with Served(tmp_path_factory.mktemp("fuzz"), options=("--max-request-size", "1M")) as server:
        yield server
        assert server.status("/health") == 200
        assert server.stop() == 0
        assert [line for line in server.log if line["level"] == "error"] == []


# -- bytes -------------------------------------------------------------------------------

POST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"
CHUNK = b"%x\r\n%s\r\n" % (LIMIT, MEGABYTE)
BEGIN = b'{"model": "builtin/scripted", "messages": '


def packed() -> bytes:
    """A hundred megabytes in a hundred kilobytes."""
    packer = zlib.compressobj(wbits=31)
    return b"".join([*(packer.compress(MEGABYTE) for _ in range(100)), packer.flush()])


def with_length(head: bytes, body: bytes, length: int | None = None) -> list[bytes]:
    return [head + b"content-length: %d\r\n\r\n" % (len(body) if length is None else length), body]


#: What is sent, and the statuses that may come back; None: the connection ends without one.
ATTACKS: dict[str, tuple[Callable[[], list[bytes]], set[int | None]]] = {
    "a header line of 100 MB": (
        lambda: [b"GET /health HTTP/1.1\r\na: ", *[MEGABYTE] * 100],
        {431, None},
    ),
    "headers without an end": (
        lambda: [b"GET /health HTTP/1.1\r\n", *[b"a: b\r\n" * 100_000] * 100],
        {431, None},
    ),
    "an address of 100 MB": (lambda: [b"GET /", *[MEGABYTE] * 100], {414, 431, None}),
    "a method of 100 MB": (lambda: [MEGABYTE] * 100, {400, 431, None}),
    "trailers without an end": (
        lambda: [CHUNKED + b"2\r\n{}\r\n0\r\n", *[b"a: b\r\n" * 100_000] * 100],
        {400, 431, None},
    ),
    "a chunk extension of 100 MB": (lambda: [CHUNKED + b"1;", *[MEGABYTE] * 100], {400, 431, None}),
    "a body of 100 MB in chunks": (lambda: [CHUNKED, *[CHUNK] * 100], {413}),
    "a body of 100 MB in chunks of a byte": (
        lambda: [CHUNKED, *[b"1\r\nx\r\n" * 100_000] * 100],
        {413},
    ),
    "a body of 100 MB": (lambda: with_length(POST, b"x" * 100 * LIMIT), {413}),
    "a length of 100 GB": (lambda: with_length(POST, b"{}", 100 * 1024**3), {413}),
    "a length that is too short": (lambda: with_length(POST, b'{"a": 1}', 2), {400, None}),
    "a body that was packed": (
        lambda: with_length(POST + b"content-encoding: gzip\r\n", packed()),
        {415},
    ),
    "a hundred thousand brackets": (lambda: with_length(POST, BEGIN + b"[" * 100_000), {400}),
    "a hundred thousand pairs of brackets": (
        lambda: with_length(POST, BEGIN + b"[" * 100_000 + b"]" * 100_000 + b"}"),
        {400},
    ),
    "a hundred requests at once": (
        lambda: [b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n" * 100],
        {200},
    ),
    "an upgrade": (
        lambda: [b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"],
        {200},
    ),
}


def send(port: int, pieces: list[bytes]) -> bytes:
    """The first whole answer that comes back, or what came until the connection ended."""
    got = b""
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as wire:
        try:
            for piece in pieces:
                wire.sendall(piece)
        except OSError:
            pass  # it does not listen any more
        try:
            while not is_whole(got) and (piece := wire.recv(65536)):
                got += piece
        except OSError:
            pass
    return got


def is_whole(answer: bytes) -> bool:
    head, _, body = answer.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    return length is not None and len(body) >= int(length[1])


def status_of(answer: bytes) -> int | None:
    if not answer:
        return None
    assert answer.startswith(b"HTTP/1.1 ")
    return int(answer[9:12])


@pytest.mark.slow
def test_hostile_bytes_are_refused_and_leave_no_trace(served: Served) -> None:
    process = psutil.Process(served.pid)
    send(served.port, ATTACKS["a body of 100 MB in chunks"][0]())  # its buffers are there from now on
    before = process.memory_info().rss
    highest = before
    for name, (pieces, statuses) in ATTACKS.items():
        answer = send(served.port, pieces())
        highest = max(highest, process.memory_info().rss)
        assert status_of(answer) in statuses, (name, answer[:300])
        if (status_of(answer) or 200) >= 400:
            body = json.loads(answer.partition(b"\r\n\r\n")[2])
            assert body["error"]["code"] in ("invalid_request", "too_large", "unsupported_media"), name
    assert served.status("/health") == 200
    assert highest - before < 30 * LIMIT, f"{before} grew to {highest}"


def test_random_bytes_are_refused(served: Served) -> None:
    dice = random.Random(1)
    for _ in range(40):
        noise = dice.randbytes(dice.randrange(1, 200))
        for sent in (
            noise + b"\r\n\r\n",
            b"GET /" + noise + b" HTTP/1.1\r\n\r\n",
            b"GET / HTTP/1.1\r\n" + noise,
        ):
            with socket.create_connection(("127.0.0.1", served.port), timeout=SECONDS) as wire:
                wire.sendall(sent)
                wire.shutdown(socket.SHUT_WR)
                answer = b""
                while piece := wire.recv(65536):
                    answer += piece
            assert status_of(answer) in (None, 400, 403, 404, 405), (sent, answer)
    assert served.status("/health") == 200


def test_idle_connections_cost_little_and_hinder_nobody(served: Served) -> None:
    process = psutil.Process(served.pid)
    before = process.memory_info().rss
    wires = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(500)]
    try:
        for wire in wires:
            wire.sendall(b"GET /health HTTP/1.1\r\nhost: ")
        assert served.status("/health") == 200
        assert process.memory_info().rss - before < 20 * LIMIT
    finally:
        for wire in wires:
            wire.close()


# -- JSON --------------------------------------------------------------------------------


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


def said(content: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content} | more]}


NUMBERS = (
    *("temperature", "top_p", "max_tokens", "max_completion_tokens", "frequency_penalty"),
    *("presence_penalty", "seed", "n"),
)
NUL = "a\0b"

#: What is put over a good request, and whether it may be answered.
ODD: list[tuple[dict[str, Any], set[int]]] = [
    (said(NUL), {400}),
    (said([{"type": "text", "text": NUL}]), {400}),
    (said("x", tool_call_id=NUL), {200, 400}),
    ({"model": NUL}, {400, 404}),
    ({"model": "../../etc/passwd"}, {404}),
    ({"model": "https://127.0.0.1:1/x.yaml"}, {404}),
    ({"model": "m" * 3000}, {400}),
    ({"user": NUL}, {200, 400}),
    ({"stop": NUL}, {200, 400}),
    ({"stop": ["x"] * 10_000}, {200, 400}),
    ({"nobody": {"knows": NUL}}, {200, 400}),
    ({"messages": []}, {400}),
    ({"messages": {}}, {400}),
    ({"messages": "hello"}, {400}),
    ({"messages": [None]}, {400}),
    ({"messages": [[]] * 50_000}, {413}),
    (said(None), {400}),
    (said(""), {400}),
    (said(" \n\u200b"), {200, 400}),
    (said(7), {400}),
    (said(nested(90)), {400}),
    (said([{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]), {200, 400}),
    (said([{"type": "image_url", "image_url": {"url": "x" * 500_000}}]), {200, 400}),
    (said("\ufffe\uffff\U0010ffff\u202e"), {200}),
    (said("x" * 900_000), {200}),
    ({"messages": [{"role": "user", "content": "x"}] * 10_000}, {200, 400}),
    ({"messages": [{"role": "root", "content": "x"}]}, {400}),
    ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "nobody"}]}, {200, 400}),
    ({"messages": [{"role": "assistant", "content": "x"}]}, {200, 400}),
    ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, {400}),
    ({"tools": [{"type": "function", "function": {"name": NUL}}]}, {400}),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": nested(90)}}]}, {200, 400}),
    ({"tools": [{"type": "function", "function": {"name": "f"}}] * 1000}, {413}),
    ({"tool_choice": nested(50)}, {400}),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": NUL}}}, {200, 400}),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": nested(90)}}},
        {200, 400},
    ),
    ({"metadata": nested(98)}, {200}),
    ({"metadata": nested(120)}, {400}),
    ({"stream": "yes"}, {400}),
    ({"stream_options": []}, {400}),
    ({"n": 2}, {400}),
    *(({name: 1e308}, {200, 400}) for name in NUMBERS),
    *(({name: 10**30}, {200, 400}) for name in NUMBERS),
    *(({name: -(10**30)}, {200, 400}) for name in NUMBERS),
    *(({name: True}, {200, 400}) for name in NUMBERS),
    *(({name: "1"}, {400}) for name in NUMBERS),
]


@pytest.mark.anyio
async def test_odd_requests_are_answered_or_refused(served: Served) -> None:
    """Both ways: what is checked where nothing is stored may break where something is."""
    async with wire_to(served) as wire:
        for number, (odd, statuses) in enumerate(ODD):
            for headers in ({}, {"x_conversation_id": f"odd{number}", "idempotency_key": f"odd{number}"}):
                answer = await wire.ask("POST", "/v1/chat/completions", turn("hello") | odd, **headers)
                assert answer.status in statuses, (str(odd)[:200], headers, answer.body[:500])
                if answer.status != 200:
                    assert answer.json["error"].keys() == {"message", "type", "param", "code"}
                    assert len(answer.body) < 2000  # what was sent is not sent back


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["x-conversation-id", "idempotency-key"])
@pytest.mark.parametrize("value", ["", "x" * 256, "a b", "\xe4", "a\tb"])
async def test_names_are_short_and_can_be_seen(served: Served, name: str, value: str) -> None:
    async with wire_to(served) as wire:
        answer = await wire.ask("POST", "/v1/chat/completions", turn("hello"), **{name: value})
    assert (answer.status, answer.code) == (400, "invalid_request")


LEAF = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
FEW = LEAF | st.lists(LEAF, max_size=4) | st.dictionaries(st.text(max_size=8), LEAF, max_size=4)
ANYTHING = FEW | st.lists(FEW, max_size=4) | st.dictionaries(st.text(max_size=8), FEW, max_size=4)
FIELDS = st.sampled_from(
    [
        *NUMBERS,
        "model",
        "messages",
        "stop",
        "tools",
        "tool_choice",
        "response_format",
        "stream_options",
        "user",
    ]
)
GOOD = st.text(min_size=1).map(
    lambda text: {"role": "user", "content": "x" + text.replace("!", "").replace("\0", "")}
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool", "developer"]) | ANYTHING},
    optional={
        "content": st.text().map(lambda text: text.replace("!", "")) | ANYTHING,
        "tool_calls": ANYTHING,
        "tool_call_id": ANYTHING,
    },
)


@pytest.mark.slow
def test_made_up_requests_are_answered_or_refused(served: Served) -> None:
    with asyncio.Runner() as runner:
        client = wire_to(served)
        wire = runner.run(client.__aenter__())
        statuses: Counter[int] = Counter()

        @settings(
            max_examples=300,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        )
        @given(
            st.dictionaries(FIELDS, ANYTHING, max_size=2),
            st.lists(GOOD, max_size=3) | st.lists(GOOD | MESSAGE, max_size=3),
            st.booleans(),
        )
        def ask(odd: dict[str, Any], messages: list[Any], stored: bool) -> None:
            plain = {"model": AGENT, "messages": messages or turn("x")["messages"]} | odd
            headers = {"x_conversation_id": f"made-up-{hash(str(plain))}"} if stored else {}
            answer = runner.run(wire.ask("POST", "/v1/chat/completions", plain, **headers))
            assert answer.status in (200, 400, 404, 422), (plain, answer.body)
            statuses[answer.status] += 1

        try:
            ask()
            assert statuses[200] > 30  # it was not only turned away
            assert statuses[400] > 30
        finally:
            runner.run(client.__aexit__(None, None, None))


#: What more of something than the limit allows is answered with is not on Schemathesis' own list: 413.
REJECTED = """[checks]
negative_data_rejection.expected-statuses = [400, 401, 403, 404, 405, 406, 409, 413, 415, 422, 428, 429]
"""


@pytest.mark.slow
@pytest.mark.anyio
async def test_the_server_does_what_its_description_says(served: Served, tmp_path: Path) -> None:
    """Every operation, by Schemathesis: no 5xx, and nothing that the description does not announce."""
    async with wire_to(served) as wire:
        described = (await wire.get("/openapi.json")).json
        kept = [await things_of(wire) for _ in range(3)]
        lost = [await things_of(wire) for _ in range(3)]
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            is_deleted = (method, path) == ("delete", "/api/sessions/{session}")
            name_known_things(operation, lost if is_deleted else kept)
    (tmp_path / "openapi.json").write_text(json.dumps(described))
    (tmp_path / "schemathesis.toml").write_text(REJECTED)
    line = [
        *(str(Path(sys.executable).with_name("schemathesis")), "run", "openapi.json", "--url", served.url),
        *("--checks", "all", "--phases", "coverage,fuzzing", "--max-examples", "3", "--seed", "1"),
        *("--suppress-health-check", "all", "--no-color"),
        # JSON Schema does not say that a tool message needs an id and others need content.
        *("--exclude-checks", "positive_data_acceptance"),
        # A stream that has no end: it has a test of its own.
        *("--exclude-path", EVENTS),
    ]
    done = await asyncio.to_thread(
        subprocess.run, line, cwd=tmp_path, capture_output=True, text=True, timeout=15 * SECONDS
    )
    assert done.returncode == 0, done.stdout + done.stderr
    total = sum(map(len, described["paths"].values()))
    assert f"Tested: {total - 1}" in done.stdout, done.stdout


EVENTS = "/api/sessions/{session}/events"


async def things_of(wire: Wire) -> dict[str, list[str]]:
    """A session with a turn, an attempt that failed, and an entry of its queue that is parked."""
    session = (await wire.ask("POST", "/api/sessions", {})).json["id"]
    path = f"/api/sessions/{session}"
    good = await wire.ask("POST", f"{path}/turns", {"messages": [{"content": "hi"}], "wait": True})
    bad = await wire.ask("POST", f"{path}/turns", {"messages": [{"content": "!fail before"}], "wait": True})
    assert (good.status, bad.status) == (200, 500)
    later = {"messages": [{"content": "later"}], "agent": "nobody"}
    entry = (await wire.ask("POST", f"{path}/followup", later)).json["id"]
    attempts = [attempt["id"] for attempt in (await wire.get(f"{path}/attempts")).json]
    known = {"session": [session], "turn": [good.json["id"]], "attempt": attempts, "entry": [str(entry)]}
    return known | await work_of(wire, session)


async def work_of(wire: Wire, name: str) -> dict[str, list[str]]:
    """A runtime with a task that a worker runs, and one that waits behind it."""
    worker = {"worker_id": name, "runtimes": [{"name": "fuzz", "provider": name}]}
    made = (await wire.ask("POST", "/api/worker/register", worker)).json
    runtime = made["runtimes"][0]["id"]
    task = {"agent": AGENT, "scope": {"kind": "issue", "id": name}, "prompt": "hi", "runtime": runtime}
    tasks = [(await wire.ask("POST", "/api/tasks", task)).json["id"] for _ in range(2)]
    claim = {"worker_id": name, "epoch": made["worker"]["epoch"], "runtime_ids": [runtime]}
    assert len((await wire.ask("POST", "/api/worker/claim", claim)).json["tasks"]) == 1
    return {"runtime": [runtime], "task": tasks, "id": [name]}


def name_known_things(operation: dict[str, Any], things: list[dict[str, list[str]]]) -> None:
    """Else nothing made up would ever be let in."""
    known: dict[str, list[str]] = {"agent": [AGENT], "name": ["nobody"], "model": [AGENT, "nobody"]}
    known |= {"kind": ["issue", "chat"], "question": ["q1"], "token": ["tok_1"], "webhook": ["wh_1"]}
    for thing in things:
        for name, ids in thing.items():
            known[name] = [*known.get(name, []), *ids]
    for parameter in operation["parameters"]:
        if parameter["in"] == "path":
            parameter["schema"] = {"enum": known[parameter["name"]]}
    content = operation.get("requestBody", {}).get("content", {})
    properties = content.get("application/json", {}).get("schema", {}).get("properties", {})
    properties.pop("wait_seconds", None)  # nobody queues a task meanwhile
    if "model" in properties and "claim_token" not in properties:
        nothing = [None] if "anyOf" in properties["model"] else []
        properties["model"] = {"enum": [AGENT, "nobody", *nothing]}


@pytest.mark.anyio
async def test_events_begin_or_are_refused(tmp_path: Path) -> None:
    """The one operation that Schemathesis cannot ask for: of an idle session, it never ends by itself.

    On a server of its own: made-up requests may have bound the agent of the other to a runtime where nobody
    works.
    """
    dice = random.Random(1)
    with Served(tmp_path) as own:
        await events_begin_or_are_refused(own, dice)


async def events_begin_or_are_refused(served: Served, dice: random.Random) -> None:
    async with wire_to(served) as wire:
        path = EVENTS.replace("{session}", (await things_of(wire))["session"][0])
        odd = [dice.randbytes(dice.randrange(1, 12)) for _ in range(40)]
        values = ["", "0", "1", "3", "9" * 18, "9" * 19, *(quote(noise, safe="") for noise in odd)]
        for value in values:
            for name in ("since", "named"):
                status, kind = await begun(wire, f"{path}?{name}={value}")
                assert status in (200, 400), value
                assert kind == ("text/event-stream" if status == 200 else "application/json")
            if value.isascii() and "%" not in value:
                status, _ = await begun(wire, path, value)
                assert status in (200, 400), value


async def begun(wire: Wire, path: str, last: str | None = None) -> tuple[int, str]:
    """Its status and media type; then whoever asked leaves."""
    headers = {} if last is None else {"last-event-id": last}
    url = URL(wire._url + path, encoded=True)
    async with wire._session.get(url, headers=headers) as answer:
        return answer.status, answer.content_type

"""`lastgood serve` as a process, from its start to its end: whom it lets in, what it tells, how it leaves."""

import asyncio
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from lastgood.surfaces.http.loop_monitor import STALL_SECONDS
from tests.e2e.command import AGENT, Command
from tests.e2e.wire import DONE, Followed, Served, Wire, until, wire_to
from tests.surfaces.prometheus import families

pytestmark = pytest.mark.anyio

#: Long enough to be interrupted: 400 words, one every 50 ms.
LONG = "!slow 0.05\n" + "word " * 400
#: Under a second.
SHORT = "!slow 0.05\n" + "word " * 14


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One for all tests that end nothing."""
    with Served(tmp_path_factory.mktemp("serve"), options=("--trusted-proxy", "10.9.9.9")) as server:
        yield server


# -- what it refuses at its start --------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--listen", "0.0.0.0:0"), ("0.0.0.0", "--token-file", "tokens create", "--insecure-no-auth")),
        (("--listen", "127.0.0.1:0", "--token-env", "NOBODY_SET_THIS"), ("NOBODY_SET_THIS", "16")),
    ],
)
def test_a_start_that_cannot_be_is_one_line_that_says_what_to_do(
    tmp_path: Path, options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    done = Command(tmp_path)("serve", AGENT, *options)
    assert (done.code, done.out) == (1, "")
    assert len(done.err.splitlines()) == 1
    assert all(word in done.err for word in words), done.err


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = Command(tmp_path)("serve", AGENT, "--listen", f"127.0.0.1:{port}")
    assert (done.code, done.out, len(done.err.splitlines())) == (1, "", 1)
    assert "cannot listen on" in done.err
    assert "--listen" in done.err
    assert not Command(tmp_path).database.exists()  # it touched nothing before it knew


# -- its end -----------------------------------------------------------------------------


async def test_sigterm_lets_turns_finish_within_the_grace_period(tmp_path: Path) -> None:
    """I25: every stream ends with its answer, or with an error; the next server goes on from there."""
    promised = "!slow 0.05\n" + "word " * 60
    with Served(tmp_path, options=("--shutdown-grace", "2s")) as server:
        async with wire_to(server) as wire:
            await wire.say("hello", x_conversation_id="long")
            ends, cut, alone = Followed(), Followed(), Followed()
            following = [
                asyncio.create_task(wire.follow(SHORT, ends, x_conversation_id="short")),
                asyncio.create_task(wire.follow(LONG, cut, x_conversation_id="long")),
                asyncio.create_task(wire.follow(LONG, alone)),
            ]
            waiting = asyncio.create_task(wire.say(LONG))
            keyed = asyncio.create_task(
                wire.say(promised, x_conversation_id="promised", idempotency_key="once")
            )
            for one in (ends, cut, alone):
                await until(lambda one=one: _begun(one))
            await until(lambda: _is_asked(server, 6))
            began = time.monotonic()
            server.tell(signal.SIGTERM)
            await until(lambda: _is_draining(wire))
            assert (await wire.get("/health")).status == 200
            for headers in ({}, {"x_conversation_id": "new"}):
                refused = await wire.say("hello", **headers)
                assert (refused.status, refused.code) == (503, "shutting_down")
                assert (refused.headers["retry-after"], refused.headers["x-should-retry"]) == ("1", "true")
            answered, interrupted = await waiting, await keyed
            await asyncio.gather(*following)
        assert await server.ended() == 0
        assert 2.0 <= time.monotonic() - began < 8.0
        assert ends.frames[-1] == DONE
        assert ends.text == "You said: " + SHORT.partition("\n")[2].strip()
        for one in (cut, alone):
            assert one.is_whole  # the connection was not cut, the stream was ended
            assert one.error is not None
            assert DONE not in one.frames
        assert (answered.status, answered.code) == (503, "shutting_down")
        assert interrupted.status in (500, 503)
        assert interrupted.headers["x-should-retry"] == "true"
        assert server.tries("long") == ["committed", "interrupted"]
        assert server.tries("short") == ["committed"]
        assert server.tries("promised") == ["interrupted"]
        server.start()
        async with wire_to(server) as wire:
            kept = wire.say(promised, x_conversation_id="promised", idempotency_key="once")
            again = wire.say("!remember\nagain", x_conversation_id="long")
            done, remembers = await asyncio.gather(kept, again)
        assert done.status == 200
        assert server.tries("promised") == ["interrupted", "committed"]
        assert remembers.json["choices"][0]["message"]["content"] == "I remember: hello | again"
        assert server.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_second_sigterm_stops_at_once(tmp_path: Path, number: signal.Signals) -> None:
    with Served(tmp_path, options=("--shutdown-grace", "60s")) as server:
        async with wire_to(server) as wire:
            one, other = Followed(), Followed()
            following = [
                asyncio.create_task(wire.follow(LONG, one, x_conversation_id="c")),
                asyncio.create_task(wire.follow(LONG, other)),
            ]
            await until(lambda: _begun(one))
            await until(lambda: _begun(other))
            server.tell(number)
            await until(lambda: _is_draining(wire))
            began = time.monotonic()
            server.tell(number)
            await asyncio.gather(*following)
        assert await server.ended() == 0
        assert time.monotonic() - began < 6.0
        for followed in (one, other):
            assert followed.is_whole
            assert followed.error is not None
            assert DONE not in followed.frames
        assert server.tries("c") == ["interrupted"]


async def test_it_ends_as_soon_as_it_has_nothing_to_do(tmp_path: Path) -> None:
    """Also what is stored nowhere may finish."""
    with Served(tmp_path, options=("--shutdown-grace", "60s")) as server:
        async with wire_to(server) as wire:
            await wire.get("/health")  # its connection is kept, and holds up nothing
            followed = Followed()
            following = asyncio.create_task(wire.follow(SHORT, followed))
            await until(lambda: _begun(followed))
            server.tell(signal.SIGINT)
            await following
            assert followed.frames[-1] == DONE
            began = time.monotonic()
            assert await server.ended() == 0
            assert time.monotonic() - began < 3.0


async def _begun(one: Followed) -> bool:
    return len(one.frames) > 2


async def _is_asked(server: Served, times: int) -> bool:
    return len(server.prompts()) >= times


async def _is_draining(wire: Wire) -> bool:
    return (await wire.get("/ready")).status == 503


# -- whom it lets in ---------------------------------------------------------------------


async def test_a_token_is_for_its_tenant_and_its_scopes_and_is_stored_nowhere(tmp_path: Path) -> None:
    """I35, I37, I41."""
    command = Command(tmp_path)

    def make(*options: str) -> str:
        return command("tokens", "create", "--name", "x", *options).out.strip()

    ours, theirs, reader = make("--tenant", "a"), make("--tenant", "b"), make("--scope", "read")
    revoked = command("tokens", "create", "--name", "x", "--json").json
    assert command("tokens", "revoke", revoked["id"]).code == 0
    with Served(tmp_path) as server:
        async with wire_to(server) as wire:

            async def say(token: str, text: str) -> str:
                named = {"authorization": f"Bearer {token}", "x_conversation_id": "shared"}
                given = await wire.say(text, **named)
                assert given.status == 200, given.body
                return str(given.json["choices"][0]["message"]["content"])

            assert await say(ours, "I am a") == "You said: I am a"
            assert await say(theirs, "!remember\nI am b") == "I remember: I am b"
            assert await say(ours, "!remember\nstill a") == "I remember: I am a | still a"
            none = await wire.say("hello")
            assert (none.status, none.code) == (401, "invalid_api_key")
            assert none.headers["www-authenticate"] == "Bearer"
            for bad in ("lg_" + "x" * 43, ours[:-1], ours + "x", revoked["token"], "x" * 5000):
                assert (await wire.say("hello", authorization=f"Bearer {bad}")).status == 401
            denied = await wire.say("hello", authorization=f"Bearer {reader}")
            assert (denied.status, denied.code) == (403, "forbidden")
            for probe in ("/health", "/ready", "/metrics"):
                assert (await wire.get(probe, host="nobody.test")).status == 200
            ping = await wire.get("/api/ping", host="nobody.test", authorization=f"Bearer {reader}")
            assert ping.status == 200
        assert server.stop() == 0
        [refused] = [one for one in server.requests() if one["status"] == 403]
        assert refused["caller"].startswith("tok_")
    stored = everything_in(tmp_path)
    for token in (ours, theirs, reader, revoked["token"]):
        assert token.encode() not in stored


def everything_in(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())


@pytest.mark.parametrize("how", ["--token-file", "--token-env"])
async def test_a_token_of_the_server_is_accepted_through_a_proxy(tmp_path: Path, how: str) -> None:
    token = "0123456789abcdef-the-servers-own"
    (tmp_path / "token").write_text(f"{token}\n")
    value = str(tmp_path / "token") if how == "--token-file" else "MY_TOKEN"
    env = {"MY_TOKEN": token}
    proxied = ("--trusted-proxy", "127.0.0.1", "--public-url", "https://agents.example")
    with Served(tmp_path, options=(how, value, *proxied), env=env) as server:
        async with wire_to(server) as wire:
            assert (await wire.get("/v1/models")).status == 401
            assert (await wire.get("/v1/models", authorization=f"Bearer {token}x")).status == 401
            good = {"authorization": f"Bearer {token}", "host": "agents.example"}
            assert (await wire.get("/v1/models", **good)).status == 200
            assert (await wire.get("/v1/models", **good | {"origin": "https://agents.example"})).status == 200
            assert (await wire.get("/v1/models", **good | {"host": "evil.test"})).status == 403
            # Believed, because it comes from a proxy that is trusted.
            forwarded = good | {"x_forwarded_for": "203.0.113.7", "x_request_id": "proxied"}
            assert (await wire.get("/v1/models", **forwarded)).status == 200
        assert server.stop() == 0
        peers = {line["request_id"]: line["peer"] for line in server.requests()}
        assert peers["proxied"] == "203.0.113.7"


async def test_where_a_request_came_from_is_not_believed_from_anybody(served: Served) -> None:
    async with wire_to(served) as wire:
        await wire.get("/v1/models", x_forwarded_for="203.0.113.7", x_request_id="direct")

    async def is_logged() -> bool:
        return any(line["request_id"] == "direct" for line in served.requests())

    await until(is_logged)
    peers = {line["request_id"]: line["peer"] for line in served.requests()}
    assert peers["direct"] == "127.0.0.1"


# -- what it tells of itself -------------------------------------------------------------


async def test_metrics_count_what_happened(served: Served) -> None:
    async with wire_to(served) as wire:

        async def count(name: str, **labels: str) -> float:
            family = families((await wire.get("/metrics")).body.decode())[name]
            return family.samples.get((name, frozenset(labels.items())), 0.0)

        chat = {"method": "POST", "route": "/v1/chat/completions"}
        counted = [
            ("lastgood_http_requests_total", chat | {"status": "200"}, 2),
            ("lastgood_http_requests_total", chat | {"status": "404"}, 1),
            ("lastgood_http_requests_total", chat | {"status": "500"}, 1),
            ("lastgood_turns_total", {"outcome": "committed"}, 1),
            ("lastgood_turns_total", {"outcome": "failed"}, 1),
        ]
        before = [await count(name, **labels) for name, labels, _ in counted]
        await wire.say("hello")
        await wire.say("hello", x_conversation_id="metrics")
        await wire.say("!fail before", x_conversation_id="metrics")
        await wire.ask(
            "POST",
            "/v1/chat/completions",
            {"model": "nobody", "messages": [{"role": "user", "content": "x"}]},
        )
        for (name, labels, more), was in zip(counted, before, strict=True):
            assert await count(name, **labels) == was + more, (name, labels)
        assert await count("lastgood_turns_running") == 0
        async with wire.stream(SHORT, x_conversation_id="metrics"):
            assert await count("lastgood_turns_running") == 1
            assert await count("lastgood_http_requests_running") == 2  # it, and the one that asks
        assert (await wire.get("/metrics")).headers["content-type"].startswith("text/plain; version=0.0.4")


CANARY = "canary-7b1e"


async def test_no_log_line_holds_what_was_said_or_a_secret(tmp_path: Path) -> None:
    """I41: in prompts, names, addresses, headers, broken bodies, failed turns and failing tools."""
    env = {"OPENAI_API_KEY": f"sk-{CANARY}", "MY_TOKEN": f"{CANARY}-0123456789"}
    with Served(tmp_path, options=("--token-env", "MY_TOKEN"), env=env) as server:
        async with wire_to(server) as wire:
            token = {"authorization": f"Bearer {CANARY}-0123456789"}
            for text in (CANARY, f"!fail during\n{CANARY}", f"!{CANARY}", f"!tool think {{{CANARY}"):
                await wire.say(text, **token)
                await wire.say(
                    text, **token, x_conversation_id=CANARY, idempotency_key=f"{CANARY}{len(text)}"
                )
                async with wire.stream(text.replace("!", "?"), **token):
                    pass  # and leaves
            await wire.ask("POST", "/v1/chat/completions", {"model": CANARY, "messages": CANARY}, **token)
            await wire.ask("POST", f"/{CANARY}?{CANARY}={CANARY}", CANARY)
            await wire.get("/v1/models", host=CANARY, origin=CANARY, authorization=f"Bearer {CANARY}")
            await wire.get("/v1/models", x_request_id=f"{CANARY}!", x_forwarded_for="203.0.113.7")
        assert server.stop() == 0
        assert CANARY not in server.stderr.read_text()
        lines = server.requests()
        assert len(lines) >= 16
        for line in lines:
            assert line.keys() - {"code"} == {
                *("time", "level", "message", "request_id", "method", "route", "status", "ended", "ms"),
                *("tenant", "caller", "peer"),
            }
            assert line["route"] in ("/v1/chat/completions", "/v1/models", None)
            assert isinstance(line["ms"], float)
            assert line["peer"] == "127.0.0.1"  # nobody is believed where no proxy is trusted


# -- many at once ------------------------------------------------------------------------


@pytest.mark.slow
async def test_streams_are_whole_however_many_others_vanish(tmp_path: Path) -> None:
    """I23, I25: 200 streams, half of them conversations; one in ten clients leaves in the middle."""
    words = " ".join(f"w{number}" for number in range(40))
    with Served(tmp_path, options=("--disconnect-grace", "0.2s")) as server:
        process = psutil.Process(server.pid)
        async with wire_to(server) as wire:
            await asyncio.gather(*(wire.say("warm up") for _ in range(20)))
            before = process.memory_info().rss

            async def listen(number: int) -> None:
                headers = {"x_conversation_id": f"c{number}"} if number % 2 else {}
                text = f"!slow 0.02\n{number} {words}"
                if number % 20 in (0, 11):
                    async with wire.stream(LONG, **headers) as answer:
                        await answer.content.readany()
                    return
                followed = await wire.follow(text, None, **headers)
                assert followed.frames[-1] == DONE
                assert followed.text == f"You said: {number} {words}"

            await asyncio.gather(*map(listen, range(200)))
            await until(lambda: _is_idle(wire))
            grown = process.memory_info().rss - before
            assert grown < 100 * 1024 * 1024
            for number in (1, 99, 199):  # who stayed can go on
                asked = await wire.say("!remember\nand now?", x_conversation_id=f"c{number}")
                assert asked.json["choices"][0]["message"]["content"].startswith(f"I remember: {number} w0")
        assert {tuple(server.tries(f"c{number}")) for number in range(11, 200, 20)} == {("cancelled",)}
        assert server.rows("SELECT count(*) FROM attempts WHERE status = 'running'") == [(0,)]
        assert server.stop() == 0
        bad = [line for line in server.log if line["level"] in ("warning", "error")]
        assert [line for line in bad if not _is_of_the_machine(line)] == []


def _is_of_the_machine(line: dict[str, Any]) -> bool:
    """A stall of the loop during which the server itself hardly ran."""
    return line["message"] == "event loop stalled" and float(line["cpu_seconds"]) < STALL_SECONDS


async def _is_idle(wire: Wire) -> bool:
    text = (await wire.get("/metrics")).body.decode()
    found = families(text)
    running = found["lastgood_turns_running"].samples["lastgood_turns_running", frozenset()]
    answering = found["lastgood_http_requests_running"].samples["lastgood_http_requests_running", frozenset()]
    return running == 0 and answering == 1  # this one

"""Spans of a real server at a real collector: what is in them, how they nest, and what is never in them."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from lastgood.agents.sources import parse
from lastgood.engine.agent_loop import AgentLoop
from lastgood.server import open_server
from lastgood.settings import Settings
from lastgood.tracing.setup import OFF, open_tracing
from tests.e2e.chat_requests import ask, ask_and_go, asking
from tests.e2e.collector import Collector, Taken
from tests.e2e.command import AGENT, SECONDS, Command, until
from tests.e2e.fake_model import FakeModel, Gate, refuses, says
from tests.e2e.server import LiveServer

CHAT = "/v1/chat/completions"
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as found:
        yield found


#: An agent whose sessions get their titles from a model.
TITLED = """
models:
  titled: {provider: builtin, model: scripted, title_model: builtin/scripted}
agents:
  root: {model: titled}
"""


@pytest.fixture(scope="module")
def traced(folder: Path, agents: tuple[str, ...], collector: Collector) -> Iterator[LiveServer]:
    (folder / "titled.yaml").write_text(TITLED)
    served = (*agents, str(folder / "titled.yaml"))
    with LiveServer(folder / "traced", *served, options=("--tracing",), env=collector.env) as server:
        yield server


@pytest.fixture(scope="module")
def client(traced: LiveServer) -> Iterator[openai.OpenAI]:
    with traced.client() as found:
        yield found


class Asked:
    """One request, and the spans it left."""

    def __init__(self, collector: Collector, client: openai.OpenAI, what: str, **options: Any) -> None:
        self.id = f"tracing-{next(_numbers)}"
        headers = {"X-Request-Id": self.id, **options.pop("headers", {})}
        self.collector = collector
        self.error: openai.APIError | None = None
        try:
            ask(client, what, headers=headers, **options)
        except openai.APIError as error:
            self.error = error

    @property
    def request(self) -> Taken:
        return self.collector.of_request(self.id)

    def arrived(self) -> None:
        """And so has everything that ended before it."""
        assert self.request.ended

    def attempt(self) -> Taken:
        (found,) = self.collector.below(self.request, 1)
        return found

    def steps(self, count: int) -> list[Taken]:
        return self.collector.below(self.attempt(), count)


def shape(spans: list[Taken]) -> list[tuple[str, str]]:
    return [(span.name, span.kind) for span in spans]


# -- what there is -------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_a_turn_with_a_tool_call_is_a_tree(
    collector: Collector, client: openai.OpenAI, word: str, stream: bool
) -> None:
    """Every attribute there is, so that one more would have to be written down here."""
    asked = Asked(
        collector, client, '!tool think {"thought": "hm"}', model="team", conversation=word, stream=stream
    )
    request, attempt = asked.request, asked.attempt()
    first, tool, last = asked.steps(3)
    assert (request.name, request.kind, request.parent) == (f"POST {CHAT}", "SERVER", "")
    session, turn = request.attributes["gen_ai.conversation.id"], request.attributes["lastgood.turn.id"]
    assert session.startswith("ses_")
    assert turn.startswith("turn_")
    assert request.attributes == {
        "http.request.method": "POST",
        "http.route": CHAT,
        "http.response.status_code": 200,
        "url.scheme": "http",
        "gen_ai.conversation.id": session,
        "lastgood.request.id": asked.id,
        "lastgood.request.ended": "sent",
        "lastgood.turn.id": turn,
    }
    assert (attempt.name, attempt.kind) == ("invoke_agent root", "INTERNAL")
    tried = dict(attempt.attributes)
    assert tried.pop("lastgood.attempt.id").startswith("att_")
    assert tried == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": "lastgood",
        "gen_ai.agent.name": "root",
        "gen_ai.conversation.id": session,
        "lastgood.turn.id": turn,
        "lastgood.attempt.number": 1,
        "lastgood.attempt.outcome": "committed",
    }
    assert shape([first, tool, last]) == [
        ("chat scripted", "CLIENT"),
        ("execute_tool think", "INTERNAL"),
        ("chat scripted", "CLIENT"),
    ]
    for chat, reason in ((first, "tool_calls"), (last, "stop")):
        found = dict(chat.attributes)
        assert 0 <= found.pop("gen_ai.response.time_to_first_chunk") < SECONDS
        assert found.pop("gen_ai.usage.input_tokens") > 0
        assert found.pop("gen_ai.usage.output_tokens") > 0
        assert found == {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "builtin",
            "gen_ai.request.model": "scripted",
            "gen_ai.response.finish_reasons": [reason],
            "gen_ai.conversation.id": session,
        }
    assert tool.attributes == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "think",
        "gen_ai.tool.call.id": "call-0-0",
    }
    everything = [request, attempt, first, tool, last]
    assert len({span.trace for span in everything}) == 1
    assert not any(span.is_error or span.said for span in everything)
    assert first.ended <= tool.began <= tool.ended <= last.began <= last.ended <= attempt.ended


def test_a_turn_that_is_not_stored_has_its_spans_too(collector: Collector, client: openai.OpenAI) -> None:
    asked = Asked(collector, client, "hello")
    assert asked.attempt().attributes["lastgood.attempt.outcome"] == "answered"
    assert shape(asked.steps(1)) == [("chat scripted", "CLIENT")]


def test_a_task_for_another_agent_is_below_its_call(
    collector: Collector, client: openai.OpenAI, word: str
) -> None:
    task = json.dumps({"agent": "clerk", "task": '!tool nothing {"x": 1}'})
    asked = Asked(collector, client, f"!tool transfer_task {task}", model="team", conversation=word)
    steps = asked.steps(3)
    assert [one.name for one in steps] == ["chat scripted", "execute_tool transfer_task", "chat scripted"]
    inner = collector.below(steps[1], 3)
    assert [one.name for one in inner] == ["chat scripted", "execute_tool _OTHER", "chat scripted"]
    assert inner[1].attributes["error.type"] == "tool_failed"  # it did not even run


def test_a_title_is_requested_beside_the_attempt(
    collector: Collector, client: openai.OpenAI, word: str
) -> None:
    asked = Asked(collector, client, "hello", model="titled", conversation=word)
    below = collector.below(asked.request, 2)
    assert sorted(one.name for one in below) == ["chat scripted", "invoke_agent root"]
    (title,) = [one for one in below if one.kind == "CLIENT"]
    assert title.attributes["lastgood.purpose"] == "title"


def test_probes_leave_no_span(collector: Collector, traced: LiveServer, client: openai.OpenAI) -> None:
    for path in ("/health", "/ready", "/metrics"):
        assert traced.status(path) == 200
    Asked(collector, client, "after them").arrived()
    seen = {span.attributes.get("http.route") for span in collector.spans}
    assert seen.isdisjoint({"/health", "/ready", "/metrics"})


def test_the_resource_says_who_we_are(collector: Collector, client: openai.OpenAI) -> None:
    Asked(collector, client, "hello").arrived()
    assert {one["service.name"] for one in collector.resources} == {"lastgood"}
    assert all(one["service.version"] for one in collector.resources)


# -- where it hangs ------------------------------------------------------------------------


def test_the_clients_trace_is_continued(collector: Collector, client: openai.OpenAI) -> None:
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    asked = Asked(collector, client, "hello", headers={"traceparent": f"00-{trace}-{parent}-01"})
    assert (asked.request.trace, asked.request.parent) == (trace, parent)
    assert {one.trace for one in [asked.attempt(), *asked.steps(1)]} == {trace}


@pytest.mark.parametrize("given", ["", "nonsense", "00-" + "0" * 32 + "-b7ad6b7169203331-01", "ff-x"])
def test_a_broken_traceparent_begins_a_new_trace(
    collector: Collector, client: openai.OpenAI, given: str
) -> None:
    asked = Asked(collector, client, "hello", headers={"traceparent": given})
    assert asked.error is None
    assert (asked.request.parent, int(asked.request.trace, 16) > 0) == ("", True)


def test_a_trace_that_its_client_does_not_sample_is_not_sent(
    collector: Collector, client: openai.OpenAI
) -> None:
    trace = "0af7651916cd43dd8448eb211c803199"
    asked = Asked(collector, client, "hello", headers={"traceparent": f"00-{trace}-b7ad6b7169203331-00"})
    assert asked.error is None
    Asked(collector, client, "after it").arrived()
    assert not [span for span in collector.spans if span.trace == trace]


def test_attaching_requests_link_to_the_turn(
    collector: Collector, traced: LiveServer, client: openai.OpenAI, fake: FakeModel, word: str
) -> None:
    """A run belongs to its session: it outlives the request that began it, and others attach to it."""
    gate = Gate()
    fake.on(word, says("one", gate, " two"))
    headers = {"Idempotency-Key": word, "X-Request-Id": f"{word}-first"}
    ask_and_go(traced, gate, word, stream=True, conversation=word, headers=headers)
    began = collector.of_request(f"{word}-first")
    assert began.attributes["lastgood.request.ended"] == "left"
    second = {"X-Request-Id": f"{word}-second"}
    with asking(
        client, word, model="remote", conversation=word, key=word, stream=True, headers=second
    ) as answer:
        until(lambda: traced.metric("lastgood_http_requests_running") == 2)
        gate.open()
    assert answer.result().text == "one two"
    attached = collector.of_request(f"{word}-second")
    (attempt,) = collector.below(began, 1)
    assert attempt.attributes["lastgood.attempt.outcome"] == "committed"
    assert attempt.attributes["lastgood.turn.id"] == attached.attributes["lastgood.turn.id"]
    assert attempt.ended > began.ended
    assert [one.name for one in collector.below(attempt, 1)] == ["chat m"]
    assert attached.trace != began.trace
    assert collector.below(attached, 0) == []


def test_what_is_tried_again_after_a_crash_is_a_root(
    tmp_path: Path, agents: tuple[str, ...], collector: Collector, fake: FakeModel, word: str
) -> None:
    """Nobody asks any more; the turn's id says what it belongs to."""
    gate = Gate()
    fake.on(word, says("one", gate), says("two"))
    with LiveServer(tmp_path, *agents, options=("--tracing",), env=collector.env) as server:
        ask_and_go(server, gate, word, stream=True, conversation=word, headers={"Idempotency-Key": word})
        server.restart()
        until(lambda: server.turns(word) == 1)
        ((turn,),) = server.rows("SELECT id FROM turns")
        attempt = collector.one("lastgood.attempt.number", 2)
        assert (attempt.name, attempt.parent) == ("invoke_agent root", "")
        assert attempt.attributes["lastgood.turn.id"] == turn
        assert [one.name for one in collector.below(attempt, 1)] == ["chat m"]


# -- what went wrong -----------------------------------------------------------------------


def test_a_failing_model_is_an_error_all_the_way_up(
    collector: Collector, client: openai.OpenAI, word: str
) -> None:
    asked = Asked(collector, client, "!fail during\nsome words", conversation=word)
    (chat,) = asked.steps(1)
    assert (chat.is_error, chat.attributes["error.type"]) == (True, "model_error")
    assert "gen_ai.response.finish_reasons" not in chat.attributes
    assert not chat.said
    attempt = asked.attempt()
    assert (attempt.is_error, attempt.attributes["error.type"]) == (True, "model_error")
    assert attempt.attributes["lastgood.attempt.outcome"] == "failed"
    request = asked.request
    assert request.attributes["http.response.status_code"] == 500
    assert (request.is_error, request.attributes["error.type"]) == (True, "500")


def test_every_ask_of_a_provider_is_a_span_with_its_own_error(
    collector: Collector, client: openai.OpenAI, fake: FakeModel, word: str
) -> None:
    fake.on(word, refuses(401, "no"))
    asked = Asked(collector, client, word, model="remote")
    (chat,) = asked.steps(1)
    assert (chat.attributes["gen_ai.provider.name"], chat.attributes["error.type"]) == ("fake", "key_refused")
    assert asked.attempt().attributes["lastgood.attempt.outcome"] == "failed"


@pytest.mark.parametrize(
    ("call", "name"),
    [("think {}", "think"), ('update_todos {"updates": [{"id": "x", "status": "pending"}]}', "update_todos")],
)
def test_a_tool_that_fails_is_an_error_of_that_call_alone(
    collector: Collector, client: openai.OpenAI, word: str, call: str, name: str
) -> None:
    asked = Asked(collector, client, f"!tool {call}", model="team", conversation=word)
    _, tool, _ = asked.steps(3)
    assert (tool.name, tool.is_error, tool.attributes["error.type"]) == (
        f"execute_tool {name}",
        True,
        "tool_failed",
    )
    assert not asked.attempt().is_error


def test_a_result_that_only_looks_like_an_error_is_none(
    collector: Collector, client: openai.OpenAI, word: str
) -> None:
    asked = Asked(collector, client, '!tool echo {"text": "error: no"}', conversation=word)
    _, tool, _ = asked.steps(3)
    assert (tool.name, tool.is_error) == ("execute_tool echo", False)


def test_a_request_that_is_refused_is_no_error_of_ours(collector: Collector, client: openai.OpenAI) -> None:
    asked = Asked(collector, client, "hello", model="nobody")
    assert asked.request.attributes["http.response.status_code"] == 404
    assert not asked.request.is_error


def test_a_turn_whose_client_left_is_cancelled_with_all_that_was_open(
    collector: Collector, traced: LiveServer, fake: FakeModel, word: str
) -> None:
    gate = Gate()
    fake.on(word, says("one", gate))
    ask_and_go(traced, gate, word, stream=True, headers={"X-Request-Id": word})
    request = collector.of_request(word)
    assert (request.attributes["lastgood.request.ended"], request.is_error) == ("left", False)
    (attempt,) = collector.below(request, 1)
    assert attempt.attributes["lastgood.attempt.outcome"] == "cancelled"
    (chat,) = collector.below(attempt, 1)
    assert chat.attributes["error.type"] == "cancelled"


# -- what is never in it -------------------------------------------------------------------

CANARY = "canary-51c3"

SAYS_TOO_MUCH = f"""
models:
  remote:
    provider: openai
    model: m
    base_url: %s
agents:
  root:
    model: remote
    instruction: Never say {CANARY}.
    toolsets:
      - type: think
"""


def test_I41_no_span_and_no_log_holds_what_was_said_or_a_secret(tmp_path: Path, fake: FakeModel) -> None:
    """In prompts, arguments, results, answers, names of tools and of conversations, errors, addresses."""
    (tmp_path / "loud.yaml").write_text(SAYS_TOO_MUCH % fake.url)
    fake.on("refused", refuses(400, f"{CANARY} is not allowed", type=CANARY, code=CANARY))
    fake.on("used", says(CANARY, calls=[("c", "think", json.dumps({"thought": CANARY}))]), says(CANARY))
    fake.on("made up", says(calls=[("c", CANARY, "{}"), ("d", "think", CANARY)]), says(CANARY))
    with Collector() as collector:
        secrets = {"OPENAI_API_KEY": f"sk-{CANARY}", "MY_TOKEN": f"{CANARY}-0123456789"}
        # The library would log a header that it cannot read.
        headers = {"OTEL_EXPORTER_OTLP_HEADERS": f"x-key={CANARY},not a header {CANARY}"}
        with LiveServer(
            tmp_path,
            str(tmp_path / "loud.yaml"),
            AGENT,
            options=("--tracing", "--token-env", "MY_TOKEN"),
            env=collector.env | secrets | headers,
            api_key=secrets["MY_TOKEN"],
        ) as server:
            with server.client() as client:
                for number, (model, text) in enumerate(
                    [
                        ("loud", f"refused {CANARY}"),
                        ("loud", f"used {CANARY}"),
                        ("loud", f"made up {CANARY}"),
                        (AGENT, f"!fail during\n{CANARY}"),
                        (AGENT, f"!{CANARY}"),
                        (AGENT, f"!tool {CANARY} {{}}"),
                        (CANARY, CANARY),
                    ]
                ):
                    for conversation in (None, f"{CANARY}-{number}"):
                        key = conversation and f"{conversation}-key"
                        Asked(collector, client, text, model=model, conversation=conversation, key=key)
            address = f"{server.url}/{CANARY}/x?key={CANARY}"
            strange = urllib.request.Request(address, method="PROPFIND", headers={"User-Agent": CANARY})
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(strange, timeout=SECONDS)
            refused.value.close()
            assert server.stop() == 0
            assert CANARY not in server.stderr.read_text().lower()
        assert all(one["x-key"] == CANARY for one in collector.headers)
        assert CANARY.encode() not in b"".join(collector.bodies).lower()
        found = {span.name for span in collector.spans}
        assert found >= {"HTTP", "chat m", "invoke_agent root", "execute_tool think", "execute_tool _OTHER"}


# -- off, absent, broken -------------------------------------------------------------------


def test_off_nothing_of_it_is_imported_and_on_it_is(tmp_path: Path, collector: Collector) -> None:
    for options, imported in (((), False), (("--tracing",), True)):
        env = collector.env | {"PYTHONPROFILEIMPORTTIME": "1"}
        with LiveServer(tmp_path / str(imported), options=options, env=env) as server:
            with server.client() as client:
                ask(client, '!tool think {"thought": "x"}', conversation="c")
            assert ("opentelemetry" in server.stderr.read_text()) == imported


@pytest.mark.anyio
async def test_off_nothing_is_wrapped(tmp_path: Path) -> None:
    """So a turn costs what it did before."""
    settings = Settings(tmp_path, f"sqlite:///{tmp_path / 'lastgood.db'}")
    async with open_server(settings, [parse(AGENT, {})], "127.0.0.1") as server:
        assert server.tracing is OFF
        assert server.asgi == server.app
        assert server.lastgood.deps.engine is server.engine
        assert type(server.engine) is AgentLoop
        assert type(server.engine._asking._providers).__module__ == "lastgood.engine.providers.provider_table"


def test_on_but_not_installed_is_one_line_that_says_what_to_install(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['opentelemetry.sdk'] = None; "
        "from lastgood.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    line = ["serve", AGENT, "--tracing", "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "data")]
    done = subprocess.run([sys.executable, "-c", program, *line], capture_output=True, timeout=SECONDS)
    said = done.stderr.decode()
    assert (done.returncode, len(said.splitlines())) == (1, 1), said
    assert "pip install 'lastgood[tracing]'" in said


def test_variables_that_cannot_be_used_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", CANARY)
    done = Command(tmp_path)("serve", AGENT, "--tracing", "--listen", "127.0.0.1:0")
    assert (done.code, len(done.err.splitlines())) == (1, 1), done.err
    assert "OTEL_" in done.err
    assert CANARY not in done.err


def test_a_collector_that_is_not_there_costs_no_turn(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}", "OTEL_BSP_SCHEDULE_DELAY": "20"}
    with LiveServer(tmp_path, options=("--tracing",), env=env) as server:

        def complaints() -> int:
            return server.stderr.read_text().count("tracing: ")

        with server.client() as client:
            ask(client, "hello", conversation="c")
            until(lambda: complaints() > 0)
            for _ in range(20):
                assert ask(client, "hello", conversation="c").text == "You said: hello"
        assert server.tries("c") == ["committed"] * 21
        assert complaints() <= 3  # they do not go on without end
        assert f"port={port}" not in server.stderr.read_text()


def test_a_collector_that_hangs_costs_two_seconds_at_the_end(tmp_path: Path) -> None:
    with (
        Collector(silent=True) as collector,
        LiveServer(tmp_path, options=("--tracing",), env=collector.env) as server,
    ):
        with server.client() as client:
            ask(client, "hello", conversation="c")
        assert collector.asked.wait(SECONDS)
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 8.0  # its patience with a collector is longer


def test_what_is_left_is_sent_at_the_end_as_the_standard_variables_say(tmp_path: Path) -> None:
    with Collector() as collector:
        later = {"OTEL_BSP_SCHEDULE_DELAY": "60000", "LASTGOOD_TRACING": "yes"}
        named = {"OTEL_SERVICE_NAME": "mine", "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test"}
        with LiveServer(tmp_path, env=collector.env | later | named) as server:
            with server.client() as client:
                ask(client, "hello", conversation="c")
            assert collector.bodies == []
            assert server.stop() == 0
        names = {f"POST {CHAT}", "invoke_agent scripted", "chat scripted"}
        assert {span.name for span in collector.spans} == names
        assert {one["service.name"] for one in collector.resources} == {"mine"}
        assert {one["deployment.environment.name"] for one in collector.resources} == {"test"}


@pytest.mark.anyio
async def test_the_end_waits_until_the_collector_has_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    with Collector() as collector:
        collector.may_answer.clear()
        for name, value in collector.env.items():
            monkeypatch.setenv(name, value)
        tracing = open_tracing(True)

        async def app(*_: object) -> None:
            return None

        await tracing.asgi(app)({"headers": [], "method": "GET", "scheme": "http"}, None, None)
        closing = asyncio.create_task(tracing.close())
        assert await asyncio.to_thread(collector.asked.wait, 60)
        assert not closing.done()
        collector.may_answer.set()
        await closing
        assert collector.answered == 1


@pytest.mark.anyio
async def test_library_warnings_are_reported_once_without_values(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tracing = open_tracing(True)
    for number in range(3):
        logging.getLogger("opentelemetry.somewhere").warning("it does not like %s", f"{CANARY}-{number}")
    assert [record.getMessage() for record in caplog.records] == ["tracing: it does not like %s"]
    await tracing.close()
    logging.getLogger("opentelemetry.somewhere").warning("it is %s", "itself again")
    assert caplog.records[-1].getMessage() == "it is itself again"

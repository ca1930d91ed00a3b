"""`lastgood.client` on real servers: what it says of sessions, and that a run survives what happens to it."""

from __future__ import annotations

import asyncio
import random
import re
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import apsw
import pytest

from lastgood import errors
from lastgood.client import AsyncClient, Client, events
from lastgood.client.events import Event, event_of
from lastgood.client.models import as_messages
from lastgood.client.retry_policy import may_go_again
from lastgood.client.transport import ApiCall, Transport
from lastgood.model.messages import Role, user
from tests.e2e.command import AGENT, SECONDS
from tests.e2e.cutting_proxy import CuttingProxy
from tests.e2e.fake_model import FakeModel, Reply, breaks_off_after, refuses
from tests.e2e.server import LiveServer
from tests.present import present

pytestmark = pytest.mark.anyio

#: Some two seconds, a word every 50 ms.
LONG = "!slow 0.05\n" + "word " * 40
ENDLESS = "!slow 0.1\n" + "word " * 4000
#: Characters of one to four bytes: a cut may be inside of any.
TALE = '!think hm\n!tool echo {"text": "⛵"}\n!slow 0.01\n!say ' + "one Grüße ⛵ наконец 🧭 two " * 6


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("client")) as server:
        yield server


@pytest.fixture(scope="module")
def mortal_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """To be killed and started again."""
    with LiveServer(tmp_path_factory.mktemp("mortal_client")) as server:
        yield server


@pytest.fixture
async def client(server: LiveServer) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(server.url) as client:
        yield client


async def received(client: AsyncClient, session: str, text: str, **asked: Any) -> list[Event]:
    return [event async for event in client.run(session, text, **asked)]


def types(found: list[Event]) -> list[str]:
    return [type(event).__name__ for event in found]


def timeless(found: list[Event]) -> list[tuple[int | None, dict[str, Any]]]:
    """All that was told but when: a server may tell a live event a moment before the time it stores."""
    return [
        (event.seq, {name: value for name, value in event.raw.items() if name != "timestamp"})
        for event in found
    ]


def text_of(found: list[Event]) -> str:
    return "".join(event.content for event in found if isinstance(event, events.AgentChoiceEvent))


async def stored(client: AsyncClient, session: str, attempt: str | None) -> list[Event]:
    """What the server has of an attempt, in one piece."""
    found: list[Event] = []
    async for event in client.events(session, 0):
        if event.attempt == attempt:
            found.append(event)
            if isinstance(event, events.StreamStoppedEvent):
                break
    return found


# -- sessions and turns ------------------------------------------------------------------


async def test_a_run_is_its_events_in_order_and_ends_with_its_outcome(client: AsyncClient) -> None:
    session = await client.create(AGENT)
    found = await received(client, session.id, '!think hm\n!tool echo {"text": "a"}\n!say done')
    assert types(found) == [
        "StreamStartedEvent",
        "UserMessageEvent",
        "TokenUsageEvent",
        "ToolCallEvent",
        "ToolCallResponseEvent",
        "AgentChoiceReasoningEvent",
        "AgentChoiceEvent",
        "TokenUsageEvent",
        "TurnCommittedEvent",
        "StreamStoppedEvent",
    ]
    assert [event.seq for event in found] == list(range(1, 11))
    assert {event.attempt for event in found} == {found[0].attempt}
    call, committed = found[3], found[-2]
    assert isinstance(call, events.ToolCallEvent)
    assert (call.name, call.arguments) == ("echo", '{"text": "a"}')
    assert isinstance(committed, events.TurnCommittedEvent)
    [turn] = await client.turns(session.id)
    assert (turn.id, turn.seq, turn.text) == (committed.turn, committed.turn_seq, "done")
    assert [message.role for message in turn.messages] == [
        Role.USER,
        Role.ASSISTANT,
        Role.TOOL,
        Role.ASSISTANT,
    ]


async def test_a_whole_chat(client: AsyncClient) -> None:
    session = await client.create(AGENT, title="A chat", metadata={"for": "tests"})
    assert (session.title, session.metadata, session.turns, session.head) == (
        "A chat",
        {"for": "tests"},
        0,
        None,
    )
    first = await client.ask(session.id, "one", user="ada")
    assert (first.user, first.inputs, first.kind) == ("ada", 1, "run")
    appended = await client.append(session.id, [user("two"), {"role": "assistant", "content": "noted"}])
    assert (appended.kind, appended.text) == ("append", "noted")
    assert (await client.ask(session.id, "!remember")).text == "I remember: one | two"

    fork = await client.fork(session.id, turn=first.id)
    assert fork.forked_from == (session.id, first.id)
    assert (await client.ask(fork.id, "!remember")).text == "I remember: one"
    before = await client.fork(session.id, user_message_index=0)
    assert before.turns == 0

    now = await client.reset(session.id, expected_head=(await client.get(session.id)).head)
    assert now.turns == 4
    assert (await client.ask(session.id, "!remember")).text == "I remember: "
    with pytest.raises(errors.StaleHead):
        await client.reset(session.id, expected_head=now.head)

    document = await client.export(session.id)
    copy = await client.import_(document)
    assert (copy.turns, copy.title) == (5, "A chat")
    assert [turn.messages for turn in await client.turns(copy.id)] == [
        turn.messages for turn in await client.turns(session.id)
    ]
    assert [one.status for one in await client.attempts(session.id)] == ["committed"] * 5

    await client.delete(session.id)
    with pytest.raises(errors.SessionNotFound):
        await client.get(session.id)


async def test_fields_of_a_session_are_set_one_by_one(client: AsyncClient) -> None:
    session = (await client.create(AGENT)).id
    assert (await client.rename(session, "Another")).title == "Another"
    assert (await client.star(session)).starred
    assert not (await client.star(session, False)).starred
    assert (await client.set_metadata(session, {"a": [1]})).metadata == {"a": [1]}
    assert (await client.set_model(session, AGENT)).model == AGENT
    assert (await client.set_model(session, None)).model is None
    rules = (await client.set_permissions(session, deny=["echo"], ask=["shell"])).permissions
    assert rules is not None
    assert (rules.allow, rules.ask, rules.deny) == ((), ("shell",), ("echo",))
    assert (await client.set_safety(session, "strict")).safety == "strict"
    assert (await client.set_safety(session, None)).safety is None
    assert (await client.rebind(session, AGENT)).agent_key == AGENT


async def test_lists_go_through_all_pages(client: AsyncClient, word: str) -> None:
    made = [(await client.create(AGENT, title=f"{word} {number}")).id for number in range(3)]
    assert [session.id async for session in client.list(query=word)] == made[::-1]
    page = await client.page(limit=2, query=word)
    assert [session.id for session in page.sessions] == made[:0:-1]
    rest = await client.page(limit=2, query=word, cursor=page.next_cursor)
    assert ([session.id for session in rest.sessions], rest.next_cursor) == (made[:1], None)
    for number in range(5):
        await client.append(made[0], f"{number}")
    assert [turn.messages[0].content for turn in await client.turns(made[0])] == list("01234")
    assert [agent.key for agent in await client.agents()] == [AGENT]


async def test_the_same_calls_without_waiting(server: LiveServer) -> None:
    await asyncio.to_thread(_chat_without_waiting, server)


def _chat_without_waiting(server: LiveServer) -> None:
    with Client(server.url) as client:
        session = client.create(AGENT, title="Blocking").id
        found = list(client.run(session, "one"))
        assert types(found)[-2:] == ["TurnCommittedEvent", "StreamStoppedEvent"]
        assert client.ask(session, "!remember").text == "I remember: one"
        assert session in [one.id for one in client.list(query="Blocking")]
        with pytest.raises(errors.ModelError):
            client.ask(session, "!fail before")
        for event in client.run(session, ENDLESS):
            if isinstance(event, events.AgentChoiceEvent):
                break  # to leave is not to cancel
        assert client.get(session).status == "running"
        assert present(client.cancel(session)).status == "cancelled"
        assert [turn.seq for turn in client.turns(session)] == [1, 2]
    client.close()  # again, and nothing happens


# -- what is done to a turn --------------------------------------------------------------


async def test_a_steer_and_a_followup_are_each_consumed_once(client: AsyncClient) -> None:
    session = (await client.create(AGENT)).id
    with pytest.raises(errors.NothingPending):
        await client.steer(session, "nobody listens")
    await client.submit(session, LONG)
    steer = await client.steer(session, "turn left", key="left")
    again = await client.steer(session, "turn left", key="left")
    assert (steer.kind, steer.is_known, again.is_known, again.number) == ("steer", False, True, steer.number)
    later = await client.followup(session, "and then")
    assert [one.number for one in await client.queue(session)] == [steer.number, later.number]
    dropped = await client.followup(session, "never mind")
    await client.drop(session, dropped.number)
    async with asyncio.timeout(20):
        async for event in client.events(session):
            if isinstance(event, events.TurnCommittedEvent) and event.turn == later.turn:
                break
    assert await client.queue(session) == ()
    said = [message.content for turn in await client.turns(session) for message in turn.messages]
    # The running turn may have heard the steer, or else it is a turn of its own.
    assert [text for text in said if text in ("turn left", "and then", "never mind")] == [
        "turn left",
        "and then",
    ]


async def test_cancel_says_how_it_ended(client: AsyncClient) -> None:
    session = (await client.create(AGENT)).id
    accepted = await client.submit(session, ENDLESS)
    assert present(await client.cancel(session)).status == "cancelled"
    found = [event async for event in client.follow(accepted)]
    failed = found[-2]
    assert isinstance(failed, events.TurnFailedEvent)
    assert (failed.status, failed.code) == ("cancelled", "turn_cancelled")
    with pytest.raises(errors.NothingPending):
        await client.cancel(session)


async def test_a_failed_attempt_is_continued_after_its_steps(client: AsyncClient) -> None:
    session = (await client.create(AGENT)).id
    failed = (await received(client, session, '!tool echo {"text": "a"}\n!fail during 1\n!say done'))[
        -1
    ].attempt
    assert failed is not None
    found = [event async for event in client.continue_(session, failed)]
    started = found[0]
    assert isinstance(started, events.StreamStartedEvent)
    assert started.continues == failed
    assert "ToolCallEvent" not in types(found)
    assert types(found)[-2:] == ["TurnCommittedEvent", "StreamStoppedEvent"]


# -- errors ------------------------------------------------------------------------------


async def test_errors_are_those_of_the_server_by_their_class(client: AsyncClient) -> None:
    session = (await client.create(AGENT)).id
    with pytest.raises(errors.SessionNotFound) as missing:
        await client.ask("ses_nope/..", "hello")
    assert missing.value.detail["request_id"]
    with pytest.raises(errors.InvalidRequest):
        await client.ask(session, " ")
    with pytest.raises(errors.AgentNotFound):
        await client.ask(session, "hello", agent="nobody")
    with pytest.raises(errors.ModelUnknown):
        await client.ask(session, "hello", model="nope/x")
    with pytest.raises(errors.InvalidRequest, match="key"):
        await client.ask(session, "hello", key="two words\n")
    for half in (client.ask(session, "\ud800"), client.get("\ud800"), client.page(query="\ud800")):
        with pytest.raises(errors.InvalidRequest):
            await half
    await client.ask(session, "hello", key="same")
    with pytest.raises(errors.IdempotencyMismatch):
        await client.ask(session, "other", key="same")
    with pytest.raises(errors.StaleHead):
        await client.ask(session, "hello", expected_head="turn_other")
    with pytest.raises(errors.ModelError, match="as directed") as failed:
        await client.ask(session, "!fail before")
    assert failed.value.detail["attempt"] == (await client.attempts(session))[-1].id
    accepted = await client.submit(session, ENDLESS)
    with pytest.raises(errors.SessionBusy) as busy:
        await client.ask(session, "me too")
    assert busy.value.detail["attempt"] == present(accepted.attempt).id
    await client.delete(session)


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (refuses(500), errors.ModelOverloaded),
        (refuses(401), errors.KeyRefused),
        (refuses(402), errors.QuotaUsedUp),
        (breaks_off_after("one"), errors.ModelUnreachable),
        (refuses(400), errors.ModelError),
    ],
)
async def test_provider_errors_are_classified_whatever_reports_them(
    served: LiveServer, fake: FakeModel, word: str, reply: Reply, kind: type[errors.LastgoodError]
) -> None:
    """All of them have the code model_error on the wire."""
    fake.on(word, reply)
    async with AsyncClient(served.url) as client:
        session = (await client.create(agent="remote")).id
        found = await received(client, session, word)
        assert {one.code for one in found if isinstance(one, events.ErrorEvent | events.TurnFailedEvent)} == {
            kind.code
        }
        with pytest.raises(errors.ModelError) as raised:
            await client.ask(session, word)
        assert type(raised.value) is kind
        assert {one.error_code for one in await client.attempts(session)} == {kind.code}
        # And as an answer of its own.
        call = ApiCall(
            "POST", f"/api/sessions/{session}/turns", {"messages": as_messages(word), "wait": True}
        )
        connection = Transport(served.url, None, SECONDS)
        try:
            with pytest.raises(errors.ModelError) as refused:
                await connection.call(call)
        finally:
            await connection.close()
        assert type(refused.value) is kind


async def test_a_session_that_is_deleted_ends_its_runs_and_its_watchers(client: AsyncClient) -> None:
    session = (await client.create(AGENT)).id

    async def watch() -> list[Event]:
        return [event async for event in client.events(session)]

    watching = asyncio.create_task(watch())
    found: list[Event] = []
    with suppress(errors.SessionNotFound):  # the run may not hear any more that it was cancelled
        async for event in client.run(session, ENDLESS):
            found.append(event)
            if types(found).count("AgentChoiceEvent") == 1 and isinstance(event, events.AgentChoiceEvent):
                await client.delete(session)
    assert types(found).count("TurnCommittedEvent") == 0
    assert types(await watching)[-1] == "SessionExitedEvent"
    with pytest.raises(errors.SessionNotFound):
        await anext(client.events(session))


async def test_a_server_that_was_never_there_is_given_up_at_once() -> None:
    async with asyncio.timeout(5), AsyncClient("http://127.0.0.1:9") as client:
        with pytest.raises(errors.ServerUnreachable, match="lastgood serve"):
            await client.ask("ses_x", "hello")
        with pytest.raises(errors.ServerUnreachable):
            await anext(client.events("ses_x"))


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:8080", "ftp://x", "http://", "unix://x", "http://me:secret@host", "http://x:99999"]
)
def test_invalid_addresses_are_rejected(url: str) -> None:
    with pytest.raises(errors.InvalidRequest) as refused:
        AsyncClient(url)
    assert "secret" not in refused.value.message


@pytest.mark.parametrize("body", [b"<html>", b"{}", b'{"a": 1}', b'["a"]', b"[{}]", b"5", b'"a"', b"null"])
@pytest.mark.parametrize("status", [200, 404])
async def test_a_server_that_is_not_lastgood_is_reported(body: bytes, status: int) -> None:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Page) as other:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        try:
            async with AsyncClient(f"http://127.0.0.1:{other.server_port}") as client:
                for call in (client.agents(), client.page(), client.get("ses_x"), client.turns("ses_x")):
                    with pytest.raises(errors.ResponseUnreadable, match="ot a Lastgood server"):
                        await call
        finally:
            other.shutdown()
            thread.join()


@pytest.mark.slow
async def test_a_token_is_sent_and_a_wrong_one_is_refused(tmp_path: Path) -> None:
    token = "a-token-for-this-test-alone"
    with LiveServer(tmp_path, options=("--token-env", "T"), env={"T": token}) as server:
        async with AsyncClient(server.url, token) as client:
            assert (await client.ask((await client.create()).id, "hi")).text == "You said: hi"
        for wrong in (None, "another-token-that-nobody-knows"):
            async with AsyncClient(server.url, wrong) as client:
                with pytest.raises(errors.Unauthorized):
                    await client.agents()


@pytest.mark.slow
async def test_a_caller_with_too_many_turns_waits_for_its_turn(tmp_path: Path) -> None:
    with LiveServer(tmp_path, options=("--token-running", "1")) as server:
        async with AsyncClient(server.url) as client:
            first, second = (await client.create()).id, (await client.create()).id
            accepted = await client.submit(first, "!slow 0.3\none two three")
            asking = asyncio.create_task(client.ask(second, "hello"))
            found = [event async for event in client.follow(accepted)]
            assert (await asking).text == "You said: hello"
            assert text_of(found) == "You said: one two three"
    async with AsyncClient(server.url, timeout=0.2) as client:
        with pytest.raises(errors.ServerUnreachable):
            await client.agents()


# -- connections that break --------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
async def test_I22_streams_joined_after_cuts_equal_the_stored_events(
    server: LiveServer, client: AsyncClient, seed: int
) -> None:
    session = (await client.create(AGENT)).id
    dice = random.Random(f"client {seed}")
    plan = [dice.randrange(1, 2500) for _ in range(12)]
    async with CuttingProxy(server.port, plan) as proxy, AsyncClient(proxy.url) as far:
        joined = await received(far, session, TALE)
        assert proxy.cuts >= 3
    assert timeless(joined) == timeless(await stored(client, session, joined[0].attempt))
    assert types(joined)[-2:] == ["TurnCommittedEvent", "StreamStoppedEvent"]
    assert text_of(joined) == (await client.turn_at(session, 1)).text
    assert len(await client.attempts(session)) == 1


@pytest.mark.parametrize("has_key", [False, True])
@pytest.mark.parametrize("words", ["!say quick", LONG])
async def test_a_turn_whose_acceptance_was_lost_runs_once_and_is_streamed_whole(
    server: LiveServer, client: AsyncClient, words: str, has_key: bool, word: str
) -> None:
    """I20: sent again under its key, it attaches while it runs and is told when it has ended."""
    session = (await client.create(AGENT)).id
    async with CuttingProxy(server.port, [b"x-attempt-id"]) as proxy, AsyncClient(proxy.url) as far:
        accepted = await far.submit(session, f"{words} {word}", key=word if has_key else None)
        assert (proxy.cuts, accepted.replayed) == (1, False)
        found = [event async for event in far.follow(accepted)]
    assert timeless(found) == timeless(await stored(client, session, found[0].attempt))
    assert types(found)[0] == "StreamStartedEvent"
    assert types(found)[-2:] == ["TurnCommittedEvent", "StreamStoppedEvent"]
    assert len(server.seen(word)) == 1


async def test_what_cannot_be_repeated_is_not(server: LiveServer, client: AsyncClient, word: str) -> None:
    async with CuttingProxy(server.port, [b"last_event_seq"]) as proxy, AsyncClient(proxy.url) as far:
        with pytest.raises(errors.ResponseLost, match="check before you send it again"):
            await far.create(AGENT, title=word)
    assert len([session async for session in client.list(query=word)]) == 1


async def test_a_delete_whose_answer_was_lost_is_done(server: LiveServer, client: AsyncClient) -> None:
    session = (await client.create(AGENT)).id
    async with CuttingProxy(server.port, [b"session deleted"]) as proxy, AsyncClient(proxy.url) as far:
        await far.delete(session)
        assert proxy.cuts == 1
    with pytest.raises(errors.SessionNotFound):
        await client.get(session)


async def test_a_server_may_be_asked_through_a_socket_file(server: LiveServer, tmp_path: Path) -> None:
    async with CuttingProxy(server.port, path=tmp_path / "s") as proxy, AsyncClient(proxy.url) as client:
        assert (await client.ask((await client.create(AGENT)).id, "hi")).text == "You said: hi"


async def test_another_process_attaches_under_the_same_key(server: LiveServer, client: AsyncClient) -> None:
    session = (await client.create(AGENT)).id
    await client.ask(session, "before")
    running = client.run(session, LONG, key="shared")
    first = [await anext(running) for _ in range(4)]
    async with AsyncClient(server.url) as other:
        attached = await received(other, session, LONG, key="shared")
    assert timeless(attached) == timeless(first + [event async for event in running])
    assert (await client.get(session)).turns == 2


# -- servers that die --------------------------------------------------------------------


@pytest.mark.slow
async def test_M2_a_run_continues_through_a_kill_and_is_committed_once(
    mortal_server: LiveServer, word: str
) -> None:
    """I5, I20: the next server owes the turn, and the run is followed into its next attempt."""
    async with AsyncClient(mortal_server.url) as client:
        session = (await client.create(AGENT)).id
        await client.ask(session, "before")
        found: list[Event] = []
        async for event in client.run(session, f"{LONG} {word}", key=word):
            found.append(event)
            if isinstance(event, events.AgentChoiceEvent) and types(found).count("AgentChoiceEvent") == 3:
                await asyncio.to_thread(mortal_server.kill)
                mortal_server.launch()
        assert types(found).count("StreamStartedEvent") == 2
        interrupted = next(event for event in found if isinstance(event, events.TurnFailedEvent))
        assert interrupted.status == "interrupted"
        assert types(found)[-2:] == ["TurnCommittedEvent", "StreamStoppedEvent"]
        assert [event.seq for event in found] == sorted({event.seq or 0 for event in found})
        for attempt in dict.fromkeys(event.attempt for event in found):
            mine = [event for event in found if event.attempt == attempt]
            assert timeless(mine) == timeless(await stored(client, session, attempt))
        assert [one.status for one in await client.attempts(session)] == [
            "committed",
            "interrupted",
            "committed",
        ]
        # Told again, it is not run again.
        again = await received(client, session, f"{LONG} {word}", key=word)
        assert types(again) == ["AgentChoiceEvent", "TurnCommittedEvent", "StreamStoppedEvent"]
        assert text_of(again) == (await client.turn_at(session, 2)).text
        assert (await client.get(session)).turns == 2
        assert len(mortal_server.seen(word)) == 2


@pytest.mark.slow
async def test_a_watcher_continues_at_the_next_server_without_an_error(
    mortal_server: LiveServer,
) -> None:
    """I22: what a server says of its own end is for the connection, and no event of the session."""
    async with AsyncClient(mortal_server.url) as client:
        session = (await client.create(AGENT)).id
        await client.ask(session, "one")
        found: list[Event] = []
        async for event in client.events(session, 0):
            found.append(event)
            if types(found).count("StreamStoppedEvent") == 2:
                break
            if isinstance(event, events.StreamStoppedEvent):
                await asyncio.to_thread(mortal_server.stop)
                await asyncio.to_thread(mortal_server.start)
                await client.ask(session, "two")
        assert types(found).count("TurnCommittedEvent") == 2
        assert "ErrorEvent" not in types(found)
        assert [event.seq for event in found] == sorted({event.seq or 0 for event in found})


@pytest.mark.slow
async def test_a_server_that_stays_away_is_given_up_and_the_key_is_still_good(
    mortal_server: LiveServer, word: str
) -> None:
    async with AsyncClient(mortal_server.url, timeout=0.5) as client:
        session = (await client.create(AGENT)).id
        running = client.run(session, f"!slow 0.1\na b c {word}", key=word)
        while not isinstance(await anext(running), events.AgentChoiceEvent):
            pass
        await asyncio.to_thread(mortal_server.kill)
        with pytest.raises(errors.ServerUnreachable):
            _ = [event async for event in running]
        await asyncio.to_thread(mortal_server.start)
        turn = await client.ask(session, f"!slow 0.1\na b c {word}", key=word)
        assert (turn.seq, turn.text) == (1, f"You said: a b c {word}")
        assert (await client.get(session)).turns == 1


@pytest.mark.slow
async def test_expired_events_are_a_resync_and_the_end_is_still_sent(
    mortal_server: LiveServer,
) -> None:
    async with AsyncClient(mortal_server.url) as client:
        session = (await client.create(AGENT, title="kept")).id
        good = await client.submit(session, "one", key="one")
        assert (await client.ask(session, "one", key="one")).seq == 1
        bad = await client.submit(session, "!fail before")
        assert types([event async for event in client.follow(bad)])[-1] == "StreamStoppedEvent"
        await asyncio.to_thread(mortal_server.stop)
        _forget_events(mortal_server, session)
        await asyncio.to_thread(mortal_server.start)
        assert isinstance(await anext(client.events(session, 0)), events.ResyncEvent)
        endings = {
            good.turn: ["ResyncEvent", "AgentChoiceEvent", "TurnCommittedEvent", "StreamStoppedEvent"],
            bad.turn: ["ResyncEvent", "ErrorEvent", "TurnFailedEvent", "StreamStoppedEvent"],
        }
        async with asyncio.timeout(SECONDS):
            for accepted in (good, bad):
                found = [event async for event in client.follow(accepted)]
                assert types(found) == endings[accepted.turn]


def _forget_events(server: LiveServer, session: str) -> None:
    """As an hour after their attempts have ended."""
    database = apsw.Connection(str(server.data_dir / "lastgood.db"))
    try:
        database.execute("DELETE FROM events WHERE session_id = ?", (session,))
        database.execute("UPDATE sessions SET events_dropped = event_seq WHERE id = ?", (session,))
    finally:
        database.close()


# -- decisions ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "repeatable", "accepted", "again"),
    [
        (errors.ServerUnreachable(), False, False, True),
        (errors.ResponseLost(), False, False, False),
        (errors.ResponseLost(), True, False, True),
        (errors.OutcomeUnknown(), False, False, False),
        (errors.OutcomeUnknown(), True, False, True),
        (errors.ShuttingDown(), False, False, True),
        (errors.StoreUnavailable(), False, False, True),
        (errors.StoreFull(), True, False, False),
        (errors.StoreError(), False, False, False),
        (errors.TooManyRequests(), False, False, True),
        (errors.QueueFull(), True, False, False),
        (errors.SessionBusy(), True, False, False),
        (errors.SessionBusy(), True, True, True),
        (errors.StaleHead(), True, True, False),
        (errors.ModelError(), True, True, False),
        (errors.LastgoodError(), True, True, False),
    ],
)
def test_only_what_cannot_be_done_twice_is_sent_again(
    error: errors.LastgoodError, repeatable: bool, accepted: bool, again: bool
) -> None:
    assert may_go_again(error, repeatable=repeatable, accepted=accepted) is again


@pytest.mark.parametrize("error", [errors.TooManyRequests(), errors.StoreUnavailable(), errors.SessionBusy()])
def test_what_the_server_forbids_to_retry_is_not_retried(error: errors.LastgoodError) -> None:
    """A 424 has the code of what failed: "too many requests" of a provider, after a tool has run."""
    assert may_go_again(error, repeatable=True, accepted=True)
    error.retryable = False
    assert not may_go_again(error, repeatable=True, accepted=True)


def test_an_event_of_a_newer_server_is_another_event() -> None:
    found = event_of(7, {"type": "moon_landed", "session_id": "ses_1", "crew": 3})
    assert isinstance(found, events.OtherEvent)
    assert (found.seq, found.type, found.session, found.raw["crew"]) == (7, "moon_landed", "ses_1", 3)


# -- as it is documented -----------------------------------------------------------------


@pytest.mark.parametrize("page", ["client.md", "howto-openai-sdk.md"])
def test_the_documented_example_does_what_it_says(server: LiveServer, page: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / page).read_text()
    (example,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (wanted,) = re.findall(r"^```text\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert "http://127.0.0.1:8080" in example
    ran = run_script(example.replace("http://127.0.0.1:8080", server.url))
    out, err = ran.communicate(timeout=SECONDS)
    assert (out.decode().strip(), err.decode(), ran.returncode) == (wanted.strip(), "", 0)


def test_ctrl_c_ends_a_run_without_waiting_and_the_turn_continues(server: LiveServer, word: str) -> None:
    script = f"""
from lastgood.client import Client
with Client({server.url!r}) as client:
    session = client.create({AGENT!r}, title={word!r}).id
    try:
        for event in client.run(session, {ENDLESS!r}):
            if event.seq == 3:
                print("streams", flush=True)
    except KeyboardInterrupt:
        print(client.get(session).status, client.cancel(session).status)
"""
    ran = run_script(script)
    assert ran.stdout is not None
    assert ran.stdout.readline() == b"streams\n"
    ran.send_signal(signal.SIGINT)
    out, err = ran.communicate(timeout=SECONDS)
    assert (out, err, ran.returncode) == (b"running cancelled\n", b"", 0)


def run_script(script: str) -> subprocess.Popen[bytes]:
    line = [sys.executable, "-W", "error", "-c", script]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

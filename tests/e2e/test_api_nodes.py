"""Two servers on one PostgreSQL are one service: used alternately, at once, and while either of them ends.

Real processes, a real database, and the lease as it is shipped: 15 s, and 5 s for the sweep that finds it
ended (I12). What takes that long is therefore done in as few tests as it can be. `make prove` has a storm
of everything at once.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.api import Api, Given, Trace, run_path, said
from tests.e2e.command import until
from tests.e2e.cuts import Follower, one_end_each, uncut
from tests.e2e.load import (
    BUSY_SECONDS,
    MOMENT_SECONDS,
    Log,
    ask,
    judge,
    new_token,
    rolling_restart,
    under_load,
)
from tests.e2e.nodes import TOOLS_AGENT, Nodes, two_nodes
from tests.postgres import PostgresServer

pytestmark = pytest.mark.slow

#: Takes some seconds, so that a server can be ended in the middle of it.
LONG = "!slow 0.1\n!say " + "word " * 30
SEED = 3


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """With a database server of their own: it is restarted, too."""
    with (
        PostgresServer() as postgres,
        two_nodes(tmp_path_factory.mktemp("nodes"), postgres, "nodes") as nodes,
    ):
        yield nodes


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    return Trace(tmp_path / "trace")


def until_within(seconds: float, what: Any) -> float:
    """How long it took."""
    began = time.monotonic()
    while not what():
        took = time.monotonic() - began
        assert took < seconds, f"it did not happen within {seconds} s"
        time.sleep(0.05)
    return time.monotonic() - began


def words(api: Api, session: str) -> list[str]:
    return [text for role, text in api.history(session) if role == "user"]


# -- approvals ---------------------------------------------------------------------------------


def test_I14_a_call_is_approved_on_another_node_and_runs_once(nodes: Nodes, trace: Trace) -> None:
    """The node that asked is killed while the question waits; both answers are for the same question."""
    session = nodes.a.session(TOOLS_AGENT)
    path = f"/api/sessions/{session}"
    assert nodes.a.patch(f"{path}/permissions", {"permissions": {"ask": ["note"]}}).status == 200
    assert nodes.a.turn(session, f"{trace.note('x')}\n!say done").json["status"] == "waiting"
    nodes.servers[0].kill()
    (question,) = nodes.b.get(f"{path}/pending")
    body = {"confirmation": "approve", "question": question["id"]}
    answers = [nodes.b.post(f"{path}/resume", body).status for _ in range(2)]
    nodes.servers[0].start()
    answers.append(nodes.a.post(f"{path}/resume", body).status)
    assert answers == [200, 409, 409]
    until(lambda: nodes.b.brief(session)["status"] == "idle")
    assert nodes.a.history(session)[-1] == ("assistant", "done")
    assert trace.words == ["x"]
    (record,) = [one for one in nodes.a.get(f"/api/audit?subject={session}") if one["kind"] == "approval"]
    assert record["detail"]["decision"] == "approve"


# -- one service ---------------------------------------------------------------------------------


def test_a_session_is_used_alternately_through_both(nodes: Nodes) -> None:
    """I1, I5: each sees what the other has committed, in its very next prompt."""
    log, session = Log(), nodes.a.session()
    tokens = [new_token() for _ in range(12)]
    for number, token in enumerate(tokens):
        received = ask(log, (nodes.a, nodes.b)[number % 2], session, token, "\n!remember")
        assert received.outcome == "committed"
    last = nodes.b.history(session)[-1]
    assert last == ("assistant", "I remember: " + " | ".join(tokens))
    assert judge(nodes, log) == []


def test_M2_5_of_requests_at_once_through_both_each_commits_or_is_refused(nodes: Nodes) -> None:
    """I9, I13: the history is the committed ones in their order, and nothing of the others."""
    log, session = Log(), nodes.a.session()

    def client(number: int) -> None:
        for turn in range(12):
            text = ("hello", '\n!tool echo {"text": "a"}\n!say done', "\n!slow 0.01\n!say one two")[turn % 3]
            ask(log, (nodes.a, nodes.b)[(number + turn) % 2], session, new_token(), text)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(client, range(8)))
    outcomes = {received.outcome for received in log.received}
    assert outcomes == {"committed", "refused"}
    assert {received.code for received in log.received if received.outcome == "refused"} == {"session_busy"}
    committed = {
        received.turn: received.texts[0] for received in log.received if received.outcome == "committed"
    }
    turns = nodes.b.get(f"/api/sessions/{session}/turns?limit=200")
    assert [turn["seq"] for turn in turns] == list(range(1, len(committed) + 1))
    assert words(nodes.a, session) == [committed[turn["id"]] for turn in turns]
    assert judge(nodes, log) == []


def test_I20_one_key_at_both_nodes_at_once_is_one_turn(nodes: Nodes) -> None:
    session, key = nodes.a.session(), new_token()

    def send(api: Api) -> Given:
        return api.turn(session, "!slow 0.02\n!say one two three", h_idempotency_key=key)

    with ThreadPoolExecutor(6) as pool:
        given = list(pool.map(send, [nodes.a, nodes.b] * 3))
    assert [one.status for one in given] == [200] * 6
    assert len({one.json["id"] for one in given}) == 1
    assert nodes.b.brief(session)["turns"] == 1


def test_messages_queued_on_the_other_node_are_read(nodes: Nodes, trace: Trace) -> None:
    """A steer is heard by the turn that runs there, a follow-up runs after it, in order; each once."""
    session = nodes.a.session(TOOLS_AGENT)
    nodes.a.begun(session, f"{trace.hold()}\n!say one")
    trace.until_held()
    for kind, text in (("steer", "steer\n!say two"), ("followup", "later 1"), ("followup", "later 2")):
        given = nodes.b.post(f"/api/sessions/{session}/{kind}", {"messages": said(text)})
        assert given.status == 202, given.body
    queue = nodes.a.get(f"/api/sessions/{session}/queue")
    assert (queue["steer"]["depth"], queue["followup"]["depth"]) == (1, 2)
    trace.release()
    until(lambda: nodes.a.brief(session)["turns"] == 3)
    assert words(nodes.b, session)[1:] == ["steer\n!say two", "later 1", "later 2"]
    assert nodes.a.get(f"/api/sessions/{session}/queue")["items"] == []


def test_I14_a_cancel_through_the_other_node_ends_the_turn(nodes: Nodes) -> None:
    """Its holder hears of it with its next heartbeat, within 5 s."""
    session = nodes.a.session()
    attempt = nodes.a.begun(session, "!slow 0.2\n!say " + "word " * 100)
    began = time.monotonic()
    given = nodes.b.post(f"/api/sessions/{session}/cancel")
    assert (given.status, given.json["status"], given.json["id"]) == (200, "cancelled", attempt["id"])
    assert time.monotonic() - began < 5.0 + MOMENT_SECONDS
    assert nodes.a.brief(session)["turns"] == 0
    assert nodes.b.good(session, "next")["seq"] == 1


def test_I24_events_are_followed_at_the_other_node_as_they_come(nodes: Nodes) -> None:
    session = nodes.a.session(title="mine")
    follower = Follower(session)

    def has_come(type: str) -> bool:
        return type in [one["type"] for one in follower.received]

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(follower.read, nodes.servers[1].port, seconds=3.0)
        nodes.a.begun(session, "!slow 0.1\n!say " + "word " * 20)
        until(lambda: has_come("agent_choice"))
        assert nodes.a.brief(session)["status"] == "running", "it comes while the turn runs"
        until(lambda: has_come("stream_stopped"))
        reading.result()
    text = "".join(one["content"] for one in follower.received if one["type"] == "agent_choice")
    assert text.split() == ["word"] * 20
    for server in nodes.servers:
        assert uncut(server, session).frames == follower.frames


def test_a_stopping_node_does_not_wait_for_turns_of_the_other(nodes: Nodes, trace: Trace) -> None:
    session = nodes.a.session(TOOLS_AGENT)
    nodes.a.begun(session, f"{trace.hold()}\n!say one")
    trace.until_held()
    assert nodes.b.post(f"/api/sessions/{session}/followup", {"messages": said("later")}).status == 202
    began = time.monotonic()
    assert nodes.servers[1].stop() == 0
    assert time.monotonic() - began < 5.0
    nodes.servers[1].start()
    trace.release()
    until(lambda: nodes.b.brief(session)["turns"] == 2)


# -- either of them dies -------------------------------------------------------------------------


class Held:
    """Turns of every kind that are under way at one node."""

    def __init__(self, node: Api, pool: ThreadPoolExecutor) -> None:
        self.node = node
        names = ("accepted", "keyed", "plain", "streamed", "queued")
        self.sessions = {name: node.session(title=name) for name in names}
        for session in self.sessions.values():
            node.good(session, "before")
        self.heads = {name: node.brief(session)["head"] for name, session in self.sessions.items()}
        self.accepted = node.begun(self.sessions["accepted"], LONG)
        node.begun(self.sessions["queued"], LONG)
        later = node.post(f"/api/sessions/{self.sessions['queued']}/followup", {"messages": said("later")})
        assert later.status == 202
        self.waiting: dict[str, Future[Given]] = {
            "keyed": pool.submit(node.turn, self.sessions["keyed"], LONG, h_idempotency_key=self.key),
            "plain": pool.submit(node.turn, self.sessions["plain"], LONG),
            "streamed": pool.submit(node.post, run_path(self.sessions["streamed"]), {"messages": said(LONG)}),
        }
        until(lambda: all(self.status(node, name) == "running" for name in self.sessions))

    @property
    def key(self) -> str:
        return f"key-{self.sessions['keyed']}"

    def status(self, api: Api, name: str) -> str:
        return str(api.brief(self.sessions[name])["status"])

    def turns(self, api: Api, name: str) -> int:
        return int(api.brief(self.sessions[name])["turns"])

    def tries(self, api: Api, name: str) -> list[str]:
        attempts = api.get(f"/api/sessions/{self.sessions[name]}/attempts")
        return [attempt["status"] for attempt in attempts[1:]]

    def is_over(self, api: Api) -> bool:
        """What was promised is done, and all sessions are free."""
        promised = {"accepted": 2, "keyed": 2, "queued": 3}
        free = all(self.status(api, name) == "idle" for name in self.sessions)
        return free and all(self.turns(api, name) == number for name, number in promised.items())

    def check(self, api: Api) -> None:
        """I12, I16, I20, I24, from any node."""
        assert self.tries(api, "accepted") == ["interrupted", "committed"]
        assert self.tries(api, "keyed") == ["interrupted", "committed"]
        assert self.tries(api, "queued") == ["interrupted", "committed", "committed"]
        for name in ("plain", "streamed"):
            assert self.tries(api, name) == ["interrupted"], (
                "requests without an idempotency key are not recovered"
            )
            assert api.brief(self.sessions[name])["head"] == self.heads[name]
        again = api.turn(self.sessions["keyed"], LONG, h_idempotency_key=self.key)
        assert (again.status, again.headers["idempotent-replayed"]) == (200, "true")
        assert words(api, self.sessions["queued"])[-1] == "later"
        for session in self.sessions.values():
            attempts = api.get(f"/api/sessions/{session}/attempts")
            assert one_end_each(uncut(api.server, session), [one["id"] for one in attempts]) == []

    def go_on(self, api: Api) -> None:
        for name in self.sessions:
            assert api.good(self.sessions[name], "next")["seq"] == self.turns(api, name)


def test_I12_durable_turns_of_a_killed_node_are_finished_by_the_other(nodes: Nodes) -> None:
    """A watcher at the other node sees all of it, and hears something every 15 s (I25)."""
    with ThreadPoolExecutor(4) as pool:
        held = Held(nodes.a, pool)
        watcher = Follower(held.sessions["accepted"])
        watching = pool.submit(
            watcher.read, nodes.servers[1].port, seconds=BUSY_SECONDS + 2 * MOMENT_SECONDS, until=10**9
        )
        nodes.servers[0].kill()
        for waiting in held.waiting.values():
            with pytest.raises(Exception, match=r"."):
                waiting.result()
        took = until_within(BUSY_SECONDS + 2 * MOMENT_SECONDS, lambda: held.is_over(nodes.b))
        nodes.servers[0].start()
        for node in (nodes.a, nodes.b):
            held.check(node)
        for node in (nodes.a, nodes.b):
            held.go_on(node)
        nodes.a.delete(f"/api/sessions/{watcher.session}")
        watching.result()
    types = [one["type"] for one in watcher.received]
    assert types.count("turn_failed") == 1
    assert types.count("turn_committed") >= 2
    assert [b"session_exited" in one for one in watcher.notices] == [True]
    assert took > 5.0, "nobody may take over before the lease has ended"


def left_by(nodes: Nodes, attempts: list[str]) -> dict[str, list[tuple[Any, ...]]]:
    """All that is stored of these attempts."""
    tables = {
        "attempts": "SELECT id, status, ended_at, last_event FROM attempts WHERE id = ANY($1) ORDER BY id",
        "events": "SELECT session_id, seq, body FROM events WHERE attempt_id = ANY($1) ORDER BY 1, 2",
        "steps": "SELECT attempt_id, n, body FROM steps WHERE attempt_id = ANY($1) ORDER BY 1, 2",
        "turns": "SELECT id, seq, hash FROM turns WHERE attempt_id = ANY($1) ORDER BY id",
    }
    return {name: nodes.sql(sql, attempts) for name, sql in tables.items()}


def test_I10_I11_a_paused_node_that_wakes_up_changes_nothing(nodes: Nodes) -> None:
    """Its turns were taken over, and when it wakes up, others are running in their sessions."""
    with ThreadPoolExecutor(4) as pool:
        held = Held(nodes.b, pool)
        paused = nodes.servers[1]
        paused.tell(signal.SIGSTOP)
        try:
            until_within(BUSY_SECONDS + 2 * MOMENT_SECONDS, lambda: held.is_over(nodes.a))
            held.check(nodes.a)
            sessions = list(held.sessions.values())
            found = nodes.sql(
                "SELECT id FROM attempts WHERE status = 'interrupted' AND session_id = ANY($1)", sessions
            )
            zombies = [id for (id,) in found]
            before = left_by(nodes, zombies)
            running = [nodes.a.begun(session, LONG + LONG) for session in sessions]
        finally:
            paused.tell(signal.SIGCONT)
        until(lambda: paused.running == 0)
        received = {name: waiting.exception() or waiting.result() for name, waiting in held.waiting.items()}
        for session, attempt in zip(sessions, running, strict=True):
            assert nodes.a.ended(session, attempt["id"])["status"] == "committed"
        assert left_by(nodes, zombies) == before
        assert (len(zombies), before["turns"]) == (5, [])
        held.go_on(nodes.b)
    for name, given in received.items():
        if name == "keyed" and isinstance(given, Given) and given.status == 200:
            assert given.json["attempt"] not in zombies, "it was committed by the other node"
        elif name != "streamed" and isinstance(given, Given):
            assert given.status != 200, "nothing of it was committed by the one who was paused"
            assert given.code in ("attempt_lost", "turn_failed"), given.body


# -- restarts under load -------------------------------------------------------------------------


def test_I12_nodes_are_replaced_one_by_one_under_load(nodes: Nodes) -> None:
    """20 sessions, and clients that send again under their key, to the other node: each acknowledged turn
    is there exactly once, and nobody has waited for a lease: what ends by itself lets go at once."""
    log = under_load(nodes, SEED, rolling_restart(nodes))
    assert judge(nodes, log) == [], f"seed {SEED}"
    assert log.acknowledged > 50
    assert log.busiest < 10.0, "a node that was told to end has kept a session"


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_I16_a_database_that_restarts_in_the_middle_of_turns_loses_nothing(nodes: Nodes, mode: Any) -> None:
    def restart(log: Log, _: Any) -> None:
        for _ in range(2):
            log.until_acknowledged(10)
            nodes.postgres.restart(mode)
            nodes.until_ready()
        log.until_acknowledged(10)

    log = under_load(nodes, SEED, restart, sessions=8, clients=4)
    assert judge(nodes, log) == [], f"seed {SEED}"
    assert log.acknowledged > 10

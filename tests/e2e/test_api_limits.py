"""How much one token, and one user behind it, may ask for: 429 with Retry-After; others are not hindered."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lastgood.errors import TooManyRequests
from lastgood.surfaces.http.error_responses import retry_headers
from tests.e2e.api import TOOLS, Api, Given, Trace, run_path, said, user
from tests.e2e.command import AGENT, until
from tests.e2e.server import LiveServer
from tests.surfaces.in_process_server import make_tokens

#: What two tokens of one tenant have of a server.
Two = tuple[Api, Api]


@contextmanager
def limited(folder: Path, *options: str) -> Iterator[Iterator[Two]]:
    """Fresh tokens for whoever asks, so that no test hinders another. The agent `tools` can be held."""
    folder.mkdir(exist_ok=True)
    (folder / "tools.yaml").write_text(TOOLS.format(more=""))
    database = f"sqlite:///{folder / 'data' / 'lastgood.db'}"
    wanted = {f"token {number}": ("default", ("session", "chat")) for number in range(40)}
    tokens = asyncio.run(make_tokens(database, wanted)).values()
    agents = (AGENT, str(folder / "tools.yaml"))
    with LiveServer(folder, *agents, options=("--safety", "autonomous", *options)) as server:
        apis = (Api(server, token) for token in tokens)
        yield zip(apis, apis, strict=True)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Iterator[Two]]:
    options = ("--token-running", "2", "--user-running", "1")
    with limited(tmp_path_factory.mktemp("at-once"), *options) as found:
        yield found


@pytest.fixture
def at_once(pairs: Iterator[Two]) -> Two:
    """Two turns at once under one token, one for a user."""
    return next(pairs)


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    return Trace(tmp_path / "trace.txt")


def refused(given: Given) -> int:
    """In how many seconds to try again."""
    status, code = given.refusal
    assert status == 429, given.body
    assert code in ("rate_limited", "rate_limit_exceeded")  # the latter is OpenAI's word for it
    assert given.headers["x-should-retry"] == "true"
    seconds = int(given.headers["retry-after"])
    assert seconds >= 1
    return seconds


def hold(api: Api, trace: Trace, word: str, **more: Any) -> str:
    """A session in which a turn runs until it is released."""
    session = api.session("tools")
    api.begun(session, trace.hold(word), **more)
    trace.until_held(word)
    return session


@pytest.mark.parametrize(
    ("seconds", "received"), [(0.0, "1"), (0.2, "1"), (1.0, "1"), (1.01, "2"), (19.5, "20")]
)
def test_waiting_for_retry_after_is_enough(seconds: float, received: str) -> None:
    error = TooManyRequests()
    error.retry_after = seconds
    assert retry_headers(error)["retry-after"] == received


# -- how many in a minute -------------------------------------------------------------------


def test_beyond_its_rate_a_token_waits_and_others_do_not(tmp_path: Path) -> None:
    with limited(tmp_path / "data", "--token-rate", "3") as pairs:
        one, two = next(pairs)
        session = one.session()
        for _ in range(3):
            one.good(session, "hello")
        assert refused(one.turn(session, "too much")) <= 20
        assert refused(one.run(session, "too much")) <= 20
        assert refused(one.post("/v1/chat/completions", {"model": AGENT, "messages": said("x")}))
        assert one.brief(session)["turns"] == 3  # and what is no turn of a model goes on
        assert one.post(f"/api/sessions/{session}/messages", {"messages": said("x")}).status == 201
        two.good(session, "another token of the same tenant")


def test_a_user_beyond_its_rate_hinders_no_other_user(tmp_path: Path) -> None:
    """Not even by asking again and again: what it may not have is not taken from its token."""
    with limited(tmp_path / "data", "--token-rate", "6", "--user-rate", "2") as pairs:
        one, two = next(pairs)
        session = one.session()
        for _ in range(2):
            one.good(session, "hello", user="greedy")
        for _ in range(20):
            refused(one.turn(session, "more", user="greedy"))
        refused(one.turn(session, "more", h_x_user_id="greedy"))
        refused(two.turn(session, "by another token of its tenant", user="greedy"))
        for name in ("modest", "humble"):
            one.good(session, "hello", user=name)
            one.good(session, "hello", h_x_user_id=name)
        refused(one.turn(session, "now the token has had all", user="third"))


def test_a_request_that_begins_nothing_is_not_counted(tmp_path: Path) -> None:
    """Refused for another reason, or answered with what was done before under its key."""
    with limited(tmp_path / "data", "--token-rate", "2") as pairs:
        one, _ = next(pairs)
        session = one.session()
        for _ in range(5):
            assert one.turn("ses_nobody", "hello").refusal == (404, "session_not_found")
            assert one.turn(session, " ").refusal == (400, "invalid_request")
            assert one.turn(session, "x", agent="nobody").refusal == (404, "agent_not_found")
            assert one.turn(session, "x", h_if_match="turn_nobody").refusal == (412, "stale_head")
        first = one.turn(session, "hello", h_idempotency_key="k")
        for _ in range(5):
            again = one.turn(session, "hello", h_idempotency_key="k")
            assert again.headers["idempotent-replayed"] == "true"
            assert again.json == first.json
        one.good(session, "the second")
        refused(one.turn(session, "the third"))
        # What is known under a key is told to whoever has used up everything, too.
        assert one.turn(session, "hello", h_idempotency_key="k").json == first.json


def test_followups_are_turns_that_begin_later(tmp_path: Path) -> None:
    with limited(tmp_path / "data", "--token-rate", "2") as pairs:
        one, _ = next(pairs)
        session = one.session()
        path, body = f"/api/sessions/{session}/followup", {"messages": said("later")}
        assert one.post(path, body, idempotency_key="k").status == 202
        assert one.post(path, body, idempotency_key="k").json["duplicate"]
        assert one.post(path, body).status == 202
        refused(one.post(path, body))
        until(lambda: one.brief(session)["turns"] == 2)
        refused(one.turn(session, "nor now"))


# -- how many at once -----------------------------------------------------------------------


def test_beyond_its_number_a_token_waits_and_others_do_not(at_once: Two, trace: Trace) -> None:
    one, two = at_once
    hold(one, trace, "first")
    hold(one, trace, "second")
    third = one.session()
    assert refused(one.turn(third, "too much")) == 1
    assert refused(one.run(third, "too much")) == 1
    assert refused(one.post("/v1/chat/completions", {"model": AGENT, "messages": said("x")})) == 1
    assert one.brief(third)["turns"] == 0
    two.good(third, "another token of the same tenant")
    trace.release("first")
    until(lambda: one.turn(third, "hello").status == 200)
    trace.release("second")
    one.good(third, "hello")


def test_followups_wait_until_they_may_run(at_once: Two, trace: Trace) -> None:
    one, two = at_once
    hold(one, trace, "first")
    hold(one, trace, "second")
    third = one.session("tools")
    later = {"messages": said(trace.hold("later"))}
    assert one.post(f"/api/sessions/{third}/followup", later).status == 202
    fourth = two.session("tools")
    assert two.post(f"/api/sessions/{fourth}/followup", {"messages": said("hello")}).status == 202
    until(lambda: two.brief(fourth)["turns"] == 1)
    assert one.brief(third)["status"] == "idle"
    trace.release("first")
    trace.until_held("later")
    # It has the place now.
    assert refused(one.turn(one.session(), "too much")) == 1
    for word in ("second", "later"):
        trace.release(word)
    until(lambda: one.brief(third)["turns"] == 1)
    until(lambda: one.turn(one.session(), "hello").status == 200)


def test_a_user_beyond_its_number_hinders_no_other_user(at_once: Two, trace: Trace) -> None:
    one, _ = at_once
    hold(one, trace, "held", user="busy")
    session = one.session()
    for _ in range(5):
        refused(one.turn(session, "more", user="busy"))
    one.good(session, "hello", user="idle")
    trace.release("held")
    until(lambda: one.turn(session, "hello", user="busy").status == 200)


@pytest.mark.parametrize("how", ["commits", "fails", "is cancelled", "is deleted"])
def test_a_turn_that_has_ended_makes_room(at_once: Two, trace: Trace, how: str) -> None:
    """However it ended, and more often than there is room: nothing is left over."""
    one, _ = at_once
    for number in range(4):
        who, word = f"{how}-user", f"held{number}"
        session = one.session("tools")
        said_first = trace.hold(word) + ("\n!fail after" if how == "fails" else "")
        attempt = one.begun(session, said_first, user=who)["id"]
        trace.until_held(word)
        refused(one.turn(one.session(), "hello", user=who))
        if how == "is cancelled":
            assert one.post(f"/api/sessions/{session}/cancel").json["status"] == "cancelled"
        elif how == "is deleted":
            assert one.delete(f"/api/sessions/{session}").status == 200
        else:
            trace.release(word)
            ended = one.ended(session, attempt)
            assert ended["status"] == ("failed" if how == "fails" else "committed")
    until(lambda: one.turn(one.session(), "hello", user=f"{how}-user").status == 200)


def test_what_never_began_takes_no_room(at_once: Two) -> None:
    """Refused after it was counted, for every reason there is; and stateless requests that fail."""
    one, _ = at_once
    session = one.session()
    attempt = one.begun(session, "hello")["id"]
    one.ended(session, attempt)
    chat = "/v1/chat/completions"
    for _ in range(3):
        for given, status in (
            (one.turn("ses_nobody", "x", user="u"), 404),
            (one.turn(session, "", user="u"), 400),
            (one.turn(session, "x", user="u", agent="nobody"), 404),
            (one.turn(session, "x", user="u", model="nobody/knows"), 422),
            (one.turn(session, "x", user="u", h_if_match="turn_nobody"), 412),
            (one.post(f"/api/sessions/{session}/attempts/{attempt}/continue", x_user_id="u"), 409),
            (one.post(f"/api/sessions/{session}/attempts/nobody/continue", x_user_id="u"), 404),
            (one.turn(session, "!fail before", user="u"), 500),
            (one.post(chat, {"model": AGENT, "messages": said("!fail before"), "user": "u"}), 500),
            (one.post(chat, {"model": AGENT, "messages": said(" "), "user": "u"}), 400),
            (
                one.post(chat, {"model": AGENT, "messages": said("x"), "user": "u"}, x_conversation_id="c"),
                200,
            ),
            (one.turn(session, "hello", user="u"), 200),
            (one.run(session, "hello"), 200),
        ):
            assert given.status == status, given.body


def test_a_busy_session_takes_no_room(at_once: Two, trace: Trace) -> None:
    one, _ = at_once
    session = hold(one, trace, "held")
    for _ in range(5):
        assert one.turn(session, "hello").refusal == (409, "session_busy")
    one.good(one.session(), "hello")
    trace.release("held")


def test_a_repeat_with_its_key_attaches_to_the_running_turn(at_once: Two, trace: Trace) -> None:
    """However much runs: it begins nothing. And it is not counted twice."""
    one, _ = at_once
    session = one.session("tools")
    body = {"messages": said(trace.hold("keyed")), "user": "keyed"}
    begun = one.post(f"/api/sessions/{session}/turns", body, idempotency_key="joined")
    trace.until_held("keyed")
    for _ in range(3):
        again = one.post(f"/api/sessions/{session}/turns", body, idempotency_key="joined")
        assert (again.status, again.json["id"]) == (202, begun.json["id"])
    one.good(one.session(), "there is room for another", user="other")
    refused(one.turn(one.session(), "not for the same", user="keyed"))
    trace.release("keyed")
    one.until_idle(session)


def test_attaching_requests_are_not_counted(at_once: Two, trace: Trace) -> None:
    one, _ = at_once
    session = one.session("tools")
    path, body = f"/api/sessions/{session}/turns", {"messages": said(trace.hold("shared"))}
    begun = one.post(path, body, idempotency_key="shared")
    trace.until_held("shared")
    assert one.post(path, body, idempotency_key="shared").json["id"] == begun.json["id"]
    hold(one, trace, "second")  # there was room for one more, and still is
    refused(one.turn(one.session(), "a third"))
    trace.release("shared")
    trace.release("second")


def test_a_client_that_leaves_is_counted_until_its_turn_has_ended(at_once: Two, trace: Trace) -> None:
    one, _ = at_once
    session = one.session("tools")
    body = {"messages": [user(trace.hold("left"))], "user": "leaver"}
    with one.stream("POST", run_path(session, "tools"), body) as stream:
        stream.until("tool_call")
    trace.until_held("left")
    refused(one.turn(one.session(), "hello", user="leaver"))
    trace.release("left")
    until(lambda: one.turn(one.session(), "hello", user="leaver").status == 200)


def test_without_limits_no_request_waits(tmp_path: Path) -> None:
    with limited(tmp_path / "data") as pairs:
        one, _ = next(pairs)
        session = one.session()
        for _ in range(20):
            one.good(session, "hello", user="anybody")

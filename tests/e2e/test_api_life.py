"""The life of a session over HTTP: made, found, read, changed field by field, forked, moved, ended."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.api import TOOLS, Api, Trace, run_path, said, texts, while_it_is_down
from tests.e2e.command import AGENT, until
from tests.e2e.conftest import REMOTE, TEAM
from tests.e2e.fake_model import FakeModel, Gate, refuses, says
from tests.e2e.server import LiveServer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, fake: FakeModel) -> Path:
    folder = tmp_path_factory.mktemp("life")
    (folder / "remote.yaml").write_text(REMOTE.format(url=fake.url))
    (folder / "tools.yaml").write_text(TOOLS.format(more=""))
    (folder / "team.yaml").write_text(TEAM)
    return folder


def agents(folder: Path) -> list[str]:
    return [AGENT, *(str(folder / f"{name}.yaml") for name in ("remote", "tools", "team"))]


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[LiveServer]:
    with LiveServer(folder / "server", *agents(folder), options=("--safety", "autonomous")) as server:
        yield server


@pytest.fixture(scope="module")
def other(folder: Path) -> Iterator[Api]:
    """Another server, with sessions of its own."""
    with LiveServer(folder / "other", *agents(folder)) as server:
        yield Api(server)


@pytest.fixture(scope="module")
def api(server: LiveServer) -> Api:
    return Api(server)


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    return Trace(tmp_path / "trace")


def counted(server: LiveServer, table: str) -> int:
    return int(server.rows(f"SELECT count(*) FROM {table}")[0][0])


# -- made and found ------------------------------------------------------------------------


def test_a_session_is_made_as_it_was_requested(api: Api, tmp_path: Path) -> None:
    body = {
        "agent": "tools",
        "title": "  A  title ",
        "model": "builtin/scripted",
        "working_dir": str(tmp_path),
        "permissions": {"deny": ["shell"], "allow": ["note"]},
        "safety": "strict",
        "metadata": {"colour": "blue", "n": [1, {"deep": None}]},
    }
    made = api.post("/api/sessions", body)
    assert made.status == 200
    received = made.json
    assert (received["agent"], received["agent_key"], received["title"]) == ("tools", "tools", "A title")
    assert (received["model"], received["working_dir"]) == ("builtin/scripted", str(tmp_path.resolve()))
    assert received["permissions"] == {"allow": ["note"], "ask": [], "deny": ["shell"]}
    assert (received["safety_policy"], received["metadata"]) == ("strict", body["metadata"])
    assert (received["head"], received["turns"], received["status"], received["streaming"]) == (
        None,
        0,
        "idle",
        False,
    )
    assert (received["input_tokens"], received["output_tokens"], received["cost"], received["starred"]) == (
        0,
        0,
        0.0,
        False,
    )
    assert received["created_at"].endswith("Z")
    assert api.read(received["id"]) == received | {"messages": [], "num_messages": 0}
    assert api.brief(received["id"]) == received


def test_a_client_cannot_choose_the_id_nor_bring_messages(api: Api) -> None:
    body = {"id": "ses_mine", "agent": AGENT, "messages": said("hello"), "input_tokens": 7}
    made = api.post("/api/sessions", body).json
    assert made["id"] != "ses_mine"
    assert (made["turns"], made["input_tokens"]) == (0, 0)


def test_lists_are_newest_first_and_paged_without_gaps_or_repetitions(api: Api, word: str) -> None:
    made = [api.session(title=f"{word} number {number}") for number in range(7)]
    found: list[str] = []
    cursor = ""
    while True:
        page = api.ask("GET", f"/api/sessions?limit=3&q={word}{cursor}")
        found += [one["id"] for one in page.json]
        assert len(page.json) <= 3
        assert all("messages" not in one for one in page.json), "a list is metadata only"
        if "x-next-cursor" not in page.headers:
            break
        cursor = f"&cursor={page.headers['x-next-cursor']}"
    assert found == made[::-1]
    for bad in ("limit=0", "limit=201", "limit=x", "cursor=-1", "status=odd", "status=queued&limit=0"):
        assert api.ask("GET", f"/api/sessions?{bad}").refusal == (400, "invalid_request")


def test_lists_are_filtered_by_title_agent_and_status(api: Api, fake: FakeModel, word: str) -> None:
    gate = Gate()
    fake.on(word, says(gate, "yes"))
    plain = api.session(title=f"{word} Plain 100% _odd_")
    busy = api.session("remote", title=f"{word} busy")
    tools = api.session("tools", title=f"{word} tools")
    api.begun(busy, word)
    gate.until_reached()

    def found(query: str) -> list[str]:
        return [one["id"] for one in api.get(f"/api/sessions?q={word}{query}")]

    assert found("&agent=remote") == [busy]
    assert found("&agent=nobody") == []
    assert found("&status=running") == [busy]
    assert found("&status=idle") == [tools, plain]
    assert found("&status=waiting") == []
    assert found("&status=queued") == []
    assert found("+plain") == [plain]
    assert found("+plain+100%25+_odd") == [plain]
    assert found("%25") == [], "a wildcard is a character like any other"
    gate.open()
    api.until_idle(busy)


# -- read ---------------------------------------------------------------------------------


def test_turns_and_attempts_are_paged(api: Api) -> None:
    session = api.session()
    for number in range(5):
        api.good(session, f"turn {number}")
    api.turn(session, "!fail before")
    for what, total in (("turns", 5), ("attempts", 6)):
        found: list[Any] = []
        cursor = "0"
        while True:
            page = api.ask("GET", f"/api/sessions/{session}/{what}?limit=2&cursor={cursor}")
            found += page.json
            if "x-next-cursor" not in page.headers:
                break
            cursor = page.headers["x-next-cursor"]
        assert found == api.read(session, f"/{what}")
        assert len(found) == total
        refused = api.ask("GET", f"/api/sessions/{session}/{what}?limit=0")
        assert refused.refusal == (400, "invalid_request")
    turns = api.read(session, "/turns")
    assert [turn["seq"] for turn in turns] == [1, 2, 3, 4, 5]
    assert [turn["parent"] for turn in turns] == [None, *(turn["id"] for turn in turns[:-1])]
    failed = api.read(session, "/attempts")[-1]
    assert (failed["status"], failed["error"]["code"], failed["base"]) == (
        "failed",
        "model_error",
        turns[-1]["id"],
    )
    one = api.read(session, f"/attempts/{failed['id']}")
    assert one == failed | {"steps": [], "usage": {"input_tokens": 0, "output_tokens": 0, "cost": 0.0}}
    missing = api.ask("GET", f"/api/sessions/{session}/attempts/att_nobody")
    assert missing.refusal == (404, "attempt_not_found")


@pytest.mark.parametrize("agent", [AGENT, "tools"])
def test_the_shown_prompt_equals_the_logged_one(api: Api, trace: Trace, word: str, agent: str) -> None:
    """I1: also after a failed turn, an appended message, a reset and a summary."""
    session = api.session(agent)
    last = '!tool todo_add {"description": "x"}\n!think hm' if agent == "tools" else "!think hm"
    api.good(session, f"{word} one", f"{word} two")
    api.turn(session, f"{word} failed\n!fail during\n!say a b c")
    api.good(session, f"{word} three\n{last}\n!say three")
    api.post(f"/api/sessions/{session}/messages", {"message": {"role": "user", "content": "by the way"}})
    api.good(session, f"{word} four")
    api.post(f"/api/sessions/{session}/summaries", {"summary": "much was said", "first_kept_entry": 6})
    api.good(session, f"{word} five")
    api.post(f"/api/sessions/{session}/reset")
    api.good(session, f"{word} six")
    logged: dict[str, Any] = {}
    for line in api.server.prompts():
        if line.get("session") == session:
            logged[line["turn"]] = line
    turns = [turn for turn in api.read(session, "/turns") if turn["kind"] == "run"]
    assert len(turns) == 5
    for turn in turns:
        prompt = logged[turn["id"]]["prompt"]
        received = api.read(session, f"/turns/{turn['id']}/prompt")
        system = len(prompt) - len(received["messages"])
        assert [dict(one, reasoning=None) for one in received["messages"]] == [
            dict(one, reasoning=None) for one in prompt[system:]
        ]
        assert all(one["role"] == "system" for one in prompt[:system])
        assert (received["turn"], received["agent_digest"]) == (turn["id"], turn["agent_digest"])
    missing = api.ask("GET", f"/api/sessions/{session}/turns/turn_nobody/prompt")
    assert missing.refusal == (404, "turn_not_found")
    foreign = api.session()
    of_another = api.ask("GET", f"/api/sessions/{foreign}/turns/{turns[0]['id']}/prompt")
    assert of_another.refusal == (404, "turn_not_found")


def test_the_shown_prompt_of_a_trimmed_history_equals_the_sent_one(
    api: Api, fake: FakeModel, word: str
) -> None:
    """A summary stands at the beginning of what is left out, and is shown all the same."""
    script = fake.on(word, says("yes"))
    session = api.session("remote")
    api.post(f"/api/sessions/{session}/summaries", {"summary": "much"})
    for number in range(3):
        api.good(session, f"{word} {number}")
    script.then(refuses(400, "too long", code="context_length_exceeded"), says("shorter"))
    turn = api.good(session, f"{word} last")
    assert turn["decision"]["left_out"] > 0
    system, *sent = script.requests[-1]["messages"]
    received = api.read(session, f"/turns/{turn['id']}/prompt")
    summary, *others = texts(received["messages"])
    assert summary == ("system", "Summary of the conversation so far: much")
    assert summary[1] in system["content"], "it was sent with the agent's own instruction"
    assert others == texts(sent)
    assert received["left_out"] == turn["decision"]["left_out"]


# -- one field each --------------------------------------------------------------------------

PATCHES: list[tuple[str, str, Any, dict[str, Any]]] = [
    ("PATCH", "title", {"title": " New  one "}, {"title": "New one"}),
    ("PATCH", "starred", {"starred": True}, {"starred": True}),
    ("PATCH", "metadata", {"metadata": {"a": 1}}, {"metadata": {"a": 1}}),
    ("PATCH", "model", {"model": "builtin/scripted"}, {"model": "builtin/scripted"}),
    (
        "PATCH",
        "permissions",
        {"permissions": {"ask": ["x*"]}},
        {"permissions": {"allow": [], "ask": ["x*"], "deny": []}},
    ),
    ("PATCH", "safety-policy", {"safety_policy": "safer"}, {"safety_policy": "balanced"}),
    ("POST", "tools/toggle", None, {"safety_policy": "autonomous"}),
    ("POST", "rebind", {"agent": "team"}, {"agent": "team", "agent_key": "team"}),
]


@pytest.mark.parametrize(("method", "path", "body", "changed"), PATCHES, ids=[one[1] for one in PATCHES])
def test_a_patch_changes_its_field_and_leaves_all_others(
    api: Api, method: str, path: str, body: Any, changed: dict[str, Any], tmp_path: Path
) -> None:
    session = api.session(
        "tools",
        working_dir=str(tmp_path),
        metadata={"old": True},
        permissions={"deny": ["d"]},
        safety="strict",
        title="Old",
    )
    api.good(session, "hello")
    before, turns = api.read(session), api.read(session, "/turns")
    given = api.ask(method, f"/api/sessions/{session}/{path}", body)
    assert given.status == 200, given.body
    if path in ("permissions", "safety-policy", "tools/toggle"):
        changed |= {"rules": given.json["rules"]}
    assert given.json == {name: value for name, value in (before | changed).items() if "messages" not in name}
    assert api.read(session) == before | changed
    assert api.read(session, "/turns") == turns


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("title", {"title": " "}, 400),
        ("title", {}, 400),
        ("title", {"title": "x" * 201}, 400),
        ("starred", {"starred": "yes"}, 400),
        ("metadata", {"metadata": []}, 400),
        ("model", {"model": "nobody/knows"}, 422),
        ("permissions", {"permissions": {"deny": "x"}}, 400),
        ("safety-policy", {"safety_policy": "wild"}, 400),
    ],
)
def test_a_bad_patch_changes_nothing(api: Api, path: str, body: Any, status: int) -> None:
    session = api.session()
    before = api.read(session)
    assert api.patch(f"/api/sessions/{session}/{path}", body).status == status
    assert api.read(session) == before
    good = {"title": {"title": "x"}, "starred": {"starred": True}, "metadata": {"metadata": {}}}.get(path)
    if good is not None:
        assert api.patch(f"/api/sessions/ses_nobody/{path}", good).refusal == (404, "session_not_found")


def test_what_may_be_changed_while_a_turn_runs_and_what_may_not(api: Api, fake: FakeModel, word: str) -> None:
    gate = Gate()
    fake.on(word, says(gate, "yes"))
    session = api.session("remote", title="t")
    runs = api.begun(session, word)
    gate.until_reached()
    for method, path, body, _ in PATCHES:
        given = api.ask(method, f"/api/sessions/{session}/{path}", body)
        expected = 409 if path in ("model", "rebind") else 200
        assert given.status == expected, (path, given.body)
        if expected == 409:
            what = {"attempt": runs["id"], "turn": runs["turn"], "status": "running"}
            assert given.json["error"]["detail"] == what
    for path, plain in (
        ("reset", None),
        ("messages", {"message": {"content": "x"}}),
        ("summaries", {"summary": "x"}),
    ):
        refused = api.post(f"/api/sessions/{session}/{path}", plain)
        assert refused.refusal == (409, "session_busy"), path
    gate.open()
    read = api.until_idle(session)
    assert (read["title"], read["starred"], read["turns"]) == ("New one", True, 1)


# -- turns without a model ----------------------------------------------------------------------


def test_an_appended_message_is_a_turn_of_its_own_and_asks_no_model(api: Api, word: str) -> None:
    session = api.session()
    prompts = len(api.server.prompts())
    path = f"/api/sessions/{session}/messages"
    added = api.post(path, {"message": {"role": "assistant", "content": f"{word} I began"}}, x_user_id="ada")
    assert (added.status, added.json["status"], added.json["kind"]) == (201, "added", "append")
    assert added.json["user"] == "ada"
    many = api.post(path, {"messages": said("one", "two")}, idempotency_key=f"key-{word}")
    again = api.post(path, {"messages": said("one", "two")}, idempotency_key=f"key-{word}")
    assert many.json["id"] == again.json["id"]
    assert len(api.server.prompts()) == prompts
    api.good(session, f"{word} and?")
    assert [text for _, text in api.server.seen(word)[-1]] == [
        f"{word} I began",
        "one",
        "two",
        f"{word} and?",
    ]
    stale = api.post(path, {"message": {"content": "x"}}, if_match=many.json["id"])
    assert stale.refusal == (412, "stale_head")
    useless: list[Any] = [
        {},
        {"message": {"content": " "}},
        {"messages": []},
        {"message": {}, "messages": []},
    ]
    for bad in useless:
        assert api.post(path, bad).refusal == (400, "invalid_request")


def test_after_a_reset_prompts_start_over_and_nothing_is_deleted(api: Api, word: str) -> None:
    session = api.session()
    api.good(session, f"{word} before")
    given = api.post(f"/api/sessions/{session}/reset")
    assert (given.status, given.json["turns"]) == (200, 2)
    api.good(session, f"{word} after")
    assert api.server.seen(word)[-1] == [("user", f"{word} after")]
    assert [turn["kind"] for turn in api.read(session, "/turns")] == ["run", "reset", "run"]
    assert ("user", f"{word} before") in api.history(session)


def test_a_summary_replaces_earlier_messages_in_prompts(api: Api, word: str) -> None:
    session = api.session()
    for number in (1, 2, 3):
        api.good(session, f"{word} {number}")
    path = f"/api/sessions/{session}/summaries"
    given = api.post(path, {"summary": "they counted", "first_kept_entry": 4, "tokens": 9, "cost": 0.1})
    assert (given.status, given.json["status"]) == (201, "added")
    api.good(session, f"{word} 4")
    prompt = [one["prompt"] for one in api.server.prompts() if one.get("session") == session][-1]
    assert texts(prompt) == [
        ("system", "Summary of the conversation so far: they counted"),
        ("user", f"{word} 3"),
        ("assistant", f"You said: {word} 3"),
        ("user", f"{word} 4"),
    ]
    for bad in ({}, {"summary": ""}, {"summary": " "}, {"summary": "x", "first_kept_entry": -1}):
        assert api.post(path, bad).refusal == (400, "invalid_request")


# -- forks ---------------------------------------------------------------------------------------


def test_a_fork_continues_from_a_turn_and_copies_none(api: Api, server: LiveServer, word: str) -> None:
    session = api.session(title="Scenario", metadata={"m": 1}, permissions={"deny": ["x"]})
    first, second, third = (api.good(session, f"{word} {number}")["id"] for number in (1, 2, 3))
    before, rows = api.read(session), counted(server, "turns")
    fork = api.post(f"/api/sessions/{session}/fork", {"turn": second}).json
    assert counted(server, "turns") == rows, "a turn was copied"
    assert (fork["head"], fork["turns"], fork["title"]) == (second, 2, "Scenario (fork 1)")
    assert fork["forked_from"] == {"session": session, "turn": second}
    assert (fork["metadata"], fork["permissions"]["deny"]) == ({"m": 1}, ["x"])
    api.good(fork["id"], f"{word} other")
    assert [text for role, text in api.history(fork["id"]) if role == "user"] == [
        f"{word} 1",
        f"{word} 2",
        f"{word} other",
    ]
    assert api.server.seen(f"{word} other")[-1][:4] == api.history(session)[:4]
    assert api.read(session) == before, "the original has changed"
    assert api.post(f"/api/sessions/{session}/fork").json["head"] == third
    assert api.post(f"/api/sessions/{session}/fork").json["title"] == "Scenario (fork 3)"
    again = api.post(f"/api/sessions/{fork['id']}/fork", {"turn": first}).json
    assert (again["head"], again["title"]) == (first, "Scenario (fork 2)")
    assert api.history(again["id"]) == api.history(session)[:2]
    of_later = api.post(f"/api/sessions/{fork['id']}/fork", {"turn": third})
    assert of_later.refusal == (404, "turn_not_found"), "a fork does not reach what came after it"
    assert api.delete(f"/api/sessions/{session}").status == 200
    assert len(api.history(fork["id"])) == 6, "a fork outlives its origin"


def test_a_fork_before_a_message_of_the_user(api: Api, word: str) -> None:
    session = api.session(title="S")
    api.good(session, f"{word} 0", f"{word} 1")
    api.good(session, f"{word} 2")
    api.good(session, f"{word} 3")
    path = f"/api/sessions/{session}/fork"
    for index, left in ((0, 0), (2, 1), (3, 2)):
        assert api.post(path, {"user_message_index": index}).json["turns"] == left
    for bad in (1, 4):
        assert api.post(path, {"user_message_index": bad}).refusal == (400, "invalid_request")
    both = {"user_message_index": 0, "turn": "turn_x"}
    for plain in ({"user_message_index": -1}, {"user_message_index": "0"}, both):
        assert api.post(path, plain).refusal == (400, "invalid_request")
    assert api.post(path, {"turn": "turn_nobody"}).refusal == (404, "turn_not_found")
    assert api.post("/api/sessions/ses_nobody/fork").refusal == (404, "session_not_found")


def test_a_fork_of_a_session_that_runs_continues_from_its_head(api: Api, fake: FakeModel, word: str) -> None:
    gate = Gate()
    fake.on(word, says("yes"), says(gate, "late"))
    session = api.session("remote")
    api.good(session, f"{word} 1")
    api.begun(session, f"{word} 2")
    gate.until_reached()
    fork = api.post(f"/api/sessions/{session}/fork").json
    assert (fork["turns"], fork["status"]) == (1, "idle")
    gate.open()
    api.until_idle(session)
    assert api.brief(fork["id"])["turns"] == 1


# -- documents ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rich(api: Api, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A session with everything in it."""
    trace = Trace(tmp_path_factory.mktemp("rich") / "trace")
    session = api.session(
        "tools", title="Rich", metadata={"m": [1]}, permissions={"allow": ["a"], "deny": ["d"]}
    )
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}}
    parts = [{"type": "text", "text": "look: \u2603 \U0001f600"}, image]
    api.good(session, {"role": "user", "content": parts}, "!think hm\n!say seen", user="ada")
    api.good(session, f"{trace.note('x')}\n!say noted", model="builtin/scripted")
    api.turn(session, "!fail before")
    api.post(f"/api/sessions/{session}/messages", {"message": {"content": "appended"}})
    api.post(f"/api/sessions/{session}/reset")
    api.good(session, "after", agent="team", user="bob")
    api.patch(f"/api/sessions/{session}/starred", {"starred": True})
    return session


def bare(turn: dict[str, Any]) -> dict[str, Any]:
    """What is new in an imported turn is left out."""
    kept = {name: value for name, value in turn.items() if name not in ("id", "parent")}
    return kept | {"decision": {k: v for k, v in turn["decision"].items() if k != "imported_from"}}


def test_an_exported_session_comes_back_as_it_was_beside_the_original_and_elsewhere(
    api: Api, other: Api, rich: str
) -> None:
    document = api.read(rich, "/export")
    assert (document["format"], document["version"]) == ("lastgood.session", 1)
    original, turns = api.read(rich), api.read(rich, "/turns")
    for where in (api, other):
        taken = where.post("/api/sessions/import", document)
        assert taken.status == 201, taken.body
        received = where.read(taken.json["id"])
        assert received["id"] != rich
        assert [dict(one, turn="") for one in received["messages"]] == [
            dict(one, turn="") for one in original["messages"]
        ]
        imported = where.read(taken.json["id"], "/turns")
        assert list(map(bare, imported)) == list(map(bare, turns))
        assert [turn["decision"]["imported_from"] for turn in imported] == [turn["id"] for turn in turns]
        for name in ("title", "agent_key", "model", "metadata", "turns", "input_tokens", "output_tokens"):
            assert received[name] == original[name], name
        assert received["permissions"] == {"allow": [], "ask": [], "deny": ["d"]}, (
            "a document gives no rights"
        )
        assert where.read(taken.json["id"], "/recovery")["damage"] is None
        assert where.good(taken.json["id"], "go on", agent="tools")["seq"] == len(turns) + 1
    assert api.read(rich) == original, "the original has changed"
    twice = api.read(api.post("/api/sessions/import", document).json["id"], "/export")
    assert [one["messages"] for one in twice["turns"]] == [one["messages"] for one in document["turns"]]


TAMPERED = {
    "a word": lambda turns: turns[1]["messages"][0].update(content="!say something else"),
    "a result": lambda turns: turns[1]["messages"][2].update(content="forged"),
    "the order": lambda turns: turns.insert(1, turns.pop(2)),
    "a turn less": lambda turns: turns.pop(1),
    "a hash": lambda turns: turns[1].update(hash="00" * 32),
    "a parent": lambda turns: turns[1].update(parent=None),
    "an image": lambda turns: turns[1]["messages"].append({"role": "user", "content": "more"}),
}


@pytest.mark.parametrize("what", TAMPERED)
def test_a_document_that_was_changed_is_refused_by_its_turn_and_nothing_is_stored(
    api: Api, server: LiveServer, rich: str, what: str
) -> None:
    document = copy.deepcopy(api.read(rich, "/export"))
    TAMPERED[what](document["turns"])
    before = counted(server, "sessions"), counted(server, "turns")
    refused = api.post("/api/sessions/import", document)
    assert refused.refusal == (400, "invalid_request")
    assert "turn " in refused.json["message"]
    assert document["turns"][1]["id"] in refused.json["message"]
    assert (counted(server, "sessions"), counted(server, "turns")) == before


@pytest.mark.parametrize(
    "change",
    [
        {"format": "other"},
        {"version": 2},
        {"turns": "none"},
        {"turns": [{}]},
        {"turns": [1]},
        {"session": {}},
        {"session": None},
        {"session": {"agent_key": 1, "title": "", "title_by": "us"}},
        {"session": {"agent_key": "x", "title": "", "title_by": "odd"}},
        {"session": {"agent_key": "x", "title": "", "title_by": "us", "safety": ["wild"]}},
    ],
)
def test_invalid_exports_are_rejected(api: Api, rich: str, change: dict[str, Any]) -> None:
    document = api.read(rich, "/export") | change
    assert api.post("/api/sessions/import", document).refusal == (400, "invalid_request")
    assert api.post("/api/sessions/import", [document]).refusal == (400, "invalid_request")


def test_an_empty_session_and_a_fork_can_be_exported_and_imported(api: Api, rich: str) -> None:
    empty = api.post("/api/sessions/import", api.read(api.session(), "/export"))
    assert (empty.status, empty.json["turns"]) == (201, 0)
    fork = api.post(f"/api/sessions/{rich}/fork").json["id"]
    taken = api.post("/api/sessions/import", api.read(fork, "/export")).json["id"]
    assert api.history(taken) == api.history(rich)


# -- the end --------------------------------------------------------------------------------------------


def test_several_are_exported_or_deleted_at_once_and_the_unknown_are_named(api: Api) -> None:
    one, two = api.session(), api.session()
    api.good(one, "hello")
    ids = {"session_ids": [one, "ses_nobody", two, one]}
    exported = api.post("/api/sessions/batch/export", ids).json
    assert [document["session"]["id"] for document in exported["sessions"]] == [one, two]
    assert (exported["session_count"], exported["failed_ids"]) == (2, ["ses_nobody"])
    assert exported["sessions"][0] == api.read(one, "/export")
    deleted = api.post("/api/sessions/batch/delete", ids).json
    assert deleted == {"deleted_count": 2, "failed_count": 1, "failed_ids": ["ses_nobody"]}
    for session in (one, two):
        assert api.ask("GET", f"/api/sessions/{session}").refusal == (404, "session_not_found")
    for what in ("delete", "export"):
        assert api.post(f"/api/sessions/batch/{what}", {"session_ids": []}).refusal == (
            400,
            "invalid_request",
        )


def test_a_deleted_session_is_gone_for_every_call(api: Api) -> None:
    session = api.session()
    attempt = api.good(session, "hello")["attempt"]
    assert api.delete(f"/api/sessions/{session}").status == 200
    assert api.delete(f"/api/sessions/{session}").refusal == (404, "session_not_found")
    calls: list[tuple[str, str, Any]] = [
        *(("GET", f"/{what}", None) for what in ("turns", "attempts", "queue", "events", "export", "status")),
        *(("GET", f"/{what}", None) for what in ("snapshot", "recovery", "models", f"attempts/{attempt}")),
        ("POST", "/turns", {"messages": said("x")}),
        ("POST", "/steer", {"messages": said("x")}),
        ("POST", "/followup", {"messages": said("x")}),
        *(("POST", f"/{what}", None) for what in ("cancel", "fork", "reset", "tools/toggle")),
        ("POST", "/rebind", {"agent": AGENT}),
        ("POST", "/messages", {"message": {"content": "x"}}),
        ("POST", "/summaries", {"summary": "x"}),
        ("PATCH", "/model", {"model": None}),
        ("PATCH", "/tokens", {"input_tokens": 1, "output_tokens": 1}),
    ]
    for method, path, body in calls:
        given = api.ask(method, f"/api/sessions/{session}{path}", body)
        assert given.refusal == (404, "session_not_found"), (method, path)
    assert api.post(run_path(session), {"messages": said("x")}).refusal == (404, "session_not_found")


def test_unused_sessions_are_deleted_after_their_retention(
    folder: Path, fake: FakeModel, word: str, tmp_path: Path
) -> None:
    """`--retain`: starred ones stay, and those that run. What is parked waited for somebody in vain."""
    gate = Gate()
    fake.on(word, says(gate, "yes"))
    with LiveServer(tmp_path / "retaining", *agents(folder), options=("--retain", "1d")) as server:
        api = Api(server)
        old, young, starred, forked, parked = (api.session(title="t") for _ in range(5))
        for session in (old, young, starred, forked, parked):
            api.good(session, "hello")
        api.patch(f"/api/sessions/{starred}/starred", {"starred": True})
        fork = api.post(f"/api/sessions/{forked}/fork").json["id"]
        api.post(f"/api/sessions/{parked}/followup", {"messages": said("x\n!fail before")})
        until(lambda: "parked" in str(api.read(parked, "/queue")["items"]))
        busy = api.session("remote", title="t")
        api.begun(busy, word)
        gate.until_reached()
        with while_it_is_down(server) as database:
            ids = ", ".join(f"'{one}'" for one in (old, starred, forked, parked, busy))
            database.execute(
                f"UPDATE sessions SET updated_at = ? WHERE id IN ({ids})", (time.time() - 90_000,)
            )

        def left() -> set[str]:
            return {one["id"] for one in api.get("/api/sessions")}

        until(lambda: not left() & {old, forked, parked})
        assert left() == {young, starred, fork, busy}
        assert api.history(fork) == [("user", "hello"), ("assistant", "You said: hello")]
        gate.open()
        api.until_idle(busy)


# -- as docker-agent's clients ask ---------------------------------------------------------------------------


def test_the_smaller_calls_answer_as_their_clients_expect(api: Api, fake: FakeModel, word: str) -> None:
    gate = Gate()
    fake.on(word, says(gate, "yes"))
    session = api.session("remote", title="t")
    assert api.get("/api/ping") == {"status": "ok"}
    api.begun(session, word)
    gate.until_reached()
    status = api.read(session, "/status")
    assert status.items() >= {"id": session, "title": "t", "streaming": True, "agent": "remote"}.items()
    gate.open()
    api.until_idle(session)
    status = api.read(session, "/status")
    assert (status["streaming"], status["input_tokens"], status["output_tokens"]) == (False, 11, 7)
    snapshot = api.read(session, "/snapshot")
    assert snapshot == api.read(session)
    assert (snapshot["last_event_seq"] > 0, snapshot["cost"], snapshot["num_messages"]) == (True, 0.0, 2)
    models = api.read(session, "/models")
    assert models["current_model_ref"] == ""  # the session overrides nothing
    assert [one["ref"] for one in models["models"] if one["is_current"]] == ["fake"]
    received = api.patch(
        f"/api/sessions/{session}/tokens", {"input_tokens": 5, "output_tokens": 5, "cost": 1}
    )
    assert received.json == {"id": session, "input_tokens": 11, "output_tokens": 7, "cost": 0.0}
    bad = api.patch(f"/api/sessions/{session}/tokens", {"input_tokens": -1, "output_tokens": 5})
    assert bad.refusal == (400, "invalid_request")


def test_the_recovery_document_has_the_failed_attempts(api: Api) -> None:
    session = api.session()
    api.good(session, "one")
    api.turn(session, "!fail during\n!say a b")
    received = api.read(session, "/recovery")
    exported = api.read(session, "/export")
    assert exported.pop("branches_not_exported") == 0
    assert {name: received[name] for name in ("format", "version", "session", "turns")} == exported
    (failed,) = received["errors"]
    assert (failed["status"], failed["error"]["code"]) == ("failed", "model_error")
    assert received["damage"] is None


def test_recovery_names_the_turn_that_is_not_as_it_was_committed(api: Api, server: LiveServer) -> None:
    """I6."""
    session = api.session()
    first = api.good(session, "one")["id"]
    api.good(session, "two")
    forged = json.dumps([{"role": "user", "content": "forged"}]).encode()
    with while_it_is_down(server) as database:
        database.execute("UPDATE turns SET body = ? WHERE id = ?", (forged, first))
    evidence = api.read(session, "/recovery")
    assert first in evidence["damage"]
    exported = api.read(session, "/export")
    assert (exported["turns"], first in exported["damage"]) == ([], True)  # up to the damage
    refused = api.post("/api/sessions/import", exported | {"turns": evidence["turns"]})
    assert refused.refusal == (400, "invalid_request")
    assert first in refused.json["message"]

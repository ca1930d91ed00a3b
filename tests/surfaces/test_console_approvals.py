"""Questions on the console: what a person sees before they decide, and what their answer becomes."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.surfaces.asgi import Given
from tests.surfaces.in_process_server import AGENT, InProcessServer, open_inside
from tests.surfaces.test_console import (
    TOKENS,
    XSS,
    Visitor,
    answer_of,
    injected,
    inline,
    seen,
    shelly,
    shown,
    until,
)
from tests.surfaces.worker_calls import registered

pytestmark = pytest.mark.anyio

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "title": "City", "description": "Where the hotel is", "maxLength": 10},
        "nights": {"type": "integer", "minimum": 1},
        "price": {"type": "number"},
        "breakfast": {"type": "boolean"},
        "room": {"type": "string", "enum": ["single", "double"]},
        "stars": {"enum": [3, 4, 5]},
        "extras": {"type": "array", "items": {"type": "string", "enum": ["sauna", "garage"]}},
        "more": {"type": "object"},
    },
    "required": ["city", "breakfast"],
}


@pytest.fixture
async def inside(tmp_path: Path) -> AsyncIterator[InProcessServer]:
    async with open_inside(tmp_path, AGENT, asker(tmp_path), safety="balanced") as opened:
        yield opened


@pytest.fixture
async def visitor(inside: InProcessServer) -> Visitor:
    made = Visitor(inside)
    await made.get("/")
    return made


def asker(folder: Path) -> str:
    agent = {"model": AGENT, "toolsets": [{"type": "user_prompt"}, {"type": "shell"}]}
    (folder / "asker.yaml").write_text(yaml.safe_dump({"agents": {"root": agent}}))
    return str(folder / "asker.yaml")


async def asked(inside: InProcessServer, message: str, schema: Any = None, **arguments: Any) -> str:
    """A session whose turn waits for input."""
    session = await inside.session(agent="asker")
    call = {"message": message, **arguments} | ({"schema": schema} if schema else {})
    await inside.begun(session, f"!tool user_prompt {json.dumps(call)}\n!say done")
    await until(inside, session, "waiting")
    return session


async def answered(inside: InProcessServer, visitor: Visitor, session: str, **fields: str) -> Given:
    path = f"/sessions/{session}/approval"
    named = {name.replace("_", "."): value for name, value in fields.items()}
    return await visitor.post(path, answer_of(await visitor.get(path)) | named)


async def result_of(inside: InProcessServer, session: str) -> Any:
    await until(inside, session, "idle")
    (turn,) = await inside.good("GET", f"/api/sessions/{session}/turns")
    return json.loads(next(one["content"] for one in turn["messages"] if one["role"] == "tool"))


# -- questions for input ----------------------------------------------------------------------


async def test_a_question_for_input_shows_its_message_and_a_field_for_each_property(
    inside: InProcessServer, visitor: Visitor
) -> None:
    session = await asked(inside, "Which hotel?", SCHEMA, title="Booking")
    for path in (f"/sessions/{session}", f"/sessions/{session}/approval"):
        page = await visitor.get(path)
        text = page.body.decode()
        for word in ("Booking", "Which hotel?", "City", "Where the hotel is", "nights", "single", "sauna"):
            assert word in seen(page), (path, word)
        assert "May " not in text
        assert 'value="approve"' not in text
        assert [f'name="content.{place}"' in text for place in range(6)] == [True] * 6
        assert text.count("required</span>") == 2
        assert all(f'value="{word}"' in text for word in ("accept", "decline", "cancel"))
    for path in ("/", "/approvals"):
        listed = seen(await visitor.get(path))
        assert "Which hotel?" in listed
        assert '"schema"' not in listed
    assert "1 question waiting" in seen(await visitor.get("/"))


async def test_the_form_of_a_question_becomes_typed_content(
    inside: InProcessServer, visitor: Visitor
) -> None:
    session = await asked(inside, "Which hotel?", SCHEMA)
    given = await answered(
        inside,
        visitor,
        session,
        answer="accept",
        content_0="Rome",
        content_1=" 3 ",
        content_2="99.5",
        content_3="1",
        content_4="1",
        content_5="0",
        content_6_1="1",
        content_7='{"pets": 2}',
    )
    assert given.status == 303, given.body
    assert await result_of(inside, session) == {
        "action": "accept",
        "content": {
            "city": "Rome",
            "nights": 3,
            "price": 99.5,
            "breakfast": False,
            "room": "double",
            "stars": 3,
            "extras": ["garage"],
            "more": {"pets": 2},
        },
    }


async def test_empty_optional_fields_are_left_out(inside: InProcessServer, visitor: Visitor) -> None:
    session = await asked(inside, "Which hotel?", SCHEMA)
    empty = {f"content_{place}": "" for place in (1, 2, 4, 5, 7)}
    assert (
        await answered(inside, visitor, session, answer="accept", content_0="Rome", content_3="0", **empty)
    ).status == 303
    content = (await result_of(inside, session))["content"]
    assert content == {"city": "Rome", "breakfast": True}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({}, "`City` is required"),
        ({"content_0": "  "}, "`City` is required"),
        ({"content_0": "Rome"}, "`breakfast` is required"),
        ({"content_1": "2.5"}, "`nights` must be a whole number, such as 3"),
        ({"content_1": "1_000"}, "`nights` must be a whole number"),
        ({"content_2": "cheap"}, "`price` must be a number"),
        ({"content_2": "1e999"}, "`price` must be a number"),
        ({"content_2": "nan"}, "`price` must be a number"),
        ({"content_4": "7"}, "`room` must be one of the choices"),
        ({"content_4": "-1"}, "`room` must be one of the choices"),
        ({"content_7": "{"}, "`more` must be JSON"),
        ({"content_7": "NaN"}, "`more` must be JSON"),
        ({"content_7": "[1]"}, "`content.more` must be of type object"),
        ({"content_1": "0"}, "`content.nights` must be at least 1"),
        ({"content_0": "Constantinople", "content_3": "0"}, "`content.city` must be at most 10 characters"),
    ],
)
async def test_an_invalid_answer_is_rejected_and_the_question_stays(
    inside: InProcessServer, visitor: Visitor, fields: Mapping[str, str], why: str
) -> None:
    session = await asked(inside, "Which hotel?", SCHEMA)
    full = {"content_0": "Rome", "content_3": "0"} if set(fields) - {"content_0"} else {}
    given = await answered(inside, visitor, session, answer="accept", **{**full, **fields})
    assert given.status == 400
    assert why in seen(given)
    assert len((await visitor.get(f"/sessions/{session}.json")).json["questions"]) == 1


@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_question_for_input_is_declined_or_cancelled_without_content(
    inside: InProcessServer, visitor: Visitor, action: str
) -> None:
    session = await asked(inside, "Which hotel?", SCHEMA)
    assert (await answered(inside, visitor, session, answer="approve")).status == 400
    assert (await answered(inside, visitor, session, answer=action, content_1="no number")).status == 303
    await until(inside, session, "idle")
    assert f'"action":"{action}"' in str(
        (await inside.good("GET", f"/api/sessions/{session}/turns"))[0]["messages"]
    ).replace('\\"', '"')


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"type": ["null", "integer"]}}},
        {"properties": {"a": {"type": 7, "enum": "x", "required": 3}, "b": True}, "required": "a"},
        {"properties": {"a": {"oneOf": [{"const": 1, "title": "One"}]}, "b": {"anyOf": [3]}}},
        {"properties": {"a": {"type": "array", "items": {"type": "array"}, "default": [1]}}},
        {"properties": ["a"]},
        {"properties": {"a": {"type": "string", "minLength": "x", "default": "a\u202eb", "title": 4}}},
    ],
)
async def test_a_schema_that_a_model_got_wrong_still_makes_a_form(
    inside: InProcessServer, visitor: Visitor, schema: Any
) -> None:
    session = await asked(inside, "?", {"type": "object", **schema})
    page = await visitor.get(f"/sessions/{session}")
    assert page.status == 200
    assert "\u202e" not in page.body.decode()
    assert (await answered(inside, visitor, session, answer="accept")).status == 303
    assert (await result_of(inside, session))["action"] == "accept"


@pytest.mark.parametrize("text", XSS)
async def test_text_of_a_question_never_becomes_markup(
    inside: InProcessServer, visitor: Visitor, text: str
) -> None:
    """Message, title, names, labels, descriptions, choices and defaults are a model's or a server's."""
    choice = {"type": "string", "enum": ["a"], "enumNames": [f"{text} choice"]}
    named = {"type": "string", "title": f"{text} label", "description": f"{text} hint", "default": text}
    schema = {"type": "object", "properties": {text: {"type": "number"}, "b": named, "c": choice}}
    session = await asked(inside, f"{text} message", schema, title=f"{text} title")
    for path in ("/", "/approvals", f"/sessions/{session}", f"/sessions/{session}/approval"):
        page = await visitor.get(path)
        assert inline(page) == [], path
        assert injected(page) == [], path
        assert shown(f"{text} message")[:40] in shown(seen(page)), path
    page = await visitor.get(f"/sessions/{session}")
    for part in (f"{text} title", f"{text} label", f"{text} hint", f"{text} choice"):
        assert shown(part) in shown(seen(page)), part
    refused = await answered(inside, visitor, session, answer="accept", content_0="no number")
    assert (refused.status, inline(refused), injected(refused)) == (400, [], [])
    await answered(inside, visitor, session, answer="decline")
    after = await visitor.get(f"/sessions/{session}/approval")
    assert (inline(after), injected(after)) == ([], [])


# -- facts of an approval ---------------------------------------------------------------------


async def test_an_approval_names_the_machine_of_the_run_that_asks(tmp_path: Path) -> None:
    """The session may have been moved since: its next run is elsewhere, and this command is not."""
    async with open_inside(tmp_path, tokens=TOKENS) as inside:
        laptop = await registered(inside, "all", "laptop")
        desktop = await registered(inside, "all", "desktop")
        new = {"agent": AGENT, "scope": {"kind": "issue", "id": "1"}, "prompt": "fix"}
        task = await inside.good("POST", "/api/tasks", {**new, "runtime": laptop.runtime}, "all")
        claim = await laptop.claim()
        await laptop.report(claim, "start")
        await laptop.report(claim, "session", native_session="n1", work_dir="/home/ann/website")
        question = {"id": "q1", "tool": "Ba\u3164sh", "input": {"command": "make"}, "title": "de\u2028ploy"}
        await laptop.report(claim, "ask", question=question)
        session = task["session_id"]
        path = f"/api/sessions/{session}/runtime"
        await inside.good("PATCH", path, {"runtime_id": desktop.runtime}, "all")
        visitor = await Visitor(inside).login("all")
        for page in (f"/sessions/{session}", f"/sessions/{session}/approval"):
            (asks,) = (await visitor.get(f"{page}.json")).json["questions"]
            assert (asks["machine"], asks["folder"]) == ("laptop (laptop)", "/home/ann/website")
            assert (asks["requester"], asks["agent"]) == ("ann", AGENT)
            assert (asks["tool"], asks["reason"]) == ("Ba\\u3164sh", "de\\u2028ploy")
            assert "desktop" not in seen(await visitor.get(page))


async def test_an_approval_names_the_agent_as_it_is_served(
    inside: InProcessServer, visitor: Visitor, tmp_path: Path
) -> None:
    folder = tmp_path / "a\u2800b\u202e"
    folder.mkdir()
    session = await inside.session(agent="asker", working_dir=str(folder))
    await inside.begun(session, '!tool shell {"cmd": "true"}\n!say done')
    await until(inside, session, "waiting")
    (asks,) = (await visitor.get(f"/sessions/{session}.json")).json["questions"]
    assert asks["agent"] == "asker"
    assert asks["folder"] == f"{tmp_path}/a\\u2800b\\u202e"


async def test_a_question_answered_by_two_people_at_once_counts_once(
    inside: InProcessServer, visitor: Visitor
) -> None:
    session = await asked(inside, "Which city?")
    path = f"/sessions/{session}/approval"
    fields = answer_of(await visitor.get(path)) | {"answer": "accept", "content.0": "Rome"}
    both = await asyncio.gather(visitor.post(path, fields), visitor.post(path, fields))
    assert sorted(one.status for one in both) == [303, 409]


# -- authors ----------------------------------------------------------------------------------


async def test_inputs_name_their_user_else_the_token_they_came_with(tmp_path: Path) -> None:
    tokens = {**TOKENS, "nightly <b>job</b>": ("a", ("session",))}
    async with open_inside(tmp_path, AGENT, shelly(tmp_path), tokens=tokens, safety="balanced") as inside:
        session = await inside.session("all", agent="shelly")
        await inside.turn(session, "by a token of a user", "all")
        await inside.turn(session, "by a token alone", "nightly <b>job</b>")
        named = {"messages": [{"content": "for an end user"}], "user": "omar", "wait": True}
        await inside.good("POST", f"/api/sessions/{session}/turns", named, "nightly <b>job</b>")
        failed = {"messages": [{"content": "!fail before"}], "wait": True}
        await inside.ask("POST", f"/api/sessions/{session}/turns", failed, "nightly <b>job</b>")
        await inside.begun(session, '!tool shell {"cmd": "true"}\n!say done', "nightly <b>job</b>")
        await until(inside, session, "waiting", "all")
        later = {"messages": [{"content": "and then this"}]}
        await inside.good("POST", f"/api/sessions/{session}/followup", later, "nightly <b>job</b>")
        visitor = await Visitor(inside).login("all")
        page = await visitor.get(f"/sessions/{session}")
        data = (await visitor.get(f"/sessions/{session}.json")).json
        token = "nightly <b>job</b> (token)"
        assert [turn["author"] for turn in data["turns"]] == ["ann", token, "omar"]
        assert [turn["author"] for turn in data["failed"]] == [token, token]
        assert [entry["author"] for entry in data["queue"]] == [token]
        assert [asks["requester"] for asks in data["questions"]] == [token]
        assert seen(page).count(token) == 4
        assert "<b>job" not in page.body.decode()
        timeline = await visitor.get(f"/sessions/{session}/turns/{data['turns'][1]['id']}")
        assert f"asked by {token}" in seen(timeline)


async def test_without_tokens_there_is_no_author_to_name(inside: InProcessServer, visitor: Visitor) -> None:
    session = await inside.session()
    await inside.turn(session)
    assert [one["author"] for one in (await visitor.get(f"/sessions/{session}.json")).json["turns"]] == [""]


async def test_the_list_of_approvals_names_machine_directory_and_requester(tmp_path: Path) -> None:
    async with open_inside(tmp_path, asker(tmp_path), safety="balanced", working_dir_root=tmp_path) as inside:
        session = await inside.session(agent="asker", working_dir=str(tmp_path))
        body = {"messages": [{"content": '!tool shell {"cmd": "make"}\n!say done'}], "user": "mira"}
        await inside.good("POST", f"/api/sessions/{session}/turns", body)
        await until(inside, session, "waiting")
        visitor = Visitor(inside)
        (waiting,) = (await visitor.get("/approvals.json")).json["waiting"]
        (question,) = waiting["questions"]
        named = (question["machine"], question["folder"], question["requester"])
        assert named == ("this server", str(tmp_path), "mira")
        page = seen(await visitor.get("/approvals"))
        for fact in ("Machine", "this server", "Directory", "Requested by", "mira", "Expires"):
            assert fact in page, fact

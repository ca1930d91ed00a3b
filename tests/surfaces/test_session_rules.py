"""An operator's rules hold in every session made from theirs, and a weaker token cannot remove them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.surfaces.in_process_server import InProcessServer, open_inside

pytestmark = pytest.mark.anyio

AGENT = """
agents:
  root:
    model: builtin/scripted
    toolsets: [{type: shell}, {type: think}]
"""
TOKENS = {
    "admin": ("default", ("admin",)),
    "approve": ("default", ("session", "approve")),
    "session": ("default", ("session",)),
    "chat": ("default", ("chat",)),
}
SETTERS = ("session", "approve", "admin")  # the weakest first
NAME = "chat-1"


@pytest.fixture
async def inside(tmp_path: Path) -> AsyncIterator[InProcessServer]:
    (tmp_path / "ops.yaml").write_text(AGENT)
    async with open_inside(
        tmp_path, str(tmp_path / "ops.yaml"), tokens=TOKENS, safety="autonomous"
    ) as opened:
        yield opened


def runs(effect: Path) -> str:
    """What a user says so that the agent runs a command that leaves a file."""
    return f"!tool shell {json.dumps({'cmd': f'touch {effect}'})}\n!say done"


async def chat(inside: InProcessServer, *texts: str, mode: str = "append") -> Any:
    """The user's texts, with the answers in between as this client has them."""
    messages = [{"role": "user", "content": texts[0]}]
    for answer, text in zip(texts[1::2], texts[2::2], strict=True):
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": text}]
    given = await inside.ask(
        "POST",
        "/v1/chat/completions",
        {"model": "ops", "messages": messages},
        "chat",
        x_conversation_id=NAME,
        x_conversation_mode=mode,
    )
    assert given.status == 200, given.body
    return given.json["choices"][0]["message"]["content"]


async def conversation(inside: InProcessServer) -> str:
    """The session that has the name now."""
    listed = await inside.good("GET", "/api/sessions", token="admin")
    (found,) = [session["id"] for session in listed if session.get("conversation") == NAME]
    return str(found)


async def deny(inside: InProcessServer, session: str, token: str = "admin", rule: str = "shell") -> Any:
    body = {"permissions": {"deny": [rule]}}
    return await inside.good("PATCH", f"/api/sessions/{session}/permissions", body, token)


async def is_denied(inside: InProcessServer, session: str, effect: Path) -> bool:
    turn = await inside.turn(session, runs(effect), "session")
    (result,) = [one["content"] for one in turn["messages"] if one["role"] == "tool"]
    return "the rule 'shell' denies it" in result


# -- derived sessions --------------------------------------------------------------------


async def test_an_operators_deny_holds_after_message_1_is_edited(
    inside: InProcessServer, tmp_path: Path
) -> None:
    effect = tmp_path / "effect"
    await chat(inside, "hello")
    await deny(inside, await conversation(inside))
    await chat(inside, runs(effect), mode="reconcile")
    assert not effect.exists(), "the command ran although an admin denied it"
    received = await inside.good("GET", f"/api/sessions/{await conversation(inside)}", token="admin")
    assert received["permissions"]["deny"] == ["shell"]
    assert received["messages"][0]["content"] == runs(effect)


async def test_an_operators_deny_holds_after_a_later_message_is_edited(
    inside: InProcessServer, tmp_path: Path
) -> None:
    effect = tmp_path / "effect"
    first = await chat(inside, "hello")
    await chat(inside, "hello", first, "and more")
    await deny(inside, await conversation(inside))
    await chat(inside, "hello", first, runs(effect), mode="reconcile")
    assert not effect.exists(), "the command ran although an admin denied it"


async def test_an_operators_deny_holds_when_an_answer_is_regenerated(
    inside: InProcessServer, tmp_path: Path
) -> None:
    effect = tmp_path / "effect"
    await chat(inside, runs(effect))
    assert effect.exists()
    effect.unlink()
    await deny(inside, await conversation(inside))
    await chat(inside, runs(effect), mode="reconcile")
    assert not effect.exists(), "the command ran although an admin denied it"


@pytest.mark.parametrize(
    "body", [{}, {"user_message_index": 0}, {"user_message_index": 1}, {"turn": "first"}]
)
async def test_an_operators_rules_hold_in_a_fork_made_by_anybody(
    inside: InProcessServer, tmp_path: Path, body: dict[str, Any]
) -> None:
    session = await inside.session("session", agent="ops")
    first = await inside.turn(session, "hello", "session")
    await inside.turn(session, "and more", "session")
    await deny(inside, session)
    strict = {"safety_policy": "strict"}
    await inside.good("PATCH", f"/api/sessions/{session}/safety-policy", strict, "approve")
    at = {"turn": first["id"]} if "turn" in body else body
    fork = await inside.good("POST", f"/api/sessions/{session}/fork", at, "session")
    source = await inside.good("GET", f"/api/sessions/{session}", token="session")
    assert fork["rules"] == source["rules"]
    assert [layer["set_by"] for layer in fork["rules"]] == ["admin", "approve"]
    again = await inside.good("POST", f"/api/sessions/{fork['id']}/fork", {}, "session")
    assert again["rules"] == source["rules"]
    refused = await inside.ask(
        "PATCH", f"/api/sessions/{fork['id']}/permissions", {"permissions": {"deny": []}}, "session"
    )
    assert (refused.status, refused.code) == (403, "forbidden"), "a fork made the admin's rule the forker's"
    assert await is_denied(inside, fork["id"], tmp_path / "effect")


async def test_the_rules_of_an_import_are_its_importers(inside: InProcessServer) -> None:
    session = await inside.session("admin", agent="ops")
    body = {"permissions": {"deny": ["shell"], "ask": ["fetch"], "allow": ["think"]}}
    await inside.good("PATCH", f"/api/sessions/{session}/permissions", body, "admin")
    for mode, token in (("restricted", "admin"), ("strict", "session")):
        path = f"/api/sessions/{session}/safety-policy"
        await inside.good("PATCH", path, {"safety_policy": mode}, token)
    document = await inside.good("GET", f"/api/sessions/{session}/export", token="session")
    assert document["session"]["safety"] == ["strict", "restricted"]
    copy = await inside.good("POST", "/api/sessions/import", document, "session")
    assert copy["permissions"] == {"allow": [], "ask": ["fetch"], "deny": ["shell"]}
    assert {layer["set_by"] for layer in copy["rules"]} == {"session"}
    assert [layer.get("safety_policy") for layer in copy["rules"]] == [None, "strict", "restricted"]


# -- setter x changer x change -----------------------------------------------------------

#: The change, what it is called with, and whether a weaker scope may make it.
Change = tuple[str, str, Any, bool]
CHANGES: dict[str, Change] = {
    "add a deny": ("PATCH", "permissions", {"permissions": {"deny": ["shell", "other"]}}, True),
    "add an ask": ("PATCH", "permissions", {"permissions": {"ask": ["think", "other"]}}, True),
    "remove the deny": ("PATCH", "permissions", {"permissions": {"deny": []}}, False),
    "remove the ask": ("PATCH", "permissions", {"permissions": {"ask": []}}, False),
    "allow what is denied": ("PATCH", "permissions", {"permissions": {"allow": ["shell"]}}, False),
    "allow what is asked about": ("PATCH", "permissions", {"permissions": {"allow": ["think"]}}, False),
    "clear": ("PATCH", "permissions", {"permissions": {}}, True),
    "lower the mode": ("PATCH", "safety-policy", {"safety_policy": "strict"}, True),
    "raise the mode": ("PATCH", "safety-policy", {"safety_policy": "restricted"}, False),
    "clear the mode": ("PATCH", "safety-policy", {"safety_policy": None}, True),
    "toggle": ("POST", "tools/toggle", None, False),
}

#: What the refusal of a change names.
NAMED = {
    "remove the deny": "shell",
    "remove the ask": "think",
    "allow what is denied": "shell",
    "allow what is asked about": "think",
    "raise the mode": "balanced",
    "toggle": "balanced",
}


@pytest.mark.parametrize("setter", SETTERS)
async def test_a_weaker_token_narrows_and_never_loosens(
    inside: InProcessServer, tmp_path: Path, setter: str
) -> None:
    rules = {"permissions": {"deny": ["shell"], "ask": ["think"]}, "safety": "balanced"}
    for changer in SETTERS:
        for change, (method, path, body, may_be_weaker) in CHANGES.items():
            session = await inside.session(setter, agent="ops", **rules)
            before = await inside.good("GET", f"/api/sessions/{session}", token=setter)
            given = await inside.ask(method, f"/api/sessions/{session}/{path}", body, changer)
            after = await inside.good("GET", f"/api/sessions/{session}", token=setter)
            case = (setter, changer, change)
            is_weaker = SETTERS.index(changer) < SETTERS.index(setter)
            grants = "allow" in str(body) and changer == "session"
            if (is_weaker and not may_be_weaker) or grants:
                assert (given.status, given.code) == (403, "forbidden"), case
                assert f"`{NAMED[change]}`" in given.json["message"], case
                assert after == before, case
                continue
            assert given.status == 200, (case, given.body)
            assert given.json["updated_at"] == after["updated_at"]
            if is_weaker:
                assert set(after["permissions"]["deny"]) >= {"shell"}, case
                assert before["rules"][0] in after["rules"], case
                assert await is_denied(inside, session, tmp_path / "effect"), case


async def test_the_rules_of_all_setters_together_have_a_limit(inside: InProcessServer) -> None:
    session = await inside.session("admin", agent="ops", permissions={"deny": ["x"] + ["y*"] * 149})
    body = {"permissions": {"ask": [f"tool-{number}" for number in range(199)]}}
    assert (await inside.ask("PATCH", f"/api/sessions/{session}/permissions", body, "session")).status == 400
    body["permissions"]["ask"].pop()
    await inside.good("PATCH", f"/api/sessions/{session}/permissions", body, "session")


async def test_an_answer_says_what_holds_and_who_set_it(inside: InProcessServer) -> None:
    session = await inside.session("session", agent="ops", permissions={"deny": ["think"]}, safety="balanced")
    received = await deny(inside, session)
    assert received["permissions"]["deny"] == ["shell"], (
        "a stronger scope says what the weaker ones' rules are"
    )
    body = {"permissions": {"deny": ["shell", "think"]}}
    received = await inside.good("PATCH", f"/api/sessions/{session}/permissions", body, "session")
    assert received["permissions"] == {"allow": [], "ask": [], "deny": ["shell", "think"]}
    assert received["safety_policy"] == "balanced"
    assert [(layer["set_by"], layer.get("permissions", {}).get("deny")) for layer in received["rules"]] == [
        ("admin", ["shell"]),
        ("session", ["think"]),
        ("session", None),
    ]
    assert all(layer["token"].startswith("tok_") for layer in received["rules"])

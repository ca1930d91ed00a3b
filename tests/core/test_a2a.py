"""What an agent card offers, what its agent is sent, and what its answers mean."""

from typing import Any

import pytest

from lastgood.core.a2a import (
    MOST_CHARACTERS,
    MOST_SKILLS,
    Answered,
    Failed,
    RemoteSkill,
    Works,
    card_url,
    instruction_of,
    message_request,
    read_answer,
    read_card,
    task_request,
)

OLD = {"name": "Player", "description": "Plays.", "url": "https://a.example/rpc"}
NEW_INTERFACE = {"url": "https://a.example/v1", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("https://a.example", "https://a.example/.well-known/agent-card.json"),
        ("https://a.example/team/", "https://a.example/team/.well-known/agent-card.json"),
        ("https://a.example/card.json?x=1", "https://a.example/card.json?x=1"),
    ],
)
def test_a_card_is_at_its_usual_place_or_where_the_file_says(address: str, url: str) -> None:
    assert card_url(address) == url


@pytest.mark.parametrize(
    ("card", "url", "is_old"),
    [
        (OLD, "https://a.example/rpc", True),
        ({**OLD, "preferredTransport": "JSONRPC"}, "https://a.example/rpc", True),
        ({"name": "x", "supportedInterfaces": [NEW_INTERFACE]}, "https://a.example/v1", False),
        ({**OLD, "supportedInterfaces": [None, NEW_INTERFACE]}, "https://a.example/v1", False),
        (
            {**OLD, "supportedInterfaces": [{**NEW_INTERFACE, "protocolVersion": "0.3"}]},
            "https://a.example/v1",
            True,
        ),
        (
            {
                **OLD,
                "preferredTransport": "GRPC",
                "additionalInterfaces": [{"transport": "JSONRPC", "url": "https://a.example/json"}],
            },
            "https://a.example/json",
            True,
        ),
    ],
)
def test_the_newest_json_rpc_interface_is_used(card: dict[str, Any], url: str, is_old: bool) -> None:
    agent = read_card(card, "")
    assert (agent.url, agent.is_old) == (url, is_old)


@pytest.mark.parametrize(
    ("card", "why"),
    [
        ([], "not an agent card"),
        ({"url": "https://a.example"}, "not an agent card"),
        ({"name": "x"}, "no JSON-RPC interface"),
        ({**OLD, "preferredTransport": "GRPC"}, "no JSON-RPC interface"),
        (
            {"name": "x", "additionalInterfaces": [{"transport": "GRPC", "url": "https://a.example"}]},
            "no JSON-RPC interface",
        ),
        ({"name": "x", "supportedInterfaces": [{**NEW_INTERFACE, "protocolBinding": "GRPC"}]}, "no JSON-RPC"),
        ({"name": "x", "supportedInterfaces": "none"}, "no JSON-RPC"),
    ],
)
def test_what_is_no_card(card: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_card(card, "")


def test_each_skill_is_a_tool_and_an_agent_without_skills_is_one() -> None:
    skills = [
        {"id": "Make-Move!", "name": "Move", "description": "Makes a move."},
        {"name": "Über uns"},
        "none",
        {"id": "!!!"},
        {"id": "x" * 100},
    ]
    names = [skill.tool for skill in read_card({**OLD, "skills": skills}, "Blue").skills]
    assert names == ["blue_make_move", "blue_ber_uns", "blue", f"blue_{'x' * 59}"]
    assert read_card({**OLD, "skills": skills}, "").skills[2].tool == "agent"
    assert read_card(OLD, "").skills == (
        RemoteSkill("player", "Sends a message to the agent Player. Plays."),
    )
    assert instruction_of(read_card(OLD, "")) == "Player is an agent of another server. Plays."


def test_a_card_has_a_bounded_share_of_the_prompt() -> None:
    skills = [{"id": str(number), "description": "x" * 10_000} for number in range(1000)]
    agent = read_card({**OLD, "description": "y" * 10_000, "skills": skills}, "")
    assert len(agent.skills) == MOST_SKILLS
    assert len(agent.about) == MOST_CHARACTERS
    assert all(len(skill.about) < MOST_CHARACTERS + 100 for skill in agent.skills)


def test_both_versions_have_names_of_their_own() -> None:
    old, new = read_card(OLD, ""), read_card({"name": "x", "supportedInterfaces": [NEW_INTERFACE]}, "")
    sent = message_request(old, "hi", "k")
    assert (sent["method"], sent["id"], sent["params"]["configuration"]) == (
        "message/send",
        "k",
        {"blocking": True},
    )
    message = {"messageId": "k", "kind": "message", "role": "user", "parts": [{"kind": "text", "text": "hi"}]}
    assert sent["params"]["message"] == message
    assert message_request(new, "hi", "k") == {
        "jsonrpc": "2.0",
        "id": "k",
        "method": "SendMessage",
        "params": {"message": {"messageId": "k", "role": "ROLE_USER", "parts": [{"text": "hi"}]}},
    }
    assert [task_request(one, "t", "k")["method"] for one in (old, new)] == ["tasks/get", "GetTask"]
    assert task_request(new, "t", "k")["params"] == {"id": "t"}


def task(state: str, **more: Any) -> dict[str, Any]:
    said = more.pop("said", None)
    message = {"message": {"parts": [{"text": said}]}} if said else {}
    return {"kind": "task", "id": "t1", "status": {"state": state, **message}, **more}


@pytest.mark.parametrize(
    ("answer", "means"),
    [
        (
            {"result": {"kind": "message", "parts": [{"kind": "text", "text": "a"}, {"text": "b"}]}},
            Answered("ab"),
        ),
        (
            {"result": {"message": {"role": "ROLE_AGENT", "parts": [{"text": "a"}, {"data": 1}]}}},
            Answered("a"),
        ),
        ({"result": task("working")}, Works("t1")),
        ({"result": {"task": task("TASK_STATE_SUBMITTED")}}, Works("t1")),
        (
            {
                "result": task(
                    "completed", artifacts=[{"parts": [{"text": "a"}]}, {"parts": []}, None], said="end"
                )
            },
            Answered("a\n\nend"),
        ),
        ({"result": task("TASK_STATE_COMPLETED")}, Answered("")),
        ({"result": task("input-required", said="Which one?")}, Answered("Which one?")),
        ({"result": {"task": task("TASK_STATE_INPUT_REQUIRED", said="Which?")}}, Answered("Which?")),
        ({"result": task("failed", said="out of paper")}, Failed("out of paper")),
        ({"result": task("auth-required")}, Failed("its task ended as auth-required")),
        ({"result": {"task": {"id": "t", "status": "odd"}}}, Failed("its task ended as unknown")),
        ({"result": {"status": {"state": "working"}}}, Failed("its task has no id")),
        ({"result": {"task": []}}, Failed("it sent no result")),
        ({"result": []}, Failed("it sent no result")),
        ({"error": {"code": -32602, "message": "no"}}, Failed("no")),
        ({"error": {"code": -32602}}, Failed("it refused the message")),
        ({"error": "odd"}, Failed("odd")),
        ([], Failed("it sent JSON that is no answer")),
    ],
)
def test_what_an_answer_means(answer: Any, means: object) -> None:
    assert read_answer(answer) == means

"""Keys of models and providers that decide which model is asked, and what comes of its answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.agent_files import AgentFiles, calls, open_agent_files
from tests.e2e.command import Command
from tests.e2e.fake_model import responds, says

pytestmark = pytest.mark.slow

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
PDF = {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentFiles]:
    with open_agent_files(
        tmp_path_factory.mktemp("keys"), "--safety", "autonomous", SECOND="second"
    ) as opened:
        yield opened


def asked(files: AgentFiles, model: str, models: dict[str, Any], **turn: Any) -> list[str]:
    """The names of the models that the requests of one turn went to."""
    ended = files.turn(files.serve(models=models, agents={"root": {"model": model}}), **turn)
    assert ended.answer == "Done."
    return [one["model"] for one in ended.requests]


def test_a_model_may_be_one_of_several(files: AgentFiles) -> None:
    """Each turn takes one of them."""
    models = {"a": files.model_at("a"), "b": files.model_at("b"), "both": {"model": "a,b"}}
    key = files.serve(models=models, agents={"root": {"model": "a,b"}, "other": {"model": "both"}})
    session = files.api.session(key)
    names = [files.turn(key, session=session).requests[0]["model"] for _ in range(12)]
    assert set(names) == {"a", "b"}
    assert {asked(files, "both", models)[0] for _ in range(12)} == {"a", "b"}


def test_the_first_model_whose_key_is_there(files: AgentFiles) -> None:
    models = {
        "none": files.model_at("none", token_key="NOT_SET_ANYWHERE"),
        "some": files.model_at("some", token_key="OPENAI_API_KEY"),
        "any": {"first_available": ["none", "some"]},
    }
    assert asked(files, "any", models) == ["some"]


def test_a_model_whose_key_is_missing_names_it(files: AgentFiles) -> None:
    models = {"none": files.model_at("none", token_key="NOT_SET_ANYWHERE")}
    ended = files.turn(files.serve(models=models, agents={"root": {"model": "none"}}))
    assert ended.requests == []
    assert "NOT_SET_ANYWHERE" in ended.given.json["error"]["message"]


def test_requests_go_to_the_model_with_examples_like_them(files: AgentFiles) -> None:
    rules = [{"model": "code", "examples": ["write a function in python", "fix this bug"]}]
    models = {
        "code": files.model_at("code"),
        "chat": files.model_at("chat", routing=rules, description="for all else"),
    }
    key = files.serve(models=models, agents={"root": {"model": "chat"}})
    for text, name in (("please fix this python bug", "code"), ("what a beautiful morning", "chat")):
        script = files.script(text)
        files.turn(key, text=text)
        assert [one["model"] for one in script.requests] == [name]


@pytest.mark.parametrize(
    ("keys", "sent"),
    [
        ({}, ["text", "image_url", "file"]),
        ({"capabilities": {"image": True, "pdf": False}}, ["text", "image_url"]),
        ({"capabilities": {"pdf": True}}, ["text", "file"]),
        ({"capabilities": {"audio": True, "video": True}}, ["text"]),
        ({"provider_opts": {"supports_images": True, "supports_pdf": False}}, ["text", "image_url"]),
    ],
)
def test_a_model_is_sent_the_attachments_that_it_accepts(
    files: AgentFiles, keys: dict[str, Any], sent: list[str]
) -> None:
    key = files.serve(models={"one": files.model_at(**keys)}, agents={"root": {"model": "one"}})
    script = files.script("look at this")
    text = {"role": "user", "content": [{"type": "text", "text": "look at this"}, IMAGE, PDF]}
    assert files.turn(key, text=text).given.status == 200
    content = script.requests[0]["messages"][-1]["content"]
    kinds = [part["type"] for part in content] if isinstance(content, list) else ["text"]
    assert list(dict.fromkeys(kinds)) == sent


def test_prices_are_counted(files: AgentFiles) -> None:
    models = {"one": files.model_at(cost={"input": 1000, "output": 2000})}
    key = files.serve(models=models, agents={"root": {"model": "one"}})
    ended = files.turn(key, says("Done.", usage=(11, 7)))
    assert files.api.brief(ended.session)["cost"] == pytest.approx((11 * 1000 + 7 * 2000) / 1e6)


def test_cached_tokens_have_prices_of_their_own(files: AgentFiles) -> None:
    cost = {"input": 1000, "output": 2000, "cache_read": 100, "cache_write": 1250}
    key = files.serve(models={"one": files.model_at(cost=cost)}, agents={"root": {"model": "one"}})
    ended = files.turn(key, says("Done.", usage=(11, 7), cached=(6, 3)))
    paid = 2 * 1000 + 6 * 100 + 3 * 1250 + 7 * 2000
    assert files.api.brief(ended.session)["cost"] == pytest.approx(paid / 1e6)


def test_titles_have_a_model_of_their_own(files: AgentFiles) -> None:
    models = {"small": files.model_at("small"), "one": files.model_at("one", title_model="small")}
    key = files.serve(models=models, agents={"root": {"model": "one"}})
    asked = files.model.on("about trains", says("Trains"))
    session = files.api.session(key)
    assert files.api.turn(session, "about trains").status == 200
    assert files.api.until_titled(session) == "Trains"
    assert sorted(one["model"] for one in asked.requests) == ["one", "small"]


def test_a_provider_gives_its_models_an_address_and_a_key(files: AgentFiles) -> None:
    """`builtin` names no API of OpenAI's; `provider` says which one it implements."""
    own = {"base_url": files.model.url, "token_key": "OPENAI_API_KEY", "api_type": "openai_chatcompletions"}
    file = {
        "providers": {"mine": own, "like": {"provider": "mistral", "base_url": files.model.url}},
        "models": {
            "a": {"provider": "mine", "model": "a", "max_tokens": 5},
            "b": {"provider": "like", "model": "b"},
        },
        "agents": {"root": {"model": "a", "handoffs": ["other"]}, "other": {"model": "b"}},
    }
    ended = files.turn(files.serve(**file), calls("handoff", agent="other"))
    assert [one["model"] for one in ended.requests] == ["a", "b"]


def test_a_provider_may_speak_the_responses_api(files: AgentFiles) -> None:
    """Its encrypted reasoning goes back with the result of the tool, and in the next turn."""
    own = {"base_url": files.model.url, "token_key": "OPENAI_API_KEY", "api_type": "openai_responses"}
    key = files.serve(
        providers={"mine": own},
        models={"m": {"provider": "mine", "model": "gpt-x"}},
        agents={"root": {"model": "m", "instruction": "Be brief.", "toolsets": [{"type": "think"}]}},
    )
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "sealed"}
    call = {"call_id": "c1", "name": "think", "arguments": '{"thought": "a"}'}
    text = {"type": "message", "content": [{"type": "output_text", "text": "Thought."}]}
    replies = responds(thought, {"type": "function_call", **call}), responds(text)
    ended = files.turn(key, *replies)
    assert ended.answer == "Thought."
    first, second = (request["input"] for request in ended.requests)
    assert first[0] == {"role": "system", "content": "Be brief."}
    assert second[: len(first)] == first
    assert second[len(first) :] == [
        thought,
        {"type": "function_call", **call},
        {"type": "function_call_output", "call_id": "c1", "output": "Thoughts:\na"},
    ]
    [third] = files.turn(key, responds(text), session=ended.session).requests
    assert third["input"][: len(second)] == second


def test_usage_is_requested_unless_the_file_says_not_to(files: AgentFiles) -> None:
    sections: list[tuple[dict[str, Any], bool]] = [
        ({}, True),
        ({"track_usage": True}, True),
        ({"track_usage": False}, False),
    ]
    for keys, wanted in sections:
        key = files.serve(models={"one": files.model_at(**keys)}, agents={"root": {"model": "one"}})
        assert ("stream_options" in files.turn(key).requests[0]) == wanted


def test_names_and_addresses_may_be_variables(files: AgentFiles, tmp_path: Path) -> None:
    models = {"one": {**files.model_at("${env.SECOND}"), "bypass_models_gateway": True}}
    assert asked(files, "one", models) == ["second"]
    path = tmp_path / "agent.yaml"
    path.write_text(
        "models: {m: {provider: openai, model: x, base_url: '${env.HERE}', token_key: MINE}}\n"
        "agents: {root: {model: m}}\n"
    )
    command = Command(tmp_path)
    command.env |= {"HERE": files.model.url, "MINE": "sk-canary"}
    script = files.script("from here")
    done = command("run", str(path), "from here")
    assert (done.out, len(script.requests)) == ("Done.\n", 1), done.err
    del command.env["HERE"]
    failed = command("run", str(path), "from here")
    assert "HERE is not set" in failed.err

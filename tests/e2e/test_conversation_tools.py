"""`model_picker`, `session_plan` and `open_url` on a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.api import Api, events_of, run_path, said
from tests.e2e.command import until
from tests.e2e.fake_model import FakeModel, refuses, says
from tests.e2e.server import LiveServer

pytestmark = pytest.mark.slow

SCRIPTED = "builtin/scripted"


@pytest.fixture(scope="module")
def model() -> Iterator[FakeModel]:
    with FakeModel() as model:
        yield model


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, model: FakeModel) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("conversation")
    picker = {
        "type": "model_picker",
        "models": [SCRIPTED, "clever"],
        "instruction": "{ORIGINAL_INSTRUCTIONS}Pick.",
    }
    pages = [
        {"type": "open_url", "name": "dashboard", "url": "https://example.com/${env.VERSION}"},
        {"type": "open_url", "name": "sly", "url": "javascript:alert(1)"},
    ]
    plan = [{"type": "session_plan"}]
    files: dict[str, Any] = {
        "picker": {
            "models": {"clever": {"provider": "openai", "model": "fake", "base_url": model.url}},
            "agents": {"root": {"model": SCRIPTED, "toolsets": [picker]}},
        },
        "pages": {"agents": {"root": {"model": SCRIPTED, "toolsets": pages}}},
        "plans": {
            "agents": {
                "root": {
                    "model": SCRIPTED,
                    "toolsets": [{"type": "session_plan", "tools": ["read_session_plan"]}],
                },
                "planner": {"model": SCRIPTED, "toolsets": plan},
            }
        },
    }
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(text))
    env = {"OPENAI_API_KEY": "k", "VERSION": "v17"}
    with LiveServer(folder, *(str(folder / f"{name}.yaml") for name in files), env=env) as started:
        yield started


@pytest.fixture
def api(server: LiveServer) -> Api:
    return Api(server)


def results(turn: Any) -> list[str]:
    return [one["content"] for one in turn["messages"] if one["role"] == "tool"]


def test_a_chosen_model_answers_from_the_next_response_on_and_in_later_turns(
    api: Api, server: LiveServer, model: FakeModel
) -> None:
    model.on("change_model", says("clever words"))
    model.on("again", says("more of them"))
    session = api.session("picker")
    turn = api.good(session, '!tool change_model {"model": "clever"}\n!say not said')
    assert turn["messages"][-1]["content"] == "clever words"
    assert turn["model"] == "openai/fake"
    server.kill()
    server.start()
    assert Api(server).good(session, "again")["messages"][-1]["content"] == "more of them"
    prompts = [json.loads(line)["prompt"] for line in server.prompt_log.read_text().splitlines()]
    assert [one[0]["content"] for one in prompts if "change_model" in str(one)] == ["Pick."]


def test_a_failed_turn_chooses_nothing_and_a_model_that_is_not_listed_is_refused(
    api: Api, model: FakeModel
) -> None:
    model.on("change_model", refuses(400))
    session = api.session("picker")
    [refused] = results(api.good(session, '!tool change_model {"model": "other/model"}\n!say own'))
    assert "`model` must be one of builtin/scripted, clever" in refused
    assert api.turn(session, '!tool change_model {"model": "clever"}').status != 200
    assert api.good(session, "!say own")["model"] == SCRIPTED


def test_M3_3_a_model_that_a_person_chose_holds_whatever_the_agent_chose(api: Api, model: FakeModel) -> None:
    model.on("change_model", says("clever words"))
    session = api.session("picker")
    api.good(session, '!tool change_model {"model": "clever"}')
    assert api.turn(session, "!say own", model=SCRIPTED).status == 200
    turn = api.good(session, '!tool change_model {"model": "clever"}\n!say own')
    assert turn["messages"][-1]["content"] == "own"
    assert "unknown tool 'change_model'" in results(turn)[-1]


def test_the_plan_of_a_session_is_written_by_one_agent_and_read_by_another(api: Api) -> None:
    session = api.session("plans")
    [nothing] = results(api.good(session, "!tool read_session_plan {}\n!say x"))
    assert "this session has no plan yet" in nothing
    text = '!tool write_session_plan {"content": "# Steps"}\n!tool exit_plan_mode {}\n!say planned'
    assert api.post(run_path(session, "plans", "planner"), {"messages": said(text)}).status == 200
    [plan] = results(api.good(session, "!tool read_session_plan {}\n!say done"))
    assert plan == "# Steps"
    fork = api.post(f"/api/sessions/{session}/fork", {}).json["id"]
    assert results(api.good(fork, "!tool read_session_plan {}\n!say done")) == ["# Steps"]
    assert "no plan" in results(api.good(api.session("plans"), "!tool read_session_plan {}\n!say x"))[0]


def test_I2_the_plan_of_a_failed_turn_is_gone(api: Api) -> None:
    session = api.session("plans")
    text = '!tool write_session_plan {"content": "# Lost"}\n!fail before\n!say x'
    frames = api.post(run_path(session, "plans", "planner"), {"messages": said(text)}).frames
    assert "error" in {frame.type for frame in frames}
    assert "no plan" in results(api.good(session, "!tool read_session_plan {}\n!say x"))[0]


@pytest.mark.parametrize(
    ("action", "words"), [("accept", "The user opened https://example.com/"), ("decline", "did not open")]
)
def test_the_user_opens_a_page_and_says_so(action: str, words: str, api: Api) -> None:
    session = api.session("pages")
    api.begun(session, "!tool dashboard {}\n!say done")
    until(lambda: api.get(f"/api/sessions/{session}/pending"))
    [question] = api.get(f"/api/sessions/{session}/pending")
    assert question["url"] == "https://example.com/v17"
    assert question["message"] == "The agent asks you to open https://example.com/v17"
    [asked] = [one for one in events_of(api, session) if one.type == "elicitation_request"]
    assert "https://example.com/v17" in json.dumps(asked.data)
    assert api.post(f"/api/sessions/{session}/elicitation", {"action": action}).status == 200
    api.until_idle(session)
    assert any(role == "tool" and words in text for role, text in api.history(session))


def test_an_address_that_would_run_in_the_page_is_refused(api: Api) -> None:
    [refused] = results(api.good(api.session("pages"), "!tool sly {}\n!say done"))
    assert "cannot be opened" in refused


def test_json_results_are_toon_where_the_file_asks_for_it(tmp_path: Path) -> None:
    records = '[{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]'
    scripts = {
        "list_things": {"cmd": f"echo '{records}'"},
        "list_text": {"cmd": "echo '[not json'"},
        "get_things": {"cmd": f"echo '{records}'"},
    }
    tools = [{"type": "script", "shell": scripts, "toon": "^list_.*"}]
    agent = {"agents": {"root": {"model": SCRIPTED, "toolsets": tools}}}
    (tmp_path / "toon.yaml").write_text(yaml.safe_dump(agent))
    with LiveServer(tmp_path, str(tmp_path / "toon.yaml"), options=("--safety", "autonomous")) as server:
        api = Api(server)
        calls = "\n".join(f"!tool {name} {{}}" for name in scripts)
        found = results(api.good(api.session("toon"), f"{calls}\n!say done"))
        assert found == ["[2]{id,name}:\n  1,a\n  2,b", "[not json", records]

"""Memories on a real server: across sessions, kill -9 and failed turns, and apart by agent and by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.e2e.api import Api, run_path, said
from tests.e2e.server import LiveServer

pytestmark = pytest.mark.slow

ALLOWED = {"allow": ["add_memory", "update_memory", "delete_memory"]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("memory")
    plain = {"model": "builtin/scripted", "toolsets": [{"type": "memory"}]}
    named = {"model": "builtin/scripted", "toolsets": [{"type": "memory", "path": "./team.db"}]}
    files: dict[str, Any] = {
        "one": {"agents": {"root": plain}, "permissions": ALLOWED},
        "two": {"agents": {"root": plain, "named": named}, "permissions": ALLOWED},
        "shy": {"agents": {"root": plain}},
    }
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(text))
    with LiveServer(folder, *(str(folder / f"{name}.yaml") for name in files)) as started:
        yield started


@pytest.fixture
def api(server: LiveServer) -> Api:
    return Api(server)


def result(api: Api, session: str, tool: str, **arguments: Any) -> str:
    turn = api.good(session, f"!tool {tool} {json.dumps(arguments)}\n!say done")
    return str([one["content"] for one in turn["messages"] if one["role"] == "tool"][-1])


def memories(api: Api, session: str, **search: Any) -> list[str]:
    tool = "search_memories" if search else "get_memories"
    return [one["memory"] for one in json.loads(result(api, session, tool, **search))]


def test_I16_a_memory_is_there_in_the_next_session_after_kill_9_and_in_no_other_agent(
    server: LiveServer, api: Api
) -> None:
    session = api.session("one")
    assert "Memory stored with the id mem_" in result(
        api, session, "add_memory", memory="Likes tea", category="preference"
    )
    result(api, session, "add_memory", memory="Lives in Rome")
    server.kill()
    server.start()
    assert memories(api, api.session("one")) == ["Likes tea", "Lives in Rome"]
    assert memories(api, api.session("one"), query="TEA") == ["Likes tea"]
    assert memories(api, api.session("one"), category="preference") == ["Likes tea"]
    assert memories(api, api.session("two")) == []


def test_a_path_is_a_memory_of_its_own_and_the_agents_of_a_file_share_the_one_without(api: Api) -> None:
    session = api.session("two")
    result(api, session, "add_memory", memory="shared")
    text = '!tool add_memory {"memory": "of the team"}\n!tool get_memories {}\n!say done'
    assert api.post(run_path(session, "two", "named"), {"messages": said(text)}).status == 200
    [(_, found)] = [one for one in api.history(session) if "of the team" in str(one[1]) and one[0] == "tool"]
    assert [one["memory"] for one in json.loads(found)] == ["of the team"]
    assert memories(api, session) == ["shared"]


def test_memories_are_updated_and_deleted(api: Api) -> None:
    session = api.session("one")
    id = result(api, session, "add_memory", memory="old text", category="fact").split()[-1].rstrip(".")
    assert "updated" in result(api, session, "update_memory", id=id, memory="new text")
    [found] = json.loads(result(api, session, "search_memories", query="new text"))
    assert (found["id"], found["category"]) == (id, "fact")
    assert "deleted" in result(api, session, "delete_memory", id=id)
    assert memories(api, session, query="new text") == []
    for tool, more in (("delete_memory", {}), ("update_memory", {"memory": "x"})):
        assert "there is no memory with the id" in result(api, session, tool, id=id, **more)


def test_I33_a_failed_turn_has_stored_its_memory_once_and_its_retry_does_not_store_it_again(api: Api) -> None:
    session = api.session("one")
    ask = '!tool add_memory {"memory": "kept by a failure"}\n!fail before 1\n!say done'
    assert api.turn(session, ask, h_Idempotency_Key="k").status >= 500
    assert api.history(session) == []
    assert memories(api, api.session("one"), query="kept by a failure") == ["kept by a failure"]
    assert api.good(session, ask, h_Idempotency_Key="k")["messages"][-1]["content"] == "done"
    assert memories(api, session, query="kept by a failure") == ["kept by a failure"]


def test_storing_needs_permission_and_reading_does_not(api: Api) -> None:
    session = api.session("shy")
    assert "add_memory is not allowed" in result(api, session, "add_memory", memory="x")
    assert memories(api, session) == []


def test_a_stateless_request_has_the_memories_too(api: Api, server: LiveServer) -> None:
    result(api, api.session("one"), "add_memory", memory="known everywhere")
    text = '!tool search_memories {"query": "everywhere"}\n!say done'
    assert api.post("/v1/chat/completions", {"model": "one", "messages": said(text)}).status == 200
    assert "known everywhere" in server.prompt_log.read_text().splitlines()[-1]

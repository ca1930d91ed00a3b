"""Plans on a real server: shared by the agents of a file, across sessions, without lost changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.api import Api, run_path, said
from tests.e2e.server import LiveServer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("plans")
    one = {"model": "builtin/scripted", "toolsets": [{"type": "plan"}, {"type": "filesystem"}]}
    for name in ("team", "others"):
        text = {"agents": {"root": one, "builder": one}}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(text))
    files = [str(folder / f"{name}.yaml") for name in ("team", "others")]
    with LiveServer(folder, *files, options=("--safety", "autonomous")) as started:
        yield started


@pytest.fixture
def api(server: LiveServer) -> Api:
    return Api(server)


def result(api: Api, session: str, tool: str, **arguments: Any) -> str:
    turn = api.good(session, f"!tool {tool} {json.dumps(arguments)}\n!say done")
    return str([one["content"] for one in turn["messages"] if one["role"] == "tool"][-1])


def test_I16_a_plan_is_shared_by_the_agents_of_a_file_and_survives_kill_9(
    server: LiveServer, api: Api
) -> None:
    session = api.session("team")
    written = result(api, session, "write_plan", name="release", content="# One", title="Release", author="a")
    assert json.loads(written) == {"name": "release", "revision": 1}
    server.kill()
    server.start()
    session = api.session("team")
    text = '!tool set_plan_status {"name": "release", "status": "building", "last_known_revision": 1}\n!say x'
    assert api.post(run_path(session, "team", "builder"), {"messages": said(text)}).status == 200
    found = json.loads(result(api, session, "read_plan", name="release"))
    changed = found.pop("updatedAt")
    assert changed.endswith("+00:00")
    assert found == {
        "name": "release",
        "title": "Release",
        "content": "# One",
        "author": "a",
        "status": "building",
        "revision": 2,
    }
    assert json.loads(result(api, session, "get_plan_status", name="release")) == {
        "name": "release",
        "status": "building",
        "revision": 2,
    }
    [listed] = json.loads(result(api, session, "list_plans"))["plans"]
    assert "content" not in listed
    assert json.loads(result(api, api.session("others"), "list_plans")) == {"plans": []}


def test_a_change_for_an_older_revision_is_refused(api: Api) -> None:
    session = api.session("team")
    result(api, session, "write_plan", name="locked", content="one", last_known_revision=0)
    result(api, session, "write_plan", name="locked", content="two")
    for tool, more in (
        ("write_plan", {"content": "lost"}),
        ("set_plan_status", {"status": "x"}),
        ("delete_plan", {}),
    ):
        refused = result(api, session, tool, name="locked", last_known_revision=1, **more)
        assert "its revision is 2 now" in refused
    assert json.loads(result(api, session, "read_plan", name="locked"))["content"] == "two"
    assert "was deleted" in result(api, session, "delete_plan", name="locked", last_known_revision=2)
    for tool, more in (("read_plan", {}), ("delete_plan", {}), ("set_plan_status", {"status": "x"})):
        assert "there is no plan 'locked'" in result(api, session, tool, name="locked", **more)
    assert "is not a name of a plan" in result(api, session, "read_plan", name="../x")


def test_of_changes_at_once_none_is_lost(api: Api) -> None:
    sessions = [api.session("team") for _ in range(6)]
    result(api, sessions[0], "write_plan", name="busy", content="0")
    with ThreadPoolExecutor(6) as pool:
        done = list(pool.map(lambda one: result(api, one, "write_plan", name="busy", content=one), sessions))
    assert sorted(json.loads(one)["revision"] for one in done) == [2, 3, 4, 5, 6, 7]


def test_I38_a_plan_goes_to_a_file_and_comes_back(api: Api, tmp_path: Path) -> None:
    session = api.session("team")
    result(api, session, "write_plan", name="filed", content="# One")
    exported = json.loads(result(api, session, "export_plan_to_file", name="filed", path="notes/plan.md"))
    assert exported["bytesWritten"] == 5
    result(api, session, "write_file", path="notes/plan.md", content="# Two")
    result(api, session, "update_plan_from_file", name="filed", path="notes/plan.md", last_known_revision=1)
    found = json.loads(result(api, session, "read_plan", name="filed"))
    assert (found["content"], found["revision"]) == ("# Two", 2)
    for tool in ("export_plan_to_file", "update_plan_from_file"):
        assert "outside the working directory" in result(api, session, tool, name="filed", path="../../x")

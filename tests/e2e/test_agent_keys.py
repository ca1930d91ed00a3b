"""Keys of agent files that change which tools there are and what the model sees, on a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.api import Api
from tests.e2e.server import LiveServer

pytestmark = pytest.mark.slow

SECRET = "ghp_" + "a1B2" * 9


def write_agent(folder: Path, name: str, **agent: Any) -> str:
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({"agents": {"root": {"model": "builtin/scripted", **agent}}}))
    return str(path)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("keys")
    files, shell = {"type": "filesystem", "readonly": True}, {"type": "shell"}
    agents = [
        write_agent(folder, "reader", toolsets=[files, shell]),
        write_agent(folder, "discreet", toolsets=[shell], redact_secrets=True),
        write_agent(
            folder,
            "searcher",
            toolsets=[{**shell, "defer": True}, {"type": "filesystem", "defer": ["read_file"]}],
        ),
        write_agent(folder, "plain", toolsets=[shell]),
    ]
    with LiveServer(folder, *agents, options=("--safety", "autonomous")) as started:
        yield started


@pytest.fixture
def api(server: LiveServer) -> Api:
    return Api(server)


def results(api: Api, session: str) -> list[str]:
    return [text for role, text in api.history(session) if role == "tool"]


def test_a_readonly_toolset_has_only_tools_that_change_nothing(api: Api) -> None:
    session = api.session("reader")
    write = '!tool write_file {"path": "a.txt", "content": "x"}'
    shell, read = '!tool shell {"cmd": "echo hello > b.txt"}', '!tool read_file {"path": "b.txt"}'
    assert api.turn(session, f"{write}\n{shell}\n{read}\n!say done").status == 200
    written, _, found = results(api, session)
    assert written == "error: unknown tool 'write_file'"
    assert "hello" in found  # the other toolset is not read-only


def test_a_deferred_tool_is_there_after_the_model_has_added_it(server: LiveServer, api: Api) -> None:
    session = api.session("searcher")
    shell = '!tool shell {"cmd": "echo hello"}'
    search = '!tool search_tool {"query": "run a shell command"}'
    add, unknown = '!tool add_tool {"name": "shell"}', '!tool add_tool {"name": "list_directory"}'
    assert api.turn(session, f"{shell}\n{search}\n{unknown}\n{add}\n{shell}\n!say done").status == 200
    before, found, refused, added, after = results(api, session)
    assert before == "error: unknown tool 'shell'"
    assert json.loads(found)[0]["name"] == "shell"
    assert "there is no tool 'list_directory' to add" in refused
    assert added.startswith("Added: shell")
    assert "hello" in after


def test_an_added_tool_stays_in_its_conversation_across_a_restart(server: LiveServer, api: Api) -> None:
    session, shell = api.session("searcher"), '!tool shell {"cmd": "echo hello"}\n!say done'
    assert api.turn(session, '!tool add_tool {"name": "shell"}\n!say done').status == 200
    server.kill()
    server.start()
    api = Api(server)
    assert api.turn(session, shell).status == 200
    assert "hello" in results(api, session)[-1]
    other = api.session("searcher")
    assert api.turn(other, shell).status == 200
    assert results(api, other) == ["error: unknown tool 'shell'"]


def test_redact_secrets_keeps_them_from_the_model_and_from_tools(server: LiveServer, api: Api) -> None:
    session = api.session("discreet")
    shell = json.dumps({"cmd": f"echo {SECRET} | tee told; printf ghp_; printf 'a1B2%.0s' 1 2 3 4 5 6 7 8 9"})
    assert api.turn(session, f"my token is {SECRET}\n!tool shell {shell}\n!say done").status == 200
    (result,) = results(api, session)
    assert SECRET not in result
    assert result.count("[redacted]") == 2  # one in the arguments, one that the command made
    prompts = [one for one in server.prompts() if one["session"] == session]
    assert len(prompts) == 2
    assert SECRET not in json.dumps(prompts)


def test_without_redact_secrets_the_model_sees_what_was_said(server: LiveServer, api: Api) -> None:
    session = api.session("plain")
    assert api.turn(session, f"my token is {SECRET}\n!say done").status == 200
    assert SECRET in json.dumps(server.prompts())

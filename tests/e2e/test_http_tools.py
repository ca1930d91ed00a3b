"""`api` and `openapi` toolsets on a real server, against an API that writes down what it is asked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import yaml

from tests.e2e.api import Api
from tests.e2e.command import until
from tests.e2e.server import LiveServer

pytestmark = pytest.mark.slow

DOCUMENT = {
    "openapi": "3.0.0",
    "paths": {
        "/pets/{id}": {
            "get": {
                "operationId": "getPet",
                "summary": "Reads a pet",
                "parameters": [
                    {"name": "id", "in": "path", "schema": {"type": "string"}},
                    {"name": "full", "in": "query", "schema": {"type": "boolean"}},
                ],
            }
        },
        "/pets": {
            "post": {
                "operationId": "addPet",
                "requestBody": {
                    "content": {
                        "application/json": {
                            "schema": {"required": ["name"], "properties": {"name": {"type": "string"}}}
                        }
                    }
                },
            }
        },
    },
}


@dataclass
class Site:
    """The API. `asked` has method, path, headers and body of each request."""

    asked: list[tuple[str, str, dict[str, str], str]] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    slow: Event = field(default_factory=Event)

    def requests(self, part: str) -> list[tuple[str, str, dict[str, str], str]]:
        return [one for one in self.asked if part in one[1]]

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        length = int(handler.headers.get("Content-Length") or 0)
        body = handler.rfile.read(length).decode()
        headers = {name.lower(): value for name, value in handler.headers.items()}
        self.asked.append((handler.command, handler.path, headers, body))
        if "/slow" in handler.path:
            self.slow.wait(60)
        status = 404 if "missing" in handler.path else 302 if "moved" in handler.path else 200
        sent = self.files.get(handler.path)
        if sent is None:
            sent = (
                b"x" * 2_000_000
                if "large" in handler.path
                else b"it says " + headers.get("x-key", "").encode()
            )
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(sent)))
        if status == 302:
            handler.send_header("Location", "/elsewhere")
        handler.end_headers()
        handler.wfile.write(sent)


@pytest.fixture(scope="module")
def site() -> Iterator[tuple[Site, str]]:
    site = Site()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        do_GET = do_POST = do_DELETE = lambda self: site.answer(self)

    web = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=web.serve_forever, daemon=True).start()
    yield site, f"http://127.0.0.1:{web.server_address[1]}"
    site.slow.set()
    web.shutdown()
    web.server_close()


def call(name: str, endpoint: str, method: str = "GET", **more: Any) -> dict[str, Any]:
    args = {"id": {"type": "string"}, "count": {"type": "integer"}}
    config = {"name": name, "endpoint": endpoint, "method": method, "args": args, **more}
    return {"type": "api", "api_config": config, "timeout": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("http")


@pytest.fixture(scope="module")
def server(folder: Path, site: tuple[Site, str]) -> Iterator[LiveServer]:
    api, url = site
    keyed = {"X-Key": "${env.API_KEY}"}
    api_tools = [
        call("read", f"{url}/read/${{id}}?n=${{count}}", headers=keyed, instruction="Reads", required=["id"]),
        call("write", f"{url}/write/${{id}}", "POST", headers=keyed),
        call("remove", f"{url}/remove/${{id}}", "DELETE"),
        *(call(name, f"{url}/{name}") for name in ("missing", "moved", "large", "slow")),
        call("slow_write", f"{url}/slow", "POST"),
    ]
    api.files["/openapi.json"] = json.dumps(DOCUMENT).encode()
    api.files["/openapi.yaml"] = yaml.safe_dump(DOCUMENT).encode()
    elsewhere = {**DOCUMENT, "servers": [{"url": url.replace("127.0.0.1", "localhost")}]}
    api.files["/elsewhere.json"] = json.dumps(elsewhere).encode()
    api.files["/broken.json"] = b"{"
    documents: dict[str, dict[str, Any]] = {
        "pets": {"url": f"{url}/openapi.json", "headers": keyed},
        "pets-yaml": {"url": f"{url}/openapi.yaml"},
        "pets-elsewhere": {"url": f"{url}/elsewhere.json", "headers": keyed},
        "pets-broken": {"url": f"{url}/broken.json"},
    }

    def write(name: str, tools: list[dict[str, Any]]) -> str:
        root = {"model": "builtin/scripted", "toolsets": tools}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({"agents": {"root": root}}))
        return str(folder / f"{name}.yaml")

    served = [write("calls", api_tools)]
    served += [write(name, [{"type": "openapi", **document}]) for name, document in documents.items()]
    api.files["/stranger.yaml"] = (folder / "calls.yaml").read_bytes()
    stranger = [f"{url}/stranger.yaml"]
    options = ("--safety", "balanced")
    with LiveServer(folder, *served, *stranger, options=options, env={"API_KEY": "canary-900"}) as started:
        yield started


@pytest.fixture
def api(server: LiveServer) -> Api:
    return Api(server)


def result(api: Api, session: str, tool: str, **arguments: Any) -> str:
    turn = api.good(session, f"!tool {tool} {json.dumps(arguments)}\n!say done")
    return str([one["content"] for one in turn["messages"] if one["role"] == "tool"][-1])


def approved(api: Api, session: str, tool: str, **arguments: Any) -> str:
    """The call waits for a person, who approves it."""
    api.begun(session, f"!tool {tool} {json.dumps(arguments)}\n!say done")
    until(lambda: api.get(f"/api/sessions/{session}/pending"))
    assert api.post(f"/api/sessions/{session}/resume", {"confirmation": "approve"}).status == 200
    api.until_idle(session)
    return str([text for role, text in api.history(session) if role == "tool"][-1])


def test_a_get_needs_no_approval_and_its_arguments_stay_in_their_place(
    api: Api, site: tuple[Site, str]
) -> None:
    session = api.session("calls")
    said = result(api, session, "read", id="../x?y", count=7)
    assert said.startswith("it says ")
    assert "canary" not in said
    [(method, path, headers, body)] = site[0].requests("/read/")
    assert (method, path, body) == ("GET", "/read/..%2Fx%3Fy?n=7", "")
    assert headers["x-key"] == "canary-900"
    assert "idempotency-key" not in headers
    assert "`id` is missing" in result(api, session, "read")


def test_I33_other_methods_need_approval_and_carry_the_key_of_their_call(
    api: Api, site: tuple[Site, str]
) -> None:
    session = api.session("calls")
    approved(api, session, "write", id="a b", count=3)
    [(method, path, headers, body)] = site[0].requests("/write/")
    assert (method, path, json.loads(body)) == ("POST", "/write/a%20b", {"count": 3})
    assert headers["content-type"] == "application/json"
    [effect] = api.get(f"/api/sessions/{session}/effects")
    assert (effect["tool"], effect["outcome"]) == ("write", "done")
    assert headers["idempotency-key"] == effect["key"]
    approved(api, session, "remove", id="z")
    assert [one[:2] for one in site[0].requests("/remove/")] == [("DELETE", "/remove/z")]


def test_I40_what_goes_wrong_is_a_bounded_tool_error(api: Api, site: tuple[Site, str]) -> None:
    session = api.session("calls")
    assert "error: the API answered with status 404" in result(api, session, "missing")
    assert "redirects are not followed" in result(api, session, "moved")
    assert site[0].requests("elsewhere") == []
    assert len(result(api, session, "large")) < 1_100_000
    assert "timed out after 2 s" in result(api, session, "slow")
    # The request was sent, so it may have taken effect.
    approved(api, session, "slow_write")
    [*_, effect] = api.get(f"/api/sessions/{session}/effects")
    assert (effect["tool"], effect["outcome"]) == ("slow_write", "unknown")


def test_I39_a_file_from_a_url_reaches_no_address_of_this_machine(api: Api, site: tuple[Site, str]) -> None:
    before = len(site[0].asked)
    listed = next(one for one in api.get("/api/agents") if "stranger" in one["name"])
    said = result(api, api.session(listed["name"]), "read", id="x")
    assert "loopback host, which is not allowed" in said
    assert [one for one in site[0].asked[before:] if "stranger.yaml" not in one[1]] == []


@pytest.mark.parametrize("agent", ["pets", "pets-yaml"])
def test_the_operations_of_a_document_are_tools(agent: str, api: Api, site: tuple[Site, str]) -> None:
    session = api.session(agent)
    before = len(site[0].asked)
    assert result(api, session, "getPet", id="a/b", full=True).startswith("it says")
    assert "`id` is missing" in result(api, session, "getPet")
    approved(api, session, "addPet", body_name="Rex")
    got, added = [one for one in site[0].asked[before:] if "openapi" not in one[1]]
    assert got[:2] == ("GET", "/pets/a%2Fb?full=true")
    assert (added[:2], json.loads(added[3])) == (("POST", "/pets"), {"name": "Rex"})
    assert got[2].get("x-key") == ("canary-900" if agent == "pets" else None)
    # One request for the document, for both turns and for the next session.
    result(api, api.session(agent), "getPet", id="c")
    assert (
        len([one for one in site[0].asked if one[1] == f"/openapi.{'json' if agent == 'pets' else 'yaml'}"])
        == 1
    )


def test_I41_keys_are_not_sent_to_another_host_than_the_documents(api: Api, site: tuple[Site, str]) -> None:
    before = len(site[0].asked)
    said = result(api, api.session("pets-elsewhere"), "getPet", id="x")
    assert "on another host than its document" in said
    assert [one[1] for one in site[0].asked[before:]] == ["/elsewhere.json"]


def test_a_document_that_cannot_be_read_is_said_and_the_turn_goes_on(api: Api, server: LiveServer) -> None:
    session = api.session("pets-broken")
    assert "unknown tool" in result(api, session, "getPet", id="x")
    prompt = json.loads(server.prompt_log.read_text().splitlines()[-1])["prompt"]
    assert "the document is neither JSON nor YAML. Its tools are missing" in prompt[0]["content"]

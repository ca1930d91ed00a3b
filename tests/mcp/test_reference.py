"""The reference MCP servers of PyPI and npm, used by agents of a real server; `make test-mcp` installs them.

The model is scripted, so what a tool returned is read from the committed history.
"""

from __future__ import annotations

import http.server
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import yaml

from tests.e2e.api import Api
from tests.e2e.command import until
from tests.e2e.server import LiveServer
from tests.mcp.conftest import alive
from tests.mcp.install import missing, path_of

EVERYTHING = "@modelcontextprotocol/server-everything"
FILESYSTEM = "@modelcontextprotocol/server-filesystem"
LONG = '!tool trigger-long-running-operation {"duration": 600, "steps": 600}\n!say went on'
SESSIONS = 50

pytestmark = pytest.mark.slow


def needs(*packages: str) -> None:
    if absent := set(packages) & set(missing()):
        pytest.skip(f"{', '.join(sorted(absent))} NOT INSTALLED: run `make test-mcp` where it can be had")


def stdio(package: str, *arguments: str, **more: Any) -> dict[str, Any]:
    return {"type": "mcp", "command": str(path_of(package)), "args": list(arguments), **more}


class HttpServer:
    """server-everything as a process of its own, which can be killed and started again on its port."""

    def __init__(self, transport: str) -> None:
        self.transport = transport
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def toolset(self) -> dict[str, Any]:
        streamable = self.transport == "streamableHttp"
        remote = {
            "url": f"http://127.0.0.1:{self.port}/{'mcp' if streamable else 'sse'}",
            "transport_type": "streamable" if streamable else "sse",
        }
        return {"type": "mcp", "remote": remote, "lifecycle": {"backoff": {"initial": 0.05, "max": 0.1}}}

    def start(self) -> None:
        needs(EVERYTHING)
        self.process = subprocess.Popen(
            [path_of(EVERYTHING), self.transport],
            env={**os.environ, "PORT": str(self.port)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until(self._listens)

    def _listens(self) -> bool:
        with socket.socket() as tried:
            return tried.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@pytest.fixture(scope="module")
def remotes() -> Iterator[dict[str, HttpServer]]:
    found = {transport: HttpServer(transport) for transport in ("streamableHttp", "sse")}
    yield found
    for one in found.values():
        one.kill()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, remotes: dict[str, HttpServer]) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("reference")
    agents = {
        "everything": [stdio(EVERYTHING, "stdio")],
        "impatient": [stdio(EVERYTHING, "stdio", lifecycle={"call_timeout": 2})],
        "files": [stdio(FILESYSTEM, ".")],
        "clash": [{"type": "filesystem"}, stdio(FILESYSTEM, ".", tools=["read_file"])],
        "git": [stdio("mcp-server-git")],
        "fetch": [stdio("mcp-server-fetch", "--allow-private-ips", "--ignore-robots-txt")],
        **{transport: [one.toolset] for transport, one in remotes.items()},
    }
    for name, toolsets in agents.items():
        agent = {"model": "builtin/scripted", "instruction": "Be brief.", "toolsets": toolsets}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({"agents": {"root": agent}}))
    files = [str(folder / f"{name}.yaml") for name in agents]
    options = ("--safety", "autonomous", "--working-dir-root", str(folder))
    with LiveServer(folder, *files, options=options, env={"CANARY": "canary-51aa"}) as started:
        yield started


@pytest.fixture
def api(server: LiveServer) -> Api:
    return Api(server)


def results(api: Api, session: str) -> list[str]:
    return [text for role, text in api.history(session) if role == "tool"]


def result(api: Api, session: str, prompt: str) -> str:
    answer = api.turn(session, f"{prompt}\n!say done")
    assert answer.status == 200, answer.body
    return results(api, session)[-1]


def processes(server: LiveServer, package: str) -> set[int]:
    """Children of the server that run this package."""
    assert server._process is not None
    found = subprocess.run(
        ["ps", "-wweo", "pid=,ppid=,args="], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    rows = [line.split(None, 2) for line in found]
    return {
        int(pid)
        for pid, parent, *words in rows
        if int(parent) == server._process.pid and path_of(package).name in " ".join(words)
    }


# --- each server does its work ------------------------------------------------------------------------------


def test_server_filesystem_writes_and_reads_in_the_working_directory(api: Api, server: LiveServer) -> None:
    needs(FILESYSTEM)
    (server.folder / "files").mkdir()
    session = api.session("files", working_dir=str(server.folder / "files"))
    result(api, session, '!tool write_file {"path": "notes.txt", "content": "kept"}')
    assert (server.folder / "files" / "notes.txt").read_text() == "kept"
    assert "kept" in result(api, session, '!tool read_text_file {"path": "notes.txt"}')
    assert "outside" in result(api, session, '!tool read_text_file {"path": "/etc/hostname"}')


def test_a_clash_with_the_built_in_toolset_offers_both(api: Api, server: LiveServer) -> None:
    needs(FILESYSTEM)
    (server.folder / "clash").mkdir()
    (server.folder / "clash" / "a.txt").write_text("both read me")
    session = api.session("clash", working_dir=str(server.folder / "clash"))
    assert "both read me" in result(api, session, '!tool read_file {"path": "a.txt"}')
    other = "mcp-server-filesystem_read_file"
    assert "both read me" in result(api, session, f'!tool {other} {{"path": "a.txt"}}')


def test_mcp_server_git_commits_in_the_working_directory(api: Api, server: LiveServer) -> None:
    needs("mcp-server-git")
    repository = server.folder / "repository"
    subprocess.run(["git", "init", "-q", repository], check=True)
    for name, value in (("user.name", "a"), ("user.email", "a@example.com")):
        subprocess.run(["git", "-C", repository, "config", name, value], check=True)
    (repository / "a.txt").write_text("a")
    session = api.session("git", working_dir=str(server.folder / "repository"))
    result(api, session, '!tool git_add {"repo_path": ".", "files": ["a.txt"]}')
    result(api, session, '!tool git_commit {"repo_path": ".", "message": "by a tool"}')
    log = subprocess.run(["git", "-C", repository, "log", "--oneline"], capture_output=True, text=True)
    assert "by a tool" in log.stdout
    assert "nothing to commit" in result(api, session, '!tool git_status {"repo_path": "."}')


class _Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b"<html><body><h1>Opening hours</h1><p>Never on a Friday.</p></body></html>"
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_mcp_server_fetch_reads_a_page(api: Api) -> None:
    needs("mcp-server-fetch")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Page) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{site.server_port}/hours"
        page = result(api, api.session("fetch"), f'!tool fetch {{"url": "{url}", "raw": true}}')
        site.shutdown()
    assert "Never on a Friday" in page


def test_server_everything_over_stdio(api: Api, server: LiveServer) -> None:
    needs(EVERYTHING)
    session = api.session("everything")
    assert "42" in result(api, session, '!tool get-sum {"a": 40, "b": 2}')
    assert "canary-51aa" not in result(api, session, "!tool get-env {}")
    image = result(api, session, "!tool get-tiny-image {}")
    assert "[image of type image/png" in image
    assert "mcp-files/" in image
    assert "resource" in result(api, session, '!tool get-resource-reference {"resourceId": 1}').lower()
    assert "temperature" in result(api, session, '!tool get-structured-content {"location": "New York"}')


def test_progress_of_a_call_is_streamed(api: Api) -> None:
    needs(EVERYTHING)
    session = api.session("everything")
    call = '!tool trigger-long-running-operation {"duration": 1, "steps": 2}\n!say done'
    frames = api.run(session, call, agent="everything").frames
    outputs = [str(frame.data) for frame in frames if frame.type == "tool_call_output"]
    assert any("[1/2]" in one for one in outputs), [frame.type for frame in frames]


def test_a_call_that_must_run_as_a_task_says_so(api: Api) -> None:
    needs(EVERYTHING)
    text = result(api, api.session("everything"), '!tool simulate-research-query {"topic": "x"}')
    assert "tasks extension" in text


@pytest.mark.parametrize("transport", ["streamableHttp", "sse"])
def test_server_everything_over_http_dies_in_a_call_and_comes_back(
    api: Api, remotes: dict[str, HttpServer], transport: str
) -> None:
    remote = remotes[transport]
    remote.start()
    session = api.session(transport)
    assert "42" in result(api, session, '!tool get-sum {"a": 40, "b": 2}')
    with ThreadPoolExecutor(1) as pool:
        turn = pool.submit(api.turn, session, LONG)
        until(lambda: progress(api, session))
        remote.kill()
        assert turn.result().status == 200
    assert "whether the call took effect is unknown" in results(api, session)[-1]
    remote.start()
    assert "43" in result(api, session, '!tool get-sum {"a": 41, "b": 2}')


def progress(api: Api, session: str) -> bool:
    """Whether the running call has reported something, so that it is under way."""
    return bool(
        api.server.rows("SELECT 1 FROM events WHERE kind = 'tool_streamed' AND session_id = ?", session)
    )


# --- and none of them breaks a session ----------------------------------------------------------------------


def test_a_server_killed_in_mid_call_is_a_tool_error_and_the_next_turn_works(
    api: Api, server: LiveServer
) -> None:
    needs(EVERYTHING)
    session = api.session("everything")
    before = processes(server, EVERYTHING)
    with ThreadPoolExecutor(1) as pool:
        turn = pool.submit(api.turn, session, LONG)
        until(lambda: progress(api, session))
        (started,) = processes(server, EVERYTHING) - before
        os.kill(started, signal.SIGKILL)
        assert turn.result().status == 200
    (died,) = results(api, session)
    assert "whether the call took effect is unknown" in died
    assert api.history(session)[-1] == ("assistant", "went on")
    assert "42" in result(api, session, '!tool get-sum {"a": 40, "b": 2}')


def test_a_call_that_hangs_ends_at_its_time_limit(api: Api) -> None:
    needs(EVERYTHING)
    session = api.session("impatient")
    assert api.turn(session, LONG).status == 200
    assert "imed out" in results(api, session)[0]
    assert "42" in result(api, session, '!tool get-sum {"a": 40, "b": 2}')


def test_fifty_sessions_at_once_share_one_http_server(api: Api, remotes: dict[str, HttpServer]) -> None:
    remote = remotes["streamableHttp"]
    if remote.process is None:
        remote.start()

    def one(number: int) -> str:
        return result(api, api.session("streamableHttp"), f'!tool get-sum {{"a": {number}, "b": 1000}}')

    with ThreadPoolExecutor(SESSIONS) as pool:
        sums = list(pool.map(one, range(SESSIONS)))
    assert all(str(number + 1000) in text for number, text in enumerate(sums))


def test_processes_end_with_their_sessions(api: Api, server: LiveServer) -> None:
    needs(EVERYTHING)
    before = processes(server, EVERYTHING)
    session = api.session("everything")
    result(api, session, '!tool echo {"message": "hi"}')
    (started,) = processes(server, EVERYTHING) - before
    api.delete(f"/api/sessions/{session}")
    until(lambda: not alive(started))

"""The session API as its clients have it: one connection per request, paths as they are written."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import apsw

from tests.e2e.command import AGENT, SECONDS, until
from tests.e2e.server import LiveServer

#: Tools that leave a trace outside: `note` writes a line and is never repeated, `hold` waits for a file.
TOOLS = """
agents:
  root:
    model: builtin/scripted
    toolsets:
      - type: todo
      - type: think
      - type: filesystem
      - type: script
        shell:
          note:
            cmd: echo "$word" >> "$file"
            args: {{word: {{}}, file: {{}}}}
          hold:
            cmd: echo "$word" >> "$file.begun"; while [ ! -e "$file" ]; do sleep 0.02; done; echo held
            args: {{word: {{}}, file: {{}}}}
{more}
"""


@dataclass(frozen=True)
class Frame:
    """One event of a stream."""

    id: int | None
    name: str | None
    data: dict[str, Any]

    @property
    def type(self) -> str:
        return str(self.data["type"])


@dataclass(frozen=True)
class Given:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.json["error"]["code"])

    @property
    def refusal(self) -> tuple[int, str]:
        return self.status, self.code

    @property
    def frames(self) -> list[Frame]:
        return [frame_of(block) for block in self.body.decode().split("\n\n") if not _is_comment(block)]


def _is_comment(block: str) -> bool:
    return not block or block.startswith(":")


def frame_of(block: str) -> Frame:
    fields = dict(line.split(": ", 1) for line in block.split("\n"))
    assert set(fields) <= {"id", "event", "data"}, fields
    return Frame(
        int(fields["id"]) if "id" in fields else None, fields.get("event"), json.loads(fields["data"])
    )


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(*texts: str | dict[str, Any]) -> list[dict[str, Any]]:
    return [user(text) if isinstance(text, str) else text for text in texts]


def texts(messages: Sequence[Mapping[str, Any]]) -> list[tuple[str, Any]]:
    return [(message["role"], message["content"]) for message in messages]


class Stream:
    """Frames as they come. Closing it is leaving."""

    def __init__(self, connection: http.client.HTTPConnection, answer: http.client.HTTPResponse) -> None:
        self._connection = connection
        self._answer = answer
        self.headers = {name.lower(): value for name, value in answer.getheaders()}

    def __iter__(self) -> Iterator[Frame]:
        block = ""
        while line := self._answer.readline().decode():
            block += line
            if block.endswith("\n\n"):
                if not _is_comment(block.strip("\n")):
                    yield frame_of(block.strip("\n"))
                block = ""

    def until(self, type: str) -> Frame:
        return next(frame for frame in self if frame.type == type)

    def leave(self) -> None:
        self._answer.close()
        self._connection.close()


class Api:
    def __init__(self, server: LiveServer, token: str | None = None) -> None:
        self.server = server
        self.token = token
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    # -- requests ------------------------------------------------------------------

    def _send(
        self,
        method: str,
        path: str,
        plain: Any,
        headers: Mapping[str, str],
        opened: list[socket.socket] | None = None,
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=SECONDS)
        connection.connect()
        if opened is not None:
            opened.append(connection.sock)
        body = None if plain is None else json.dumps(plain).encode()
        sent = dict(self._headers) | {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None:
            sent["Content-Type"] = "application/json"
        connection.request(method, path, body, sent)
        return connection, connection.getresponse()

    def ask(self, method: str, path: str, plain: Any = None, **headers: str) -> Given:
        return self._ask(method, path, plain, headers)

    def _ask(
        self,
        method: str,
        path: str,
        plain: Any,
        headers: Mapping[str, str],
        opened: list[socket.socket] | None = None,
    ) -> Given:
        connection, answer = self._send(method, path, plain, headers, opened)
        try:
            received = {name.lower(): value for name, value in answer.getheaders()}
            return Given(answer.status, received, answer.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Any:
        given = self.ask("GET", path, **headers)
        assert given.status == 200, given.body
        return given.json

    def post(self, path: str, plain: Any = None, **headers: str) -> Given:
        return self.ask("POST", path, plain, **headers)

    def patch(self, path: str, plain: Any) -> Given:
        return self.ask("PATCH", path, plain)

    def delete(self, path: str) -> Given:
        return self.ask("DELETE", path)

    @contextmanager
    def stream(self, method: str, path: str, plain: Any = None, **headers: str) -> Iterator[Stream]:
        connection, answer = self._send(method, path, plain, headers)
        stream = Stream(connection, answer)
        try:
            assert answer.status == 200, answer.read()
            yield stream
        finally:
            stream.leave()

    @contextmanager
    def asking(self, method: str, path: str, plain: Any = None, **headers: str) -> Iterator[Future[Given]]:
        """In another thread, while the block does something else; it must be over at the block's end.

        Where the block fails it is broken off, for then nobody comes to open the gate it waits at.
        """
        opened: list[socket.socket] = []
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(lambda: self._ask(method, path, plain, headers, opened))
            try:
                yield asked
            except BaseException:
                for connection in opened:
                    connection.shutdown(socket.SHUT_RDWR)
                raise

    def send_and_go(self, path: str, plain: Any, **headers: str) -> socket.socket:
        """Sent in full, and nobody reads the answer; closing the socket is leaving."""
        body = json.dumps(plain).encode()
        sent = {"Host": f"127.0.0.1:{self.server.port}", "Content-Type": "application/json"}
        sent |= self._headers | {name.replace("_", "-"): value for name, value in headers.items()}
        lines = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
        head = f"POST {path} HTTP/1.1\r\n{lines}Content-Length: {len(body)}\r\n\r\n"
        connection = socket.create_connection(("127.0.0.1", self.server.port))
        connection.sendall(head.encode() + body)
        return connection

    # -- sessions ------------------------------------------------------------------

    def session(self, agent: str = AGENT, **fields: Any) -> str:
        made = self.post("/api/sessions", {"agent": agent, **fields})
        assert made.status == 200, made.body
        return str(made.json["id"])

    def read(self, session: str, more: str = "") -> Any:
        return self.get(f"/api/sessions/{session}{more}")

    def brief(self, session: str) -> Any:
        return self.read(session, "?messages=0")

    def history(self, session: str) -> list[tuple[str, Any]]:
        return texts(self.read(session)["messages"])

    def run(
        self, session: str, *what: Any, agent: str = AGENT, model: str | None = None, **headers: str
    ) -> Given:
        """As docker-agent's clients do, to the end of the stream."""
        body: dict[str, Any] = {"messages": said(*what)}
        if model is not None:
            body["model"] = model
        return self.post(run_path(session, agent), body, **headers)

    def turn(self, session: str, *what: Any, **more: Any) -> Given:
        """Waited for, unless `wait` says otherwise. Headers are named with `h_`."""
        headers = {name.removeprefix("h_"): more.pop(name) for name in list(more) if name.startswith("h_")}
        body = {"messages": said(*what), "wait": True, **more}
        return self.post(f"/api/sessions/{session}/turns", body, **headers)

    def good(self, session: str, *what: Any, **more: Any) -> Any:
        """The turn."""
        given = self.turn(session, *what, **more)
        assert given.status == 200, given.body
        return given.json

    def begun(self, session: str, *what: Any, **more: Any) -> Any:
        """The attempt, which runs."""
        given = self.turn(session, *what, wait=False, **more)
        assert given.status == 202, given.body
        return given.json

    def until_idle(self, session: str) -> Any:
        until(lambda: self.brief(session)["status"] == "idle")
        return self.read(session)

    def until_titled(self, session: str) -> str:
        """A title is made beside the turn, and is the last thing that comes of it."""
        until(lambda: bool(self.brief(session)["title"]))
        return str(self.brief(session)["title"])

    def ended(self, session: str, attempt: str) -> Any:
        """The attempt, once it has ended."""
        path = f"/attempts/{attempt}"
        until(lambda: self.read(session, path)["status"] not in ("running", "waiting"))
        return self.read(session, path)


def run_path(session: str, agent: str = AGENT, name: str | None = None) -> str:
    """The agent is one segment of the path, whatever it is called."""
    member = "" if name is None else f"/{quote(name, safe='')}"
    return f"/api/sessions/{session}/agent/{quote(agent, safe='')}{member}"


def kinds(frames: Sequence[Frame]) -> list[str]:
    """Without repetitions: a text may come in any number of pieces."""
    found: list[str] = []
    for frame in frames:
        if not found or found[-1] != frame.type:
            found.append(frame.type)
    return found


def text_of(frames: Sequence[Frame]) -> str:
    return "".join(frame.data["content"] for frame in frames if frame.type == "agent_choice")


def events_of(api: Api, session: str, since: int | None = None, query: str = "") -> list[Frame]:
    """What is stored now, and no waiting for more."""
    last = api.brief(session)["last_event_seq"]
    after = "" if since is None else f"&since={since}"
    frames: list[Frame] = []
    with api.stream("GET", f"/api/sessions/{session}/events?{query}{after}") as stream:
        for frame in stream:
            frames.append(frame)
            if frame.id is not None and frame.id >= last:
                return frames
    raise AssertionError(f"it ended before event {last}: {frames}")


@contextmanager
def while_it_is_down(server: LiveServer) -> Iterator[apsw.Connection]:
    """Its database, between a kill -9 and the next start: what time would do can be done there at once."""
    server.kill()
    database = apsw.Connection(str(server.data_dir / "lastgood.db"))
    try:
        yield database
    finally:
        database.close()
    server.start()


@contextmanager
def locked(server: LiveServer) -> Iterator[None]:
    """Its database cannot be written while the block runs."""
    database = apsw.Connection(str(server.data_dir / "lastgood.db"))
    try:
        database.set_busy_timeout(5000)
        database.execute("BEGIN IMMEDIATE")
        yield
        database.execute("ROLLBACK")
    finally:
        database.close()


# -- tools that leave a trace --------------------------------------------------------


@dataclass(frozen=True)
class Trace:
    """A file that the tools of TOOLS write to, and what a user says so that they do."""

    path: Path

    def note(self, word: str, verb: str = "tool") -> str:
        return f"!{verb} note " + json.dumps({"word": word, "file": str(self.path)})

    def hold(self, word: str = "held") -> str:
        """Stops until `release`."""
        return "!tool hold " + json.dumps({"word": word, "file": f"{self.path}.{word}"})

    def until_held(self, word: str = "held", times: int = 1) -> None:
        begun = Path(f"{self.path}.{word}.begun")
        until(lambda: begun.exists() and len(begun.read_text().splitlines()) >= times)

    def release(self, word: str = "held") -> None:
        Path(f"{self.path}.{word}").touch()

    @property
    def words(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.exists() else []

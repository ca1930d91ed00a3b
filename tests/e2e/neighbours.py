"""One tenant streams turns while another sends the requests that once stalled the whole server.

What is measured is the victim's longest silence: the longest gap between two frames of a stream, seen from
outside; waiting for the first frame counts. `make prove` judges its seconds, which needs a quiet machine. The
tests judge the processor time that the server used in it, because a machine that is busy with something else
makes everybody silent for longer.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests import heavy_requests
from tests.e2e.api import Api, Given, run_path, said
from tests.e2e.server import LiveServer
from tests.surfaces.in_process_server import make_tokens

_PATIENCE_SECONDS = 120.0
#: A victim must not be silent for longer.
SILENCE_SECONDS = 1.0
#: A turn of the victim: a word every 20 ms.
_TURN = "!slow 0.02\n!say " + "word " * 100

AGENT_FILE = "agents: {root: {model: builtin/scripted, toolsets: [{type: shell}]}}"


@dataclass(frozen=True, slots=True)
class Silence:
    """What the victim noticed of a neighbour's request."""

    request: str
    status: int  # of its last step
    seconds: float  # the victim's longest silence
    cpu_seconds: float  # the most that the server worked in a silence
    committed: int
    failed: list[str]

    @property
    def is_short(self) -> bool:
        """On a machine that does nothing else."""
        return self.seconds < SILENCE_SECONDS

    @property
    def is_short_on_any_machine(self) -> bool:
        return self.cpu_seconds < SILENCE_SECONDS

    def __str__(self) -> str:
        return (
            f"{self.request}: the victim's longest silence was {self.seconds * 1000:.0f} ms (the server used "
            f"{self.cpu_seconds * 1000:.0f} ms of CPU in a silence at most), "
            f"{self.committed} turns committed, {len(self.failed)} failed; response {self.status}"
        )


@dataclass
class Victim:
    """Runs turns until it is told to stop, and at least one."""

    api: Api
    longest: float = 0.0
    longest_cpu: float = 0.0
    committed: int = 0
    failed: list[str] = field(default_factory=list)
    _streams: threading.Event = field(default_factory=threading.Event)
    _ends: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def running(self) -> Iterator[None]:
        """The block begins when a turn streams: a request that comes before it would stall nobody."""
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            assert self._streams.wait(_PATIENCE_SECONDS), "the victim's turn never began"
            yield
        finally:
            self._ends.set()
            thread.join(_PATIENCE_SECONDS)
            assert not thread.is_alive(), "the victim's turn never ended"

    def _run(self) -> None:
        session = self.api.session()
        while not self._ends.is_set():
            try:
                self._turn(session)
            except Exception as error:
                self.failed.append(repr(error))
                self._streams.set()
                return

    def _turn(self, session: str) -> None:
        # Straight from the socket: a reader that times out would end the turn, and hide the silence.
        kinds: list[str] = []
        last, last_cpu = time.monotonic(), self.api.server.cpu_seconds
        with _posted(self.api, run_path(session), json.dumps(said(_TURN)).encode()) as answer:
            for line in answer:
                now, cpu = time.monotonic(), self.api.server.cpu_seconds
                self.longest, last = max(self.longest, now - last), now
                self.longest_cpu, last_cpu = max(self.longest_cpu, cpu - last_cpu), cpu
                if line.startswith(b"data: "):
                    self._streams.set()
                    kinds.append(json.loads(line[6:])["type"])
        if "turn_committed" in kinds:
            self.committed += 1
        else:
            self.failed.append(f"the stream ended without a commit, after {kinds[-3:]}")


@contextmanager
def _posted(api: Api, path: str, body: bytes, **more: str) -> Iterator[http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", api.server.port, timeout=_PATIENCE_SECONDS)
    try:
        headers = {"content-type": "application/json", "authorization": f"Bearer {api.token}", **more}
        connection.request("POST", path, body, headers)
        yield connection.getresponse()
    finally:
        connection.close()


def _post(api: Api, path: str, body: Any, **headers: str) -> Given:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    with _posted(api, path, raw, **headers) as answer:
        return Given(answer.status, dict(answer.getheaders()), answer.read())


# -- the requests --------------------------------------------------------------------------


def _turn(api: Api, session: str, text: str) -> Given:
    return _post(api, f"/api/sessions/{session}/turns", {"messages": said(text), "wait": True})


def many_rules(api: Api) -> Given:
    """300 long ones are refused, so it goes on with as many as there may be."""
    given = _post(
        api, "/api/sessions", {"agent": "tools", "permissions": heavy_requests.deny_rules(300, 4_000)}
    )
    if given.status == 400:
        rules = heavy_requests.deny_rules(200, 400)
        given = _post(api, "/api/sessions", {"agent": "tools", "permissions": rules})
    return _turn(api, given.json["id"], "!tool shell " + json.dumps({"cmd": "a" * 10_000}))


def long_import(api: Api) -> Given:
    """90,000 messages, and turns on them: the first reads them all, the second has them."""
    given = _post(api, "/api/sessions/import", heavy_requests.document(45_000, 1, "a" * 250))
    if given.status == 413:
        given = _post(api, "/api/sessions/import", heavy_requests.document(15_000, 3, "a" * 400))
    if given.status == 201:
        session = given.json["id"]
        _turn(api, session, "hi")
        given = _turn(api, session, "hi")
    return given


def tiny_parts(api: Api) -> Given:
    return _post(api, "/v1/chat/completions", heavy_requests.tiny_parts(24))


def unknown_fields(api: Api) -> Given:
    return _post(api, "/api/sessions", heavy_requests.unknown_fields(70_000))


def long_command(api: Api) -> Given:
    session = _post(api, "/api/sessions", {"agent": "tools"}).json["id"]
    return _turn(api, session, "!tool shell " + json.dumps({"cmd": "true " + "a" * 400_000}))


def large_text(api: Api) -> Given:
    """8 MB in one message, then many small ones: one large event once made every later event slow."""
    large = said("!say ok\n" + 'word "é", ' * 500_000)
    small = [*said("a"), {"role": "assistant", "content": "b"}] * 4_000
    for name, messages in (("large", large), ("small", [*small, *said("c")])):
        body = {"model": heavy_requests.AGENT, "messages": messages}
        given = _post(api, "/v1/chat/completions", body, **{"x-conversation-id": name})
        assert given.status == 200, given.body
    return given


def export_of_forks(api: Api) -> Given:
    """30 forks of a session of 28 MB, in one document."""
    made = _post(api, "/api/sessions/import", heavy_requests.document(140, 1, "a" * 200_000))
    forks = [_post(api, f"/api/sessions/{made.json['id']}/fork", {}).json["id"] for _ in range(30)]
    return _post(api, "/api/sessions/batch/export", {"session_ids": forks})


REQUESTS: dict[str, Callable[[Api], Given]] = {
    "200 deny rules and an argument of 10 KB": many_rules,
    "an import of 90,000 messages and turns on it": long_import,
    "24 MB of tiny content parts": tiny_parts,
    "70,000 unknown JSON fields": unknown_fields,
    "a shell command of 400 KB": long_command,
    "a message of 8 MB, and 8,001 small ones": large_text,
    "a batch export of 30 forks of 28 MB": export_of_forks,
}


# -- side by side --------------------------------------------------------------------------


@contextmanager
def neighbourhood(folder: Path, database: str | None = None) -> Iterator[tuple[Api, Api]]:
    """A server, the victim's API and that of its neighbour, who is another tenant. SQLite, if no database."""
    folder.mkdir(exist_ok=True)
    (folder / "tools.yaml").write_text(AGENT_FILE)
    scopes = ("session", "chat")
    wanted = {"victim": ("one", scopes), "neighbour": ("other", scopes)}
    database = database or f"sqlite:///{folder / 'data' / 'lastgood.db'}"
    tokens = asyncio.run(make_tokens(database, wanted))
    # Restricted: a command is judged, and then denied.
    options = ("--safety", "restricted", "--database", database)
    with LiveServer(folder, heavy_requests.AGENT, str(folder / "tools.yaml"), options=options) as server:
        yield Api(server, tokens["victim"]), Api(server, tokens["neighbour"])


def beside(victim_api: Api, neighbour: Api, name: str) -> Silence:
    victim = Victim(victim_api)
    with victim.running():
        given = REQUESTS[name](neighbour)
    return Silence(name, given.status, victim.longest, victim.longest_cpu, victim.committed, victim.failed)


def silence_without_neighbours(victim_api: Api) -> float:
    """The longest silence during one turn, in seconds: what the machine itself adds to every figure."""
    victim = Victim(victim_api)
    with victim.running():
        pass
    assert victim.failed == [], victim.failed
    return victim.longest

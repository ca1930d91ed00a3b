"""Streams that are cut: after any number of bytes, by a client that then goes on after its last whole frame.

It reads bytes off a socket, with the chunks of HTTP still in them. Only what is whole counts: half a head,
half a chunk, half a frame and half a character are as good as never sent. What it has joined together in
the end must be, byte for byte, what somebody reads who was never cut off (I22, I24).
"""

from __future__ import annotations

import http.client
import random
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.e2e.api import Api, frame_of
from tests.e2e.command import SECONDS
from tests.e2e.nodes import NodeApi
from tests.e2e.server import LiveServer

_ID = re.compile(rb"^id: (\d+)$", re.MULTILINE)
#: So that a socket closes with a reset, as that of a process that died does.
_RESET = struct.pack("ii", 1, 0)
#: Characters of one to four bytes: a cut may be inside of any.
TEXT = "one Grüße ⛵ наконец 🧭 two "
TERMINAL = ("turn_committed", "turn_failed")


class Refused(Exception):
    """It was not a stream that came."""


class Body:
    """What is whole of an answer in chunks, from whatever part of its bytes has come."""

    def __init__(self) -> None:
        self._raw = b""
        self._body = b""
        self._left = -1  # of a chunk; -1: its size comes first
        self._in_head = True
        self.ended = False  # the stream itself said so

    def feed(self, data: bytes) -> None:
        self._raw += data
        if self._in_head:
            head, found, rest = self._raw.partition(b"\r\n\r\n")
            if not found:
                return
            if not head.startswith(b"HTTP/1.1 200 "):
                raise Refused(head.split(b"\r\n")[0].decode())
            assert b"transfer-encoding: chunked" in head.lower(), head
            self._raw, self._in_head = rest, False
        while self._raw and not self.ended and self._take():
            pass

    def _take(self) -> bool:
        """One step further; False: it takes more bytes."""
        if self._left > 0:
            self._body += self._raw[: self._left]
            taken = min(self._left, len(self._raw))
            self._raw, self._left = self._raw[taken:], self._left - taken
            return True
        line, found, rest = self._raw.partition(b"\r\n")
        if not found:
            return False
        self._raw = rest
        if self._left == 0:
            assert line == b"", line
            self._left = -1
        else:
            self._left = int(line, 16)
            self.ended = self._left == 0
        return True

    def frames(self) -> list[bytes]:
        """The whole ones so far, taken out. Comments are dropped: they are no part of what is told."""
        *whole, self._body = self._body.split(b"\n\n")
        return [block for block in whole if not block.startswith(b":")]


@dataclass
class Follower:
    """One reader of one session's stream. `skew` is a defect to plant: it goes on with another number."""

    session: str
    named: bool = False
    skew: int = 0
    frames: list[bytes] = field(default_factory=list)
    last: int = 0
    notices: list[bytes] = field(default_factory=list)  # frames without a number: told to this one alone

    def read(
        self,
        port: int,
        *,
        most: int = 1 << 40,
        seconds: float = SECONDS,
        until: int | None = None,
        by_header: bool = True,
        resets: bool = False,
    ) -> int:
        """Goes on after its last whole frame, for at most so many bytes, up to an event, or until no frame
        has come for so long. How many frames came."""
        before, body = len(self.frames), Body()
        with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as connection:
            connection.sendall(self._request(by_header))
            ends = time.monotonic() + seconds
            while most > 0 and not body.ended and (until is None or self.last < until):
                connection.settimeout(max(ends - time.monotonic(), 0.001))
                try:
                    data = connection.recv(min(most, 65536))
                except TimeoutError:
                    break
                if not data:
                    break
                most -= len(data)
                body.feed(data)
                if self._keep(body.frames()):  # a ping is none
                    ends = time.monotonic() + seconds
            if resets:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        return len(self.frames) - before

    def _request(self, by_header: bool) -> bytes:
        after = str(max(self.last + self.skew, 0)) if self.last else ""
        query = [
            *(["named=1"] if self.named else []),
            *([f"since={after}"] if after and not by_header else []),
        ]
        path = f"/api/sessions/{self.session}/events" + (f"?{'&'.join(query)}" if query else "")
        header = f"Last-Event-ID: {after}\r\n" if after and by_header else ""
        return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{header}\r\n".encode()

    def _keep(self, frames: Sequence[bytes]) -> bool:
        for one in frames:
            number = _ID.search(one)
            if number is None:
                self.notices.append(one)
            else:
                self.last = int(number[1])
                self.frames.append(one)
        return bool(frames)

    @property
    def received(self) -> list[dict[str, Any]]:
        return [frame_of(one.decode()).data for one in self.frames]


def uncut(server: LiveServer, session: str, *, named: bool = False) -> Follower:
    """Everything that is there now, in one piece."""
    follower = Follower(session, named)
    follower.read(server.port, until=Api(server).brief(session)["last_event_seq"])
    return follower


def objections(joined: Follower, whole: Follower) -> list[str]:
    """`joined` may have stopped early, and must be right up to there."""
    for place, (one, other) in enumerate(zip(joined.frames, whole.frames, strict=False)):
        if one != other:
            return [f"I22: frame {place} differs: {one!r} is joined, {other!r} was told"]
    if len(joined.frames) > len(whole.frames):
        return [f"I22: {len(joined.frames)} frames are joined, {len(whole.frames)} were told"]
    return []


def one_end_each(whole: Follower, attempts: Sequence[str]) -> list[str]:
    """I24. `attempts` are those that have ended."""
    ends = Counter(one["attempt"] for one in whole.received if one["type"] in TERMINAL)
    wrong = {attempt: ends[attempt] for attempt in attempts if ends[attempt] != 1}
    return [f"I24: ends of attempts that should be one each: {wrong}"] if wrong else []


def is_settled(api: Api, session: str) -> bool:
    """Nothing runs, and no promised turn is owed: one that was interrupted is tried three times."""
    if api.brief(session)["status"] != "idle":
        return False
    tries: dict[str, list[str]] = {}
    for attempt in api.get(f"/api/sessions/{session}/attempts?limit=200"):
        tries.setdefault(attempt["turn"], []).append(attempt["status"])
    # A turn may be taken up again between the two looks: then it runs, though the session was idle.
    return not any(
        each[-1] in ("running", "waiting") or (each[-1] == "interrupted" and len(each) < 3)
        for each in tries.values()
    )


# -- a story: a session that is talked in, while its readers are cut off and its servers restarted --------


@dataclass
class Cut:
    """What one story came to."""

    cuts: int = 0
    readers: int = 0
    restarts: int = 0
    frames: int = 0
    found: list[str] = field(default_factory=list)


class CutScenario:
    """`restarts`: how often a server is ended and started again meanwhile, in turn by SIGTERM and kill -9."""

    def __init__(self, servers: Sequence[LiveServer], seed: int, cuts: int, restarts: int) -> None:
        self._servers = servers
        self._dice = random.Random(f"cuts {seed}")
        self._wanted = cuts
        self._restarts = restarts
        self._over = threading.Event()
        self._found: list[str] = []
        self._named = self._dice.random() < 0.3
        self.result = Cut(found=self._found)

    def tell(self) -> Cut:
        session = Api(self._servers[0]).session(title="mine")
        talking, restarting = (random.Random(self._dice.random()) for _ in range(2))
        work: list[Callable[[], None]] = [
            lambda: self._talk(session, talking),
            lambda: self._restart(restarting),
        ]
        threads = [threading.Thread(target=self._guarded, args=(one,)) for one in work]
        for thread in threads:
            thread.start()
        try:
            followers = self._cut(session)
        finally:
            self._over.set()
            for thread in threads:
                thread.join()
        self._judge(session, followers)
        return self.result

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # else nobody would hear of it
            self._found.append(f"the story broke: {error!r}")
            raise

    # -- cutting -------------------------------------------------------------------------

    def _cut(self, session: str) -> list[Follower]:
        dice = self._dice
        followers = [Follower(session, self._named)]
        while not self._found and (self.result.cuts < self._wanted or self.result.restarts < self._restarts):
            reader = followers[-1]
            try:
                came = reader.read(
                    dice.choice(self._servers).port,
                    most=_bytes(dice),
                    seconds=0.3,
                    by_header=dice.random() < 0.5,
                    resets=dice.random() < 0.5,
                )
            except (OSError, Refused):  # it is restarting: that was no cut
                time.sleep(0.02)  # real time: of a client, before it connects again
                continue
            self.result.cuts += 1
            if not came and dice.random() < 0.3:
                followers.append(Follower(session, self._named))  # another one, from the beginning
        return followers

    def _judge(self, session: str, followers: list[Follower]) -> None:
        api = Api(self._servers[0])
        ends = time.monotonic() + 2 * SECONDS
        while not is_settled(api, session):
            assert time.monotonic() < ends, "the session is still busy, or owes a turn"
            time.sleep(0.05)
        wholes = [uncut(server, session, named=self._named) for server in self._servers]
        last = followers[-1]
        while last.last < wholes[0].last:
            last.read(self._dice.choice(self._servers).port, most=_bytes(self._dice), until=wholes[0].last)
            self.result.cuts += 1
        if len(last.frames) != len(wholes[0].frames):
            self._found.append(f"I22: {len(last.frames)} of {len(wholes[0].frames)} frames are joined")
        for whole in wholes:
            self._found += objections(wholes[0], whole) + objections(whole, wholes[0])
        for follower in followers:
            self._found += objections(follower, wholes[0])
        attempts = api.get(f"/api/sessions/{session}/attempts?limit=200")
        self._found += one_end_each(wholes[0], [one["id"] for one in attempts])
        self.result.readers, self.result.frames = len(followers), len(wholes[0].frames)

    # -- meanwhile -----------------------------------------------------------------------

    def _talk(self, session: str, dice: random.Random) -> None:
        """Turns of every kind, promised ones: what a restart interrupts is tried again."""
        while not self._over.is_set():
            words = TEXT * dice.randrange(2, 30)
            text = dice.choice(
                (
                    f"!slow 0.01\n!say {words}",
                    f"!think {TEXT}\n!say {words}",
                    '!tool echo {"text": "⛵"}\n!slow 0.005\n!say ' + words,
                    f"!slow 0.01\n!say {words}\n!fail during",
                )
            )
            api = NodeApi(dice.choice(self._servers))
            try:
                api.turn(session, text, wait=False)
                if dice.random() < 0.2:
                    api.post(f"/api/sessions/{session}/cancel")
            except (OSError, http.client.HTTPException):
                pass
            self._over.wait(dice.random() * 0.6)

    def _restart(self, dice: random.Random) -> None:
        for number in range(self._restarts):
            self._until_cut(int(self._wanted * (number + dice.random()) / self._restarts))
            server = dice.choice(self._servers)
            if number % 2:
                server.stop()
            else:
                server.kill()
            server.start()
            self.result.restarts += 1

    def _until_cut(self, times: int) -> None:
        while self.result.cuts < times and not self._over.wait(0.01):
            pass


def _bytes(dice: random.Random) -> int:
    """Often in the head of the answer or in the first frames, sometimes far behind."""
    return dice.choice((dice.randrange(1, 300), dice.randrange(200, 1200), dice.randrange(200, 6000)))

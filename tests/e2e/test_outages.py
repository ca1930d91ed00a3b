"""A real server whose process is paused, or whose database is away: clients wait, nothing is lost."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest
from openai.types.chat import ChatCompletionChunk

from tests.e2e.chat_requests import ask, asking, joined
from tests.e2e.command import AGENT
from tests.e2e.nodes import SETTINGS
from tests.e2e.server import LiveServer
from tests.postgres import PostgresServer
from tests.postgres_proxy import PostgresProxy

pytestmark = pytest.mark.slow

WORDS = " ".join(f"word{number}" for number in range(40))
#: Longer than a lease.
PAUSE_SECONDS = 17.0
#: Shorter than a lease, and longer than what is left of a turn.
OUTAGE_SECONDS = 1.2
MOMENTS = 14
#: How far apart the moments are. The first turn has said its last word when the last one begins.
WORDS_APART = 3


@pytest.fixture
def proxy(postgres_server: PostgresServer) -> Iterator[PostgresProxy]:
    with PostgresProxy(postgres_server) as proxy:
        yield proxy


@pytest.fixture
def behind(tmp_path: Path, postgres_server: PostgresServer, proxy: PostgresProxy) -> Iterator[LiveServer]:
    """A server whose database is behind the proxy."""
    database = f"outages_{random.getrandbits(32):x}"
    postgres_server.create_database(database)
    options = (*SETTINGS, "--database", proxy.dsn(database))
    with LiveServer(tmp_path / "behind", AGENT, options=options) as server:
        yield server
        assert server.stop() == 0
        assert "Traceback" not in server.stderr.read_text()


def test_I11_a_process_on_sqlite_that_is_paused_for_longer_than_a_lease_loses_no_turn(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "paused") as server, server.client(timeout=60) as client:
        with asking(client, f"!slow 0.05\n!say {WORDS}", conversation="paused", stream=True) as answer:
            server.until_seen(WORDS)
            server.tell(signal.SIGSTOP)
            time.sleep(PAUSE_SECONDS)  # real time: the length of the pause
            server.tell(signal.SIGCONT)
        assert answer.result().text == WORDS
        # It is not busy for the rest of a lease either.
        assert ask(client, "!say again", conversation="paused").text == "again"
        assert server.tries("paused") == ["committed", "committed"]


class Streamed:
    """A turn in a thread of its own. `well_begun` is set when its first words have come, or it has failed."""

    def __init__(self, client: openai.OpenAI, conversation: str) -> None:
        self.conversation = conversation
        self.well_begun = threading.Event()
        self._client = client

    def __call__(self) -> str:
        try:
            raw = self._client.chat.completions.with_raw_response.create(
                model=AGENT,
                messages=[{"role": "user", "content": f"!slow 0.03\n!say {WORDS}"}],
                stream=True,
                extra_headers={"X-Conversation-Id": self.conversation},
            )
            return joined(list(self._read(raw.parse())), raw.headers).text
        finally:
            self.well_begun.set()

    def _read(self, stream: openai.Stream[ChatCompletionChunk]) -> Iterator[ChatCompletionChunk]:
        with stream:
            for number, chunk in enumerate(stream):
                if number == WORDS_APART:
                    self.well_begun.set()
                yield chunk


@pytest.mark.parametrize("how", ["cut", "stall"])
def test_I16_a_stream_beside_an_outage_ends_with_the_whole_committed_answer(
    behind: LiveServer, proxy: PostgresProxy, how: str
) -> None:
    """At fourteen moments of a turn, from before its first word to after its last: of fourteen turns, each
    begins when the one before has said some words."""
    with behind.client(timeout=60) as client, ThreadPoolExecutor(MOMENTS) as pool:
        ask(client, "!say ready", conversation="first")
        turns = [Streamed(client, f"{how}-{number}") for number in range(MOMENTS)]
        answers = []
        for turn in turns:
            answers.append(pool.submit(turn))
            if turn is not turns[-1]:
                assert turn.well_begun.wait(60)
        behind.until_seen(WORDS, MOMENTS)
        (proxy.cut if how == "cut" else proxy.stall)()
        time.sleep(OUTAGE_SECONDS)  # real time: the words of every turn end meanwhile
        proxy.restore()
        assert [answer.result() for answer in answers] == [WORDS] * MOMENTS
        for turn in turns:
            assert ask(client, "!say next", conversation=turn.conversation).text == "next"

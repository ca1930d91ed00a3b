"""A real server whose process is paused, or whose database is away: clients wait, nothing is lost."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.chat_requests import ask, asking
from tests.e2e.command import AGENT
from tests.e2e.nodes import SETTINGS
from tests.e2e.server import LiveServer
from tests.postgres import PostgresServer
from tests.postgres_proxy import PostgresProxy

pytestmark = pytest.mark.slow

WORDS = " ".join(f"word{number}" for number in range(40))
#: Longer than a lease.
PAUSE_SECONDS = 17.0


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
            time.sleep(PAUSE_SECONDS)
            server.tell(signal.SIGCONT)
        assert answer.result().text == WORDS
        # It is not busy for the rest of a lease either.
        assert ask(client, "!say again", conversation="paused").text == "again"
        assert server.tries("paused") == ["committed", "committed"]


@pytest.mark.parametrize("how", ["cut", "stall"])
def test_I16_a_stream_beside_an_outage_ends_with_the_whole_committed_answer(
    behind: LiveServer, proxy: PostgresProxy, how: str
) -> None:
    """At fourteen moments of a turn, from before its first word to after its last."""
    text = f"!slow 0.03\n!say {WORDS}"
    with behind.client(timeout=60) as client:
        ask(client, "!say ready", conversation="first")
        for number in range(14):
            conversation = f"{how}-{number}"
            delay = 0.1 + number * 0.11

            def disturb(delay: float = delay) -> None:
                time.sleep(delay)
                (proxy.cut if how == "cut" else proxy.stall)()
                time.sleep(1.2)
                proxy.restore()

            disturbing = threading.Thread(target=disturb)
            disturbing.start()
            said = ask(client, text, conversation=conversation, stream=True)
            disturbing.join()
            assert said.text == WORDS
            assert ask(client, "!say next", conversation=conversation).text == "next"

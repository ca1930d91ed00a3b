"""The command line with `--server`: the same words, screens, JSON and exit codes as without."""

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import closing
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest

from lastgood.cli import main
from tests.e2e.command import AGENT, SECONDS, Command, finish, until
from tests.e2e.server import LiveServer
from tests.e2e.test_cli import CTRL_C, CTRL_D, Terminal, assert_refused
from tests.forkserver import Process

pytestmark = pytest.mark.slow

ENDLESS = "!slow 0.2\n" + "word " * 4000


class There(Command):
    """The command, used on a server. What it would keep here is in a folder that nobody made."""

    def __init__(self, folder: Path, server: LiveServer) -> None:
        super().__init__(folder / "here")
        self.server = server

    def set(self, name: str, value: str) -> None:
        self.env |= {name: value}

    def words(self, *args: str) -> list[str]:
        return [*super().words(*args), "--server", self.server.url]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("cli_server")) as server:
        yield server


@pytest.fixture
def here(tmp_path: Path) -> Command:
    return Command(tmp_path)


@pytest.fixture
def there(tmp_path: Path, server: LiveServer) -> There:
    return There(tmp_path, server)


@pytest.fixture
def started() -> Iterator[list[Process]]:
    """Processes that do not outlive their test."""
    processes: list[Process] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def begin_endless(command: Command, started: list[Process], *options: str) -> tuple[Process, bytes]:
    process = command.start("run", AGENT, ENDLESS, *options)
    started.append(process)
    assert process.stdout is not None
    first = os.read(process.stdout.fileno(), 65536)
    assert first, finish(process).err
    return process, first


# -- the same as here ----------------------------------------------------------------------

WORDS = '!think hm\n!tool echo {"text": "x"}\n!say one'
STORY = (
    ("run", AGENT, WORDS),
    ("run", AGENT, WORDS, "--session", "-1", "--json"),
    ("run", AGENT, "two\n!fail during", "--session", "-1"),
    ("run", AGENT, "two\n!fail before", "--session", "-1", "--json"),
    ("run", AGENT, "two", "--session", "-1", "--key", "story"),
    ("run", AGENT, "two", "--session", "-1", "--key", "story"),
    ("run", AGENT, "two", "--session", "-1", "--key", "story", "--json"),
    ("run", AGENT, "other", "--session", "-1", "--key", "story"),
    ("run", AGENT, " ", "--session", "-1"),
    ("run", AGENT, "hi", "--session", "-1", "--model", "nope/x", "--json"),
    ("run", AGENT, "hi", "--session", "ses_nope"),
    ("run", AGENT, "not kept", "--model", "nope/x"),
    ("sessions", "rename", "-1", "A story"),
    ("sessions", "show", "-1", "--attempts"),
    ("sessions", "show", "-1", "--attempts", "--json"),
    ("sessions", "reset", "-1"),
    ("sessions", "reset", "-1", "--json"),
    ("sessions", "list", "--limit", "1", "--query", "A story"),
    ("sessions", "list", "--limit", "1", "--query", "A story", "--json"),
    ("sessions", "list", "--query", "no such title"),
    ("sessions", "fork", "-1", "--json"),
    ("sessions", "show", "-1"),
    ("sessions", "fork", "-1", "--turn", "turn_nope"),
    ("sessions", "delete", "-1", "ses_nope"),
    ("sessions", "delete", "-1", "-1", "-2"),
    ("sessions", "show", "\udcff"),
    ("sessions", "rename", "-1", "\udcff"),
)


def test_local_and_remote_streams_are_equal(
    server: LiveServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turns, tool calls, failures, refusals, and everything that is done to sessions."""
    monkeypatch.setenv("LASTGOOD_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.delenv("LASTGOOD_TOKEN", raising=False)
    for args in STORY:
        received = []
        for place in ((), ("--server", server.url)):
            code = main([*args, *place])
            out, err = capsys.readouterr()
            received.append((code, plain(out, server), plain(err, server)))
        assert received[0] == received[1], args


def plain(text: str, server: LiveServer) -> str:
    """Without what differs from place to place: ids, but for their order, times, numbers of events."""
    ids: dict[str, str] = {}
    text = text.replace(f" --server {server.url}", "")
    for pattern, word in (
        (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?Z?", "TIME"),
        (r'(, )?"request_id": "[0-9a-f]+"', ""),
        (r'("seq": \d+, )(?="kind")', ""),
        (r'("last_event_seq": )\d+', r"\1N"),
    ):
        text = re.sub(pattern, word, text)
    return re.sub(
        r"(ses|turn|att)_[0-9a-f]{32}", lambda id: ids.setdefault(id[0], f"{id[1]} {len(ids)}"), text
    )


# -- turns on a server ---------------------------------------------------------------------


def test_an_answer_is_streamed_and_ctrl_c_cancels_the_turn(there: There, started: list[Process]) -> None:
    session = there.new_session("good")
    process, first = begin_endless(there, started, "--session", session)
    assert first.startswith(b"You said: word"[: len(first)])
    process.send_signal(signal.SIGINT)
    done = finish(process, first)
    assert done.code == 1
    assert done.err == "lastgood: Turn was cancelled; nothing was committed.\n"
    assert [attempt["status"] for attempt in there.attempts(session)] == ["committed", "cancelled"]
    assert there.say("!remember", "--session", session).out == "I remember: good\n"


@pytest.mark.parametrize("options", [(), ("--key", "kept-on-a-server")])
def test_a_reader_that_leaves_cancels_the_turn_unless_it_has_a_key(
    there: There, started: list[Process], options: tuple[str, ...]
) -> None:
    session = there.new_session("good")
    process = there.start("run", AGENT, "!slow 0.1\na b c d e f g h", "--session", session, *options)
    started.append(process)
    assert process.stdout is not None
    assert os.read(process.stdout.fileno(), 1)
    process.stdout.close()
    process.stdout = None
    assert process.stderr is not None
    code, ended = (0, "committed") if options else (1, "cancelled")
    assert (process.wait(SECONDS), process.stderr.read()) == (code, b"")
    assert [attempt["status"] for attempt in there.attempts(session)] == ["committed", ended]


def test_a_turn_continues_through_the_death_of_its_server(tmp_path: Path, started: list[Process]) -> None:
    with LiveServer(tmp_path / "served") as server:
        there = There(tmp_path, server)
        process = there.start("run", AGENT, "!slow 0.1\n" + "word " * 20, "--json")
        started.append(process)
        server.until_seen("word")
        assert process.stdout is not None
        lines = b""
        while b"text_streamed" not in lines:
            lines += os.read(process.stdout.fileno(), 65536)
        server.restart()
        done = finish(process, lines)
        assert done.code == 0, done.err
        *_, last = done.lines
        assert (last["status"], last["text"]) == ("committed", "You said: " + "word " * 19 + "word")
        tries = [one["status"] for one in there.attempts(last["session"])]
        assert tries == ["interrupted", "committed"]


def test_a_chat_continues_a_server(there: There, started: list[Process]) -> None:
    with closing(Terminal(there, started, "run", AGENT)) as chat:
        chat.expect("> ")
        chat.send("first\n")
        chat.expect("You said: first")
        chat.expect("> ")
        chat.send("/fork\n")
        chat.expect("continuing in session")
        chat.expect("> ")
        chat.send("!remember\n")
        chat.expect("I remember: first")
        chat.expect("> ")
        chat.send("/retry\n")
        chat.expect("I remember: first")

        chat.expect("> ")
        chat.send("/think\n")
        chat.expect("unknown command /think")
        chat.expect("> ")
        chat.send("!slow 9\n")
        until(lambda: there.server.running == 1)
        chat.send(CTRL_C)
        chat.expect("cancelled")
        chat.expect("> ")
        chat.send(CTRL_D)
        chat.expect("session ses_")
        assert chat.process.wait(SECONDS) == 0


# -- documents -----------------------------------------------------------------------------


def test_a_session_moves_between_here_and_a_server(
    server: LiveServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LASTGOOD_DATA_DIR", str(tmp_path / "data"))
    there = ("--server", server.url)

    def say(*args: str, stdin: str = "", code: int = 0) -> str:
        monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(stdin.encode())))
        assert main(args) == code
        out, err = capsys.readouterr()
        assert err.count("\n") == (1 if code else err.count("\n"))
        return out.strip()

    say("run", AGENT, 'one\n!tool echo {"text": "x"}')
    say("run", AGENT, "two", "--session", "-1")
    file = tmp_path / "session.json"
    assert say("sessions", "export", "-1", str(file)).endswith(f" with 2 turns to {file}")
    assert file.stat().st_mode & 0o777 == 0o600
    say("sessions", "export", "-1", str(file), code=1)  # what is there is left as it is

    moved = say("sessions", "import", str(file), *there)
    document = say("sessions", "export", moved, *there)
    assert [said(turn) for turn in json.loads(document)["turns"]] == [
        said(turn) for turn in json.loads(file.read_text())["turns"]
    ]
    again = say("sessions", "import", "-", stdin=document)
    assert say("run", AGENT, "!remember", "--session", again) == "I remember: one | two"
    assert moved in [session["id"] for session in json.loads(say("sessions", "list", "--json", *there))]

    changed = json.loads(document)
    changed["turns"][0]["messages"][0]["content"] = "something else"
    for body in (json.dumps(changed), "[]", "{", "{}"):
        for place in ((), there):
            assert say("sessions", "import", "-", *place, stdin=body, code=1) == ""
    assert len(json.loads(say("sessions", "list", "--json"))) == 2
    assert say("db", "check").endswith("no damage")


def said(turn: dict[str, Any]) -> tuple[object, ...]:
    return turn["messages"], turn["kind"], turn["usage"], turn["created_at"]


# -- who is asked, and who may ask -----------------------------------------------------------


def test_a_database_that_a_server_uses_is_reached_through_the_server(tmp_path: Path) -> None:
    with LiveServer(tmp_path) as server:
        refused = Command(tmp_path).say("hello")
        assert (refused.code, refused.err.count("\n")) == (1, 1)
        assert "Another Lastgood process" in refused.err
        assert f"add --server {server.url}\n" in refused.err
        assert Command(tmp_path).say("hello", "--server", server.url).out == "You said: hello\n"


def test_an_agent_that_the_server_lacks_is_answered_with_those_that_it_has(tmp_path: Path) -> None:
    with LiveServer(tmp_path) as server:
        refused = Command(tmp_path)("run", "notes", "hello", "--server", server.url)
        assert_refused(refused, f"this server has no agent 'notes'; it serves {AGENT}\n")


def test_https_to_a_server_without_tls_says_so(tmp_path: Path) -> None:
    with LiveServer(tmp_path) as server:
        url = server.url.replace("http://", "https://")
        refused = Command(tmp_path)("sessions", "list", "--server", url)
        assert_refused(refused, f"{url} does not speak TLS; use http:// instead of https://\n")


def test_a_token_comes_from_a_file_or_a_variable(tmp_path: Path) -> None:
    token = "a-token-for-this-test-alone"
    with LiveServer(tmp_path / "served", options=("--token-env", "T"), env={"T": token}) as server:
        there = There(tmp_path, server)
        assert_refused(there.say("hello"), "requires a token; set LASTGOOD_TOKEN, or use --token-file")
        (tmp_path / "wrong").write_text("a-token-that-nobody-issued\n")
        refused = there("sessions", "list", "--token-file", str(tmp_path / "wrong"))
        assert_refused(refused, "rejected the token; set LASTGOOD_TOKEN, or use --token-file")
        (tmp_path / "token").write_text(f"{token}\n")
        assert there.say("hello", "--token-file", str(tmp_path / "token")).code == 0
        assert_refused(there("sessions", "list", "--token-file", str(tmp_path / "none")), "cannot read")
        there.set("LASTGOOD_TOKEN", token)
        assert len(there.sessions()) == 1


def test_a_server_that_is_not_there_is_one_line(here: Command) -> None:
    nobody = ("--server", "http://127.0.0.1:9")
    assert_refused(here.say("hello", *nobody), "cannot connect to", "lastgood serve")
    refused = here("sessions", "list", "--json", *nobody)
    assert_refused(refused, "cannot connect to")
    assert refused.json["error"]["code"] == "server_unreachable"
    assert_refused(here("sessions", "list", "--server", "localhost"), "http://HOST:PORT", code=2)
    assert not here.data_dir.exists()


@pytest.mark.parametrize(
    "args",
    [
        ("run", AGENT, "hi", "--server", "http://x", "--data-dir", "y"),
        ("--database", "sqlite:///x", "sessions", "list", "--server", "http://x"),
        ("run", AGENT, "hi", "--server", "http://x", "--env-file", "y"),
        ("run", AGENT, "hi", "--server", "http://x", "--session", "-1", "--safety", "strict"),
        ("run", AGENT, "hi", "--token-file", "x"),
        ("sessions", "show", "-1", "--token-file", "x"),
    ],
)
def test_options_that_do_not_go_together_are_wrong_usage(here: Command, args: tuple[str, ...]) -> None:
    assert_refused(here(*args), "--", code=2)

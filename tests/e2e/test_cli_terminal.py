"""Text of others in the terminal: it can be read, and steers nothing."""

import ast
import asyncio
import json
import os
import re
from collections.abc import Iterator
from contextlib import closing
from io import StringIO
from pathlib import Path

import pytest

import lastgood.cli as commands
from lastgood.cli.logs import configure_logs
from lastgood.cli.output import one_line
from lastgood.cli.render import TextScreen
from lastgood.core.visible_text import harmless
from lastgood.model.events import StoredEvent, TextStreamed
from tests.e2e.command import AGENT, Command
from tests.e2e.test_cli import CTRL_C, Terminal
from tests.forkserver import Process

#: By what it would do to a terminal.
CORPUS = {
    "clear the screen": "a\x1b[2Jb",
    "set the window's title": "a\x1b]0;owned\x07b",
    "a link to elsewhere": "a\x1b]8;;http://evil.example\x1b\\b\x1b]8;;\x1b\\",
    "answer to a query": "a\x1b[6n\x1b[cb",
    "device control": "a\x1bP+q544e\x1b\\b",
    "one-byte CSI": "a\x9b2Jb",
    "one-byte OSC": "a\x9d0;owned\x9cb",
    "overwrite the line": "good\rbad",
    "erase by backspace": "good\x08\x08\x08\x08bad",
    "bell, form feed, DEL": "\x07\x0c\x7f",
    "bidirectional override": "file\u202egpj.exe",
    "bidirectional isolates": "\u2066a\u2067b\u2068c\u2069",
    "bidirectional marks": "a\u200e\u200f\u061cb",
    "invisible separators": "a\u200b\u2060\ufeffb",
    "line separators": "a\u2028b\u2029c",
    "invisible alphabet": "a\U000e0041\U000e0042b",
}
_RANGES = (
    (0x00, 0x08), (0x0B, 0x1F), (0x7F, 0x9F), (0x61C, 0x61C), (0x200B, 0x200B), (0x200E, 0x200F),
    (0x2028, 0x202E), (0x2060, 0x2064), (0x2066, 0x206F), (0xFEFF, 0xFEFF), (0xE0000, 0xE007F),
)  # fmt: skip
DANGEROUS = frozenset(chr(code) for first, last in _RANGES for code in range(first, last + 1))
#: What a person may write and read.
READABLE = "Grüße, שלום, مرحبا, नमस्ते, 你好, 👩‍👩‍👧, می‌خواهم\n\tindented <b>not bold</b>"


def assert_harmless(shown: str) -> None:
    """A terminal turns every newline into CR LF, and remarks are dim: those sequences are ours."""
    plain = shown.replace("\r\n", "\n").replace("\x1b[2m", "").replace("\x1b[0m", "")
    assert not DANGEROUS & set(plain), ascii(plain)


@pytest.fixture
def started() -> Iterator[list[Process]]:
    """Processes that do not outlive their test."""
    processes: list[Process] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture
def lastgood(tmp_path: Path) -> Command:
    return Command(tmp_path)


@pytest.mark.parametrize("text", CORPUS.values(), ids=CORPUS)
def test_what_steers_a_terminal_is_escaped_visibly(text: str) -> None:
    for escaped in (harmless(text), one_line(text)):
        assert not DANGEROUS & set(escaped)
        assert "\\" in escaped or " " in escaped


def test_readable_text_is_shown_as_it_is() -> None:
    assert harmless(READABLE) == READABLE


@pytest.mark.parametrize("text", CORPUS.values(), ids=CORPUS)
def test_sequences_split_over_streamed_chunks_are_escaped(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for cut in range(1, len(text)):
        ours, theirs = os.openpty()
        with open(theirs, "w", encoding="utf-8") as terminal, open(ours, "rb", buffering=0) as seen:
            monkeypatch.setattr("sys.stdout", terminal)
            asyncio.run(_stream(text[:cut], text[cut:], "."))
            shown = b""
            while not shown.endswith(b"."):
                shown += seen.read(65536)
            assert_harmless(shown.decode())


async def _stream(*chunks: str) -> None:
    screen = TextScreen()
    for number, chunk in enumerate(chunks, 1):
        await screen.event(StoredEvent(number, None, TextStreamed(chunk), 0.0))


@pytest.mark.slow
def test_nothing_said_or_named_steers_a_terminal(lastgood: Command, started: list[Process]) -> None:
    """Streamed answers, calls and results of tools, titles, turns, attempts and errors, all on a terminal."""
    everything = " ".join(CORPUS.values())
    call = f"!tool echo {json.dumps({'text': everything})}"
    asked = f"{call}\n!say-json {json.dumps(everything)}"
    session = lastgood.new_session(asked)
    assert lastgood("sessions", "rename", session, everything).code == 0
    for words in (
        ("run", AGENT, asked),
        ("run", AGENT, f"!fail {everything}"),
        ("sessions", "list"),
        ("sessions", "show", session, "--attempts"),
        ("sessions", "show", everything),
        ("agents", "check", everything.replace("/", "")),
        ("sessions", "rename", session, everything),
    ):
        with closing(Terminal(lastgood, started, *words)) as terminal:
            assert_harmless(_all_of(terminal))


@pytest.mark.slow
def test_the_prompt_after_ctrl_c_begins_on_a_line_of_its_own(
    lastgood: Command, started: list[Process]
) -> None:
    with closing(Terminal(lastgood, started, "demo")) as terminal:
        terminal.expect("Starting a server")
        terminal.expect("\n")
        terminal.send(CTRL_C)
        assert _all_of(terminal).endswith("\n")


def _all_of(terminal: Terminal) -> str:
    seen = b""
    try:
        while piece := os.read(terminal._ours, 65536):
            seen += piece
    except OSError:  # how a terminal says that nobody writes to it any more
        pass
    assert seen
    return seen.decode()


@pytest.mark.slow
def test_json_is_exact(lastgood: Command) -> None:
    everything = " ".join(CORPUS.values())
    session = lastgood.new_session("hello")
    assert lastgood("sessions", "rename", session, everything).code == 0
    done = lastgood("sessions", "list", "--json")
    assert done.json[0]["title"] == " ".join(everything.split())  # as the server stores titles
    assert done.out.isascii()


def test_logs_are_exact_json_that_steers_nothing() -> None:
    import logging

    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    lines = StringIO()
    try:
        configure_logs(lines)
        for text in CORPUS.values():
            logging.getLogger("lastgood.test").info("%s", text)
    finally:
        root.handlers[:], root.level = before, level
    assert_harmless(lines.getvalue())
    assert [json.loads(line)["message"] for line in lines.getvalue().splitlines()] == [*CORPUS.values()]


def test_only_the_output_module_prints() -> None:
    """A bare print() would show text of others as it is."""
    folder = Path(commands.__file__).parent
    printing = [
        f"{path.name}:{node.lineno}"
        for path in folder.glob("*.py")
        if path.name != "output.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert printing == []


def test_logs_on_a_terminal_are_lines_of_text() -> None:
    import logging

    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    lines = Terminal()
    try:
        configure_logs(lines)
        fields = {"code": "model_error", "session": "ses_1", "route": None}
        logging.getLogger("lastgood.test").warning("turn not committed", extra={"fields": fields})
        for text in CORPUS.values():
            logging.getLogger("lastgood.test").info("%s", text)
    finally:
        root.handlers[:], root.level = before, level
    assert_harmless(lines.getvalue())
    first = lines.getvalue().splitlines()[0]
    assert re.fullmatch(r"\d\d:\d\d:\d\d warning turn not committed code=model_error session=ses_1", first)

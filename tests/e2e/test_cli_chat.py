"""A chat in a terminal that can draw: editing, history, pastes, signals, approvals and colours."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from lastgood.cli.terminal_markdown import MarkdownColours
from tests.e2e.command import AGENT, Command, until
from tests.e2e.server import LiveServer
from tests.e2e.test_cli import CTRL_C, CTRL_D, Terminal
from tests.e2e.test_cli_terminal import CORPUS, DANGEROUS, _all_of
from tests.forkserver import Process

UP, LEFT, ENTER, ALT_ENTER = "\x1b[A", "\x1b[D", "\r", "\x1b\r"
#: As the editor draws it.
PROMPT = "\x1b[0m>"
PASTE = "\x1b[200~{}\x1b[201~"
_COLOUR = re.compile(r"\x1b\[\d*m")

ASKING = (
    "agents:\n  root:\n    model: builtin/scripted\n    toolsets:\n      - type: shell\n"
    "permissions:\n  ask: [shell]\n"
)
WAITING = 'Greet.\n!tool shell {"cmd": "echo hi | tr h H"}\n!say done'

MARKDOWN = """# Title with **bold**

Some `code`, **bold text**, 2 * 3 ** 4 and *one*.
- one
  * two **b**
12. three
```python
def f(x):
    return x**2  # `no`
```
after, unclosed **bold
~~~
fence to the end"""


@pytest.fixture
def lastgood(tmp_path: Path) -> Command:
    command = Command(tmp_path)
    command.env |= {"TERM": "xterm-256color"}
    command.env.pop("NO_COLOR", None)
    return command


@pytest.fixture
def started() -> Iterator[list[Process]]:
    """Processes that do not outlive their test."""
    processes: list[Process] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture
def chat(lastgood: Command, started: list[Process]) -> Iterator[Terminal]:
    terminal = Terminal(lastgood, started, "run", AGENT)
    terminal.expect(PROMPT)
    with closing(terminal):
        yield terminal


def turns(lastgood: Command) -> list[int]:
    return [session["turns"] for session in lastgood.sessions()]


# -- input -------------------------------------------------------------------------


@pytest.mark.slow
def test_a_line_can_be_edited_and_recalled_in_the_next_chat(
    chat: Terminal, lastgood: Command, started: list[Process]
) -> None:
    chat.send(f"helo{LEFT}l{ENTER}")
    chat.expect("You said: hello")
    chat.expect(PROMPT)
    chat.send(CTRL_D)
    chat.expect("session ses_")
    assert chat.process.wait(20) == 0
    history = lastgood.data_dir / "chat_history"
    assert history.stat().st_mode & 0o777 == 0o600
    with closing(Terminal(lastgood, started, "run", AGENT)) as second:
        second.expect(PROMPT)
        second.send(f"{UP}{ENTER}")
        second.expect("You said: hello")


@pytest.mark.slow
def test_a_paste_is_one_message_also_while_a_turn_runs(chat: Terminal, lastgood: Command) -> None:
    chat.send(PASTE.format("one\ntwo\n"))
    chat.send(ENTER)
    chat.expect("You said: one\r\ntwo")
    chat.expect(PROMPT)
    chat.send(f"!slow 0.3{ALT_ENTER}a b c d e f g h i j k l{ENTER}")
    chat.expect("You said: ")
    chat.send(PASTE.format("three\nfour\n"))
    chat.expect("k l")
    chat.expect(PROMPT)
    chat.send(ENTER)
    chat.expect("You said: three\r\nfour")
    assert turns(lastgood) == [3]


@pytest.mark.slow
def test_ctrl_c_clears_the_line_and_then_says_how_to_quit(chat: Terminal, lastgood: Command) -> None:
    chat.send("never sent")
    chat.send(CTRL_C)
    chat.send(CTRL_C)
    chat.expect("Ctrl-D or /exit ends the chat")
    chat.send(f"sent{ENTER}")
    chat.expect("You said: sent")
    chat.expect(PROMPT)
    chat.send(f"!slow 0.2{ALT_ENTER}{'word ' * 500}{ENTER}")
    chat.expect("You said: word")
    chat.send(CTRL_C)
    chat.expect("cancelled")
    chat.expect(PROMPT)
    chat.send(CTRL_D)
    assert chat.process.wait(20) == 0
    assert turns(lastgood) == [1]


@pytest.mark.slow
def test_sigterm_at_the_prompt_ends_the_chat(chat: Terminal) -> None:
    chat.process.send_signal(signal.SIGTERM)
    assert chat.process.wait(20) == 0


# -- commands ----------------------------------------------------------------------


@pytest.mark.slow
def test_sessions_can_be_listed_and_continued_and_show_what_was_said(
    lastgood: Command, started: list[Process]
) -> None:
    lastgood.new_session("older")
    newer = lastgood.new_session("one")
    for text in ("two", "three", "four"):
        assert lastgood.say(text, "--session", newer).code == 0
    with closing(Terminal(lastgood, started, "run", AGENT, "--session", newer)) as chat:
        chat.expect("1 earlier turn;")
        chat.expect("> two")
        chat.expect("You said: four")
        chat.expect(PROMPT)
        chat.send(f"/sessions{ENTER}")
        chat.expect("older")
        chat.send(f"/sessions -2{ENTER}")
        chat.expect("You said: older")
        chat.send(f"/model{ENTER}")
        chat.expect(f"model: {AGENT}")
        chat.send(f"/model nobody/nothing{ENTER}")
        chat.expect("lastgood: no such provider: 'nobody'")
        chat.send(f"/model{ENTER}")
        chat.expect(f"model: {AGENT}")
        chat.send(f"!fail during{ENTER}")
        chat.expect("nothing was committed. /retry sends the message again")
        chat.send(f"!remember{ENTER}")
        chat.expect("I remember: older")
        chat.send(f"/help{ENTER}")
        chat.expect("Alt-Enter")


def test_without_a_terminal_the_error_names_the_call_that_waits(lastgood: Command, tmp_path: Path) -> None:
    agent = tmp_path / "agent.yaml"
    agent.write_text("agents:\n  root:\n    model: builtin/scripted\n    toolsets:\n      - type: shell\n")
    waits = lastgood("run", str(agent), "--safety", "balanced", '!tool shell {"cmd": "date"}')
    assert waits.code == 1
    assert 'the turn waits for an answer (shell {"cmd": "date"}); answer it in a terminal' in waits.err


@pytest.mark.slow
def test_approvals_are_asked_inline_and_ctrl_c_there_cancels_the_turn(
    lastgood: Command, started: list[Process], tmp_path: Path
) -> None:
    agent = tmp_path / "agent.yaml"
    agent.write_text("agents:\n  root:\n    model: builtin/scripted\n    toolsets:\n      - type: shell\n")
    call = f'!tool shell {{"cmd": "echo hi | tr h H"}}{ENTER}'
    with closing(Terminal(lastgood, started, "run", str(agent), "--safety", "balanced")) as chat:
        chat.expect(PROMPT)
        chat.send(call)
        chat.expect("in this session, or a reason")
        chat.send("y\n")
        chat.expect("← Hi")
        chat.expect(PROMPT)
        chat.send(call)
        chat.expect("in this session, or a reason")
        chat.send(CTRL_C)
        chat.expect("cancelled")
        chat.expect(PROMPT)
        chat.send(f"goes on{ENTER}")
        chat.expect("You said: goes on")
        chat.expect(PROMPT)
        chat.send(call)
        chat.expect("in this session, or a reason")
        chat.send(CTRL_D)
        chat.expect("the next message that you type shows the question again")
        chat.expect(PROMPT)
        chat.send(f"hello{ENTER}")
        chat.expect("in this session, or a reason")
        chat.send("y\n")
        chat.expect("your message was not sent: the turn before it had a question")
    assert turns(lastgood) == [3]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["here", "on a server"])
def test_a_session_that_waits_asks_its_question_again_when_it_is_continued(
    lastgood: Command, started: list[Process], tmp_path: Path, how: str
) -> None:
    agent = tmp_path / "agent.yaml"
    agent.write_text(ASKING)
    with ExitStack() as stack:
        place = [str(agent)]
        if how == "on a server":
            server = stack.enter_context(LiveServer(tmp_path / "there", str(agent)))
            place = ["agent", "--server", server.url]
        left = lastgood("run", *place, WAITING)
        assert (left.code, "lastgood run AGENT --session ses_" in left.err) == (1, True)
        chat = stack.enter_context(closing(Terminal(lastgood, started, "run", *place, "--session", "-1")))
        chat.expect("needs approval: shell")
        chat.expect("or a reason to reject it: ")
        chat.send(CTRL_D)
        chat.expect(PROMPT)
        chat.send(f"too early{ENTER}")
        chat.expect("needs approval: shell")
        chat.send("y\n")
        chat.expect("← Hi")
        chat.expect("your message was not sent")
        chat.expect(PROMPT)
        chat.send(f"!remember{ENTER}")
        chat.expect("I remember: Greet.")


@pytest.mark.slow
def test_a_message_to_a_session_that_waits_is_sent_after_the_answer(
    lastgood: Command, started: list[Process], tmp_path: Path
) -> None:
    agent = tmp_path / "agent.yaml"
    agent.write_text(ASKING)
    assert lastgood("run", str(agent), WAITING).code == 1
    blocked = lastgood("run", str(agent), "--session", "-1", "next")
    assert (blocked.code, "waits for an answer of a person; answer, or cancel it" in blocked.err) == (1, True)
    with closing(Terminal(lastgood, started, "run", str(agent), "--session", "-1", "next")) as first:
        first.expect("or a reason to reject it: ")
        first.send(CTRL_D)
        assert first.process.wait(20) == 1
    with closing(Terminal(lastgood, started, "run", str(agent), "--session", "-1", "next")) as second:
        second.expect("or a reason to reject it: ")
        second.send("n\n")
        second.expect("a person rejected this call")
        second.expect("You said: next")
        assert second.process.wait(20) == 0
    assert turns(lastgood) == [2]


# -- colours -----------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 7, 10_000])
def test_colours_change_no_character_however_the_text_is_cut(size: int) -> None:
    colours = MarkdownColours()
    shown = "".join(colours.feed(MARKDOWN[at : at + size]) for at in range(0, len(MARKDOWN), size))
    shown += colours.end()
    assert _COLOUR.sub("", shown) == MARKDOWN
    whole = MarkdownColours()
    assert shown == whole.feed(MARKDOWN) + whole.end()
    assert shown.endswith("\x1b[0m")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("# Head\n", "\x1b[1m# Head\x1b[0m\n"),
        ("a `b` c", "a \x1b[0m\x1b[36m`b`\x1b[0m c"),
        ("2 ** 3", "2 ** 3"),
        ("`**`", "\x1b[0m\x1b[36m`**`\x1b[0m"),
        ("- item", "\x1b[33m- \x1b[0mitem"),
        ("-no item", "-no item"),
        ("#5 is no heading", "#5 is no heading"),
    ],
)
def test_colours_mark_what_markdown_means(text: str, shown: str) -> None:
    colours = MarkdownColours()
    assert colours.feed(text) + colours.end() == shown


@pytest.mark.slow
def test_colours_are_for_terminals_that_have_them(lastgood: Command, started: list[Process]) -> None:
    said = "!say **bold**"
    seen = {}
    for name, env in {
        "xterm": {},
        "NO_COLOR": {"NO_COLOR": "1"},
        "dumb": {"TERM": "dumb"},
    }.items():
        before = dict(lastgood.env)
        lastgood.env |= env
        with closing(Terminal(lastgood, started, "run", AGENT, said)) as terminal:
            seen[name] = "\x1b" in _all_of(terminal)
        lastgood.env = before
    assert seen == {"xterm": True, "NO_COLOR": False, "dumb": False}
    assert lastgood("run", AGENT, said).out == "**bold**\n"


@pytest.mark.slow
def test_nothing_a_model_says_steers_a_terminal_with_colours(
    lastgood: Command, started: list[Process]
) -> None:
    import json

    everything = " ".join(CORPUS.values())
    with closing(
        Terminal(lastgood, started, "run", AGENT, f"!say-json {json.dumps(everything)}")
    ) as terminal:
        plain = _COLOUR.sub("", _all_of(terminal)).replace("\r\n", "\n")
    assert not DANGEROUS & set(plain), ascii(plain)


@pytest.mark.slow
def test_the_editor_is_imported_by_chats_only(lastgood: Command) -> None:
    import subprocess

    look = (
        "import sys; from lastgood.cli import main; "
        f"assert main(['run', '{AGENT}', 'hi']) == 0; "
        "sys.exit('prompt_toolkit' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", look], env=lastgood.env, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    until(lambda: len(lastgood.sessions()) == 1)


@pytest.mark.slow
def test_a_chat_whose_history_cannot_be_written_continues(lastgood: Command, started: list[Process]) -> None:
    (lastgood.data_dir / "chat_history").mkdir(parents=True)
    with closing(Terminal(lastgood, started, "run", AGENT)) as chat:
        chat.expect(PROMPT)
        chat.send(f"hello{ENTER}")
        chat.expect("You said: hello")
        chat.expect(PROMPT)
        chat.send(CTRL_D)
        assert chat.process.wait(20) == 0

"""The command line, on real processes."""

import json
import os
import select
import shlex
import signal
import sqlite3
import termios
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.e2e.command import AGENT, SECONDS, Command, Done, finish, until
from tests.forkserver import Process

#: Streams its first word after 0.2 s and would take a quarter of an hour.
ENDLESS = "!slow 0.2\n" + "word " * 4000


@pytest.fixture
def lastgood(tmp_path: Path) -> Command:
    return Command(tmp_path)


@pytest.fixture
def started(lastgood: Command) -> Iterator[list[Process]]:
    """Processes that do not outlive their test."""
    processes: list[Process] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def begin_endless(lastgood: Command, started: list[Process], *options: str) -> tuple[Process, bytes]:
    """A turn that streams, and what it has said so far."""
    process = lastgood.start("run", AGENT, ENDLESS, *options)
    started.append(process)
    assert process.stdout is not None
    first = os.read(process.stdout.fileno(), 65536)
    assert first, finish(process).err
    return process, first


def assert_refused(done: Done, *words: str, code: int = 1) -> None:
    """One line that says what is wrong, and no traceback."""
    assert done.code == code, done
    assert done.err.startswith("lastgood: ")
    assert done.err.count("\n") == 1, done.err
    for word in words:
        assert word in done.err


# -- turns -----------------------------------------------------------------------


def test_next_turn_remembers_the_one_before(lastgood: Command) -> None:
    first = lastgood("run", AGENT, "my", "name", "is", "Ada")
    assert (first.code, first.out) == (0, "You said: my name is Ada\n")
    session = lastgood.sessions()[0]["id"]
    assert f"session {session}; continue with: lastgood run {AGENT} --session {session}" in first.err
    second = lastgood("run", AGENT, "--session", session, "!remember")
    assert (second.code, second.out, second.err) == (0, "I remember: my name is Ada\n", "")


def test_failed_first_message_is_one_line_that_names_its_session(lastgood: Command) -> None:
    failed = lastgood("run", AGENT, "hello\n!fail before")
    session = lastgood.sessions()[0]["id"]
    assert_refused(failed, f"as directed; nothing was committed. Continue with --session {session}\n")
    again = lastgood("run", AGENT, "--session", session, "hello\n!fail before")
    assert_refused(again, "as directed; nothing was committed\n")


def test_sessions_as_json_have_the_fields_of_the_api(lastgood: Command) -> None:
    lastgood.new_session("hello")
    listed = lastgood.sessions()[0]
    assert (listed["agent"], listed["agent_key"], listed["streaming"]) == (AGENT, AGENT, False)


def test_what_to_run_next_names_the_place_of_the_session(lastgood: Command, tmp_path: Path) -> None:
    elsewhere = str(tmp_path / "my data")
    first = lastgood("run", AGENT, "--data-dir", elsewhere, "hello")
    line = first.err.partition("continue with: lastgood ")[2].strip()
    second = lastgood(*shlex.split(line), "!remember")
    assert (second.code, second.out) == (0, "I remember: hello\n")


def test_minus_one_is_the_newest_session(lastgood: Command) -> None:
    older, newer = lastgood.new_session("older"), lastgood.new_session("newer")
    assert lastgood.say("!remember", "--session", "-1").out == "I remember: newer\n"
    assert lastgood.say("!remember", "--session", "-2").out == "I remember: older\n"
    assert [session["id"] for session in lastgood.sessions()] == [newer, older]


def test_a_newest_session_that_does_not_exist_says_which_do(lastgood: Command) -> None:
    assert "No session exists yet; start one" in lastgood.say("hi", "--session", "-1").err
    lastgood.new_session()
    assert "Only one session exists; name it with -1" in lastgood.say("hi", "--session", "-2").err
    lastgood.new_session()
    assert "name one of them with -1 to -2" in lastgood("sessions", "show", "-3").err


def test_options_may_stand_anywhere_and_two_dashes_end_them(lastgood: Command) -> None:
    done = lastgood("run", AGENT, "one", "--model", AGENT, "two", "--", "--three")
    assert done.out == "You said: one two --three\n"
    assert (
        lastgood("--data-dir", str(lastgood.data_dir), "run", AGENT, "- a list").out == "You said: - a list\n"
    )


def test_message_comes_from_standard_input(lastgood: Command) -> None:
    assert lastgood("run", AGENT, stdin="süß\n".encode()).out == "You said: süß\n"
    assert lastgood("run", AGENT, "-", stdin=b"two\nlines\n").out == "You said: two\nlines\n"


def test_json_is_every_event_and_the_outcome_last(lastgood: Command) -> None:
    done = lastgood.say('!tool echo {"text": "x"}\n!say done', "--json")
    *events, last = done.lines
    assert [event["kind"] for event in events] == [
        "attempt_started",
        "user_said",
        "model_answered",
        "tool_called",
        "tool_answered",
        "text_streamed",
        "model_answered",
        "turn_committed",
    ]
    assert all(set(event) == {"seq", "kind", "attempt", "data"} for event in events)
    assert [event["seq"] for event in events] == sorted({event["seq"] for event in events})
    assert last["attempt"] == events[0]["attempt"]
    assert {name: last[name] for name in ("seq", "status", "text")} == {
        "seq": 1,
        "status": "committed",
        "text": "done",
    }
    assert done.err == ""


def test_tool_calls_are_remarks_and_not_part_of_the_answer(lastgood: Command) -> None:
    done = lastgood.say('!tool echo {"text": "x"}\n!say done')
    assert done.out == "done\n"
    assert '→ echo {"text": "x"}' in done.err


def test_answer_is_streamed_before_it_ends(lastgood: Command, started: list[Process]) -> None:
    process, first = begin_endless(lastgood, started)
    assert first.startswith(b"You said: word"[: len(first)])
    assert process.poll() is None


def test_failed_turn_leaves_nothing_and_exits_1(lastgood: Command) -> None:
    session = lastgood.new_session("good")
    failed = lastgood.say("bad\n!fail during", "--session", session)
    assert_refused(failed, "stream cut")
    assert lastgood.remembered(session) == ["good"]
    as_json = lastgood.say("bad\n!fail before", "--session", session, "--json")
    assert as_json.code == 1
    last = as_json.lines[-1]
    assert (last["status"], last["seq"], last["text"]) == ("failed", None, None)
    assert last["error"]["code"] == "model_error"
    assert lastgood.remembered(session) == ["good"]
    assert [attempt["status"] for attempt in lastgood.attempts(session)] == ["committed", "failed", "failed"]


def test_killed_process_leaves_the_last_good_history(lastgood: Command, started: list[Process]) -> None:
    session = lastgood.new_session("good")
    process, _ = begin_endless(lastgood, started, "--session", session)
    process.kill()
    process.wait()
    after = lastgood.say("after\n!remember", "--session", session)
    assert after.out == "I remember: good | after\n"
    attempts = lastgood.attempts(session)
    assert [attempt["status"] for attempt in attempts] == ["committed", "interrupted", "committed"]
    shown = lastgood("sessions", "show", session, "--attempts")
    assert "interrupted" in shown.out
    assert "word" not in shown.out
    assert lastgood("db", "check").code == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_cancels_the_turn_cleanly(
    lastgood: Command, started: list[Process], number: signal.Signals
) -> None:
    session = lastgood.new_session("good")
    process, first = begin_endless(lastgood, started, "--session", session)
    process.send_signal(number)
    done = finish(process, first)
    assert_refused(done, "cancelled")
    # Read only: nobody has recovered anything, the process itself has ended its attempt.
    assert [attempt["status"] for attempt in lastgood.attempts(session)] == ["committed", "cancelled"]
    assert lastgood.sessions()[0]["status"] == "idle"
    assert lastgood.remembered(session) == ["good"]


def test_reader_that_leaves_cancels_the_turn_quietly(lastgood: Command, started: list[Process]) -> None:
    session = lastgood.new_session("good")
    process, _ = begin_endless(lastgood, started, "--session", session)
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    assert process.stderr is not None
    assert (process.wait(20), process.stderr.read()) == (1, b"")
    assert [attempt["status"] for attempt in lastgood.attempts(session)] == ["committed", "cancelled"]


def test_model_override_is_kept_only_by_a_turn_that_commits(lastgood: Command) -> None:
    session = lastgood.new_session()

    def kept() -> object:
        return lastgood("sessions", "show", session, "--json").json["session"]["model"]

    assert lastgood.say("!fail before", "--session", session, "--model", AGENT).code == 1
    assert kept() is None
    assert lastgood.say("again", "--session", session, "--model", AGENT).code == 0
    assert lastgood.say("later", "--session", session).code == 0
    assert kept() == AGENT


# -- keys ------------------------------------------------------------------------


def test_the_limits_of_a_turn_hold_in_the_terminal_too(lastgood: Command) -> None:
    lastgood.env["LASTGOOD_TURN_TIMEOUT"] = "0.3s"
    done = lastgood.say("!slow 30\na b", "--json")
    assert (done.code, done.lines[-1]["error"]["code"]) == (1, "turn_timeout")


def test_same_key_replays_without_a_second_model_call(lastgood: Command) -> None:
    session = lastgood.new_session()
    ask = ("pay", "--session", session, "--key", "k1")
    first = lastgood.say(*ask)
    prompts = lastgood.prompts()
    again = lastgood.say(*ask)
    assert (first.out, again.out, again.code) == ("You said: pay\n", "You said: pay\n", 0)
    assert "replayed: this key was used before" in again.err
    as_json = lastgood.say(*ask, "--json").lines
    assert [line.get("replayed") for line in as_json] == [True]
    assert lastgood.prompts() == prompts
    assert lastgood.sessions()[0]["turns"] == 2


def test_key_for_another_message_is_refused(lastgood: Command) -> None:
    session = lastgood.new_session()
    assert lastgood.say("pay", "--session", session, "--key", "k1").code == 0
    assert_refused(lastgood.say("pay twice", "--session", session, "--key", "k1"), "key")
    # In a new session it is another request, too, and that session is not kept.
    assert_refused(lastgood.say("pay", "--key", "k1"), "key")
    assert len(lastgood.sessions()) == 1


def test_key_of_a_killed_turn_is_answered_once(lastgood: Command, started: list[Process]) -> None:
    session = lastgood.new_session("good")
    ask = ("run", AGENT, "!slow 0.3\na b c d", "--session", session, "--key", "k1")
    process = lastgood.start(*ask)
    started.append(process)
    until(lambda: lastgood.prompts() == 2)
    process.kill()
    process.wait()
    again = lastgood(*ask)
    assert (again.code, again.out) == (0, "You said: a b c d\n")
    assert lastgood.remembered(session) == ["good", "a b c d"]
    assert [attempt["status"] for attempt in lastgood.attempts(session)] == [
        "committed",
        "interrupted",
        "committed",
    ]


# -- chat ------------------------------------------------------------------------


class Terminal:
    """A process with a terminal for its stdin, stdout and stderr."""

    def __init__(self, lastgood: Command, started: list[Process], *args: str) -> None:
        self._ours, theirs = os.openpty()
        termios.tcsetwinsize(theirs, (40, 200))
        self.process = lastgood.start(
            *args,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            own_terminal=True,  # so Ctrl-C is a signal to the process and to nobody else
        )
        started.append(self.process)
        os.close(theirs)
        self.seen = b""

    def expect(self, text: str) -> None:
        while text.encode() not in self.seen:
            ready, _, _ = select.select([self._ours], [], [], SECONDS)
            assert ready, f"{text!r} did not come; there is {self.seen!r}"
            self.seen += os.read(self._ours, 65536)
        self.seen = self.seen.partition(text.encode())[2]

    def send(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def close(self) -> None:
        os.close(self._ours)


CTRL_C, CTRL_D = "\x03", "\x04"


@pytest.fixture
def chat(lastgood: Command, started: list[Process]) -> Iterator[Terminal]:
    terminal = Terminal(lastgood, started, "run", AGENT)
    terminal.expect("> ")
    with closing(terminal):
        yield terminal


def test_chat_continues_until_ctrl_d(chat: Terminal, lastgood: Command) -> None:
    chat.send("\n")
    chat.expect("> ")
    chat.send("first\n")
    chat.expect("You said: first")
    chat.expect("> ")
    chat.send("!remember\n")
    chat.expect("I remember: first")
    chat.expect("> ")
    chat.send(CTRL_D)
    chat.expect("session ses_")
    assert chat.process.wait(20) == 0
    assert [session["turns"] for session in lastgood.sessions()] == [2]


def test_ctrl_c_in_a_chat_cancels_the_turn_and_only_the_turn(chat: Terminal, lastgood: Command) -> None:
    chat.send("good\n")
    chat.expect("You said: good")
    chat.expect("> ")
    chat.send("!say a b\n")
    chat.expect("a b\r\n> ")
    chat.send("!fail during\n")
    chat.expect("lastgood: ")
    chat.expect("> ")
    chat.send("!slow 30\n")
    until(lambda: lastgood.prompts() == 4)
    chat.send(CTRL_C)
    chat.expect("cancelled")
    chat.expect("> ")
    chat.send("!remember\n")
    chat.expect("I remember: good")
    chat.expect("> ")
    chat.send(CTRL_C)
    chat.expect("Ctrl-D or /exit ends the chat")
    chat.expect("> ")
    chat.send(CTRL_D)
    chat.expect("session ses_")
    assert chat.process.wait(20) == 0


def test_chat_without_a_message_leaves_no_session(chat: Terminal, lastgood: Command) -> None:
    chat.send(CTRL_D)
    assert chat.process.wait(20) == 0
    assert lastgood.sessions() == []


def test_new_begins_another_session(chat: Terminal, lastgood: Command) -> None:
    chat.send("first\n")
    chat.expect("You said: first")
    chat.expect("> ")
    chat.send("/new\n")
    chat.expect("> ")
    chat.send("!remember\n")
    chat.expect("I remember: \r\n")
    chat.expect("> ")
    chat.send("/nonsense\n")
    chat.expect("unknown command /nonsense")
    chat.send("/exit\n")
    assert chat.process.wait(20) == 0
    assert [session["turns"] for session in lastgood.sessions()] == [1, 1]


def test_fork_continues_in_a_copy(chat: Terminal, lastgood: Command) -> None:
    chat.send("first\n")
    chat.expect("You said: first")
    chat.expect("> ")
    chat.send("/fork\n")
    chat.expect("continuing in session ses_")
    chat.expect("> ")
    chat.send("!remember\n")
    chat.expect("I remember: first")
    chat.expect("> ")
    chat.send(CTRL_D)
    assert chat.process.wait(20) == 0
    assert [session["turns"] for session in lastgood.sessions()] == [2, 1]


def test_retry_of_a_failed_turn_says_it_once(chat: Terminal, lastgood: Command) -> None:
    chat.send("!fail during 1\n")
    chat.expect("lastgood: ")
    chat.expect("> ")
    chat.send("/retry\n")
    until(lambda: lastgood.prompts() == 2)
    chat.expect("> ")
    chat.send(CTRL_D)
    assert chat.process.wait(20) == 0
    assert len(lastgood.sessions()) == 1


def test_retry_of_an_answer_replaces_it_unless_the_retry_fails(chat: Terminal, lastgood: Command) -> None:
    chat.send("keep\n")
    chat.expect("You said: keep")
    chat.expect("> ")
    chat.send("!slow 1\n")
    chat.expect("You said")
    chat.expect("> ")
    chat.send("/retry\n")
    until(lambda: lastgood.prompts() == 3)
    chat.send(CTRL_C)
    chat.expect("cancelled")
    chat.expect("> ")
    (session,) = lastgood.sessions()
    answered = session["head"]
    assert lastgood("sessions", "branches", session["id"], "--json").json == []
    chat.send("/retry\n")
    chat.expect("You said")
    chat.expect("> ")
    chat.send(CTRL_D)
    assert chat.process.wait(20) == 0
    (session,) = lastgood.sessions()
    assert session["turns"] == 2
    (branch,) = lastgood("sessions", "branches", session["id"], "--json").json
    assert branch["head"] == answered


# -- agents of one's own -----------------------------------------------------------

TEAM_FILE = """
agents:
  root:
    model: builtin/scripted
    instruction: I am root.
    toolsets: [{type: shell}]
  other:
    model: builtin/scripted
    instruction: I am other.
"""


@pytest.fixture
def team_file(tmp_path: Path) -> str:
    (tmp_path / "team.yaml").write_text(TEAM_FILE)
    return str(tmp_path / "team.yaml")


def _prompts(lastgood: Command) -> list[dict[str, object]]:
    return [json.loads(line) for line in lastgood.prompt_log.read_text().splitlines()]


def test_a_member_of_a_team_can_be_asked(lastgood: Command, team_file: str) -> None:
    assert lastgood("run", team_file, "hi", "--agent", "other").code == 0
    assert "I am other." in str(_prompts(lastgood)[-1])
    assert_refused(lastgood("run", team_file, "hi", "--agent", "nobody"), "nobody", "other")


def test_M3_6_tools_work_where_the_session_works_and_only_as_safety_lets_them(
    lastgood: Command, team_file: str, tmp_path: Path
) -> None:
    (tmp_path / "here").mkdir()
    text = '!tool shell {"cmd": "pwd"}\n!say done'
    denied = lastgood("run", team_file, text, "--working-dir", str(tmp_path / "here"))
    assert "not allowed" in denied.err
    ran = lastgood("run", team_file, text, "--working-dir", str(tmp_path / "here"), "--safety", "autonomous")
    assert str(tmp_path / "here") in ran.err
    assert ran.out == "done\n"


def test_a_picture_goes_along(lastgood: Command, tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(b"picture")
    assert lastgood("run", AGENT, "look", "--attach", str(tmp_path / "x.png")).code == 0
    assert "data:image/png;base64,cGljdHVyZQ==" in str(_prompts(lastgood)[-1])
    assert_refused(lastgood("run", AGENT, "look", "--attach", str(tmp_path / "no.png")), "no.png")


def test_another_agent_than_the_sessions_own_is_said_so(lastgood: Command, team_file: str) -> None:
    session = lastgood.new_session()
    done = lastgood("run", team_file, "hi", "--session", session)
    assert f"the agent of this session was {AGENT}; team answers from now on" in done.err
    assert "the request names this agent" in lastgood.attempts(session)[-1]["decision"]["reason"]


def test_control_characters_do_not_reach_a_terminal(chat: Terminal) -> None:
    chat.send('!say-json "a\\u001b[2Jb"\n')
    chat.expect("a\\x1b[2Jb")


# -- sessions --------------------------------------------------------------------


def test_list_before_anything_was_said(lastgood: Command) -> None:
    assert lastgood("sessions", "list").out == "no sessions\n"
    empty = lastgood("sessions", "list", "--json")
    assert (empty.code, empty.json) == (0, [])
    assert not lastgood.data_dir.exists()


def test_list_pages_and_searches(lastgood: Command) -> None:
    ids = [lastgood.new_session(text) for text in ("apple pie", "banana", "apple juice")]
    page = lastgood("sessions", "list", "--limit", "2", "--json")
    assert [session["id"] for session in page.json] == [ids[2], ids[1]]
    cursor = page.err.split("--cursor ")[1].strip()
    rest = lastgood("sessions", "list", "--limit", "2", "--cursor", cursor, "--json")
    assert [session["id"] for session in rest.json] == [ids[0]]
    assert rest.err == ""
    found = lastgood("sessions", "list", "--query", "apple")
    assert [line.split()[0] for line in found.out.splitlines()] == [ids[2], ids[0]]
    assert "apple pie" in found.out
    assert lastgood("sessions", "list", "--query", "cherry").out == "no matching sessions\n"


def test_show_prints_the_turns_and_on_request_the_attempts(lastgood: Command) -> None:
    session = lastgood.new_session('!tool echo {"text": "x"}\n!say done')
    lastgood.say("!fail before", "--session", session)
    shown = lastgood("sessions", "show", session)
    for part in ("user: !tool echo", "assistant calls echo", "tool: x", "assistant: done"):
        assert part in shown.out
    assert "failed" not in shown.out
    hint = "attempt committed nothing; --attempts shows every attempt\n"
    assert lastgood("sessions", "show", session).err == f"1 {hint}"
    shown = lastgood("sessions", "show", session, "--attempts")
    with_attempts = shown.out
    assert ("failed" in with_attempts, shown.err) == (True, "")
    assert "error: model_error: scripted model: failed" in with_attempts
    assert with_attempts.count("reason: the recorded source is served") == 1
    plain = lastgood("sessions", "show", "-1", "--json", "--attempts").json
    assert plain["session"]["id"] == session
    assert [message["role"] for message in plain["turns"][0]["messages"]] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert [attempt["status"] for attempt in plain["attempts"]] == ["committed", "failed"]
    assert "attempts" not in lastgood("sessions", "show", "-1", "--json").json


def test_after_replaces_what_follows_a_turn_and_keeps_it_as_a_branch(lastgood: Command) -> None:
    session = lastgood.new_session("one")
    assert lastgood("sessions", "branches", session).out.startswith("no branches")
    lastgood.say("two", "--session", session)
    first, second = (turn["id"] for turn in lastgood("sessions", "show", session, "--json").json["turns"])
    failed = lastgood.say("three\n!fail during", "--session", session, "--after", first)
    assert (failed.code, lastgood("sessions", "branches", session, "--json").json) == (1, [])
    edited = lastgood.say("three\n!remember", "--session", session, "--after", first)
    assert (edited.code, edited.out) == (0, "I remember: one | three\n")
    (branch,) = lastgood("sessions", "branches", session, "--json").json
    assert (branch["head"], branch["after"], branch["turns"]) == (second, first, 2)
    assert second in lastgood("sessions", "branches", session).out
    attempts = lastgood("sessions", "show", session, "--attempts", "--json").json["attempts"]
    assert [attempt.get("replaces") for attempt in attempts] == [None, None, second, second]
    edited = lastgood.say("four\n!remember", "--session", session, "--after", "start")
    assert edited.out == "I remember: four\n"
    assert len(lastgood("sessions", "branches", session, "--json").json) == 2


def test_after_needs_a_session_a_message_and_a_turn_that_exists(lastgood: Command) -> None:
    session = lastgood.new_session("one")
    assert_refused(lastgood.say("x", "--after", "turn_nope"), "--after needs --session", code=2)
    assert_refused(lastgood.say("x", "--session", session, "--after", "turn_nope"), "Turn not found")


def test_fork_continues_from_a_turn_and_leaves_its_source_alone(lastgood: Command) -> None:
    session = lastgood.new_session("one")
    first = lastgood.sessions()[0]["head"]
    lastgood.say("two", "--session", session)
    forked = lastgood("sessions", "fork", session, "--turn", first, "--json").json
    assert forked["forked_from"] == {"session": session, "turn": first}
    assert lastgood.say("three\n!remember", "--session", forked["id"]).out == "I remember: one | three\n"
    assert lastgood.remembered(session) == ["one", "two"]
    at_head = lastgood("sessions", "fork", session).out.strip()
    assert lastgood.remembered(at_head) == ["one", "two"]
    assert_refused(lastgood("sessions", "fork", session, "--turn", "turn_nope"), "Turn not found")


def test_rename(lastgood: Command) -> None:
    session = lastgood.new_session()
    assert "'better name'" in lastgood("sessions", "rename", session, "better name").out
    assert lastgood.sessions()[0]["title"] == "better name"
    assert lastgood("sessions", "rename", "-1", "best", "--json").json["title"] == "best"
    assert_refused(lastgood("sessions", "rename", session, "  "), "blank")


def test_reset_hides_what_was_before_and_keeps_it(lastgood: Command) -> None:
    session = lastgood.new_session("before")
    assert session in lastgood("sessions", "reset", session).out
    assert lastgood.say("after\n!remember", "--session", session).out == "I remember: after\n"
    assert lastgood("sessions", "reset", "-1", "--json").json["kind"] == "reset"
    shown = lastgood("sessions", "show", session).out
    assert "before" in shown
    assert "(reset: " in shown


def test_delete_takes_several_and_none_if_one_is_unknown(lastgood: Command) -> None:
    ids = [lastgood.new_session(text) for text in ("a", "b", "c", "d")]
    assert_refused(lastgood("sessions", "delete", ids[0], "ses_nope"), "ession not found")
    assert len(lastgood.sessions()) == 4
    assert lastgood("sessions", "delete", "-1", "-2").out == f"deleted {ids[3]}\ndeleted {ids[2]}\n"
    assert lastgood("sessions", "delete", ids[0], ids[0], "--json").json == {"deleted": [ids[0]]}
    assert [session["id"] for session in lastgood.sessions()] == [ids[1]]
    assert_refused(lastgood.say("hello", "--session", ids[0]), "ession not found")


# -- db --------------------------------------------------------------------------


def test_check_finds_what_was_changed(lastgood: Command) -> None:
    good, bad = lastgood.new_session("good"), lastgood.new_session("bad")
    lastgood.say("more", "--session", bad)
    checked = (
        "2 sessions, 3 turns, 0 branches, 3 attempts, 0 steps, 3 requests, "
        "0 queue entries, 0 tasks, 0 claims, 0 pointers and 0 snapshots of 1 tenant"
    )
    assert lastgood("db", "check").out == f"checked {checked}: no damage\n"
    as_json = lastgood("db", "check", "--json").json
    assert (as_json["sessions"], as_json["turns"], as_json["tenants"]) == (2, 3, 1)
    assert (as_json["broken"], as_json["more"]) == ([], 0)
    with closing(sqlite3.connect(lastgood.database)) as database, database:
        changed = "CAST(replace(CAST(body AS TEXT), 'bad', 'BAD') AS BLOB)"
        where = "WHERE session_id = ? AND seq = 1"
        assert database.execute(f"UPDATE turns SET body = {changed} {where}", (bad,)).rowcount == 1
    done = lastgood("db", "check")
    assert done.code == 1
    assert f"tenant default, session {bad}, turn 1 " in done.out
    assert "no damage" not in done.out
    assert good not in done.out
    as_json = lastgood("db", "check", "--json")
    assert (as_json.code, [found["session"] for found in as_json.json["broken"]]) == (1, [bad])


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM turns WHERE seq = 1",
        "UPDATE turns SET body = CAST('no JSON' AS BLOB) WHERE seq = 2",
        "UPDATE sessions SET head_hash = x'00'",
    ],
)
def test_check_finds_inconsistent_rows(lastgood: Command, damage: str) -> None:
    session = lastgood.new_session("one")
    lastgood.say("two", "--session", session)
    with closing(sqlite3.connect(lastgood.database)) as database, database:
        assert database.execute(damage).rowcount == 1
    done = lastgood("db", "check", "--json")
    assert (done.code, {found["session"] for found in done.json["broken"]}) == (1, {session})


def test_check_covers_every_tenant(lastgood: Command) -> None:
    session = lastgood.new_session("one")
    with closing(sqlite3.connect(lastgood.database)) as database, database:
        for table in ("sessions", "turns", "attempts"):
            database.execute(f"UPDATE {table} SET tenant = 'another'")
        database.execute("DELETE FROM requests")
    assert lastgood("db", "check").code == 0
    with closing(sqlite3.connect(lastgood.database)) as database, database:
        database.execute("UPDATE turns SET kind = 'reset'")
    done = lastgood("db", "check")
    assert done.code == 1
    assert f"tenant another, session {session}, turn 1 " in done.out


# -- two processes -----------------------------------------------------------------


def test_second_process_is_refused_but_may_look(lastgood: Command, started: list[Process]) -> None:
    session = lastgood.new_session("good")
    process, _ = begin_endless(lastgood, started, "--session", session)
    assert_refused(lastgood.say("me too"), "Another Lastgood process", f"pid {process.pid}")
    as_json = lastgood.say("me too", "--json")
    assert as_json.json["error"]["code"] == "store_locked"
    assert [listed["status"] for listed in lastgood.sessions()] == ["running"]
    assert "assistant: You said: good" in lastgood("sessions", "show", session).out
    assert lastgood("db", "check").code == 0
    # Looking has recovered nothing: the turn still runs.
    assert [attempt["status"] for attempt in lastgood.attempts(session)] == ["committed", "running"]
    assert process.poll() is None


# -- refusals ----------------------------------------------------------------------


def assert_refused_as(lastgood: Command, code: str, *args: str, stdin: bytes = b"") -> None:
    """The same refusal for people and for scripts, and nothing is stored."""
    before = lastgood.sessions()
    assert_refused(lastgood(*args, stdin=stdin))
    as_json = lastgood(*args, "--json", stdin=stdin)
    assert_refused(as_json)
    error = as_json.json["error"]
    assert set(error) == {"code", "message", "detail"}
    assert error["code"] == code
    assert f"lastgood: {error['message']}\n" == as_json.err
    assert lastgood.sessions() == before


@pytest.mark.parametrize(
    ("code", "args", "stdin"),
    [
        ("session_not_found", ("run", AGENT, "hi", "--session", "ses_nope"), b""),
        ("session_not_found", ("run", AGENT, "hi", "--session", "-7"), b""),
        ("session_not_found", ("sessions", "show", "ses_nope"), b""),
        ("session_not_found", ("sessions", "fork", "ses_nope"), b""),
        ("session_not_found", ("sessions", "rename", "ses_nope", "title"), b""),
        ("session_not_found", ("sessions", "reset", "ses_nope"), b""),
        ("session_not_found", ("sessions", "delete", "-7"), b""),
        ("invalid_request", ("sessions", "show", "\udcff"), b""),
        ("agent_unavailable", ("run", "builtin/nobody", "hi"), b""),
        ("model_unknown", ("run", AGENT, "hi", "--model", "nope/x"), b""),
        ("model_unknown", ("run", AGENT, "hi", "--session", "-1", "--model", "nope/x"), b""),
        ("invalid_request", ("run", AGENT, " "), b""),
        ("invalid_request", ("run", AGENT), b""),
        ("invalid_request", ("run", AGENT, "--key", "k", "\udcff"), b""),
        ("invalid_request", ("run", AGENT), b"before\0after"),
        ("invalid_request", ("run", AGENT), b"a lone surrogate: \xed\xa0\x80"),
        ("too_large", ("run", AGENT), b"x" * 10_000_000),
    ],
)
def test_what_is_refused_changes_nothing(
    lastgood: Command, code: str, args: tuple[str, ...], stdin: bytes
) -> None:
    lastgood.new_session()
    prompts = lastgood.prompts()
    assert_refused_as(lastgood, code, *args, stdin=stdin)
    assert lastgood.prompts() == prompts


def test_unknown_agent_names_the_known(lastgood: Command) -> None:
    assert_refused(lastgood("run", "builtin/nobody", "hi"), "'builtin/nobody'", AGENT)


def test_data_dir_that_cannot_be_made_is_named(lastgood: Command, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("in the way")
    assert_refused(lastgood.say("hi", "--data-dir", str(file / "below")), str(file), "--data-dir")


@pytest.mark.parametrize(
    "args", [("run", AGENT, "hi"), ("sessions", "list"), ("sessions", "delete", "-1"), ("db", "check")]
)
def test_file_that_is_no_database_is_left_as_it_is(
    lastgood: Command, tmp_path: Path, args: tuple[str, ...]
) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("dear diary " * 1000)
    assert_refused(lastgood(*args, "--database", f"sqlite:///{notes}"), "not a database")
    assert notes.read_text() == "dear diary " * 1000


def test_unknown_kind_of_database_is_refused(lastgood: Command) -> None:
    assert_refused(lastgood("sessions", "list", "--database", "oracle://x"), "sqlite:///PATH", code=2)


def test_check_of_a_database_that_is_not_there_is_no_success(lastgood: Command) -> None:
    assert_refused(lastgood("db", "check"), str(lastgood.database))


# -- help ------------------------------------------------------------------------


def test_version(lastgood: Command) -> None:
    from lastgood import __version__

    assert lastgood("--version").out == f"lastgood {__version__}\n"


@pytest.mark.parametrize("args", [(), ("run",), ("sessions",), ("sessions", "list"), ("db", "check")])
def test_help_exits_0(lastgood: Command, args: tuple[str, ...]) -> None:
    done = lastgood(*args, "--help")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(" ".join(("usage: lastgood", *args)))


def test_executed_help_starts_in_a_quarter_of_a_second(lastgood: Command) -> None:
    def cpu_seconds() -> float:
        with lastgood.executed("--help") as process:
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        return used.ru_utime + used.ru_stime

    assert min(cpu_seconds() for _ in range(3)) <= 0.25


def test_events_of_json_mode_are_ascii_and_survive_any_locale(lastgood: Command) -> None:
    out = lastgood.say("süß 🙂", "--json").out
    assert out.isascii()
    assert json.loads(out.splitlines()[-1])["text"] == "You said: süß 🙂"

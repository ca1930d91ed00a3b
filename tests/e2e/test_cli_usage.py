"""Exit codes and refusals of the command line: wrong usage is 2 and one line, whatever else fails is 1."""

import json
from pathlib import Path

import pytest

from docs.draw import walk
from lastgood.cli import main
from lastgood.cli.parser import build_parser
from tests.e2e.command import AGENT

Capture = pytest.CaptureFixture[str]

#: Nobody waits for these to start: what is wrong with them is found before anything is opened.
SERVE = ("serve", AGENT, "--listen", "127.0.0.1:0")


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder without a lastgood.toml, and no settings from outside."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LASTGOOD_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def refused(capture: Capture, *args: str, code: int = 2) -> str:
    """The one line that says what is wrong."""
    assert main(args) == code
    out, err = capture.readouterr()
    assert out == ""
    assert err.startswith("lastgood: ")
    assert err.count("\n") == 1, err
    return err


# -- the words ---------------------------------------------------------------------


@pytest.mark.parametrize("command", [name for name, _ in walk(build_parser())])
def test_an_unknown_option_is_one_line_that_names_the_help(capsys: Capture, command: str) -> None:
    err = refused(capsys, *command.split()[1:], "--nonsense")
    assert err.endswith(f"; see {command} --help\n")


@pytest.mark.parametrize(
    ("args", "words", "command"),
    [
        (("sessions",), "missing command; choose one of list, show", "lastgood sessions"),
        (("db",), "missing command; choose one of check", "lastgood db"),
        (("nonsense",), "unknown command 'nonsense'; choose one of serve, run", "lastgood"),
        (("srve",), "unknown command 'srve' (did you mean serve?)", "lastgood"),
        (("sessions", "lst"), "unknown command 'lst' (did you mean list?)", "lastgood sessions"),
        (("serve", "--lisen", "x"), "--lisen (did you mean --listen?)", "lastgood serve"),
        (("run",), "required: AGENT; for example: lastgood run default;", "lastgood run"),
        (("run", AGENT, "hi", "--nonsense"), "--nonsense", "lastgood run"),
        (("sessions", "list", "extra"), "extra", "lastgood sessions list"),
        (("sessions", "list", "a\nb"), "a b", "lastgood sessions list"),
        (("sessions", "list", "--cursor", "-1"), "'-1' is not a cursor", "lastgood sessions list"),
        (("sessions", "list", "--limit", "many"), "from 1 to 200", "lastgood sessions list"),
        (("sessions", "list", "--limit", "0"), "from 1 to 200", "lastgood sessions list"),
        (("sessions", "list", "--limit", "201"), "from 1 to 200", "lastgood sessions list"),
        (("tokens", "create", "--expires", "soon"), "'soon' is not a duration", "lastgood tokens create"),
    ],
)
def test_wrong_usage_is_one_line_that_names_the_help(
    capsys: Capture, args: tuple[str, ...], words: str, command: str
) -> None:
    err = refused(capsys, *args)
    assert words in err
    assert err.endswith(f"; see {command} --help\n")


def test_no_arguments_print_the_help_and_so_does_the_command_help(capsys: Capture) -> None:
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert (out, "serve agents over HTTP until stopped" in err) == ("", True)
    assert main(["help", "sessions", "fork"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("usage: lastgood sessions fork")


# -- what is given -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((*SERVE, "--turn-timeout", "x"), "--turn-timeout must be a duration"),
        ((*SERVE, "--safety", "bogus"), "--safety must be one of"),
        (("serve", "--listen", "bogus"), "--listen must be HOST:PORT"),
        (("serve", "--listen", f"unix:///{'x' * 200}"), "limit 103"),
        ((*SERVE, "--metrics-listen", "bogus"), "--metrics-listen must be HOST:PORT"),
        (("serve", "--listen", "127.0.0.1:1", "--metrics-listen", "127.0.0.1:1"), "leave out"),
        ((*SERVE, "--only", "bogus"), "--only must be a list of"),
        ((*SERVE, "--migrate", "zz"), "--migrate must be one of"),
        ((*SERVE, "--max-request-size", "abc"), "--max-request-size must be a size"),
        ((*SERVE, "--conversations-max", "x"), "--conversations-max must be a whole number"),
        ((*SERVE, "--allowed-host", "a b"), "--allowed-host must be"),
        ((*SERVE, "--cors-origin", "bogus"), "--cors-origin must be"),
        ((*SERVE, "--public-url", "bogus"), "--public-url must be"),
        ((*SERVE, "--token-env", "A", "--token-file", "b"), "cannot be combined"),
        (("sessions", "list", "--database", "oracle://x"), "sqlite:///PATH"),
        (("sessions", "list", "--database", "sqlite:///"), "names no file"),
        (("sessions", "list", "--config", "none.toml"), "cannot read"),
        (("run", AGENT, "hi", "--safety", "bogus"), "--safety must be one of"),
        (("run", AGENT, "hi", "--server", "http://127.0.0.1:9", "--safety", "bogus"), "--safety must be"),
        (("run", AGENT, "hi", "--server", "bogus"), "http://HOST:PORT"),
        (("run", AGENT, "hi", "--token-file", "x"), "--token-file needs --server"),
        (("sessions", "list", "--token-file", "x"), "--token-file needs --server"),
        (("tokens", "create", "--scope", "bogus"), "'bogus'"),
        (("tokens", "create", "--tenant", ""), "the tenant"),
    ],
)
def test_a_wrong_value_is_wrong_usage(capsys: Capture, args: tuple[str, ...], words: str) -> None:
    assert words in refused(capsys, *args)


def test_a_wrong_variable_is_wrong_usage(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LASTGOOD_TURN_TIMEOUT", "x")
    assert "LASTGOOD_TURN_TIMEOUT must be" in refused(capsys, "sessions", "list")


@pytest.mark.parametrize(
    ("text", "words"), [("saftey = 'strict'", "did you mean safety"), ("x x", "not TOML")]
)
def test_a_wrong_lastgood_toml_is_wrong_usage(capsys: Capture, nowhere: Path, text: str, words: str) -> None:
    (nowhere / "lastgood.toml").write_text(text)
    assert words in refused(capsys, "sessions", "list")


def test_wrong_usage_has_its_exit_code(capsys: Capture) -> None:
    assert main(("sessions", "list", "--json", "--database", "oracle://x")) == 2
    out, err = capsys.readouterr()
    error = json.loads(out)["error"]
    assert error["code"] == "wrong_usage"
    assert err == f"lastgood: {error['message']}\n"


# -- what fails for another reason ---------------------------------------------------


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((*SERVE[:1], "none.yaml", *SERVE[2:]), "none.yaml"),
        (("run", "none.yaml", "hi"), "none.yaml"),
        (("serve", AGENT, "--listen", "203.0.113.1:1"), "cannot listen"),
        ((*SERVE, "--token-file", "none"), "cannot read --token-file"),
        (("sessions", "show", "ses_nope"), "No database"),
        (("run", AGENT, "hi", "--session", "ses_nope"), "ession not found"),
        (("run", AGENT, "hi", "--server", "http://127.0.0.1:9"), "cannot connect to"),
        (("tokens", "revoke", "tok_nope"), "Token not found"),
        (("agents", "check", "none.yaml"), "none.yaml"),
    ],
)
def test_what_fails_for_another_reason_exits_1(capsys: Capture, args: tuple[str, ...], words: str) -> None:
    assert words in refused(capsys, *args, code=1)

"""A forked `lastgood` behaves like an executed one: the other tests of the command rely on it."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.command import AGENT, SECONDS, Command, finish, until
from tests.forkserver import DEVNULL, PIPE, STDOUT, Process, fork_server, interpreter_variables

ENDLESS = "!slow 0.2\n" + "word " * 4000


@pytest.fixture
def lastgood(tmp_path: Path) -> Command:
    return Command(tmp_path)


@pytest.mark.parametrize(
    "args",
    [
        (),
        ("--help",),
        ("--version",),
        ("run", "--nonsense"),
        ("run", AGENT, "süß 🙂", "--json", "--key", "\udcff"),
        ("run", "builtin/nobody", "hi"),
        ("sessions", "list"),
        ("agents", "list", AGENT),
    ],
)
def test_a_forked_command_prints_what_an_executed_one_prints(
    lastgood: Command, args: tuple[str, ...]
) -> None:
    assert finish(lastgood.start(*args)) == finish(lastgood.executed(*args))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_a_forked_turn_as_it_ends_an_executed_one(
    lastgood: Command, number: signal.Signals
) -> None:
    def ended(process: Process | subprocess.Popen[bytes]) -> tuple[int, str]:
        assert process.stdout is not None
        assert os.read(process.stdout.fileno(), 65536)
        process.send_signal(number)
        done = finish(process)
        return done.code, done.err.partition("session ses_")[0]

    forked = ended(lastgood.start("run", AGENT, ENDLESS))
    assert forked == ended(lastgood.executed("run", AGENT, ENDLESS))
    assert forked[0] == (-signal.SIGKILL if number == signal.SIGKILL else 1)


def test_a_running_process_has_no_exit_code_and_can_be_waited_for(lastgood: Command) -> None:
    process = lastgood.start("run", AGENT, ENDLESS, stdout=DEVNULL, stderr=DEVNULL)
    try:
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.send_signal(signal.SIGSTOP)
        until(lambda: _state(process.pid) == "T")
        assert process.poll() is None
    finally:
        process.kill()
    assert process.wait(SECONDS) == process.poll() == -signal.SIGKILL
    process.kill()  # nobody is hit


def test_it_gets_the_given_environment_folder_umask_and_files(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            process = fork_server().start(
                ["serve", AGENT, "--listen", f"fd://{listener.fileno()}"],
                env={"PATH": os.environ["PATH"], "LASTGOOD_DATA_DIR": "here", **interpreter_variables()},
                cwd=tmp_path,
                stdout=PIPE,
                stderr=STDOUT,
                pass_fds=[listener.fileno()],
            )
            assert process.stdout is not None
            assert f":{listener.getsockname()[1]}" in process.stdout.readline().decode()
    finally:
        os.umask(before)
    variables = Path(f"/proc/{process.pid}/status").read_text()
    process.send_signal(signal.SIGTERM)
    assert (process.communicate(timeout=SECONDS)[1], process.returncode) == (b"", 0)
    assert "Umask:\t0027" in variables
    assert (tmp_path / "here/lastgood.db").exists()


def test_no_other_file_is_inherited(lastgood: Command, tmp_path: Path) -> None:
    process = lastgood.start("run", AGENT, ENDLESS)
    (tmp_path / "other").mkdir()
    other = Command(tmp_path / "other").start("run", AGENT, ENDLESS)
    try:
        assert process.stdout is not None
        process.kill()
        process.stdout.read()  # to its end, which would not come if the other process held the pipe open
        assert other.poll() is None
    finally:
        for one in (process, other):
            one.kill()
            one.communicate()


def test_a_variable_of_the_interpreter_is_obeyed(lastgood: Command) -> None:
    lastgood.env["PYTHONPROFILEIMPORTTIME"] = "1"
    assert "import time:" in lastgood("--version").err


def test_processes_do_not_outlive_the_tests(tmp_path: Path) -> None:
    program = (
        "import os; from pathlib import Path; from tests.e2e.command import Command\n"
        f"process = Command(Path({str(tmp_path)!r})).start('run', {AGENT!r}, {ENDLESS!r})\n"
        "print(process.pid, flush=True); os._exit(1)"
    )
    done = subprocess.run([sys.executable, "-c", program], stdout=PIPE, cwd=Path(__file__).parents[1])
    until(lambda: _state(int(done.stdout)) in ("", "Z"))


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""

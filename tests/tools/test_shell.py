"""Commands on real processes: what they see, what is kept of them, and that nothing of them is left."""

import asyncio
import ctypes
import os
import resource
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from lastgood.engine.tools import processes
from lastgood.engine.tools.command_output import HEAD_BYTES, STREAM_CHARACTERS, TAIL_BYTES
from lastgood.model.agents import Effect, OnUnknown
from tests.tools.toolkit import Kit, has_ended

pytestmark = pytest.mark.anyio

CANARY = "canary-5b1f77e0"


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    return Kit("shell", tmp_path)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who ignores the request to end is not given two seconds in every test."""
    monkeypatch.setattr(processes, "GRACE_SECONDS", 0.2)


class Started:
    """Processes of a command that have said that they are there. Held, so that their numbers stay theirs."""

    def __init__(self, tmp_path: Path) -> None:
        self.pipe = tmp_path / "started"
        os.mkfifo(self.pipe)
        self.held: list[int] = []

    async def wait_for(self, count: int) -> None:
        """Each writes its number into the pipe."""
        numbers: list[str] = []
        while len(numbers) < count:
            numbers += (await asyncio.to_thread(self.pipe.read_text)).split()
        self.held = [os.pidfd_open(int(number)) for number in numbers]

    def all_ended(self, within: float = 0.0) -> bool:
        return all(has_ended(process, within) for process in self.held)

    def close(self) -> None:
        for process in self.held:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, signal.SIGKILL)
            os.close(process)


@pytest.fixture
def started(tmp_path: Path) -> Any:
    started = Started(tmp_path)
    yield started
    started.close()


# --- what comes back -------------------------------------------------------------------------------------


async def test_output_and_errors_come_in_order(kit: Kit) -> None:
    assert await kit("shell", cmd="echo one; echo two >&2; echo three") == "one\ntwo\nthree"
    assert "".join(kit.said) == "one\ntwo\nthree\n"


async def test_empty_output_is_reported(kit: Kit) -> None:
    assert await kit("shell", cmd="true") == "<no output>"


async def test_the_exit_code_is_reported(kit: Kit) -> None:
    assert (
        await kit("shell", cmd="echo half; exit 3") == "Error executing command: exit status 3\nOutput: half"
    )
    assert await kit("shell", cmd="kill -9 $$") == (
        "Error executing command: exit status 137\nOutput: <no output>"
    )


async def test_a_command_that_kills_its_shell_is_reported(kit: Kit) -> None:
    assert await kit("shell", cmd="kill -9 $PPID; sleep 1000") == (
        "Error executing command: ended by signal 9 (Killed)\nOutput: <no output>\n"
        "[Processes that were still running in the background were ended.]"
    )


async def test_standard_input_is_empty(kit: Kit) -> None:
    assert await kit("shell", cmd="cat; readlink /proc/self/fd/0") == "/dev/null"


async def test_a_command_inherits_no_file_but_its_own(kit: Kit) -> None:
    inherited = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(inherited, True)
    # 3 is the folder that ls itself has open.
    assert (await kit("shell", cmd="ls /proc/self/fd")).split() == ["0", "1", "2", "3"]
    os.close(inherited)


async def test_output_that_is_no_text_comes_as_far_as_it_is(kit: Kit) -> None:
    assert await kit("shell", cmd=r"printf 'a\377b\000c\342\202\254'") == "a\ufffdb\x00c€"


async def test_a_character_that_arrives_in_two_pieces_is_one(kit: Kit, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    running = asyncio.create_task(kit("shell", cmd=r"printf 'a\342\202'; read _ <go; printf '\254b'"))
    await kit.received.wait()
    await asyncio.to_thread((tmp_path / "go").write_text, "\n")
    assert await running == "a€b"
    assert kit.said == ["a", "€b"]


async def test_a_lot_of_output_is_kept_at_both_ends(kit: Kit) -> None:
    said = await kit("shell", cmd="echo first; yes 1234567 | head -c 4000000; echo last")
    left_out = 4_000_000 + len("first\nlast\n") - HEAD_BYTES - TAIL_BYTES
    assert said.startswith("first\n1234567\n")
    assert said.endswith("\nlast")
    assert f"[{left_out} bytes of output omitted]" in said
    assert len(said) < HEAD_BYTES + TAIL_BYTES + 100
    assert len("".join(kit.said)) < STREAM_CHARACTERS + 100
    assert kit.said[-1].endswith("[the rest of the output is in the result]\n")


@pytest.mark.slow
async def test_I40_a_gigabyte_of_output_does_not_fill_the_memory(kit: Kit) -> None:
    tracemalloc.start()
    try:
        said = await kit("shell", cmd="head -c 1000000000 /dev/zero", timeout=300)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "bytes of output omitted" in said
    assert peak < 16 * 1024 * 1024


# --- what it sees ----------------------------------------------------------------------------------------


async def test_I41_no_variable_of_the_server_reaches_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = {"OPENAI_API_KEY": CANARY, "LASTGOOD_DATABASE": CANARY, "HOME": "/home/me", "LC_TIME": "de"}
    for name, value in server.items():
        monkeypatch.setenv(name, value)
    kit = Kit("shell", tmp_path, environment=server)
    said = await kit("shell", cmd="env; tr '\\0' '\\n' </proc/self/environ; set")
    assert CANARY not in said
    assert {"HOME=/home/me", "LC_TIME=de", "TERM=dumb"} <= set(said.splitlines())


async def test_I33_a_command_knows_its_call_and_its_attempt(kit: Kit) -> None:
    said = await kit("shell", cmd='echo "$LASTGOOD_TOOL_KEY $LASTGOOD_ATTEMPT"')
    assert said == "turn:1:call 3"


async def test_a_file_may_hand_variables_to_its_commands(tmp_path: Path) -> None:
    environment = {"TOKEN": CANARY, "HOME": "/home/me"}
    env = {"A": "${env.TOKEN}", "B": "x-${HOME}-y", "C": "$TOKEN", "D": "plain", "PATH": "${PATH}:/more"}
    kit = Kit("shell", tmp_path, environment=environment, env=env)
    assert await kit("shell", cmd='test "$A$C" = "$EXPECTED"; echo ${#A} ${#C} $B $D; echo $PATH') == (
        f"{len(CANARY)} {len(CANARY)} x-/home/me-y plain\n/usr/local/bin:/usr/bin:/bin:/more"
    )


async def test_a_variable_that_is_missing_is_named(tmp_path: Path) -> None:
    kit = Kit("shell", tmp_path, env={"A": "${env.NOT_THERE}"})
    assert "NOT_THERE" in await kit.fails("shell", cmd="true")


async def test_I41_an_untrusted_file_gets_no_variables(tmp_path: Path) -> None:
    kit = Kit(
        "shell", tmp_path, trusted=False, environment={"TOKEN": CANARY}, env={"A": "${env.TOKEN}", "B": "b"}
    )
    assert await kit("shell", cmd='echo "$A $B"') == "${env.TOKEN} b"


async def test_I41_a_key_that_a_command_says_is_hidden_in_what_is_shown_and_kept(tmp_path: Path) -> None:
    kit = Kit("shell", tmp_path, environment={"TOKEN": CANARY}, env={"T": "$TOKEN"})
    os.mkfifo(tmp_path / "go")
    # In two pieces, with time enough for the first one to be shown.
    command = 'echo "<$T>"; printf "before %s" "${T%???}"; read _ <go; printf "%s after" "${T#"${T%???}"}"'
    running = asyncio.create_task(kit("shell", cmd=command))
    await kit.received.wait()
    await asyncio.to_thread((tmp_path / "go").write_text, "\n")
    assert await running == "<[TOKEN]>\nbefore [TOKEN] after"
    assert "".join(kit.said) == "<[TOKEN]>\nbefore [TOKEN] after"
    assert len(kit.said) > 1


# --- where it runs ---------------------------------------------------------------------------------------


async def test_it_runs_in_the_working_directory_or_below(kit: Kit, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "link").symlink_to("sub")
    assert await kit("shell", cmd="pwd -P") == str(tmp_path)
    for folder in ("sub", "./sub", "link", str(tmp_path / "sub")):
        assert await kit("shell", cmd="pwd -P", cwd=folder) == str(tmp_path / "sub")


@pytest.mark.parametrize("folder", ["..", "/", "/etc", "sub/../..", "out", "out/x", "a\x00b"])
async def test_I38_it_does_not_begin_outside(kit: Kit, tmp_path: Path, folder: str) -> None:
    (tmp_path / "out").symlink_to("/")
    assert "outside" in await kit.fails("shell", cmd="pwd", cwd=folder) or "\x00" in folder


async def test_a_missing_folder_is_named(kit: Kit, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "gone" in await kit.fails("shell", cmd="pwd", cwd="gone")
    assert "not a folder" in await kit.fails("shell", cmd="pwd", cwd="file")


async def test_without_a_working_directory_it_says_so() -> None:
    assert "no working directory" in await Kit("shell", None).fails("shell", cmd="pwd")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "`cmd` is missing"),
        ({"cmd": ""}, "`cmd` is empty"),
        ({"cmd": " \n"}, "`cmd` is empty"),
        ({"cmd": ["ls"]}, "`cmd` must be of type string"),
        ({"cmd": "a\x00b"}, "NUL"),
        ({"cmd": "\ud800"}, "not valid Unicode"),
        ({"cmd": "echo " + "x" * 300_000}, "too long"),
        ({"cmd": "ls", "timeout": 0}, "`timeout` must be"),
        ({"cmd": "ls", "timeout": 99999}, "up to 3600"),
        ({"cmd": "ls", "timeout": "soon"}, "`timeout` must be"),
    ],
)
async def test_arguments_that_do_not_fit_are_explained(
    kit: Kit, arguments: dict[str, Any], words: str
) -> None:
    assert words in await kit.fails("shell", **arguments)


async def test_no_file_stays_open_whatever_happens(kit: Kit) -> None:
    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    await kit("shell", cmd="true")
    before = open_files()
    for command in ("true", "exit 1", "sleep 100 &", "x" * 300_000, "a\x00"):
        with suppress(Exception):
            await kit("shell", cmd=command)
    assert open_files() == before


async def test_I40_without_files_to_open_it_says_so_and_leaves_none_open(kit: Kit) -> None:
    """The limit is met in the middle: after the first pipe, before the second."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    filled: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        with suppress(OSError):
            while True:
                filled.append(os.dup(0))
        for _ in range(3):
            os.close(filled.pop())
        assert "could not be started" in await kit.fails("shell", cmd="true", cwd="")
        filled += [os.dup(0) for _ in range(3)]  # all three are free again
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for file in filled:
            os.close(file)


# --- how it ends -----------------------------------------------------------------------------------------

# Three generations. All write their numbers; the last two do not listen when asked to end.
FAMILY = """
echo $$ >started
sh -c 'trap "" TERM INT HUP; echo $$ >started; sh -c "echo \\$\\$ >started; exec sleep 1000" & wait' &
wait
"""


@pytest.mark.usefixtures("impatient")
async def test_a_cancelled_command_is_gone_with_all_its_children(kit: Kit, started: Started) -> None:
    running = asyncio.create_task(kit("shell", cmd=FAMILY, timeout=1000))
    await started.wait_for(3)
    assert not any(has_ended(process) for process in started.held)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert started.all_ended()


@pytest.mark.usefixtures("impatient")
async def test_cancelling_again_and_again_does_not_let_it_get_away(kit: Kit, started: Started) -> None:
    running = asyncio.create_task(kit("shell", cmd=FAMILY, timeout=1000))
    await started.wait_for(3)
    while not running.done():
        running.cancel()
        await asyncio.sleep(0)
    assert running.cancelled()
    assert started.all_ended()


@pytest.mark.usefixtures("impatient")
async def test_a_command_that_does_not_end_is_ended_at_its_time_limit(kit: Kit, started: Started) -> None:
    running = asyncio.create_task(kit("shell", cmd=f"echo begun; {FAMILY}", timeout=1))
    await started.wait_for(3)
    assert await running == "Command timed out after 1s\nOutput: begun"
    assert started.all_ended()


async def test_the_file_may_set_the_time_limit(tmp_path: Path) -> None:
    kit = Kit("shell", tmp_path, timeout=1)
    assert (await kit("shell", cmd="sleep 1000")).startswith("Command timed out after 1s")


async def test_listeners_may_clean_up_before_the_end(kit: Kit) -> None:
    said = await kit("shell", cmd="trap 'echo tidied; exit' TERM; sleep 1000 & wait", timeout=1)
    assert said == "Command timed out after 1s\nOutput: tidied"


async def test_children_that_hold_the_output_open_are_not_waited_for(kit: Kit, started: Started) -> None:
    running = asyncio.create_task(
        kit("shell", cmd="echo done; (echo $BASHPID >started; exec sleep 1000) & sleep 0.1", timeout=1000)
    )
    await started.wait_for(1)
    assert await running == "done\n[Processes that were still running in the background were ended.]"
    assert started.all_ended()


async def test_children_in_the_background_do_not_outlive_the_command(kit: Kit, started: Started) -> None:
    command = "sh -c 'trap \"\" TERM; echo $$ >started; exec sleep 1000' >/dev/null 2>&1 & read _ <go"
    os.mkfifo(started.pipe.with_name("go"))
    running = asyncio.create_task(kit("shell", cmd=command, timeout=1000))
    await started.wait_for(1)
    await asyncio.to_thread(started.pipe.with_name("go").write_text, "\n")
    assert await running == "<no output>"
    assert started.all_ended()


async def test_what_makes_itself_a_session_of_its_own_gets_away(kit: Kit, started: Started) -> None:
    """Not a promise but its limit, as the documentation says."""
    command = (
        "setsid sh -c 'echo $$ >started; exec sleep 1000' >/dev/null 2>&1 & echo $! >/dev/null; read _ <go"
    )
    os.mkfifo(started.pipe.with_name("go"))
    running = asyncio.create_task(kit("shell", cmd=command, timeout=1000))
    await started.wait_for(1)
    await asyncio.to_thread(started.pipe.with_name("go").write_text, "\n")
    await running
    assert not started.all_ended()


@pytest.fixture
def reaper() -> Iterator[None]:
    """Orphans become our children, as those of process 1 do: who reaps them elsewhere may take seconds."""
    prctl, set_child_subreaper = ctypes.CDLL(None).prctl, 36
    assert prctl(set_child_subreaper, 1, 0, 0, 0) == 0
    yield
    prctl(set_child_subreaper, 0, 0, 0, 0)


async def test_no_waiter_is_left_after_recovery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reaper: None
) -> None:
    """Not even for the moment that the killed take to die, which is long on a busy machine."""
    monkeypatch.setattr(processes, "_DISPERSE_SECONDS", 60.0)
    kit = Kit("shell", tmp_path)
    command = "for i in 1 2 3 4; do sleep 1000 >/dev/null 2>&1 & echo $!; done"
    for _ in range(20):
        for number in (await kit("shell", cmd=command)).split():
            assert not _is_alive(int(number))


def _is_alive(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_a_command_has_a_session_of_its_own_and_no_terminal(kit: Kit) -> None:
    session, terminal = (await kit("shell", cmd="cut -d' ' -f6,7 /proc/self/stat")).split()
    assert int(session) != os.getsid(0)
    assert terminal == "0"


def test_no_zombie_is_left(tmp_path: Path) -> None:
    number = int(asyncio.run(Kit("shell", tmp_path)("shell", cmd="echo $PPID")))  # that one is ours to reap
    with pytest.raises(ChildProcessError):
        os.waitid(os.P_PID, number, os.WEXITED | os.WNOHANG)


async def test_many_commands_at_once_do_not_wait_for_one_another(tmp_path: Path) -> None:
    """Each waits for a word from the next one."""
    kit = Kit("shell", tmp_path)
    count = 24
    for number in range(count):
        os.mkfifo(tmp_path / f"pipe{number}")
    commands = [f"echo x >pipe{number} & read _ <pipe{(number + 1) % count}; wait" for number in range(count)]
    said = await asyncio.gather(*(kit("shell", cmd=command) for command in commands))
    assert said == ["<no output>"] * count


_SERVER = """
import asyncio, sys
from pathlib import Path
from tests.tools.toolkit import Kit
asyncio.run(Kit("shell", Path(sys.argv[1]))("shell", cmd=sys.argv[2], timeout=1000))
"""


def test_I33_a_killed_server_takes_its_commands_with_it(started: Started) -> None:
    """Or a second attempt would run beside what is left of the first."""
    command = [sys.executable, "-c", _SERVER, str(started.pipe.parent), FAMILY]
    with subprocess.Popen(command, cwd=Path(__file__).parents[2]) as server:
        asyncio.run(started.wait_for(3))
        server.kill()
    assert started.all_ended(within=30)


# --- what is said about it -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, OnUnknown.FAIL), ({"repeatable": True}, OnUnknown.REPEAT), ({"repeatable": False}, OnUnknown.FAIL)],
)
def test_a_command_is_repeated_only_if_the_file_says_so(options: dict[str, Any], expected: OnUnknown) -> None:
    tool = Kit("shell", None, **options).tools["shell"]
    assert (tool.on_unknown, tool.effect) == (expected, Effect.UNKNOWN)


def test_closing_the_loop_early_is_harmless(tmp_path: Path) -> None:
    """A server that goes down in the middle of a command, as `asyncio.run` does it."""
    kit = Kit("shell", tmp_path)

    async def serve() -> None:
        async with asyncio.timeout(0.2):
            await kit("shell", cmd="sleep 1000", timeout=1000)

    with pytest.raises(TimeoutError):
        asyncio.run(serve())

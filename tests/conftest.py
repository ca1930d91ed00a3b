import os
import signal
import tempfile
from itertools import chain, groupby, islice
from pathlib import Path

import pytest

from tests.postgres import postgres_server as postgres_server

# A shell starts its background jobs with SIGINT ignored, and every process of the tests would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

MEMORY = Path("/dev/shm")
#: The whole suite leaves less than this behind.
MEMORY_BYTES = 4 << 30


def _use_memory_for_files() -> None:
    """Puts temporary files into memory, where there is enough of it, unless TMPDIR says where they belong.

    A commit waits for the disk. No test could notice if it did not: the kernel survives every death that a
    test can bring about. `make prove` and `make bench` work on the disk.
    """
    if "TMPDIR" in os.environ or not os.access(MEMORY, os.W_OK):
        return
    found = os.statvfs(MEMORY)
    is_executable = not found.f_flag & os.ST_NOEXEC  # tests write scripts and run them
    if is_executable and found.f_bavail * found.f_frsize >= MEMORY_BYTES:
        os.environ["TMPDIR"] = str(MEMORY)  # processes that tests start inherit it
        tempfile.tempdir = None


_use_memory_for_files()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


class FailuresAtOnce:
    """Prints each failure when it happens: a run that is ended from outside never reaches its summary."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._terminal.write_line("")
            self._terminal.write_line(f"FAILED ({report.when}) {report.nodeid}", red=True)
            self._terminal.write_line(report.longreprtext)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailuresAtOnce(terminal))


#: Their tests start processes and wait for them: some take many seconds.
LONG_FOLDERS = ("e2e", "faults", "mcp", "worker")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begins with the long ones, so that no worker is left with one of them when all others are done.

    Each worker gets an equal share of the list, and steals from the ends of the others' shares later.
    """
    if not hasattr(config, "workerinput"):
        return
    workers = config.workerinput["workercount"]
    folder = Path(__file__).parent
    is_long = [item.path.relative_to(folder).parts[0] in LONG_FOLDERS for item in items]
    files = groupby((item for item, long in zip(items, is_long, strict=True) if long), lambda item: item.path)
    shares: list[list[pytest.Item]] = [[] for _ in range(workers)]
    for number, (_, tests) in enumerate(files):
        shares[number % workers] += tests
    rest = iter([item for item, long in zip(items, is_long, strict=True) if not long])
    for number, share in enumerate(shares):
        size = len(items) * (number + 1) // workers - len(items) * number // workers
        share += islice(rest, max(0, size - len(share)))
    items[:] = [*chain.from_iterable(shares), *rest]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Real CLIs, reference servers and a browser have to be installed first: commands of their own do that,
    and run these tests."""
    installed = ("clis", "browser", "mcp/test_reference.py")
    if collection_path not in [Path(__file__).parent / name for name in installed]:
        return None
    named = any((config.invocation_params.dir / arg).is_relative_to(collection_path) for arg in config.args)
    return None if named else True

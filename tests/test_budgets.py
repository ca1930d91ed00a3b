"""What a first and a second start may cost: megabytes on the disk, seconds of a processor."""

import importlib.metadata
import os
import re
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from tests.e2e.command import Command

ROOT = Path(__file__).parent.parent
#: Of the wheels. Bytecode of the imported modules, and the checkout, come on top: 100 MB in all.
MOST_BYTES = 90_000_000
MOST_SECONDS = 1.5


def packages(*files: str) -> list[str]:
    return [name for file in files for name in re.findall(r"(?m)^([\w.-]+)==", (ROOT / file).read_text())]


def test_what_make_serve_installs_stays_below_100_mb() -> None:
    sizes = {}
    for name in packages("requirements/run.txt", "requirements/build.txt"):
        with suppress(importlib.metadata.PackageNotFoundError):  # of another platform
            files = importlib.metadata.distribution(name).files or []
            sizes[name] = sum(file.size or 0 for file in files)
    assert len(sizes) > 40
    largest = sorted(sizes.items(), key=lambda one: -one[1])[:8]
    assert sum(sizes.values()) <= MOST_BYTES, largest


@pytest.mark.slow
def test_a_second_start_takes_a_second_and_a_half(tmp_path: Path) -> None:
    lastgood = Command(tmp_path)

    def cpu_seconds() -> float:
        with lastgood.executed("serve", "--listen", "127.0.0.1:0") as process:
            assert process.stderr is not None
            while b'"message":"serving"' not in (line := process.stderr.readline()):
                assert line, "the server has ended"
            process.send_signal(signal.SIGTERM)
            process.stderr.read()
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        return used.ru_utime + used.ru_stime

    # Of the processor and not of the clock: other work on this machine is none of the server's cost.
    assert min(cpu_seconds() for _ in range(4)) <= MOST_SECONDS

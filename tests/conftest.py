from pathlib import Path

import pytest

from tests.postgres import postgres_server as postgres_server


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


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Real CLIs and a browser have to be installed first: `make test-clis` and `make test-browser` do."""
    if collection_path not in [Path(__file__).parent / name for name in ("clis", "browser")]:
        return None
    named = any((config.invocation_params.dir / arg).is_relative_to(collection_path) for arg in config.args)
    return None if named else True

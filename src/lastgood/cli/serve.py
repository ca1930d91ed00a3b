"""`lastgood serve`: serves all surfaces on one address until stopped.

On SIGTERM or Ctrl-C, /ready returns 503 at once, new turns are rejected, and running turns may finish
within the grace period. The rest is interrupted: its streams end with an error, and the next server
recovers it. A second signal skips the grace period; a third one kills the process.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import uvicorn

from lastgood.agents.builtin import BUILTIN_NAMES
from lastgood.agents.sources import OciSource, Source, parse
from lastgood.cli.banner import greet
from lastgood.cli.listener import BACKLOG, Listener, listen_on
from lastgood.cli.logs import configure_logs, log_loop_errors
from lastgood.cli.parser import CommandParser, add_agents, add_all_settings, configure_command
from lastgood.cli.startup import settings_of
from lastgood.cli.systemd import READY, STOPPING, notify_systemd
from lastgood.errors import InvalidRequest, WrongUsage
from lastgood.server import open_server
from lastgood.settings import Settings
from lastgood.surfaces.http.connection import HttpConnection
from lastgood.surfaces.http.proxy import TrustedProxies
from lastgood.tracing.setup import Asgi

log = logging.getLogger(__name__)


def configure(parser: CommandParser) -> None:
    add_agents(parser)
    add_all_settings(parser)
    details = "SIGTERM or Ctrl-C stops the server; running turns may finish within --shutdown-grace."
    configure_command(parser, serve, json=None, details=details)


def serve(args: argparse.Namespace) -> int:
    settings = settings_of(args)
    sources = [parse(reference, settings.aliases) for reference in args.agents]
    for source in sources:
        if isinstance(source, OciSource):
            raise InvalidRequest(
                f"no such file: {source.reference!r} (pulling agents from a registry is not supported yet); "
                f"name a file or a built-in agent: {', '.join(BUILTIN_NAMES)}"
            )
    _check_addresses(settings)
    with ExitStack() as places:
        main = places.enter_context(listen_on(settings.listen, "--listen"))
        address = settings.metrics_listen
        metrics = None if address is None else places.enter_context(listen_on(address, "--metrics-listen"))
        configure_logs(sys.stderr)
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_serve(settings, sources, main, metrics))


def _check_addresses(settings: Settings) -> None:
    """Before anything is opened: whether a port is taken has nothing to do with it."""
    address = settings.metrics_listen
    if address == settings.listen and not address.endswith(":0"):
        raise WrongUsage(f"--listen and --metrics-listen are both {address}; leave out --metrics-listen")


def _collect_seldom() -> None:
    """Objects that exist now are permanent, and a turn leaves few reference cycles: freeze them, collect
    rarely."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # it is not there on every platform
        return None
    return uvloop.new_event_loop  # type: ignore[return-value]


class _Uvicorn(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are ours: there is work to finish first."""
        yield


async def _serve(
    settings: Settings, sources: Sequence[Source], main: Listener, metrics: Listener | None
) -> int:
    log_loop_errors(asyncio.get_running_loop())
    stopping, hurried = _signals()
    async with open_server(settings, sources, main.host, address=main.address) as server:
        _collect_seldom()
        places: list[tuple[Listener, Asgi]] = [(main, server.asgi)]
        if metrics is not None:
            places.append((metrics, server.probes))
        webs = [(place, _web(app, settings)) for place, app in places]
        await greet(server, settings, main, metrics)
        serving = [asyncio.create_task(web.serve(sockets=[place.socket])) for place, web in webs]
        notify_systemd(READY, f"serving on {main.place}")
        log.info("serving", extra={"fields": {"address": main.place, "pid": os.getpid()}})
        ending = asyncio.create_task(stopping.wait())
        await asyncio.wait({*serving, ending}, return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
        notify_systemd(STOPPING, "finishing running turns")
        log.info("shutting down", extra={"fields": {"grace_seconds": server.grace_seconds}})
        await server.finish(hurried)
        for place, web in webs:
            place.leave()
            web.should_exit = True
        log.info("closing connections")
        await asyncio.gather(*serving)
    log.info("stopped")
    return 0


def _web(app: Asgi, settings: Settings) -> uvicorn.Server:
    return _Uvicorn(
        uvicorn.Config(
            TrustedProxies(app, settings.trusted_proxy) if settings.trusted_proxy else app,
            http=HttpConnection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # TrustedProxies reads them
            # By then everything was answered; this is for clients that do not read.
            timeout_graceful_shutdown=2,
            backlog=BACKLOG,
        )
    )


def _signals() -> tuple[asyncio.Event, asyncio.Event]:
    """Events that the first and the second signal set."""
    stopping, hurried = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stopping.is_set():
            hurried.set()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    return stopping, hurried

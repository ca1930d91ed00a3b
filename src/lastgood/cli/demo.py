"""`lastgood demo`: plays the promise on a real server process, offline, and checks every step."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from lastgood.cli.output import complain, one_line, print_line, print_wrapped
from lastgood.cli.parser import CommandParser, configure_command

#: Where the sentences begin, after the number and the name of a step.
_INDENT = 20


def configure(parser: CommandParser) -> None:
    configure_command(
        parser,
        run_demo,
        json=None,
        details="Starts a server in a temporary directory, lets turns fail, kills the server, and shows what "
        "the scripted model saw after each step. Needs no network and no API key. Exits with 1 if a step "
        "fails.",
    )


def run_demo(args: argparse.Namespace) -> int:
    # Not in the data directory: a socket's path must be short.
    with tempfile.TemporaryDirectory(prefix="lastgood-demo-", ignore_cleanup_errors=True) as folder:
        return asyncio.run(_play(Path(folder)))


async def _play(folder: Path) -> int:
    from lastgood.cli.demo_context import Demo, NotTrue
    from lastgood.cli.demo_server import DemoServer  # an HTTP client only where it is used
    from lastgood.cli.demo_steps import STEPS
    from lastgood.client import AsyncClient
    from lastgood.errors import LastgoodError

    server, began = DemoServer(folder), time.monotonic()
    print_line("Starting a server with the offline scripted model ...")
    try:
        server.write_agent("the agent of the demo")
        await server.publish_agent()
        await server.start()
        async with AsyncClient(server.url) as client:
            session = (await client.create("demo")).id
            demo = Demo(server, client, session)
            for number, (name, step) in enumerate(STEPS, 1):
                demo.shown_in, demo.shown = session, []
                try:
                    happened = await step(demo)
                except (NotTrue, LastgoodError, TimeoutError) as error:
                    print_line(f"✗ {number:2} {name:14} {one_line(str(error) or 'timed out')}")
                    complain("the demo failed; please report it")
                    return 1
                print_wrapped(f"✓ {number:2} {name:14} {happened}", _INDENT)
                print_wrapped(
                    f"{'':{_INDENT}}the model saw: {' | '.join(demo.what_the_model_saw())}", _INDENT
                )
    finally:
        await server.close()
    print_line(f"All {len(STEPS)} steps passed, in {time.monotonic() - began:.0f} s.")
    print_line("See it on your own server:")
    print_line("  lastgood serve               then open http://127.0.0.1:8080")
    print_line("  lastgood sessions show -1    the newest session; --attempts shows failed tries, too")
    print_line("  docs/guarantees.md           every promise, and the test that guards it")
    return 0

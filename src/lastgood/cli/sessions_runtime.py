"""`lastgood sessions runtime`: binds one session to a runtime, whatever its agent is bound to."""

from __future__ import annotations

import argparse
import asyncio

from lastgood.cli.output import one_line, print_json, print_line
from lastgood.cli.parser import SESSION_ID, Commands, add_command
from lastgood.cli.work_backend import add_local_user, find_runtime, find_session, open_work
from lastgood.errors import WrongUsage


def configure(commands: Commands) -> None:
    runtime = add_command(
        commands,
        "runtime",
        set_runtime,
        "run one session on a runtime of its own",
        json="print a JSON object",
        details="A running task stays where it is. `lastgood runtimes explain` says what the next turn would "
        "resume there.",
    )
    runtime.add_argument("id", metavar="ID", help=SESSION_ID)
    runtime.add_argument("runtime", metavar="RUNTIME", nargs="?", help="name or id of the runtime")
    runtime.add_argument("--none", action="store_true", help="follow the agent's own runtime again")
    runtime.add_argument(
        "--queued", metavar="WHAT", choices=("keep", "move"), default="keep",
        help="keep queued tasks where they are, or move them to the new runtime; default: keep",
    )  # fmt: skip
    add_local_user(runtime)


def set_runtime(args: argparse.Namespace) -> int:
    if args.none == (args.runtime is not None):
        raise WrongUsage("name a runtime, or use --none; see lastgood sessions runtime --help")
    return asyncio.run(_set_runtime(args))


async def _set_runtime(args: argparse.Namespace) -> int:
    session = await find_session(args, args.id)
    async with open_work(args, writes=True) as work:
        runtime = None if args.none else await find_runtime(work, args.runtime)
        id = None if runtime is None else runtime.id
        moved = await work.set_runtime(session, id, queued=args.queued)
    if args.json:
        print_json({"session_id": session, "runtime_id": id, "moved": moved})
    elif runtime is None:
        print_line(f"{session} follows its agent")
    else:
        also = f"; moved {moved} queued tasks" if args.queued == "move" else ""
        print_line(f"{session} runs on {one_line(runtime.name)} ({runtime.id}){also}")
    return 0

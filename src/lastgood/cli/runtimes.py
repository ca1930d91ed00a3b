"""`lastgood runtimes`: agent CLIs on workers, who may use them, and which agents run there."""

from __future__ import annotations

import argparse

from lastgood.cli.output import one_line, print_json, print_line, remark
from lastgood.cli.parser import SESSION_ID, CommandParser, Commands, add_command, add_commands, run_async
from lastgood.cli.work_backend import add_place, find_runtime, find_session, open_work
from lastgood.cli.work_output import (
    binding_json,
    explanation_json,
    print_explanation,
    runtime_json,
    runtime_line,
)
from lastgood.client.work_models import RuntimeInfo
from lastgood.errors import NoDatabase, WrongUsage

_RUNTIME = "name or id of the runtime"


def configure(parser: CommandParser) -> None:
    commands = add_commands(parser)
    add_command(
        commands,
        "list",
        run_async(list_runtimes),
        "list runtimes with their owners and states",
        json="print a JSON array",
    )
    _configure_explain(commands)
    _configure_binding(commands)
    _configure_owning(commands)
    for command in commands.choices.values():
        add_place(command)


def _configure_explain(commands: Commands) -> None:
    explain = add_command(
        commands,
        "explain",
        run_async(explain_session),
        "explain what the next turn of a session would resume, and why",
        json="print one JSON object",
        details="Runs nothing and changes nothing.",
    )
    explain.add_argument("id", metavar="SESSION", help=SESSION_ID)
    explain.add_argument(
        "--if-moved-to", metavar="RUNTIME", help="explain it as if the session ran on this runtime"
    )
    explain.add_argument(
        "--agent-file",
        metavar="AGENT",
        action="append",
        dest="agents",
        help="without --server: the file of the session's agent; repeatable",
    )


def _configure_binding(commands: Commands) -> None:
    bind = add_command(
        commands,
        "bind",
        run_async(bind_agent),
        "run an agent on a runtime",
        json="print the binding as a JSON object",
        details="Running tasks stay where they are.",
    )
    bind.add_argument("agent", metavar="AGENT", help="key of the agent")
    bind.add_argument("runtime", metavar="RUNTIME", nargs="?", help=f"{_RUNTIME}; omit it with --none")
    bind.add_argument("--none", action="store_true", help="bind the agent to no runtime")
    bind.add_argument(
        "--queued", metavar="WHAT", choices=("keep", "move"), default="keep",
        help="keep queued tasks where they are, or move them to the new runtime; default: keep",
    )  # fmt: skip
    bind.add_argument(
        "--offline", metavar="WHAT", choices=("wait", "fail"),
        help="while the runtime is offline, let requests wait or fail; default: wait",
    )  # fmt: skip
    bind.add_argument(
        "--max-wait", metavar="SECONDS", type=float, help="fail tasks that no worker claims within this time"
    )
    bind.add_argument("--deadline", metavar="SECONDS", type=float, help="end runs that take longer")
    bind.add_argument("--max-running", metavar="N", type=int, help="run at most N tasks of the agent at once")
    bind.add_argument(
        "--publish", action="store_true", help="let tokens with the scope chat reach the agent over /v1"
    )
    bind.add_argument(
        "--on-agent-change", metavar="WHAT", choices=("disclose", "replay", "fresh"),
        help="when the agent's definition has changed: resume its native sessions and disclose it, replay "
        "the transcript into a new one, or start fresh without it; default: disclose",
    )  # fmt: skip
    bind.add_argument(
        "--on-dirty", metavar="WHAT", choices=("disclose", "replay"),
        help="when a native session holds a prompt whose turn was not committed: resume it and disclose "
        "that, or replay the transcript into a new one; default: disclose",
    )  # fmt: skip


def _configure_owning(commands: Commands) -> None:
    share = add_command(
        commands,
        "share",
        run_async(share_runtime),
        "let other users use your runtime",
        json="print the runtime as a JSON object",
        details="Replaces the list of users. They can run tasks on it and read the sessions that it runs.",
    )
    share.add_argument("runtime", metavar="RUNTIME", help=_RUNTIME)
    share.add_argument(
        "users",
        metavar="USER",
        nargs="*",
        help="share with these users; '*' shares with all users of the tenant; no USER ends sharing",
    )
    remove = add_command(
        commands,
        "remove",
        run_async(remove_runtime),
        "remove a runtime",
        json="print a JSON object",
        details="Sessions keep their records of it. The runtime returns if the same machine registers again.",
    )
    remove.add_argument("runtime", metavar="RUNTIME", help=_RUNTIME)


async def list_runtimes(args: argparse.Namespace) -> int:
    runtimes: tuple[RuntimeInfo, ...] = ()
    try:
        async with open_work(args, writes=False) as work:
            runtimes = await work.runtimes()
    except NoDatabase as error:
        remark(error.message)
    if args.json:
        print_json([runtime_json(one) for one in runtimes])
    elif not runtimes:
        print_line("no runtimes: start a worker with `lastgood worker`")
    else:
        for one in runtimes:
            print_line(runtime_line(one))
    return 0


async def explain_session(args: argparse.Namespace) -> int:
    session = await find_session(args, args.id)
    async with open_work(args, writes=False) as work:
        moved = None if args.if_moved_to is None else (await find_runtime(work, args.if_moved_to)).id
        found = await work.explain(session, runtime=moved)
        runtimes = await work.runtimes()
    if args.json:
        print_json(explanation_json(found))
    else:
        print_explanation(found, runtimes)
    return 0


async def bind_agent(args: argparse.Namespace) -> int:
    if args.none == (args.runtime is not None):
        raise WrongUsage("name a runtime, or use --none; see lastgood runtimes bind --help")
    async with open_work(args, writes=True) as work:
        if args.none:
            await work.unbind_agent(args.agent)
        else:
            runtime = await find_runtime(work, args.runtime)
            binding = await work.bind_agent(
                args.agent,
                runtime.id,
                queued=args.queued,
                offline=args.offline,
                max_wait_seconds=args.max_wait,
                deadline_seconds=args.deadline,
                max_running=args.max_running,
                published=args.publish or None,
                on_agent_change=args.on_agent_change,
                on_dirty=args.on_dirty,
            )
    if args.json:
        print_json({"agent": args.agent, "runtime_id": None} if args.none else binding_json(binding))
    elif args.none:
        print_line(f"{one_line(args.agent)} is bound to no runtime")
    else:
        moved = f"; moved {binding.moved} queued tasks" if args.queued == "move" else ""
        print_line(f"{one_line(args.agent)} runs on {one_line(runtime.name)} ({runtime.id}){moved}")
    return 0


async def share_runtime(args: argparse.Namespace) -> int:
    async with open_work(args, writes=True) as work:
        runtime = await work.share_runtime((await find_runtime(work, args.runtime)).id, args.users)
    if args.json:
        print_json(runtime_json(runtime))
    else:
        print_line(runtime_line(runtime))
    return 0


async def remove_runtime(args: argparse.Namespace) -> int:
    async with open_work(args, writes=True) as work:
        runtime = await find_runtime(work, args.runtime)
        await work.remove_runtime(runtime.id)
    if args.json:
        print_json({"removed": runtime.id})
    else:
        print_line(f"removed {runtime.id}: {one_line(runtime.name)}")
    return 0

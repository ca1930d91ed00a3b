"""`lastgood tasks`: the queue of tasks for runtimes."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from lastgood.cli.output import print_json, print_line, remark
from lastgood.cli.parser import CommandParser, Commands, add_command, add_commands, page_size, run_async
from lastgood.cli.task_answers import answer_task, configure_answer
from lastgood.cli.work_backend import add_place, find_runtime, find_session, open_work
from lastgood.cli.work_output import print_diff, print_task, task_json, task_line
from lastgood.client.work_models import TaskInfo, TaskList
from lastgood.errors import NoDatabase, WrongUsage
from lastgood.model.tasks import TaskStatus

_SCOPES = ("issue", "chat")
_TASK_ID = "task id, as shown by `lastgood tasks list`"


def configure(parser: CommandParser) -> None:
    commands = add_commands(parser)
    _configure_reading(commands)
    _configure_add(commands)
    _configure_changing(commands)
    for command in commands.choices.values():
        add_place(command)


def _configure_reading(commands: Commands) -> None:
    some = add_command(
        commands,
        "list",
        run_async(list_tasks),
        "list tasks, newest first, and what unfinished ones wait for",
        json="print a JSON array",
    )
    some.add_argument(
        "--limit",
        metavar="N",
        type=page_size,
        default=50,
        help="list at most N tasks, up to 200; default: 50",
    )
    some.add_argument("--cursor", metavar="C", type=int, help="continue a previous list at this cursor")
    some.add_argument("--session", metavar="ID", help="list only tasks of this session")
    some.add_argument("--agent", metavar="KEY", help="list only tasks of this agent")
    some.add_argument("--runtime", metavar="RUNTIME", help="list only tasks of this runtime, by name or id")
    some.add_argument(
        "--status",
        metavar="STATUS",
        choices=[status.value for status in TaskStatus],
        help=f"list only tasks in this state: {', '.join(TaskStatus)}",
    )
    show = add_command(
        commands,
        "show",
        run_async(show_task),
        "show a task, what its newest claim resumed, and why",
        json="print one JSON object",
    )
    show.add_argument("id", metavar="TASK", help=_TASK_ID)
    show.add_argument("--activity", action="store_true", help="also show the messages of its newest run")
    diff = add_command(
        commands,
        "diff",
        run_async(diff_task),
        "show what a task changed in its working directory",
        json="print one JSON object",
        details="Workers upload changes of their own folders, and of other folders if their owner allows it.",
    )
    diff.add_argument("id", metavar="TASK", help=_TASK_ID)


def _configure_add(commands: Commands) -> None:
    add = add_command(
        commands,
        "add",
        run_async(add_task),
        "queue a task for an agent on a runtime",
        json="print the task as a JSON object",
        details="Tasks of one issue or chat and one agent share a session and run one after the other.",
    )
    add.add_argument("agent", metavar="AGENT", help="key of the agent; without --server, its file")
    add.add_argument("prompt", metavar="PROMPT", help="the prompt for the agent; quote it")
    add.add_argument("--issue", metavar="ID", help="the task is about this issue")
    add.add_argument(
        "--chat", metavar="ID", help="the task belongs to this chat, or to the session with this id"
    )
    add.add_argument("--runtime", metavar="RUNTIME", help="run it on this runtime, by name or id")
    add.add_argument(
        "--working-dir",
        metavar="DIR",
        help="working directory on the runtime's machine, for a new issue or chat; allowed by its worker's "
        "--allow-dir",
    )
    add.add_argument("--priority", metavar="N", type=int, help="higher ones are claimed first; default: 0")
    _add_directive(add)


def _configure_changing(commands: Commands) -> None:
    cancel = add_command(
        commands,
        "cancel",
        run_async(cancel_task),
        "cancel a task",
        json="print the task as a JSON object",
        details="Takes effect at once, also if its worker is unreachable. Other queued tasks of the session "
        "are held until somebody continues them.",
    )
    cancel.add_argument("id", metavar="TASK", help=_TASK_ID)
    proceed = add_command(
        commands,
        "continue",
        run_async(continue_task),
        "continue a task that is held after a cancel",
        json="print the task as a JSON object",
    )
    proceed.add_argument("id", metavar="TASK", help=_TASK_ID)
    proceed.add_argument("--all", action="store_true", help="continue all held tasks of its session")
    answering = add_command(
        commands,
        "answer",
        run_async(answer_task),
        "allow or deny a tool call that a task waits for",
        json="print the questions as a JSON array",
    )
    answering.add_argument("id", metavar="TASK", help=_TASK_ID)
    configure_answer(answering)
    rerun = add_command(
        commands,
        "rerun",
        run_async(rerun_task),
        "run a task again with its own native session and working directory",
        json="print the new task as a JSON object",
    )
    rerun.add_argument("id", metavar="TASK", help=_TASK_ID)
    rerun.add_argument("--runtime", metavar="RUNTIME", help="run it on this runtime; default: the same one")
    _add_directive(rerun)


def _add_directive(parser: CommandParser) -> None:
    parser.add_argument(
        "--fresh", action="store_true", help="start with neither a native session nor a working directory"
    )
    parser.add_argument("--note", metavar="TEXT", help="put this note to the agent before the prompt")
    parser.add_argument(
        "--key",
        metavar="K",
        help="idempotency key: repeating the command with the same key queues the task once",
    )


# -- reading -------------------------------------------------------------------------------


async def list_tasks(args: argparse.Namespace) -> int:
    page = await _page(args)
    if args.json:
        print_json([task_json(task) for task in page.tasks])
    elif not page.tasks:
        print_line("no tasks")
    else:
        for task in page.tasks:
            print_line(task_line(task))
    if page.next_cursor is not None:
        remark(f"more tasks: continue with --cursor {page.next_cursor}")
    return 0


async def _page(args: argparse.Namespace) -> TaskList:
    try:
        async with open_work(args, writes=False) as work:
            runtime = None if args.runtime is None else (await find_runtime(work, args.runtime)).id
            session = None if args.session is None else await find_session(args, args.session)
            return await work.task_page(
                limit=args.limit,
                cursor=args.cursor,
                session=session,
                agent=args.agent,
                runtime=runtime,
                status=args.status,
            )
    except NoDatabase as error:
        remark(error.message)
        return TaskList((), None)


async def show_task(args: argparse.Namespace) -> int:
    async with open_work(args, writes=False) as work:
        task = await work.task(args.id)
        activity = await work.task_messages(args.id) if args.activity else ()
        # Names for people; a task token may not list runtimes.
        runtimes = () if args.json else await work.runtimes()
    if args.json:
        plain = {"task": task_json(task)}
        if args.activity:
            plain["activity"] = [dict(message.body) for message in activity]  # type: ignore[assignment]
        print_json(plain)
    else:
        print_task(task, runtimes, activity)
    return 0


async def diff_task(args: argparse.Namespace) -> int:
    async with open_work(args, writes=False) as work:
        diff = await work.task_diff(args.id)
    if args.json:
        print_json(None if diff is None else asdict(diff))
    elif diff is None:
        print_line("its worker has uploaded no changes of this task")
    else:
        print_diff(diff)
    return 0


# -- writing -------------------------------------------------------------------------------


async def add_task(args: argparse.Namespace) -> int:
    scope = _scope(args)
    args.agents = [args.agent]
    async with open_work(args, writes=True) as work:
        runtime = None if args.runtime is None else (await find_runtime(work, args.runtime)).id
        task = await work.add_task(
            args.agent,
            args.prompt,
            scope=scope,
            runtime=runtime,
            working_dir=args.working_dir,
            priority=args.priority,
            fresh=args.fresh,
            note=args.note,
            key=args.key,
        )
    return _print_queued(args, task)


def _scope(args: argparse.Namespace) -> tuple[str, str]:
    given = [(kind, getattr(args, kind)) for kind in _SCOPES if getattr(args, kind) is not None]
    if len(given) != 1:
        raise WrongUsage("--issue ID or --chat ID is required; see lastgood tasks add --help")
    return given[0]


async def cancel_task(args: argparse.Namespace) -> int:
    async with open_work(args, writes=True) as work:
        task = await work.cancel_task(args.id)
    if task.status != "cancelled":
        remark(f"too late: the task is {task.status}")
    return _print_queued(args, task)


async def continue_task(args: argparse.Namespace) -> int:
    async with open_work(args, writes=True) as work:
        return _print_queued(args, await work.continue_task(args.id, all=args.all))


async def rerun_task(args: argparse.Namespace) -> int:
    async with open_work(args, writes=True) as work:
        runtime = None if args.runtime is None else (await find_runtime(work, args.runtime)).id
        task = await work.rerun_task(args.id, runtime=runtime, fresh=args.fresh, note=args.note, key=args.key)
    return _print_queued(args, task)


def _print_queued(args: argparse.Namespace, task: TaskInfo) -> int:
    if args.json:
        print_json(task_json(task))
    else:
        print_line(task_line(task))
    return 0

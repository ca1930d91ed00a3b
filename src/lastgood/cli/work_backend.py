"""The interface between commands and work on other machines, in the local database or on a server.

The client's AsyncClient is the backend of a server: both have the same methods and return its models.
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from lastgood.cli.backend import check_place
from lastgood.cli.parser import CommandParser, add_server
from lastgood.client.work_models import (
    BindingInfo,
    DiffInfo,
    ExplanationInfo,
    QuestionInfo,
    RuntimeInfo,
    TaskInfo,
    TaskList,
    TaskMessageInfo,
)
from lastgood.errors import InvalidRequest, RuntimeNotFound, WrongUsage


class TaskBackend(Protocol):
    async def task_page(
        self,
        *,
        limit: int = 50,
        cursor: int | None = None,
        session: str | None = None,
        agent: str | None = None,
        runtime: str | None = None,
        status: str | None = None,
    ) -> TaskList: ...

    async def task(self, task: str) -> TaskInfo: ...

    async def add_task(
        self,
        agent: str,
        prompt: str,
        *,
        scope: tuple[str, str],
        runtime: str | None = None,
        working_dir: str | None = None,
        priority: int | None = None,
        fresh: bool = False,
        rerun_of: str | None = None,
        note: str | None = None,
        key: str | None = None,
    ) -> TaskInfo: ...

    async def cancel_task(self, task: str) -> TaskInfo: ...

    async def continue_task(self, task: str, *, all: bool = False) -> TaskInfo: ...

    async def rerun_task(
        self,
        task: str,
        *,
        runtime: str | None = None,
        fresh: bool = False,
        note: str | None = None,
        key: str | None = None,
    ) -> TaskInfo: ...

    async def task_messages(self, task: str, *, after: int = 0) -> tuple[TaskMessageInfo, ...]: ...

    async def task_diff(self, task: str) -> DiffInfo | None: ...

    async def questions(self, task: str) -> tuple[QuestionInfo, ...]: ...

    async def answer_question(
        self, task: str, question: str, *, allowed: bool, reason: str | None = None
    ) -> QuestionInfo: ...

    async def runtimes(self) -> tuple[RuntimeInfo, ...]: ...


class WorkBackend(TaskBackend, Protocol):
    async def share_runtime(self, runtime: str, users: Sequence[str]) -> RuntimeInfo: ...

    async def remove_runtime(self, runtime: str) -> None: ...

    async def bind_agent(
        self,
        agent: str,
        runtime: str,
        *,
        queued: str = "keep",
        offline: str | None = None,
        max_wait_seconds: float | None = None,
        deadline_seconds: float | None = None,
        max_running: int | None = None,
        published: bool | None = None,
        on_agent_change: str | None = None,
        on_dirty: str | None = None,
    ) -> BindingInfo: ...

    async def unbind_agent(self, agent: str) -> None: ...

    async def set_runtime(self, session: str, runtime: str | None, *, queued: str = "keep") -> int: ...

    async def explain(self, session: str, *, runtime: str | None = None) -> ExplanationInfo: ...


def add_place(parser: CommandParser) -> None:
    add_server(parser)
    add_local_user(parser)


def add_local_user(parser: CommandParser) -> None:
    parser.add_argument(
        "--user",
        metavar="USER",
        default="",
        help="act as this user in the local database; default: the default owner (no user)",
    )


@asynccontextmanager
async def open_work(args: argparse.Namespace, *, writes: bool) -> AsyncIterator[WorkBackend]:
    """Without `writes`, the local database is only read, also while a server uses it."""
    check_place(args)
    if args.server is None:
        from lastgood.cli.work_local import open_local_work  # a database driver only where it is used

        async with open_local_work(args, writes=writes) as work:
            yield work
        return
    if args.user:
        raise WrongUsage("--user and --server cannot be combined: the token says who you are")
    from lastgood.cli.remote import connect  # an HTTP client only where it is used

    async with connect(args) as client:
        yield client


async def find_session(args: argparse.Namespace, text: str) -> str:
    """Returns the id of a session that is given by its id, or by -N for the N-th newest."""
    if args.server is None:
        from lastgood.cli.local_reader import read_here
        from lastgood.cli.startup import settings_of

        async with read_here(settings_of(args)) as reader:
            return (await reader.find(text)).id
    from lastgood.cli.remote import open_there

    async with open_there(args) as place:
        return (await place.find(text)).id


async def find_runtime(work: TaskBackend, text: str) -> RuntimeInfo:
    """By its id or its name. Two runtimes may have the same name: then only the id is good."""
    listed = await work.runtimes()
    found = [one for one in listed if one.id == text] or [one for one in listed if one.name == text]
    if not found:
        raise RuntimeNotFound(f"No runtime {text!r}; list them with `lastgood runtimes list`")
    if len(found) > 1:
        ids = ", ".join(one.id for one in found)
        raise InvalidRequest(f"{len(found)} runtimes are named {text!r}; use an id: {ids}")
    return found[0]

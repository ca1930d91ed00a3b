"""The client for synchronous code: calls block, and streams are plain iterators.

A thread runs the event loop of one AsyncClient. Thread-safe.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from functools import update_wrapper
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from lastgood.client.calls import AsyncClient

_P = ParamSpec("_P")
_T = TypeVar("_T")

#: After Ctrl-C, how long a cancelled call may take to clean up.
_LET_GO_SECONDS = 5.0


def _waits(
    method: Callable[Concatenate[AsyncClient, _P], Coroutine[Any, Any, _T]],
) -> Callable[Concatenate[Client, _P], _T]:
    def call(client: Client, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return client._wait(method(client._client, *args, **kwargs))

    update_wrapper(call, method)
    return call


def _iterates(
    method: Callable[Concatenate[AsyncClient, _P], AsyncGenerator[_T, None]],
) -> Callable[Concatenate[Client, _P], Generator[_T, None, None]]:
    def call(client: Client, /, *args: _P.args, **kwargs: _P.kwargs) -> Generator[_T, None, None]:
        return client._iterate(method(client._client, *args, **kwargs))

    update_wrapper(call, method)
    return call


class Client:
    """The synchronous AsyncClient. Close it, or use it in a `with` block."""

    def __init__(self, url: str, token: str | None = None, *, timeout: float = 60.0) -> None:
        self._client = AsyncClient(url, token, timeout=timeout)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="lastgood-client", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self._wait(self._client.close())
        self._wait(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    agents = _waits(AsyncClient.agents)
    agent = _waits(AsyncClient.agent)

    create = _waits(AsyncClient.create)
    list = _iterates(AsyncClient.list)
    page = _waits(AsyncClient.page)
    get = _waits(AsyncClient.get)
    delete = _waits(AsyncClient.delete)
    fork = _waits(AsyncClient.fork)
    reset = _waits(AsyncClient.reset)
    append = _waits(AsyncClient.append)
    rebind = _waits(AsyncClient.rebind)
    rename = _waits(AsyncClient.rename)
    star = _waits(AsyncClient.star)
    set_metadata = _waits(AsyncClient.set_metadata)
    set_model = _waits(AsyncClient.set_model)
    set_permissions = _waits(AsyncClient.set_permissions)
    set_safety = _waits(AsyncClient.set_safety)
    export = _waits(AsyncClient.export)
    import_ = _waits(AsyncClient.import_)
    turns = _waits(AsyncClient.turns)
    turn = _waits(AsyncClient.turn)
    turn_at = _waits(AsyncClient.turn_at)
    branches = _waits(AsyncClient.branches)
    attempts = _waits(AsyncClient.attempts)
    attempt = _waits(AsyncClient.attempt)
    tool_calls = _waits(AsyncClient.tool_calls)

    run = _iterates(AsyncClient.run)
    ask = _waits(AsyncClient.ask)
    submit = _waits(AsyncClient.submit)
    follow = _iterates(AsyncClient.follow)
    events = _iterates(AsyncClient.events)
    cancel = _waits(AsyncClient.cancel)
    continue_ = _iterates(AsyncClient.continue_)
    steer = _waits(AsyncClient.steer)
    followup = _waits(AsyncClient.followup)
    queue = _waits(AsyncClient.queue)
    drop = _waits(AsyncClient.drop)
    retry = _waits(AsyncClient.retry)

    tasks = _iterates(AsyncClient.tasks)
    task_page = _waits(AsyncClient.task_page)
    task = _waits(AsyncClient.task)
    add_task = _waits(AsyncClient.add_task)
    cancel_task = _waits(AsyncClient.cancel_task)
    continue_task = _waits(AsyncClient.continue_task)
    rerun_task = _waits(AsyncClient.rerun_task)
    task_messages = _waits(AsyncClient.task_messages)
    task_diff = _waits(AsyncClient.task_diff)
    questions = _waits(AsyncClient.questions)
    answer_question = _waits(AsyncClient.answer_question)

    runtimes = _waits(AsyncClient.runtimes)
    share_runtime = _waits(AsyncClient.share_runtime)
    remove_runtime = _waits(AsyncClient.remove_runtime)
    binding = _waits(AsyncClient.binding)
    bind_agent = _waits(AsyncClient.bind_agent)
    unbind_agent = _waits(AsyncClient.unbind_agent)
    set_runtime = _waits(AsyncClient.set_runtime)
    explain = _waits(AsyncClient.explain)
    pointers = _waits(AsyncClient.pointers)
    retire = _waits(AsyncClient.retire)

    tokens = _waits(AsyncClient.tokens)
    enroll = _waits(AsyncClient.enroll)
    create_token = _waits(AsyncClient.create_token)
    revoke_token = _waits(AsyncClient.revoke_token)

    def _wait(self, work: Coroutine[Any, Any, _T]) -> _T:
        ended = threading.Event()

        async def to_its_end() -> _T:
            try:
                return await work
            finally:
                ended.set()

        running = to_its_end()

        def let_go() -> None:
            """Runs on the event loop, which knows whether the task has started."""
            task = next((task for task in asyncio.all_tasks() if task.get_coro() is running), None)
            if task is None:
                ended.set()
            else:
                task.cancel()

        try:
            return asyncio.run_coroutine_threadsafe(running, self._loop).result()
        except BaseException:
            # Ctrl-C reached us and not the loop: a stream can be closed only when nobody reads it any more.
            self._loop.call_soon_threadsafe(let_go)
            ended.wait(_LET_GO_SECONDS)
            raise
        finally:
            # If Ctrl-C arrived before the coroutines started, nothing will start them now.
            for made in (running, work):
                if inspect.getcoroutinestate(made) == inspect.CORO_CREATED:
                    made.close()

    def _iterate(self, items: AsyncGenerator[_T, None]) -> Generator[_T, None, None]:
        try:
            while (item := self._wait(_next(items))) is not None:
                yield item
        finally:
            self._wait(_close(items))


async def _next(items: AsyncGenerator[_T, None]) -> _T | None:
    return await anext(items, None)


async def _close(items: AsyncGenerator[Any, None]) -> None:
    await items.aclose()

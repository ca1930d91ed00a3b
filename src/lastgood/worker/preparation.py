"""Prepares the directory of a run: the one that it had, a restored one, or an empty one that says so."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from lastgood.errors import LastgoodError
from lastgood.worker.claims import Claim, GivenDir
from lastgood.worker.delivery import backoff_seconds
from lastgood.worker.options import WorkerOptions
from lastgood.worker.outbox import Outbox
from lastgood.worker.redaction import Redaction
from lastgood.worker.server_calls import CallFailure, WorkServer, failure_of
from lastgood.worker.snapshot_restore import SnapshotRefused, restore_snapshot
from lastgood.worker.work_dirs import WorkDir, WorkDirRefused, WorkDirs

_LISTED = 20
_NOT_RESTORED = "The snapshot could not be restored on this machine"


@dataclass(frozen=True, slots=True)
class RunTools:
    """What every run of a worker shares."""

    options: WorkerOptions
    server: WorkServer
    outbox: Outbox
    work_dirs: WorkDirs
    redaction: Redaction
    environment: dict[str, str]
    token_rejected: Callable[[], None]


Lock = Callable[[WorkDir], Awaitable[None]]


@contextlib.asynccontextmanager
async def prepared_directory(
    claim: Claim, tools: RunTools, waits: Callable[[WorkDir], None]
) -> AsyncIterator[tuple[WorkDir, tuple[str, ...]]]:
    """The directory, locked for this run, and what the model must know about it. `waits` is called while
    another run holds it.

    WorkDirRefused: somebody named a folder that may not be used. A directory of an earlier run that is not
    here (another root, a copied identity, cleaned up) is no reason to fail: that is disclosed.
    """
    async with contextlib.AsyncExitStack() as stack:

        async def lock(work_dir: WorkDir) -> None:
            await stack.enter_async_context(tools.work_dirs.locked(work_dir, waits))

        yield await _prepare(claim, tools, lock)


async def _prepare(claim: Claim, tools: RunTools, lock: Lock) -> tuple[WorkDir, tuple[str, ...]]:
    if claim.folder is not None:
        folder = tools.work_dirs.find(claim.folder)
        await lock(folder)
        return folder, ()
    given = claim.work_dir
    notes: tuple[str, ...] = ()
    if given is not None and given.is_local:
        try:
            earlier = tools.work_dirs.find(given.path)
            await lock(earlier)
            return await _up_to_date(earlier, given, claim, tools, lock)
        except WorkDirRefused as refusal:
            notes = (f"The earlier files are not here: {refusal}. This directory is new and empty.",)
    work_dir = await asyncio.to_thread(tools.work_dirs.create, claim.session)
    await lock(work_dir)
    if claim.snapshot_attempt is not None:
        try:
            notes = await _restore(work_dir, claim, claim.snapshot_attempt, tools.server)
        except SnapshotRefused as error:
            notes = (f"{_NOT_RESTORED} ({error}). This directory is empty.",)
    return work_dir, notes


async def _up_to_date(
    work_dir: WorkDir, given: GivenDir, claim: Claim, tools: RunTools, lock: Lock
) -> tuple[WorkDir, tuple[str, ...]]:
    """A directory whose session has worked elsewhere since gets the newer files, under its own path: some
    CLIs find their sessions only there."""
    if not given.is_outdated or claim.snapshot_attempt is None:
        return work_dir, ()
    if not work_dir.is_owned:
        return work_dir, ("Nothing was restored into this folder; it is as its owner left it.",)
    newer = await asyncio.to_thread(tools.work_dirs.create, claim.session)
    await lock(newer)
    try:
        notes = await _restore(newer, claim, claim.snapshot_attempt, tools.server)
    except SnapshotRefused as error:
        newer.path.rmdir()
        return work_dir, (f"{_NOT_RESTORED} ({error}). This directory is as you left it.",)
    return tools.work_dirs.replace(work_dir, newer), notes


async def _restore(work_dir: WorkDir, claim: Claim, attempt: str, server: WorkServer) -> tuple[str, ...]:
    """Returns what is missing in the snapshot. SnapshotRefused: the directory is empty."""
    try:
        answer = await _download(claim, attempt, server)
        body = base64.b64decode(answer["body"], validate=True)
        await asyncio.to_thread(restore_snapshot, body, work_dir)
    except (LastgoodError, KeyError, TypeError, ValueError) as error:
        raise SnapshotRefused(str(error)) from error
    left_out = (answer.get("summary") or {}).get("left_out") or ()
    names = ", ".join(str(one.get("path")) for one in left_out[:_LISTED])
    more = len(left_out) - _LISTED
    if not names:
        return ()
    return (f"The snapshot does not contain: {names}{f' and {more} more' if more > 0 else ''}.",)


async def _download(claim: Claim, attempt: str, server: WorkServer) -> dict[str, Any]:
    tries = 0
    while True:
        try:
            return await server.download(claim.key.task, claim.key.token, attempt)
        except LastgoodError as error:
            if failure_of(error) is not CallFailure.RETRY:
                raise
            tries += 1
            await asyncio.sleep(backoff_seconds(tries))

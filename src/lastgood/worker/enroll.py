"""Exchanges a one-time code for a token that is bound to this worker, and stores it under the root."""

from __future__ import annotations

from pathlib import Path

from lastgood.errors import ResponseUnreadable
from lastgood.worker.server_calls import WorkServer
from lastgood.worker.worker_identity import identify, locked_root, store_private


async def enroll(server: str, code: str, name: str, root: Path, ca_file: Path | None) -> str:
    """Returns the worker's id."""
    with locked_root(root):  # before the code is used up
        calls = WorkServer(server, None, ca_file)
        try:
            answer = await calls.enroll(code, name)
        finally:
            await calls.close()
        token, worker_id = answer.get("token"), answer.get("worker_id")
        if not isinstance(token, str) or not isinstance(worker_id, str):
            raise ResponseUnreadable(f"{server} sent no token; upgrade the server")
        store_private(root / "token", f"{token}\n".encode())
        identify(root, worker_id)
        return worker_id

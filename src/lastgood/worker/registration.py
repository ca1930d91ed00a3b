"""What a worker registers, and whether it must register again: a CLI was logged in with another account."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lastgood import __version__
from lastgood.core.work_protocol import WORK_PROTOCOL
from lastgood.worker.accounts import account_of
from lastgood.worker.job import JobPermissions, RuntimeKind
from lastgood.worker.runtimes.runtime_kinds import RuntimeChoice
from lastgood.worker.worker_identity import WorkerIdentity


@dataclass(frozen=True, slots=True)
class OfferedRuntime:
    choice: RuntimeChoice
    kind: RuntimeKind  # to look at; each run has one of its own
    cli_version: str


class RegistrationRequest:
    def __init__(
        self,
        identity: WorkerIdentity,
        name: str,
        runtimes: tuple[OfferedRuntime, ...],
        environment: Mapping[str, str],
    ) -> None:
        self._identity, self._name, self._environment = identity, name, environment
        self.runtimes = runtimes
        self._accounts = [""] * len(runtimes)

    async def is_outdated(self) -> bool:
        return await self._current_accounts() != self._accounts

    async def body(self) -> dict[str, Any]:
        self._accounts = await self._current_accounts()
        return {
            "worker_id": self._identity.worker_id,
            "name": self._name,
            "instance": self._identity.instance,
            "version": __version__,
            "protocol": WORK_PROTOCOL,
            "runtimes": [
                {
                    "name": offered.choice.name,
                    "provider": offered.kind.provider,
                    "profile": offered.choice.name,
                    "account": account,
                    "format": offered.kind.format,
                    "cli_version": offered.cli_version,
                    "steerable": offered.kind.can_steer,
                    "enforces": "none" if offered.kind.cannot_enforce(JobPermissions()) else "all",
                }
                for offered, account in zip(self.runtimes, self._accounts, strict=True)
            ],
        }

    async def _current_accounts(self) -> list[str]:
        return await asyncio.to_thread(self._read_accounts)

    def _read_accounts(self) -> list[str]:
        """An unknown account is the one that was known last: a CLI that is logged out has not switched."""
        pairs = zip(self.runtimes, self._accounts, strict=True)
        return [account_of(one.choice, self._environment) or known for one, known in pairs]

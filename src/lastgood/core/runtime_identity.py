"""Decides the identity of a runtime: the same machine, program, profile and account are the same runtime."""

from __future__ import annotations

import hashlib

from lastgood.model.ids import TenantId
from lastgood.model.runtimes import RuntimeIdentity


def identity_of(
    tenant: TenantId, worker: str, provider: str, profile: str = "", account: str = "", format: str = ""
) -> RuntimeIdentity:
    """The format is not part of the id: a CLI that is upgraded stays the same runtime."""
    digest = hashlib.sha256()
    for part in (tenant, worker, provider, profile, account):
        raw = part.encode("utf-8", "surrogatepass")
        digest.update(len(raw).to_bytes(8) + raw)
    return RuntimeIdentity("rt_" + digest.hexdigest()[:32], worker, provider, account, format)

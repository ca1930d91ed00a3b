"""Decides who may use a runtime. A user's machine does not belong to the tenant.

The owner of a runtime shares it with users by name, or with every user of the tenant (`*`). A user who may
not use a runtime gets the same response as for one that does not exist. The scope `admin` does not override
this: it may list runtimes, remove them, and unbind or replace what is bound to them. A worker belongs to the
user who registered it first; another user with a token for its id cannot claim or report.
"""

from __future__ import annotations

from lastgood.model.runtimes import AgentBinding, Runtime

EVERYBODY = "*"


def may_use(runtime: Runtime, user: str) -> bool:
    """Bind, enqueue, send, steer, read its sessions and answer its questions."""
    return user == runtime.owner or user in runtime.shared_with or EVERYBODY in runtime.shared_with


def may_share(runtime: Runtime, user: str) -> bool:
    """Only the owner may share; users it is shared with may not."""
    return user == runtime.owner


def may_see(runtime: Runtime, user: str, *, is_admin: bool) -> bool:
    """List it, or remove it."""
    return is_admin or may_use(runtime, user)


def may_remove(runtime: Runtime, user: str, *, is_admin: bool) -> bool:
    return is_admin or may_share(runtime, user)


def may_chat(binding: AgentBinding | None) -> bool:
    """Over `/v1`, an agent on a runtime is reached by every chat token of the tenant, but only if its
    binding is published. An agent that is bound to nothing is chosen by its harness, and never published."""
    return binding is not None and binding.published

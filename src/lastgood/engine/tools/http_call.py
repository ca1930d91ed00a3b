"""One HTTP request of a tool: guarded, bounded, and with the key of its call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lastgood.core.egress import Policy
from lastgood.core.openapi import READ_ONLY
from lastgood.engine.tools.command_environment import Environment
from lastgood.engine.tools.tool import ToolFailed, ToolInterrupted, ToolUse
from lastgood.model.agents import Effect, OnUnknown, ToolsetSpec
from lastgood.outside.network import EgressError, EgressRefused, Network, request

SECONDS = 30
#: Less than the watchdog of a turn: a request is silent, and its timeout is a result that the model can read.
MOST_SECONDS = 240
RESPONSE_BYTES = 1024 * 1024
#: A system that supports it does a repeated request once.
KEY_HEADER = "Idempotency-Key"


@dataclass(frozen=True, slots=True)
class HttpCaller:
    """The requests of a toolset."""

    spec: ToolsetSpec
    environment: Environment
    network: Network

    @property
    def policy(self) -> Policy:
        trusted = self.spec.trusted
        return Policy(
            loopback=trusted, private=trusted and self.spec.options.get("allow_private_ips") is True
        )

    @property
    def seconds(self) -> int:
        return min(int(self.spec.options.get("timeout") or SECONDS), MOST_SECONDS)

    async def call(
        self,
        use: ToolUse,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None,
        policy: Policy | None = None,
    ) -> str:
        """The text of the response. ToolFailed: its status is an error; ToolInterrupted: there was none, and
        whether the request took effect is unknown. `policy`: one that is narrower than the toolset's."""
        sent = dict(headers)
        given = {name.lower() for name in sent}
        if method not in READ_ONLY and KEY_HEADER.lower() not in given:
            sent[KEY_HEADER] = use.key
        if body is not None and "content-type" not in given:
            sent["Content-Type"] = "application/json"
        limit = int(self.spec.options.get("max_output_bytes") or RESPONSE_BYTES)
        limit = min(limit, RESPONSE_BYTES)
        scrub = self.environment.secrets.scrub
        try:
            response = await request(
                method,
                url,
                body=body,
                headers=sent,
                limit_bytes=limit,
                timeout_seconds=self.seconds,
                policy=policy or self.policy,
                network=self.network,
            )
        except EgressRefused as error:
            raise ToolFailed(scrub(str(error))) from None
        except EgressError as error:
            failed = ToolFailed if method in READ_ONLY else ToolInterrupted
            raise failed(scrub(str(error))) from None
        kind = response.headers.get("content-type", "")
        if b"\x00" in response.body[:8192]:
            raise ToolFailed(f"the response is not text ({kind or 'unknown media type'})")
        text = scrub(response.body.decode(errors="replace"))
        if response.truncated:
            text += f"\n\n[Truncated; only the first {limit} bytes were read]"
        if not 200 <= response.status < 300:
            raise ToolFailed(f"the API answered with status {response.status}: {text}")
        return text or f"Done, with status {response.status} and no content."


def effects_of(method: str) -> tuple[Effect, OnUnknown]:
    if method in READ_ONLY:
        return Effect.SAFE, OnUnknown.REPEAT
    return Effect.DESTRUCTIVE, OnUnknown.FAIL

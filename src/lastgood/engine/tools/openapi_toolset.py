"""`openapi`: a tool for each operation that an OpenAPI document describes.

The document is requested when an agent with it first runs, and again when it is old. If it cannot be had, its
last version serves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import orjson
import yaml

from lastgood.core.egress import Policy, is_loopback_url
from lastgood.core.openapi import Operation, base_url, operations_of, request_of, same_host
from lastgood.engine.tools.arguments import checked
from lastgood.engine.tools.bounded_yaml import read_yaml
from lastgood.engine.tools.cancellation import in_thread
from lastgood.engine.tools.command_environment import Environment
from lastgood.engine.tools.http_call import HttpCaller, effects_of
from lastgood.engine.tools.kept_documents import KeptDocuments
from lastgood.engine.tools.program_tools import LiveProgram, Offer, SessionPlace
from lastgood.engine.tools.tool import Tool, ToolFailed, ToolUse
from lastgood.model.agents import ToolsetSpec
from lastgood.outside.network import EgressError, Network, fetch

DOCUMENT_BYTES = 10 * 1024 * 1024
#: Of a document in YAML, which takes far longer to read.
YAML_BYTES = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ApiDocument:
    base: str = ""
    operations: Sequence[Operation] = ()
    surplus: int = 0
    problem: str = ""
    is_local: bool = False  # it was read from this machine


class OpenApiToolset:
    def __init__(
        self, environment: Environment, network: Network, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._environment, self._network = environment, network
        self._documents = KeptDocuments(ApiDocument(), clock)

    def program(self, spec: ToolsetSpec, place: SessionPlace) -> LiveProgram:
        return _Api(self, HttpCaller(spec, self._environment, self._network))

    async def document(self, caller: HttpCaller) -> ApiDocument:
        return await self._documents.get(caller.spec, partial(self._ask, caller))

    async def _ask(self, caller: HttpCaller, before: ApiDocument) -> ApiDocument:
        scrub = self._environment.secrets.scrub
        try:
            url, headers = self.address(caller.spec)
            found = await fetch(
                url,
                headers={"Accept": "application/json, application/yaml;q=0.9, */*;q=0.1", **headers},
                limit_bytes=DOCUMENT_BYTES,
                timeout_seconds=caller.seconds,
                policy=caller.policy,
                network=self._network,
            )
            if found.status != 200:
                raise ToolFailed(f"it answered with status {found.status}")
            if found.truncated:
                raise ToolFailed(f"the document has more than {DOCUMENT_BYTES:,} bytes")
            is_local = is_loopback_url(url) and is_loopback_url(found.url)
            return await in_thread(lambda stop: read_document(found.body, url, is_local))
        except (EgressError, ToolFailed) as error:
            if before.operations:
                return replace(before, problem=scrub(str(error)))
            return ApiDocument(problem=scrub(str(error)))

    def address(self, spec: ToolsetSpec) -> tuple[str, dict[str, str]]:
        """ToolFailed: a variable is not set."""
        url, _ = self._environment.filled({"url": spec.options["url"]}, spec.trusted)
        headers, _ = self._environment.filled(spec.options.get("headers") or {}, spec.trusted)
        return url["url"], headers

    async def close(self) -> None:
        """Nothing is running."""


def read_document(body: bytes, where: str, is_local: bool) -> ApiDocument:
    document = _parsed(body)
    if not isinstance(document, dict):
        raise ToolFailed("the document is not an object")
    try:
        operations, surplus = operations_of(document)
        return ApiDocument(base_url(document, where), operations, surplus, is_local=is_local)
    except (ValueError, RecursionError) as error:
        raise ToolFailed(f"the document cannot be read: {error}") from None


def _parsed(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        pass
    if len(body) > YAML_BYTES:
        raise ToolFailed(f"the document is not JSON, and has more than {YAML_BYTES:,} bytes")
    try:
        return read_yaml(body)
    except (yaml.YAMLError, ValueError, RecursionError):
        raise ToolFailed("the document is neither JSON nor YAML") from None


class _Api:
    def __init__(self, toolset: OpenApiToolset, caller: HttpCaller) -> None:
        self._toolset, self._caller = toolset, caller

    async def offer(self) -> Offer:
        document, spec = await self._toolset.document(self._caller), self._caller.spec
        wanted = spec.tools
        tools = tuple(
            self._tool(document, operation)
            for operation in document.operations
            if wanted is None or operation.tool in wanted
        )
        notes = [spec.instruction] if spec.instruction else []
        if document.surplus:
            notes.append(f"{document.surplus} operations of the API are not available as tools.")
        problem = ""
        if document.problem and not tools:
            problem = f"The API document {spec.options['url']} is not available: {document.problem}"
        return Offer(tools, "\n".join(notes), problem, label="api")

    def _tool(self, document: ApiDocument, operation: Operation) -> Tool:
        effect, on_unknown = effects_of(operation.method)
        run = partial(self._call, document, operation)
        about, schema = operation.about, dict(operation.parameters)
        # What was approved is this request, whatever the document calls so later.
        definition = f"{operation.method} {document.base} {operation.path}"
        tool = Tool(operation.tool, about, schema, run, on_unknown, effect, definition)
        return checked(tool)

    async def _call(self, document: ApiDocument, operation: Operation, use: ToolUse) -> str:
        url, headers = self._toolset.address(self._caller.spec)
        is_its_own = same_host(url, document.base)
        if headers and not is_its_own:
            # The document chooses the host of its requests, and may have been written by somebody else.
            raise ToolFailed(
                "the API is on another host than its document, so the headers of this toolset, which may "
                "contain a key, are not sent to it; the agent file can name a document on the API's host"
            )
        try:
            asked = request_of(operation, document.base, use.arguments)
        except ValueError as error:
            raise ToolFailed(str(error)) from None
        policy = self._caller.policy
        if not is_its_own:
            # Nor does it lead to this machine or a private network, unless it is from this machine itself.
            policy = Policy(loopback=policy.loopback and document.is_local)
        return await self._caller.call(use, operation.method, asked.url, headers, asked.body, policy)

    async def close(self) -> None:
        """Nothing is running."""

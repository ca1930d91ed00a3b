"""`api`: one tool that makes the request which the agent's file describes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lastgood.core.openapi import READ_ONLY
from lastgood.core.url_template import encoded, environment_in, filled, names_in
from lastgood.engine.tools.command_environment import Environment
from lastgood.engine.tools.http_call import HttpCaller, effects_of
from lastgood.engine.tools.tool import Tool, ToolFailed, ToolUse
from lastgood.model.agents import ToolsetSpec
from lastgood.outside.network import Network

#: Their arguments are sent in the URL only.
_WITHOUT_BODY = READ_ONLY | {"DELETE"}


def api_toolset(spec: ToolsetSpec, environment: Environment, network: Network) -> Sequence[Tool]:
    config: Mapping[str, Any] = spec.options.get("api_config") or {}
    method, endpoint = str(config.get("method", "GET")), str(config.get("endpoint", ""))
    caller = HttpCaller(spec, environment, network)
    in_url = names_in(endpoint)
    required: Sequence[str] = tuple(config.get("required") or ())
    in_path = names_in(endpoint.partition("?")[0]) & set(required)
    properties: Mapping[str, Any] = config.get("args") or {}

    async def run(use: ToolUse) -> str:
        headers, _ = environment.filled(config.get("headers") or {}, spec.trusted)
        template = endpoint
        for variable in environment_in(endpoint) if spec.trusted else ():
            values, _ = environment.filled({"value": variable}, spec.trusted)
            template = template.replace(variable, values["value"])
        known = {name: value for name, value in use.arguments.items() if name in properties}
        for name in sorted(in_path):
            if not encoded(known.get(name)):
                # The path above it means something else: all of them, and not one.
                raise ToolFailed(f"`{name}` is empty")
        body = None
        if method not in _WITHOUT_BODY:
            sent = {name: value for name, value in known.items() if name not in in_url}
            body = json.dumps(sent, ensure_ascii=False).encode()
        try:
            url = filled(template, known)
        except ValueError as error:
            raise ToolFailed(str(error)) from None
        return await caller.call(use, method, url, headers, body)

    effect, on_unknown = effects_of(method)
    about = str(config.get("instruction") or f"{method} {endpoint.partition('?')[0]}")
    if output := config.get("output_schema"):
        about += f"\n\nThe response has this JSON schema: {json.dumps(output, ensure_ascii=False)}"
    schema = {
        "type": "object",
        "properties": {
            name: {"type": "string", **one} if isinstance(one, dict) else {}
            for name, one in properties.items()
        },
        "required": list(required),
    }
    return [Tool(str(config.get("name", "api")), about, schema, run, on_unknown=on_unknown, effect=effect)]

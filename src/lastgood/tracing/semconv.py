"""Attribute names of OpenTelemetry's conventions, and a few of our own under `lastgood.`.

No attribute holds content: no prompt, no argument, no result, no URL with its query, no error text. Values
come from files, from us, or from a closed list.
"""

from __future__ import annotations

from typing import Final

from lastgood.model.agents import ModelSpec

ERROR: Final = "error.type"

METHOD: Final = "http.request.method"
ROUTE: Final = "http.route"
STATUS: Final = "http.response.status_code"
SCHEME: Final = "url.scheme"

OPERATION: Final = "gen_ai.operation.name"
AGENT: Final = "gen_ai.agent.name"
CONVERSATION: Final = "gen_ai.conversation.id"
PROVIDER: Final = "gen_ai.provider.name"
MODEL: Final = "gen_ai.request.model"
FINISHED: Final = "gen_ai.response.finish_reasons"
FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
TOKENS_IN: Final = "gen_ai.usage.input_tokens"
TOKENS_OUT: Final = "gen_ai.usage.output_tokens"
TOOL: Final = "gen_ai.tool.name"
CALL: Final = "gen_ai.tool.call.id"

REQUEST: Final = "lastgood.request.id"
ENDED: Final = "lastgood.request.ended"
TURN: Final = "lastgood.turn.id"
ATTEMPT: Final = "lastgood.attempt.id"
NUMBER: Final = "lastgood.attempt.number"
OUTCOME: Final = "lastgood.attempt.outcome"
PURPOSE: Final = "lastgood.purpose"

#: For values outside of a known set: an unknown method, a tool that a model made up.
OTHER: Final = "_OTHER"

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE", "QUERY"})

#: Providers that the conventions call otherwise than agent files do.
_PROVIDERS = {
    "amazon-bedrock": "aws.bedrock",
    "azure": "azure.ai.openai",
    "gemini": "gcp.gemini",
    "google": "gcp.gemini",
    "mistral": "mistral_ai",
    "moonshot": "moonshot_ai",
    "xai": "x_ai",
}


def provider_of(model: ModelSpec) -> str:
    return _PROVIDERS.get(model.provider, model.provider)

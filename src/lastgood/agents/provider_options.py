"""Decides which `provider_opts` have an effect, by the provider that they are for.

Others are not sent, so each of them is a warning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lastgood.agents.findings import hint

_CHAT = frozenset(
    {
        "api_type",
        "extra_body",
        "http_headers",
        "min_p",
        "repetition_penalty",
        "seed",
        "service_tier",
        "stream_options",
        "supports_images",
        "supports_pdf",
        "top_k",
        "typical_p",
    }
)
#: Of a model that is called with OpenAI's Responses API.
_RESPONSES = frozenset(
    {
        "api_type",
        "api_version",
        "extra_body",
        "http_headers",
        "service_tier",
        "supports_images",
        "supports_pdf",
    }
)
#: Settings that this API does not have.
NOT_IN_RESPONSES = ("frequency_penalty", "presence_penalty")
#: Of the providers that have an API of their own. All others implement OpenAI's chat completions.
_OWN = {
    "amazon-bedrock": frozenset(
        {"api_type", "endpoint_url", "interleaved_thinking", "profile", "region", "top_k"}
    ),
    "anthropic": frozenset({"api_type", "fallbacks", "interleaved_thinking", "thinking_display", "top_k"}),
    "azure": _CHAT | {"api_version"},
    "google": frozenset({"api_type", "code_execution", "google_search", "seed", "top_k"}),
}
#: For Lastgood itself, whatever the provider is.
_OURS = frozenset({"context_size"})
#: Those of any provider.
SUPPORTED = _OURS.union(_CHAT, *_OWN.values())
#: What is so without asking for it.
_ALWAYS = {"disable_prompt_caching": True, "transport": "sse"}


def problems_of(provider: str, options: Mapping[str, Any]) -> Iterator[str]:
    """A message for each option that has no effect."""
    known = _CHAT if options.get("api_type") else _OWN.get(provider, _CHAT)
    if options.get("api_type") == "openai_responses":
        known = _RESPONSES
    for name, value in options.items():
        if name not in known | _OURS and value is not False and value != _ALWAYS.get(name, ""):
            near = hint(name, known)
            yield f"'{name}' under provider_opts is not supported yet for {provider}: it is not sent{near}"


def accepted_attachments(options: Mapping[str, Any]) -> frozenset[str] | None:
    """What `supports_images` and `supports_pdf` say; None: they say nothing."""
    names = {"supports_images": "image", "supports_pdf": "pdf"}
    if not names.keys() & options.keys():
        return None
    return frozenset(kind for name, kind in names.items() if options.get(name) is True)

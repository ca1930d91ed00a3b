"""The table of providers: base URLs and key variables; docker-agent's, and ours.

Knows names and addresses only. A model with its own `base_url` is called there, whatever its provider is
called.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from urllib.parse import SplitResult, quote, urlsplit

from lastgood.errors import KeyRefused, ModelUnknown
from lastgood.model.agents import ModelSpec
from lastgood.outside.secrets import Secrets


class Dialect(StrEnum):
    CHAT = "chat"  # OpenAI's chat completions: spoken here
    RESPONSES = "responses"  # OpenAI's Responses API: spoken here
    DIRECT = "direct"  # a dialect of their own: through pydantic-ai, an extra


@dataclass(frozen=True, slots=True)
class ProviderAlias:
    """`keys` are names of variables, any one of which will do; none: no key is needed."""

    base_url: str | None
    keys: tuple[str, ...] = ()
    dialect: Dialect = Dialect.CHAT
    key_header: str = "Authorization"
    headers: Mapping[str, str] = field(default_factory=dict)


_AWS = ("AWS_BEARER_TOKEN_BEDROCK", "AWS_ACCESS_KEY_ID", "AWS_PROFILE")

# fmt: off
ALIASES: dict[str, ProviderAlias] = {
    "openai": ProviderAlias("https://api.openai.com/v1", ("OPENAI_API_KEY",)),
    "anthropic": ProviderAlias(None, ("ANTHROPIC_API_KEY",), Dialect.DIRECT),
    "google": ProviderAlias(None, ("GOOGLE_API_KEY", "GEMINI_API_KEY"), Dialect.DIRECT),
    "amazon-bedrock": ProviderAlias(None, _AWS, Dialect.DIRECT),
    # Google's own, in OpenAI's dialect: no extra needed.
    "gemini": ProviderAlias(
        "https://generativelanguage.googleapis.com/v1beta/openai", ("GEMINI_API_KEY", "GOOGLE_API_KEY")
    ),
    "dmr": ProviderAlias("http://localhost:12434/engines/v1"),
    "ollama": ProviderAlias("http://localhost:11434/v1"),
    "azure": ProviderAlias(None, ("AZURE_API_KEY",), key_header="api-key"),
    "atlascloud": ProviderAlias("https://api.atlascloud.ai/v1", ("ATLASCLOUD_API_KEY",)),
    "baseten": ProviderAlias("https://inference.baseten.co/v1", ("BASETEN_API_KEY",)),
    "cerebras": ProviderAlias("https://api.cerebras.ai/v1", ("CEREBRAS_API_KEY",)),
    "cloudflare-ai-gateway": ProviderAlias(
        "https://gateway.ai.cloudflare.com/v1/${CLOUDFLARE_ACCOUNT_ID}/${CLOUDFLARE_GATEWAY_ID}/compat",
        ("CLOUDFLARE_API_TOKEN",),
    ),
    "cloudflare-workers-ai": ProviderAlias(
        "https://api.cloudflare.com/client/v4/accounts/${CLOUDFLARE_ACCOUNT_ID}/ai/v1",
        ("CLOUDFLARE_API_TOKEN",),
    ),
    "daoxe": ProviderAlias("https://daoxe.com/v1", ("DAOXE_API_KEY",)),
    "deepseek": ProviderAlias("https://api.deepseek.com/v1", ("DEEPSEEK_API_KEY",)),
    "fireworks": ProviderAlias("https://api.fireworks.ai/inference/v1", ("FIREWORKS_API_KEY",)),
    "github-copilot": ProviderAlias(
        "https://api.githubcopilot.com", ("GITHUB_TOKEN",), headers={"Copilot-Integration-Id": "vscode-chat"}
    ),
    "groq": ProviderAlias("https://api.groq.com/openai/v1", ("GROQ_API_KEY",)),
    "huggingface": ProviderAlias("https://router.huggingface.co/v1", ("HF_TOKEN",)),
    "minimax": ProviderAlias("https://api.minimax.io/v1", ("MINIMAX_API_KEY",)),
    "mistral": ProviderAlias("https://api.mistral.ai/v1", ("MISTRAL_API_KEY",)),
    "moonshot": ProviderAlias("https://api.moonshot.ai/v1", ("MOONSHOT_API_KEY",)),
    "nebius": ProviderAlias("https://api.studio.nebius.com/v1", ("NEBIUS_API_KEY",)),
    "nvidia": ProviderAlias("https://integrate.api.nvidia.com/v1", ("NVIDIA_API_KEY",)),
    "opencode-go": ProviderAlias("https://opencode.ai/zen/go/v1", ("OPENCODE_API_KEY",)),
    "opencode-zen": ProviderAlias("https://opencode.ai/zen/v1", ("OPENCODE_API_KEY",)),
    "openrouter": ProviderAlias("https://openrouter.ai/api/v1", ("OPENROUTER_API_KEY",)),
    "orcarouter": ProviderAlias("https://api.orcarouter.ai/v1", ("ORCAROUTER_API_KEY",)),
    "ovhcloud": ProviderAlias(
        "https://oai.endpoints.kepler.ai.cloud.ovh.net/v1", ("OVH_AI_ENDPOINTS_ACCESS_TOKEN",)
    ),
    "requesty": ProviderAlias("https://router.requesty.ai/v1", ("REQUESTY_API_KEY",)),
    "together": ProviderAlias("https://api.together.xyz/v1", ("TOGETHER_API_KEY",)),
    "vercel": ProviderAlias("https://ai-gateway.vercel.sh/v1", ("AI_GATEWAY_API_KEY",)),
    "xai": ProviderAlias("https://api.x.ai/v1", ("XAI_API_KEY",)),
}
# fmt: on

#: Known, and not served: why, and what to do instead.
REFUSED = {
    "chatgpt": "chatgpt needs a ChatGPT sign-in, which is not supported; use openai with OPENAI_API_KEY",
}

#: OpenAI's models that have no chat completions.
_RESPONSES_ONLY = re.compile(r"codex-|o\d\S*-(?:pro|deep-research)|gpt-\d\S*-(?:codex|pro)\b")

OLLAMA_HOST = "OLLAMA_HOST"
_VARIABLE = re.compile(r"\$\{(?:env\.)?([A-Za-z_][A-Za-z0-9_]*)\}")


def alias_of(model: ModelSpec) -> ProviderAlias | None:
    """How to reach this model; None if its provider is unknown and it has no base_url."""
    known, dialect = ALIASES.get(model.provider), _openai_dialect(model)
    if known is None:
        return _at(model.base_url, dialect or Dialect.CHAT) if model.base_url else None
    return replace(known, dialect=dialect) if dialect else known


def _openai_dialect(model: ModelSpec) -> Dialect | None:
    """None: the provider's own."""
    api = model.options.get("api_type")
    if api:
        return Dialect.RESPONSES if api == "openai_responses" else Dialect.CHAT
    has_no_chat = model.provider in ("openai", "azure") and _RESPONSES_ONLY.match(model.model)
    return Dialect.RESPONSES if has_no_chat else None


@lru_cache
def _at(base_url: str, dialect: Dialect) -> ProviderAlias:
    return ProviderAlias(base_url, dialect=dialect)


def key_names(model: ModelSpec) -> tuple[str, ...]:
    """The variables of which one must hold its key; empty: it is called without a key."""
    if model.keyless:
        return ()
    if model.token_key:
        return (model.token_key,)
    alias = alias_of(model)
    return alias.keys if alias else ()


def needs_key(model: ModelSpec) -> bool:
    """A self-hosted server may need no key; but if a token_key is set, the key must be there."""
    return bool(model.token_key) or (model.base_url is None and bool(key_names(model)))


def key_of(model: ModelSpec, secrets: Secrets) -> str | None:
    """Its key, or None where none is needed. Raises KeyRefused when it is missing."""
    names = key_names(model)
    for name in names:
        key = secrets.get(name)
        if key is not None:
            return key
    if needs_key(model):
        raise missing_key(model)
    return None


#: A process reads its keys when it starts.
_WHERE_TO_SET = "where Lastgood runs, restart it and send the turn again"


def missing_key(*models: ModelSpec) -> KeyRefused:
    names = " or ".join(dict.fromkeys(name for model in models for name in key_names(model))) or "its key"
    refs = ", ".join(model.ref for model in models)
    return KeyRefused(f"no API key for {refs}; set {names} {_WHERE_TO_SET}")


def expand(text: str, secrets: Secrets) -> str:
    """`${NAME}` replaced by what the environment holds: addresses and headers may need an account's id."""
    return _replaced(text, secrets.get)


def with_its_name(model: ModelSpec, secrets: Secrets) -> ModelSpec:
    """A model whose name is a variable, or has one in it, by the name that the environment holds."""
    return replace(model, model=_replaced(model.model, secrets.plain)) if "${" in model.model else model


def _replaced(text: str, read: Callable[[str], str | None]) -> str:
    def value(match: re.Match[str]) -> str:
        found = read(match[1])
        if found is None:
            raise KeyRefused(f"{match[1]} is not set; set it {_WHERE_TO_SET}")
        return found

    return _VARIABLE.sub(value, text)


def chat_url(model: ModelSpec, secrets: Secrets) -> str:
    """Where its chat completions are, or its responses."""
    alias = alias_of(model)
    base = model.base_url or (alias.base_url if alias else None)
    if model.provider == "ollama" and not model.base_url and secrets.has(OLLAMA_HOST):
        base = _ollama(secrets.get(OLLAMA_HOST) or "")
    if not base:
        raise ModelUnknown(f"{model.provider} has no default address; give {model.ref!r} a base_url")
    base = expand(base, secrets).rstrip("/")
    path = _checked(base, model).path
    version = quote(str(model.options.get("api_version") or ""), safe="")
    is_chat = alias is None or alias.dialect is not Dialect.RESPONSES
    if model.provider == "azure" and not path:
        by_name = version and is_chat
        base += f"/openai/deployments/{quote(model.model, safe='')}" if by_name else "/openai/v1"
    place = "chat/completions" if is_chat else "responses"
    return f"{base}/{place}" + (f"?api-version={version}" if version else "")


def base_of(url: str) -> str:
    """Where the API is that this place belongs to."""
    return url.partition("?")[0].removesuffix("/chat/completions").removesuffix("/responses")


def _checked(base: str, model: ModelSpec) -> SplitResult:
    try:
        parts = urlsplit(base)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # no such port, or half an IPv6 address
        good = False
    if not good or parts.query or parts.fragment:
        raise ModelUnknown(f"the base_url of {model.ref!r} is not an http or https URL; correct it")
    if "@" in parts.netloc:
        # What stands in an address is shown in errors; a key has no business there.
        raise ModelUnknown(
            f"the base_url of {model.ref!r} contains a password; use token_key to name a variable instead"
        )
    return parts


def _ollama(host: str) -> str:
    """Ollama's address from its own variable; 0.0.0.0 means this machine."""
    scheme, _, rest = host.rpartition("://")
    name, colon, port = rest.rstrip("/").rpartition(":") if re.search(r":\d+/?$", rest) else (rest, "", "")
    name = name.rstrip("/").replace("0.0.0.0", "localhost")
    return f"{scheme or 'http'}://{name}:{port if colon else '11434'}/v1"

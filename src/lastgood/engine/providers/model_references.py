"""Decides which models a reference means: a name in the agent's file, `provider/model`, or `auto`.

Sends no request: a model is available if its key is set. If no key is set, the caller decides which model
`auto` means.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches

from lastgood.engine.providers.provider_aliases import ALIASES, OLLAMA_HOST, missing_key
from lastgood.errors import KeyRefused, ModelUnknown
from lastgood.model.agents import AUTO, ModelSpec

HasKey = Callable[[ModelSpec], bool]
Models = Mapping[str, ModelSpec]

#: The first one with a key is used. Ollama needs no key; its variable says that it runs, and where.
AUTO_MODELS = (
    ModelSpec("openai", "gpt-5.4-mini"),
    ModelSpec("anthropic", "claude-sonnet-5"),
    ModelSpec("gemini", "gemini-flash-latest"),
    ModelSpec("mistral", "mistral-small-latest"),
    ModelSpec("openrouter", "openrouter/auto"),
    ModelSpec("groq", "openai/gpt-oss-120b"),
    ModelSpec("deepseek", "deepseek-chat"),
    ModelSpec("ollama", "llama3.2", token_key=OLLAMA_HOST),
)
_STANDS_IN = "stands_in"


def offline_spec(why: str) -> ModelSpec:
    """The scripted model, where it answers because there is no other. It says so in its first answer."""
    return ModelSpec("builtin", "scripted", options={_STANDS_IN: why})


def why_offline(model: ModelSpec) -> str | None:
    """Why the scripted model stands in for another, and what to do; None: it does not."""
    return model.options.get(_STANDS_IN)


#: Answers without any key, offline.
OFFLINE_SPEC = offline_spec(
    "no API key is set; set OPENAI_API_KEY, ANTHROPIC_API_KEY or another key, or run Ollama, and restart"
)

#: A name that stands for names that stand for names; more is a mistake, or a circle.
_DEEPEST = 8


def resolve_model(
    ref: str, models: Models, has_key: HasKey, choice: str = "", otherwise: ModelSpec = OFFLINE_SPEC
) -> ModelSpec:
    """The one model that is meant. Where any of several would do, the same `choice` gives the same one."""
    spec = _look_up(ref, models, has_key, otherwise)
    for _ in range(_DEEPEST):
        if spec.first_available:
            spec = _first(spec, models, has_key, otherwise)
        elif spec.alloy:
            spec = _look_up(_pick(spec.alloy, choice), models, has_key, otherwise)
        else:
            return spec
    raise ModelUnknown(f"the model {ref!r} refers to itself; use provider/model")


def chain_of(
    ref: str,
    fallbacks: Sequence[str],
    models: Models,
    has_key: HasKey,
    choice: str = "",
    otherwise: ModelSpec = OFFLINE_SPEC,
) -> tuple[ModelSpec, ...]:
    """Returns the model and its fallbacks, each once. A fallback that is not available is left out: it must
    not fail a turn that does not need it.
    """
    chain = [resolve_model(ref, models, has_key, choice, otherwise)]
    for fallback in fallbacks:
        try:
            model = resolve_model(fallback, models, has_key, choice, otherwise)
        except (ModelUnknown, KeyRefused):
            continue
        if all((model.ref, model.base_url) != (known.ref, known.base_url) for known in chain):
            chain.append(model)
    return tuple(chain)


def _look_up(ref: str, models: Models, has_key: HasKey, otherwise: ModelSpec) -> ModelSpec:
    named = models.get(ref)
    if named is not None:
        return named
    if ref == AUTO:
        return next((replace(model, token_key=None) for model in AUTO_MODELS if has_key(model)), otherwise)
    provider, slash, model = ref.partition("/")
    if not slash or not provider.strip() or not model.strip():
        near = get_close_matches(ref, (*models, *ALIASES), 1)
        hint = f" (did you mean {near[0] if near[0] in models else f'{near[0]}/…'!r}?)" if near else ""
        raise ModelUnknown(
            f"unknown model {ref!r}{hint}; use provider/model, for example openai/gpt-5.4-mini, "
            "or a name under `models`"
        )
    return ModelSpec(provider, model)


def _first(spec: ModelSpec, models: Models, has_key: HasKey, otherwise: ModelSpec) -> ModelSpec:
    candidates = [_look_up(ref, models, has_key, otherwise) for ref in spec.first_available]
    for candidate in candidates:
        if candidate.first_available or candidate.alloy or has_key(candidate):
            return candidate
    raise missing_key(*candidates)


def _pick(refs: Sequence[str], choice: str) -> str:
    # Not hash(): that differs from process to process, and another node may continue the same turn.
    number = int.from_bytes(hashlib.blake2b(choice.encode(), digest_size=8).digest())
    return refs[number % len(refs)]

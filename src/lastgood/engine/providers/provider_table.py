"""Finds the provider client of a model.

One table per process; clients are imported and opened on first use.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from lastgood.engine.providers.chat_limits import ChatLimits
from lastgood.engine.providers.context_sizes import ContextSizes
from lastgood.engine.providers.direct import Direct
from lastgood.engine.providers.model_references import AUTO_MODELS
from lastgood.engine.providers.provider import Provider
from lastgood.engine.providers.provider_aliases import (
    ALIASES,
    REFUSED,
    Dialect,
    alias_of,
    key_names,
    needs_key,
    with_its_name,
)
from lastgood.errors import ModelUnknown
from lastgood.model.agents import ModelSpec
from lastgood.outside.secrets import Secrets

if TYPE_CHECKING:
    from lastgood.engine.providers.chat_completions import ChatCompletions

EXTRA = "pip install 'lastgood[providers]' (in a checkout: make providers)"


class ProviderTable:
    """`fixed` providers come first, by `provider/model` or by `provider`."""

    def __init__(
        self,
        secrets: Secrets,
        fixed: Mapping[str, Provider] | None = None,
        *,
        limits: ChatLimits | None = None,
    ) -> None:
        self._secrets = secrets
        self._fixed = dict(fixed or {})
        self._limits = limits
        self._chat: ChatCompletions | None = None
        self._direct = Direct(secrets, limits)
        self._sizes = ContextSizes(self._read)

    def find(self, model: ModelSpec) -> Provider:
        fixed = self._fixed.get(model.ref) or self._fixed.get(model.provider)
        if fixed is not None:
            return fixed
        alias = alias_of(model)
        if alias is None:
            raise ModelUnknown(self._unknown(model))
        if alias.dialect is not Dialect.DIRECT:
            return self._chat_completions()
        if not _has_extra():
            raise ModelUnknown(f"{model.provider} needs a package that is not installed; run {EXTRA}")
        return self._direct

    def named(self, model: ModelSpec) -> ModelSpec:
        """With its real name. Raises KeyRefused if its name is a variable that is not set."""
        return with_its_name(model, self._secrets)

    def has_key(self, model: ModelSpec) -> bool:
        """Also False if the extra is not installed: its key cannot be used."""
        if model.ref in self._fixed or model.provider in self._fixed:
            return True
        alias = alias_of(model)
        if alias is None or (alias.dialect is Dialect.DIRECT and not _has_extra()):
            return False
        return not needs_key(model) or any(map(self._secrets.has, key_names(model)))

    def context_size(self, model: ModelSpec) -> int:
        alias = alias_of(model)
        is_fixed = model.ref in self._fixed or model.provider in self._fixed
        if is_fixed or alias is None or alias.dialect is Dialect.DIRECT:
            return model.context_size or 0
        return self._sizes.size(model)

    async def _read(self, model: ModelSpec, path: str, body: Mapping[str, Any] | None) -> Any:
        return await self._chat_completions().read(model, path, body)

    def _chat_completions(self) -> ChatCompletions:
        if self._chat is None:
            from lastgood.engine.providers.chat_completions import (
                ChatCompletions,  # its HTTP client takes long to import
            )

            self._chat = ChatCompletions(self._secrets, self._limits)
        return self._chat

    async def close(self) -> None:
        await self._sizes.close()
        if self._chat is not None:
            await self._chat.close()
        await self._direct.close()

    def _unknown(self, model: ModelSpec) -> str:
        if model.provider in REFUSED:
            return REFUSED[model.provider]
        ours = [name for name in self._fixed if name.startswith(f"{model.provider}/")]
        if ours:
            return f"no such model: {model.ref!r}; {model.provider} has {', '.join(sorted(ours))}"
        known = sorted({*ALIASES, *(name.partition("/")[0] for name in self._fixed)})
        near = get_close_matches(model.provider, known, 1)
        hint = f"did you mean {near[0]}/{model.model}?" if near else f"available: {', '.join(known)}."
        return (
            f"no such provider: {model.provider!r} of {model.ref!r}; {hint} "
            "A provider of your own needs a base_url in the agent's file"
        )


def unusable_key(secrets: Secrets) -> str | None:
    """Why the key of a model that `auto` could mean cannot be used, and what to do; None: it can."""
    if _has_extra():
        return None
    for model in AUTO_MODELS:
        alias = alias_of(model)
        if alias is not None and alias.dialect is Dialect.DIRECT:
            for name in filter(secrets.has, key_names(model)):
                return (
                    f"{name} is set, but {model.provider} needs a package that is not installed; run {EXTRA}"
                )
    return None


def _has_extra() -> bool:
    return find_spec("pydantic_ai") is not None

"""What a model's `thinking_budget` and `provider_opts` mean to the providers with an API of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_ai.native_tools import AbstractNativeTool, CodeExecutionTool, WebSearchTool

from lastgood.errors import ModelError
from lastgood.model.agents import ModelSpec

_EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max")
#: The least that Anthropic takes for a budget of thoughts.
_LEAST_BUDGET = 1024
_INTERLEAVED = "interleaved-thinking-2025-05-14"
_BEDROCK_FIELDS = "bedrock_additional_model_requests_fields"
_SERVER_FALLBACKS = "server-side-fallback-2026-06-01"


def own_settings(spec: ModelSpec, profile: Mapping[str, Any]) -> dict[str, Any]:
    settings = _thinking(spec, profile)
    match spec.provider:
        case "anthropic":
            return settings | _task_budget(spec, profile) | _features(spec)
        case "amazon-bedrock" if spec.thinking not in (None, 0, "none") and _interleaves(spec):
            fields = settings.get(_BEDROCK_FIELDS, {}) | {"anthropic_beta": [_INTERLEAVED]}
            return settings | {_BEDROCK_FIELDS: fields}
        case _:
            return settings


def _features(spec: ModelSpec) -> dict[str, Any]:
    """What Anthropic does only if it is asked for a beta."""
    betas = [_INTERLEAVED] if _interleaves(spec) else []
    fallbacks = spec.options.get("fallbacks")
    if not isinstance(fallbacks, list) or not fallbacks:
        return {"anthropic_betas": betas or None}
    models = [{"model": str(name)} for name in fallbacks]
    return {"anthropic_betas": [*betas, _SERVER_FALLBACKS], "extra_body": {"fallbacks": models}}


def _task_budget(spec: ModelSpec, profile: Mapping[str, Any]) -> dict[str, Any]:
    if spec.task_budget is None:
        return {}
    if not profile.get("anthropic_supports_task_budgets"):
        raise ModelError(f"{spec.ref} has no task budgets; remove `task_budget`, or use another Claude")
    return {"anthropic_task_budget": {"type": "tokens", "total": spec.task_budget}}


def _interleaves(spec: ModelSpec) -> bool:
    return spec.options.get("interleaved_thinking") is True


def _thinking(spec: ModelSpec, profile: Mapping[str, Any]) -> dict[str, Any]:
    match spec.thinking:
        case None:
            return {}
        case 0 | "none":
            return {"thinking": False}
        case int() as budget if budget < 0 or (spec.provider != "google" and budget < _LEAST_BUDGET):
            return {"thinking": True}
        case int() if spec.provider == "anthropic" and profile.get("anthropic_disallows_budget_thinking"):
            return _adaptive(spec, profile, None)
        case int() as budget:
            return _budget(spec, budget)
        case effort:
            return _adaptive(spec, profile, effort if effort in _EFFORTS else None)


def _adaptive(spec: ModelSpec, profile: Mapping[str, Any], effort: str | None) -> dict[str, Any]:
    """`display` has no common setting, so what the common one would become is written down with it."""
    display = spec.options.get("thinking_display") if spec.provider == "anthropic" else None
    if display is None or not profile.get("anthropic_supports_adaptive_thinking"):
        return {"thinking": effort or True}
    thinking = {"anthropic_thinking": {"type": "adaptive", "display": display}}
    return thinking | ({"anthropic_effort": "low" if effort == "minimal" else effort} if effort else {})


def _budget(spec: ModelSpec, budget: int) -> dict[str, Any]:
    enabled: dict[str, Any] = {"type": "enabled", "budget_tokens": budget}
    match spec.provider:
        case "anthropic":
            if (display := spec.options.get("thinking_display")) is not None:
                enabled["display"] = display
            return {"anthropic_thinking": enabled}
        case "google":
            return {"google_thinking_config": {"thinking_budget": budget, "include_thoughts": True}}
        case _:
            return {_BEDROCK_FIELDS: {"thinking": enabled}}


def native_tools(spec: ModelSpec) -> list[AbstractNativeTool]:
    """Tools that the provider runs itself."""
    if spec.provider != "google":
        return []
    known = {"google_search": WebSearchTool, "code_execution": CodeExecutionTool}
    return [make() for name, make in known.items() if spec.options.get(name) is True]

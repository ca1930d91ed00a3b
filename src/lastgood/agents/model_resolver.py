"""Decides what the names of models in a file mean: provider, address, key and settings.

Keys are named here, never read. A file from an untrusted source may not choose both the address and the key
that is sent there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lastgood.agents.builtin_names import KEYED, PROVIDERS, SIGNED
from lastgood.agents.findings import Findings, Location, hint
from lastgood.agents.provider_options import NOT_IN_RESPONSES, accepted_attachments, problems_of
from lastgood.agents.schema_reader import Fields
from lastgood.model.agents import AUTO, ModelRoute, ModelSpec

#: Keys allowed next to `first_available`: none that changes a model call.
_BESIDE_FIRST = frozenset({"first_available", "description", "capabilities"})
_MOST_IN_ALLOY = 64
_OUTSIDE = "serve it from a file, or set `trusted = true` for it in lastgood.toml"


@dataclass(slots=True)
class ModelResolver:
    """`specs` holds what agents refer to; a reference that needs no definition is not in it."""

    models: Mapping[str, Fields]
    providers: Mapping[str, Fields]
    findings: Findings
    trusted: bool
    specs: dict[str, ModelSpec] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        for name, fields in self.providers.items():
            self._check_provider(name, fields)
        for name, fields in self.models.items():
            spec = self._defined(name, fields)
            if spec is not None:
                self.specs[name] = spec
        for name, fields in self.models.items():
            self._check_references(name, fields)

    # -- references --------------------------------------------------------------------

    def refer(self, text: str, place: Location) -> str | None:
        """Returns the resolved reference, or None after adding a finding."""
        ref = text.strip()
        if ref in self.models or ref == AUTO:
            return ref
        if "," in ref:
            return self._alloy(ref, place)
        provider, slash, model = ref.partition("/")
        if not (slash and provider and model):
            known = hint(ref, self.models) or "; use a name from `models`, or provider/model"
            self.findings.error(place, f"unknown model '{ref}'{known}")
            return None
        if provider in self.providers:
            self.specs[ref] = self._asked(model, provider, None)
            return ref
        return f"{provider.lower()}/{model}" if self._is_known(provider, place) else None

    def _alloy(self, ref: str, place: Location) -> str | None:
        parts = [self.refer(part, place) for part in ref.split(",") if part.strip()]
        good = [part for part in parts if part is not None]
        if len(good) < len(parts):
            return None
        self.specs[ref] = ModelSpec("", ref, alloy=self._flat(good, place))
        return ref

    def _flat(self, refs: Sequence[str], place: Location) -> tuple[str, ...]:
        """An alloy in an alloy is all of its models; one that holds itself adds nothing by that."""
        flat: dict[str, None] = {}
        seen: set[str] = set()
        left = list(refs)
        while left:
            ref = left.pop(0)
            if ref in seen:
                continue
            seen.add(ref)
            fields = self.models.get(ref)
            inner = _alloy_of(fields) if fields is not None else []
            left = [*inner, *left]
            if not inner:
                flat[ref] = None
            if len(seen) > _MOST_IN_ALLOY:
                self.findings.error(place, f"more than {_MOST_IN_ALLOY} models in one list; use fewer")
                break
        return tuple(flat)

    def _check_references(self, name: str, fields: Fields) -> None:
        if title := fields.text("title_model"):
            self.refer(title, fields.at("title_model"))
        for ref in _alloy_of(fields):
            if ref == name:
                self.findings.error(fields.at("model"), f"'{name}' refers to itself; use other models")
            else:
                self.refer(ref, fields.at("model"))
        for one in fields.listed("routing"):
            self.refer(one.raw.text("model"), one.raw.at("model"))
        for one in fields.listed("first_available"):
            chosen = self.models.get(self.refer(one.raw, one.place) or "")
            if chosen is not None and ("first_available" in chosen.seen or _alloy_of(chosen)):
                what = f"'{one.raw}' is itself a list of models; use a single model here"
                self.findings.error(one.place, what)

    # -- definitions -------------------------------------------------------------------

    def _defined(self, name: str, fields: Fields) -> ModelSpec | None:
        if "first_available" in fields.seen:
            for key in sorted(fields.seen - _BESIDE_FIRST):
                what = f"'{key}' cannot be combined with 'first_available'; set it on the models in the list"
                self.findings.error(fields.at(key), what)
            return ModelSpec(
                "", name, first_available=tuple(one.raw for one in fields.listed("first_available"))
            )
        if refs := _alloy_of(fields):
            return ModelSpec("", name, alloy=self._flat(refs, fields.at("model")))
        provider_key = "type" if "type" in fields.seen else "provider"
        for key, example in ((provider_key, "provider: openai"), ("model", "model: gpt-5-mini")):
            if key not in fields.seen:
                self.findings.error(fields.place, f"the model '{name}' has no {key}, for example `{example}`")
        provider, model = fields.text(provider_key), fields.text("model")
        if not provider or not model:
            return None
        if provider not in self.providers and not self._is_known(provider, fields.at(provider_key)):
            return None
        self._check_address(fields)
        return self._asked(model, provider, fields)

    def _asked(self, model: str, provider: str, fields: Fields | None) -> ModelSpec:
        """Returns the model's own value, else that of its provider."""
        custom = self.providers.get(provider)

        def given(key: str) -> Any:
            own = fields.raw(key) if fields is not None else None
            return own if own is not None or custom is None else custom.raw(key)

        cost = fields.raw("cost") if fields is not None else None
        options, speaks_as = self._options(custom, fields), self._speaks_as(provider)
        self._check_options(speaks_as, options, fields, custom)
        self._check_settings(speaks_as, options, fields, custom)
        spec = ModelSpec(
            provider=speaks_as,
            model=model,
            base_url=given("base_url") or None,
            accepts=_accepted(fields, options),
            routes=_routes(fields),
            token_key=given("token_key") or None,
            temperature=given("temperature"),
            top_p=given("top_p"),
            max_tokens=given("max_tokens"),
            frequency_penalty=given("frequency_penalty"),
            presence_penalty=given("presence_penalty"),
            parallel_tool_calls=given("parallel_tool_calls"),
            thinking=_thinking(given("thinking_budget")),
            task_budget=_total(given("task_budget")),
            options=options,
            input_cost=cost.raw("input", 0.0) if cost else 0.0,
            output_cost=cost.raw("output", 0.0) if cost else 0.0,
            cache_read_cost=cost.raw("cache_read") if cost else None,
            cache_write_cost=cost.raw("cache_write") if cost else None,
            title_model=(fields.text("title_model") or None) if fields is not None else None,
        )
        return spec if self.trusted else self._guarded(spec, fields, custom)

    def _check_options(self, provider: str, options: Mapping[str, Any], *given: Fields | None) -> None:
        """`given`: the model, then its provider; an option is reported where it is written."""
        sections = [fields for fields in given if fields is not None and "provider_opts" in fields]
        for fields in sections:
            own = {name: options[name] for name in fields.raw("provider_opts")}
            api = {"api_type": options["api_type"]} if "api_type" in options else {}
            for problem in problems_of(provider, api | own):
                self.findings.warning(fields.at("provider_opts"), problem)
            size = own.get("context_size", 1)
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                what = f"'context_size' must be a number of tokens, such as 131072, not {size!r:.40}"
                self.findings.error(fields.at("provider_opts"), what)

    def _check_settings(self, provider: str, options: Mapping[str, Any], *given: Fields | None) -> None:
        """Settings that this provider's API does not have. They are not sent."""
        unknown = list(NOT_IN_RESPONSES) if options.get("api_type") == "openai_responses" else []
        if provider != "anthropic":
            unknown.append("task_budget")
        for fields in filter(None, given):
            for key in unknown:
                if key in fields:
                    what = f"'{key}' is not supported yet for {provider}: it is not sent"
                    self.findings.warning(fields.at(key), what)

    def _speaks_as(self, provider: str) -> str:
        """A provider of the file that names the API it implements is called like that provider."""
        custom = self.providers.get(provider)
        if custom is None:
            return provider.lower()
        named = custom.text("provider").lower()
        return named if named in PROVIDERS else provider

    def _options(self, custom: Fields | None, fields: Fields | None) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if custom is not None:
            options |= {"api_type": custom.text("api_type")} if "api_type" in custom else {}
            options |= custom.raw("provider_opts", {})
        options |= fields.raw("provider_opts", {}) if fields is not None else {}
        counts = (one.raw("track_usage") for one in (fields, custom) if one is not None)
        counted = next((one for one in counts if one is not None), True)
        return options if counted else {"stream_options": False, **options}

    # -- providers ---------------------------------------------------------------------

    def _is_known(self, provider: str, place: Location) -> bool:
        if provider.lower() not in PROVIDERS:
            known = hint(provider, [*self.providers, *sorted(PROVIDERS)])
            more = known or "; define it under `providers`, with its base_url"
            self.findings.error(place, f"unknown provider '{provider}'{more}")
            return False
        if provider.lower() == "chatgpt":
            what = "'chatgpt' is not supported yet; use openai with an API key"
            self.findings.warning(place, what)
        return True

    def _check_provider(self, name: str, fields: Fields) -> None:
        if "/" in name or name != name.strip():
            what = f"the provider's name '{name}' cannot contain '/' or start or end with a space"
            self.findings.error(fields.place, what)
        named = fields.text("provider")
        if named:
            self._is_known(named, fields.at("provider"))
        elif "base_url" not in fields.seen:
            self.findings.error(
                fields.place, f"the provider '{name}' needs a 'base_url' or a known 'provider'"
            )
        self._check_address(fields)

    def _check_address(self, fields: Fields) -> None:
        address = fields.text("base_url")
        if address and not address.startswith(("http://", "https://", "${")):
            what = f"'{address}' is not a URL; it must start with http:// or https://"
            self.findings.error(fields.at("base_url"), what)

    def _guarded(self, spec: ModelSpec, *given: Fields | None) -> ModelSpec:
        """An untrusted file that names both an address and a key would have the key sent to its author."""
        if "${" in spec.model:
            place = next(fields for fields in given if fields is not None).at("model")
            what = "an agent file from a URL may not use variables as the name of a model"
            self.findings.error(place, f"{what}; {_OUTSIDE}")
        key = "base_url" if spec.base_url else "provider_opts"
        address = spec.base_url or (spec.provider in SIGNED and spec.options.get("endpoint_url"))
        named = [fields for fields in given if fields is not None and key in fields]
        if not address:
            # The file chose the provider, which would receive the server's variables.
            if named and _has_variable(spec.options):
                what = "an agent file from a URL may not use variables under provider_opts"
                self.findings.error(named[0].at(key), f"{what}; {_OUTSIDE}")
            return spec
        place = named[0].at(key)
        may_not = "an agent file from a URL may not send {} to its own base_url"
        if spec.token_key is not None or spec.provider in SIGNED:
            self.findings.error(place, f"{may_not.format('a key')}; {_OUTSIDE}")
        elif "${" in str(address) or _has_variable(spec.options):
            self.findings.error(place, f"{may_not.format('variables')}; {_OUTSIDE}")
        elif spec.provider in KEYED:
            self.findings.warning(
                place, f"{may_not.format('a key')}: the model is called without one; {_OUTSIDE}"
            )
            return replace(spec, keyless=True)
        return spec


def _alloy_of(fields: Fields) -> list[str]:
    """A comma-separated list of models, without one provider for all of them."""
    text = fields.text("model")
    if "," not in text or fields.seen & {"provider", "type"}:
        return []
    return [part.strip() for part in text.split(",") if part.strip()]


def _thinking(given: Any) -> str | int | None:
    """An effort or a number of tokens, also where they were written with their names."""
    if isinstance(given, Fields):
        given = given.raw("effort", given.raw("tokens"))
    # A model that decides by itself how much it thinks is asked so by an effort alone, too.
    thinking: str | int | None = given.removeprefix("adaptive/") if isinstance(given, str) else given
    return thinking


def _total(given: Any) -> int | None:
    """0 is no budget."""
    total: int | None = given.raw("total") if isinstance(given, Fields) else given
    return total or None


def _has_variable(value: Any) -> bool:
    match value:
        case str():
            return "${" in value
        case dict():
            return any(map(_has_variable, value.values()))
        case list():
            return any(map(_has_variable, value))
        case _:
            return False


def _routes(fields: Fields | None) -> tuple[ModelRoute, ...]:
    rules: list[Fields] = [one.raw for one in fields.listed("routing")] if fields is not None else []
    return tuple(
        ModelRoute(rule.text("model").strip(), tuple(one.raw for one in rule.listed("examples")))
        for rule in rules
    )


def _accepted(fields: Fields | None, options: Mapping[str, Any]) -> frozenset[str] | None:
    """A list of what a model accepts is complete: what is not in it is not sent."""
    section: Fields | None = fields.raw("capabilities") if fields is not None else None
    if section is None:
        return accepted_attachments(options)
    return frozenset(kind for kind in section.values if section.raw(kind))

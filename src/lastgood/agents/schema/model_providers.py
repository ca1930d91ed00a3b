"""Models, and the providers that serve them."""

from __future__ import annotations

from lastgood.agents.schema.kinds import (
    FLAG,
    TEXT,
    TEXT_MAP,
    TEXTS,
    Anything,
    Either,
    Key,
    ListOf,
    Number,
    Section,
    Text,
    Whole,
)

_COUNT = Whole(least=0)
_SHARE = Number(least=0, most=1, above=True)
EFFORTS = (
    *("none", "minimal", "low", "medium", "high", "xhigh", "max", "adaptive"),
    *(f"adaptive/{effort}" for effort in ("low", "medium", "high", "xhigh", "max")),
)

COST = Section(
    "cost",
    "the cost of a model",
    {
        "input": Key(Number(least=0), "dollars per million input tokens"),
        "output": Key(Number(least=0), "dollars per million output tokens"),
        "cache_read": Key(
            Number(least=0),
            "dollars per million input tokens that the provider read from its cache; default: `input`",
        ),
        "cache_write": Key(
            Number(least=0),
            "dollars per million input tokens that the provider wrote to its cache; default: `input`",
        ),
    },
)

IDENTITY_TOKEN = Section(
    "identity_token",
    "the source of an identity token",
    {
        "file": Key(TEXT, "a file that holds the token"),
        "env": Key(TEXT, "an environment variable that holds the token"),
        "command": Key(TEXTS, "a command that prints the token"),
        "url": Key(TEXT, "a URL that returns the token"),
        "headers": Key(TEXT_MAP, "headers of that request"),
        "response_field": Key(TEXT, "the field of its response that holds the token"),
    },
)
FEDERATION = Section(
    "workload_identity_federation",
    "workload identity federation",
    {
        "federation_rule_id": Key(TEXT, "the rule to use", required=True),
        "organization_id": Key(TEXT, "the organization that owns the rule", required=True),
        "service_account_id": Key(TEXT, "the service account"),
        "identity_token": Key(IDENTITY_TOKEN, "the source of the identity token", required=True),
    },
)
AUTH = Section(
    "auth",
    "authentication without a key",
    {
        "type": Key(Text(("workload_identity_federation",)), "the scheme", required=True),
        "workload_identity_federation": Key(FEDERATION, "its parameters"),
    },
)
TASK_BUDGET = Either(
    (
        _COUNT,
        Section(
            "task_budget",
            "a task budget",
            {
                "type": Key(Text(("tokens",)), "what is counted"),
                "total": Key(_COUNT, "the limit", required=True),
            },
        ),
    )
)
THINKING = Either(
    (
        Whole(least=-1),
        Text(EFFORTS),
        Section(
            "thinking_budget",
            "a thinking budget",
            {
                "effort": Key(Text(EFFORTS), "the reasoning effort"),
                "tokens": Key(Whole(least=-1), "the maximum number of reasoning tokens"),
            },
        ),
    )
)
CAPABILITIES = Section(
    "capabilities",
    "what a model accepts",
    {name: Key(FLAG, f"the model accepts {name} attachments") for name in ("image", "pdf", "audio", "video")},
)
OUTPUT_CAPABILITIES = Section(
    "output_capabilities", "the output of a model", {"image": Key(FLAG, "the model can return images")}
)
MODEL_ROUTE = Section(
    "routing rule",
    "a routing rule",
    {
        "model": Key(TEXT, "the model to call", required=True),
        "examples": Key(TEXTS, "example requests", required=True),
    },
)


# -- models and providers ----------------------------------------------------------------

#: What a provider may set for all of its models, and a model for itself.
_SAMPLING = {
    "temperature": Key(Number(least=0, most=2), "the sampling temperature"),
    "max_tokens": Key(Whole(least=1), "the maximum number of output tokens"),
    "top_p": Key(Number(least=0, most=1), "nucleus sampling: the probability mass to sample from"),
    "frequency_penalty": Key(Number(least=-2, most=2), "penalty for tokens by their frequency so far"),
    "presence_penalty": Key(Number(least=-2, most=2), "penalty for tokens that occurred before"),
    "parallel_tool_calls": Key(FLAG, "whether the model may call several tools at once"),
    "provider_opts": Key(Anything(mapping=True), "provider options, passed through"),
    "track_usage": Key(FLAG, "`false`: do not ask the provider for usage, which is then not counted"),
    "thinking_budget": Key(
        THINKING,
        "the reasoning effort, or the maximum number of reasoning tokens; 0: no reasoning",
    ),
    "task_budget": Key(
        TASK_BUDGET,
        "Anthropic: the token budget of a task, which the model is shown; 0: none",
    ),
    "auth": Key(AUTH, "authentication without an API key", "the provider's API key is used"),
    "compaction_model": Key(TEXT, "the model that summarizes", "no conversation is summarized"),
}
PROVIDER = Section(
    "provider",
    "a provider (providers.NAME)",
    {
        "provider": Key(TEXT, "the provider whose API it implements; default: OpenAI"),
        "api_type": Key(
            Text(("openai_chatcompletions", "openai_responses")), "which OpenAI API it implements"
        ),
        "base_url": Key(TEXT, "the base URL of its API"),
        "token_key": Key(TEXT, "the environment variable that holds the API key"),
        "unload_api": Key(TEXT, "the URL that unloads a model", "models are not unloaded"),
        **_SAMPLING,
    },
)
MODEL = Section(
    "model",
    "a model (models.NAME)",
    {
        "provider": Key(TEXT, "its provider: a known one, or one of `providers`"),
        "model": Key(
            TEXT,
            "its name at the provider; without `provider`: a comma-separated list; each turn uses one",
        ),
        "description": Key(TEXT, "what it is for"),
        "base_url": Key(TEXT, "the base URL of its API"),
        "token_key": Key(TEXT, "the environment variable that holds the API key"),
        **_SAMPLING,
        "first_available": Key(
            ListOf(TEXT, least=1), "a list of models; the first one with an API key is used"
        ),
        "title_model": Key(TEXT, "the model that generates session titles"),
        "cost": Key(COST, "its prices"),
        "bypass_models_gateway": Key(FLAG, "always so: there is no models gateway"),
        "routing": Key(
            ListOf(MODEL_ROUTE), "other models for requests like these examples; else this one answers"
        ),
        "capabilities": Key(
            CAPABILITIES, "which attachments it accepts; others are left out. Without it: all are sent"
        ),
        "output_capabilities": Key(
            OUTPUT_CAPABILITIES, "what it returns besides text", "only its text is used"
        ),
        "compaction_threshold": Key(
            _SHARE, "the share of the context window that triggers a summary", "no conversation is summarized"
        ),
        "type": Key(TEXT, "its provider", until=0, instead="provider"),
        "env": Key(TEXT_MAP, "environment variables", "set them in the environment of Lastgood", until=1),
    },
)

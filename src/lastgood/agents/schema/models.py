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
        "input": Key(Number(least=0), "dollars per million tokens that the model reads"),
        "output": Key(Number(least=0), "dollars per million tokens that the model writes"),
        "cache_read": Key(Number(least=0), "dollars per million cached tokens", "they count as input"),
        "cache_write": Key(
            Number(least=0), "dollars per million tokens put into the cache", "they are not counted"
        ),
    },
)

IDENTITY_TOKEN = Section(
    "identity_token",
    "the source of an identity token",
    {
        "file": Key(TEXT, "a file that holds the token"),
        "env": Key(TEXT, "a variable that holds the token"),
        "command": Key(TEXTS, "a command that prints the token"),
        "url": Key(TEXT, "an address that answers with the token"),
        "headers": Key(TEXT_MAP, "headers sent to the address"),
        "response_field": Key(TEXT, "the field of the answer that is the token"),
    },
)
FEDERATION = Section(
    "workload_identity_federation",
    "workload identity federation",
    {
        "federation_rule_id": Key(TEXT, "the rule to use", required=True),
        "organization_id": Key(TEXT, "the organization that owns the rule", required=True),
        "service_account_id": Key(TEXT, "the account that is expected"),
        "identity_token": Key(IDENTITY_TOKEN, "where the token comes from", required=True),
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
                "total": Key(_COUNT, "how many", required=True),
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
            {"effort": Key(Text(EFFORTS), "how hard"), "tokens": Key(Whole(least=-1), "how many tokens")},
        ),
    )
)
CAPABILITIES = Section(
    "capabilities",
    "what a model accepts",
    {name: Key(FLAG, f"the model takes {name} attachments") for name in ("image", "pdf", "audio", "video")},
)
OUTPUT_CAPABILITIES = Section(
    "output_capabilities", "what a model makes", {"image": Key(FLAG, "the model answers with images")}
)
MODEL_ROUTE = Section(
    "routing rule",
    "a routing rule",
    {
        "model": Key(TEXT, "the model that is asked", required=True),
        "examples": Key(TEXTS, "requests that it is asked for", required=True),
    },
)


# -- models and providers ----------------------------------------------------------------

#: What a provider may set for all of its models, and a model for itself.
_SAMPLING = {
    "temperature": Key(Number(least=0, most=2), "0: always the likeliest word; higher: more surprises"),
    "max_tokens": Key(Whole(least=1), "the longest answer, in tokens"),
    "top_p": Key(Number(least=0, most=1), "only the likeliest words, up to this probability"),
    "frequency_penalty": Key(Number(least=-2, most=2), "against words that came often"),
    "presence_penalty": Key(Number(least=-2, most=2), "against words that came at all"),
    "parallel_tool_calls": Key(FLAG, "whether the model may call several tools at once"),
    "provider_opts": Key(Anything(mapping=True), "options of the provider, passed on as they are"),
    "track_usage": Key(FLAG, "usage is always counted"),
    "thinking_budget": Key(
        THINKING,
        "how long the model may think: an effort, or tokens; 0: not at all",
    ),
    "task_budget": Key(TASK_BUDGET, "tokens for a whole task", "nothing limits the tokens of a task"),
    "auth": Key(AUTH, "another way to sign in than a key", "the provider's key is used"),
    "compaction_model": Key(TEXT, "the model that summarizes", "no conversation is summarized"),
}
PROVIDER = Section(
    "provider",
    "a provider (providers.NAME)",
    {
        "provider": Key(TEXT, "the provider whose API it speaks; without one: OpenAI's"),
        "api_type": Key(
            Text(("openai_chatcompletions", "openai_responses")), "which API of OpenAI's it speaks"
        ),
        "base_url": Key(TEXT, "the address of its API"),
        "token_key": Key(TEXT, "the name of the variable that holds its key"),
        "unload_api": Key(TEXT, "where a model is unloaded", "no model is unloaded"),
        **_SAMPLING,
    },
)
MODEL = Section(
    "model",
    "a model (models.NAME)",
    {
        "provider": Key(TEXT, "who serves it: a known provider, or one of `providers`"),
        "model": Key(
            TEXT, "its name there; without a provider: several models with commas, each turn takes one"
        ),
        "description": Key(TEXT, "what it is good for"),
        "base_url": Key(TEXT, "the address of its API"),
        "token_key": Key(TEXT, "the name of the variable that holds its key"),
        **_SAMPLING,
        "first_available": Key(ListOf(TEXT, least=1), "models; the first one whose key is there is asked"),
        "title_model": Key(TEXT, "the model that makes the titles of sessions"),
        "cost": Key(COST, "what it costs"),
        "bypass_models_gateway": Key(FLAG, "models are always asked directly"),
        "routing": Key(
            ListOf(MODEL_ROUTE), "other models for some requests", "every request goes to this model"
        ),
        "capabilities": Key(
            CAPABILITIES, "which attachments it takes", "attachments are passed on as they are"
        ),
        "output_capabilities": Key(
            OUTPUT_CAPABILITIES, "what it makes beside text", "only its text is taken"
        ),
        "compaction_threshold": Key(
            _SHARE, "when conversations are summarized", "no conversation is summarized"
        ),
        "type": Key(TEXT, "who serves it", until=0, instead="provider"),
        "env": Key(TEXT_MAP, "variables", "set them where Lastgood runs", until=1),
    },
)

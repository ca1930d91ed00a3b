"""What the model section of an agent file makes of a request, on every wire: from the file to the bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from lastgood.errors import ModelError
from lastgood.model.agents import ModelSpec
from tests.agents.corpus import parse, warnings_of
from tests.wires.conftest import Wired, wired_to
from tests.wires.dialects import KEY, KEY_NAME, KEYS, Says
from tests.wires.server import Request

pytestmark = pytest.mark.anyio

#: A model of each provider that has a dialect of its own, and one that speaks chat completions.
_MODELS = {
    "chat": ("openai", "gpt-5-mini"),
    "responses": ("openai", "gpt-5-mini"),
    "anthropic": ("anthropic", "claude-haiku-4-5"),
    "google": ("google", "gemini-2.5-flash"),
    "bedrock": ("amazon-bedrock", "anthropic.claude-sonnet-4-5-20250929-v1:0"),
}


def file_with(wire: str, url: str, model: str | None, provider: bool, keys: dict[str, Any]) -> str:
    """`provider`: the keys are those of the model's provider."""
    name, known = _MODELS[wire]
    url += "/v1" if wire in ("chat", "responses") else ""
    if wire == "responses":
        keys = keys | {_OPTS: {"api_type": "openai_responses"} | keys.get(_OPTS, {})}
    key = {} if wire == "bedrock" else {"token_key": KEY_NAME}
    section: dict[str, Any] = {"provider": name, "model": model or known, "base_url": url, **key}
    plain: dict[str, Any] = {"agents": {"root": {"model": "m"}}}
    if provider:
        plain["providers"] = {"own": {"provider": name, "base_url": url, **key, **keys}}
        section = {"provider": "own", "model": model or known}
    else:
        section |= keys
    return yaml.safe_dump(plain | {"models": {"m": section}})


async def sent(wired: Wired, keys: dict[str, Any], model: str | None, provider: bool = False) -> Request:
    text = file_with(wired.name, wired.server.url, model, provider, keys)
    assert warnings_of(text) == []
    spec: ModelSpec = parse(text).agents["root"].models["m"]
    tool = {"type": "function", "function": {"name": "t", "parameters": {"type": "object"}}}
    # Google's older models take no tools of ours beside their own.
    ours = () if "google_search" in str(keys) or "code_execution" in str(keys) else (tool,)
    await wired.ask(Says(("Hi.",)), spec=spec, tools=ours)
    return wired.server.requests[-1]


def at(plain: Any, path: str) -> Any:
    """The value at `a.b`; None: there is none. An item of a list by its number."""
    for name in path.split("."):
        plain = plain[int(name)] if isinstance(plain, list) else (plain or {}).get(name)
    return plain


_OPTS = "provider_opts"
_ADAPTIVE = "claude-opus-4-6"


@pytest.mark.parametrize("provider", [False, True], ids=["model", "provider"])
@pytest.mark.parametrize(
    ("wire", "keys", "path", "value"),
    [
        ("chat", {"temperature": 0.25}, "temperature", 0.25),
        ("chat", {"top_p": 0.5}, "top_p", 0.5),
        ("chat", {"max_tokens": 77}, "max_completion_tokens", 77),
        ("chat", {"frequency_penalty": 0.5}, "frequency_penalty", 0.5),
        ("chat", {"presence_penalty": -0.5}, "presence_penalty", -0.5),
        ("chat", {"parallel_tool_calls": False}, "parallel_tool_calls", False),
        ("chat", {"thinking_budget": "minimal"}, "reasoning_effort", "minimal"),
        ("chat", {_OPTS: {"min_p": 0.05}}, "min_p", 0.05),
        ("anthropic", {"temperature": 0.25}, "temperature", 0.25),
        ("chat", {_OPTS: {"service_tier": "priority"}}, "service_tier", "priority"),
        ("responses", {"temperature": 0.25}, "temperature", 0.25),
        ("responses", {"max_tokens": 77}, "max_output_tokens", 77),
        ("responses", {"parallel_tool_calls": False}, "parallel_tool_calls", False),
        ("responses", {"thinking_budget": "high"}, "reasoning.effort", "high"),
        ("anthropic", {"max_tokens": 77}, "max_tokens", 77),
        ("anthropic", {"parallel_tool_calls": False}, "tool_choice.disable_parallel_tool_use", True),
        ("anthropic", {"thinking_budget": 2048}, "thinking.budget_tokens", 2048),
        ("anthropic", {_OPTS: {"top_k": 40}}, "top_k", 40),
        ("google", {"temperature": 0.25}, "generationConfig.temperature", 0.25),
        ("google", {"top_p": 0.5}, "generationConfig.topP", 0.5),
        ("google", {"max_tokens": 77}, "generationConfig.maxOutputTokens", 77),
        ("google", {"frequency_penalty": 0.5}, "generationConfig.frequencyPenalty", 0.5),
        ("google", {"presence_penalty": -0.5}, "generationConfig.presencePenalty", -0.5),
        ("google", {"thinking_budget": 0}, "generationConfig.thinkingConfig.thinking_budget", 0),
        ("bedrock", {"temperature": 0.25}, "inferenceConfig.temperature", 0.25),
        ("bedrock", {"max_tokens": 77}, "inferenceConfig.maxTokens", 77),
        ("bedrock", {"thinking_budget": 2048}, "additionalModelRequestFields.thinking.budget_tokens", 2048),
    ],
)
async def test_a_setting_of_a_model_or_its_provider_is_sent(
    wire: str, keys: dict[str, Any], path: str, value: Any, provider: bool
) -> None:
    async with wired_to(wire) as wired:
        request = await sent(wired, keys, None, provider)
    assert at(request.body, path) == value, request.body


@pytest.mark.parametrize(
    ("wire", "model", "keys", "expected"),
    [
        ("chat", None, {"thinking_budget": "adaptive/low"}, {"reasoning_effort": "low"}),
        ("chat", None, {"thinking_budget": {"effort": "high"}}, {"reasoning_effort": "high"}),
        ("chat", None, {"thinking_budget": {"tokens": 4096}}, {"reasoning_effort": "medium"}),
        ("chat", "gpt-5.6-sol", {"thinking_budget": "none"}, {"reasoning_effort": "none"}),
        ("chat", "gpt-5", {"thinking_budget": 0}, {"reasoning_effort": None}),
        (
            "chat",
            None,
            {_OPTS: {"top_k": 4, "repetition_penalty": 1.15}},
            {"top_k": 4, "repetition_penalty": 1.15},
        ),
        (
            "chat",
            None,
            {_OPTS: {"extra_body": {"user": "me"}, "typical_p": 0.5}},
            {"user": "me", "typical_p": 0.5},
        ),
        ("chat", None, {_OPTS: {"stream_options": False}}, {"stream_options": None}),
        (
            "responses",
            "gpt-5.6",
            {_OPTS: {"service_tier": "fast", "extra_body": {"user": "me"}}},
            {"service_tier": "fast", "user": "me", "include": ["reasoning.encrypted_content"]},
        ),
        ("responses", "gpt-4o", {}, {"include": None, "reasoning": None, "tools.0.strict": False}),
        ("responses", "gpt-5-chat-latest", {}, {"include": None}),
        ("responses", "mine", {"thinking_budget": "low"}, {"include": ["reasoning.encrypted_content"]}),
        ("anthropic", None, {"thinking_budget": "none"}, {"thinking": None}),
        (
            "anthropic",
            "claude-opus-4-7",
            {"task_budget": 128000, "thinking_budget": "adaptive/low"},
            {
                "output_config": {"effort": "low", "task_budget": {"type": "tokens", "total": 128000}},
                "thinking.type": "adaptive",
            },
        ),
        (
            "anthropic",
            "claude-opus-4-7",
            {"task_budget": {"type": "tokens", "total": 64000}},
            {"output_config.task_budget.total": 64000},
        ),
        ("anthropic", None, {"task_budget": 0}, {"output_config": None}),
        ("anthropic", None, {"thinking_budget": "low"}, {"thinking.type": "enabled"}),
        ("anthropic", _ADAPTIVE, {"thinking_budget": "adaptive"}, {"thinking.type": "adaptive"}),
        (
            "anthropic",
            _ADAPTIVE,
            {"thinking_budget": "adaptive/low"},
            {"thinking.type": "adaptive", "output_config.effort": "low"},
        ),
        ("anthropic", "claude-opus-4-7", {"thinking_budget": 16000}, {"thinking.type": "adaptive"}),
        (
            "anthropic",
            _ADAPTIVE,
            {"thinking_budget": "max", _OPTS: {"thinking_display": "omitted"}},
            {"thinking": {"type": "adaptive", "display": "omitted"}, "output_config.effort": "max"},
        ),
        (
            "anthropic",
            None,
            {"thinking_budget": 2048, _OPTS: {"thinking_display": "omitted"}},
            {"thinking": {"type": "enabled", "budget_tokens": 2048, "display": "omitted"}},
        ),
        (
            "anthropic",
            None,
            {_OPTS: {"fallbacks": ["claude-opus-4-8", "claude-sonnet-4-6"]}},
            {"fallbacks": [{"model": "claude-opus-4-8"}, {"model": "claude-sonnet-4-6"}]},
        ),
        (
            "google",
            None,
            {"thinking_budget": -1},
            {"generationConfig.thinkingConfig": {"include_thoughts": True}},
        ),
        (
            "google",
            "gemini-3-pro-preview",
            {"thinking_budget": "low"},
            {"generationConfig.thinkingConfig.thinking_level": "LOW"},
        ),
        ("google", None, {_OPTS: {"google_search": True}}, {"tools": [{"googleSearch": {}}]}),
        ("google", None, {_OPTS: {"code_execution": True}}, {"tools": [{"codeExecution": {}}]}),
        (
            "bedrock",
            None,
            {"thinking_budget": 2048, _OPTS: {"interleaved_thinking": True}},
            {
                "additionalModelRequestFields.thinking.budget_tokens": 2048,
                "additionalModelRequestFields.anthropic_beta": ["interleaved-thinking-2025-05-14"],
            },
        ),
        (
            "bedrock",
            None,
            {"thinking_budget": "low", _OPTS: {"interleaved_thinking": True}},
            {
                "additionalModelRequestFields.thinking.type": "enabled",
                "additionalModelRequestFields.anthropic_beta": ["interleaved-thinking-2025-05-14"],
            },
        ),
    ],
)
async def test_a_setting_becomes_what_the_provider_expects(
    wire: str, model: str | None, keys: dict[str, Any], expected: dict[str, Any]
) -> None:
    async with wired_to(wire) as wired:
        request = await sent(wired, keys, model)
    assert {path: at(request.body, path) for path in expected} == expected, request.body


@pytest.mark.parametrize(
    ("wire", "options", "header", "value"),
    [
        ("chat", {"http_headers": {"X-Team": "blue"}}, "x-team", "blue"),
        ("anthropic", {"interleaved_thinking": True}, "anthropic-beta", "interleaved-thinking-2025-05-14"),
        (
            "anthropic",
            {"fallbacks": ["claude-opus-4-8"]},
            "anthropic-beta",
            "server-side-fallback-2026-06-01",
        ),
    ],
)
async def test_an_option_becomes_a_header(
    wire: str, options: dict[str, Any], header: str, value: str
) -> None:
    async with wired_to(wire) as wired:
        request = await sent(wired, {_OPTS: options}, None)
    assert value in request.headers[header]


@pytest.mark.parametrize(
    ("wire", "options", "message"),
    [
        (
            "chat",
            {"transport": "websocket"},
            "'transport' under provider_opts is not supported yet for openai",
        ),
        (
            "chat",
            {"google_search": True},
            "'google_search' under provider_opts is not supported yet for openai",
        ),
        ("chat", {"http_header": {}}, "it is not sent; did you mean 'http_headers'?"),
        ("chat", {"api_type": "openai_responses", "seed": 1}, "'seed' under provider_opts is not supported"),
        (
            "google",
            {"google_maps": True},
            "'google_maps' under provider_opts is not supported yet for google",
        ),
        ("anthropic", {"seed": 1}, "'seed' under provider_opts is not supported yet for anthropic"),
        (
            "bedrock",
            {"role_arn": "x"},
            "'role_arn' under provider_opts is not supported yet for amazon-bedrock",
        ),
    ],
)
@pytest.mark.parametrize("provider", [False, True], ids=["model", "provider"])
def test_an_option_that_is_not_sent_is_a_warning(
    wire: str, options: dict[str, Any], message: str, provider: bool
) -> None:
    text = file_with(wire, "http://localhost", None, provider, {_OPTS: options})
    [(line, found)] = warnings_of(text)
    assert message in found
    assert text.splitlines()[line - 1].strip() == "provider_opts:"


@pytest.mark.parametrize(
    ("wire", "keys"),
    [
        ("responses", {"frequency_penalty": 1}),
        ("responses", {"presence_penalty": 1}),
        ("chat", {"task_budget": 64000}),
        ("bedrock", {"task_budget": {"total": 64000}}),
    ],
)
@pytest.mark.parametrize("provider", [False, True], ids=["model", "provider"])
def test_a_setting_that_the_api_does_not_have_is_a_warning(
    wire: str, keys: dict[str, Any], provider: bool
) -> None:
    [(_, found)] = warnings_of(file_with(wire, "http://localhost", None, provider, keys))
    assert f"'{next(iter(keys))}' is not supported yet for" in found


async def test_a_model_without_task_budgets_says_so() -> None:
    async with wired_to("anthropic") as wired:
        with pytest.raises(ModelError, match="has no task budgets"):
            await sent(wired, {"task_budget": 64000}, None)


@pytest.mark.parametrize("api", ["openai_chatcompletions", "openai_responses"])
async def test_a_provider_of_the_file_names_its_api(api: str) -> None:
    """`responses` and `chat` check the address and the form of what they were asked."""
    async with wired_to("responses" if api == "openai_responses" else "chat") as wired:
        own = {"base_url": f"{wired.server.url}/v1", "token_key": KEY_NAME, "api_type": api}
        plain = {
            "providers": {"own": own},
            "models": {"m": {"provider": "own", "model": "x"}},
            "agents": {"root": {"model": "m"}},
        }
        assert warnings_of(yaml.safe_dump(plain)) == []
        await wired.ask(Says(("Hi.",)), spec=parse(yaml.safe_dump(plain)).agents["root"].models["m"])
        assert (wired.seen.key, wired.seen.model) == (KEY, "x")


def test_options_that_ask_for_what_is_so_are_no_warnings() -> None:
    for wire, options in (
        ("chat", {"transport": "sse", "google_search": False}),
        ("bedrock", {"disable_prompt_caching": True}),
    ):
        assert warnings_of(file_with(wire, "http://localhost", None, False, {_OPTS: options})) == []


@pytest.mark.parametrize(
    ("options", "accepts"),
    [
        ({"supports_images": True, "supports_pdf": False}, {"image"}),
        ({"supports_pdf": True}, {"pdf"}),
        ({"seed": 1}, None),
    ],
)
def test_options_say_which_attachments_a_model_accepts(options: dict[str, Any], accepts: Any) -> None:
    text = file_with("chat", "http://localhost", None, False, {_OPTS: options})
    assert parse(text).agents["root"].models["m"].accepts == accepts
    assert json.dumps(warnings_of(text)) == "[]"


@pytest.mark.parametrize("wire", list(_MODELS))
async def test_the_key_is_the_one_that_the_file_names(wire: str) -> None:
    async with wired_to(wire) as wired:
        await sent(wired, {}, None)
        assert wired.seen.key == KEY


async def test_an_account_of_amazon_is_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "credentials").write_text(
        "[other]\naws_access_key_id = AKIAOTHER\naws_secret_access_key = x\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    async with wired_to("bedrock") as wired:
        for more, account in (({}, KEYS["AWS_ACCESS_KEY_ID"]), ({"profile": "other"}, "AKIAOTHER")):
            options = {"endpoint_url": wired.server.url, "region": "eu-west-1", **more}
            name, model = _MODELS["bedrock"]
            section = {"provider": name, "model": model, _OPTS: options}
            text = yaml.safe_dump({"agents": {"root": {"model": "m"}}, "models": {"m": section}})
            assert warnings_of(text) == []
            await wired.ask(Says(("Hi.",)), spec=parse(text).agents["root"].models["m"])
            signed = wired.server.requests[-1].headers["authorization"]
            assert f"Credential={account}/" in signed
            assert "/eu-west-1/bedrock/" in signed

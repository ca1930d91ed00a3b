"""What the names of models in a file mean: who is asked, where, with which key and settings."""

from dataclasses import replace

import pytest

from lastgood.agents.builtin_names import KEYED, KEYLESS, PROVIDERS
from lastgood.engine.providers.provider_aliases import ALIASES, REFUSED
from lastgood.errors import AgentInvalid
from lastgood.model.agents import ModelSpec
from tests.agents.corpus import FOLDER, parse, read


def test_a_model_has_the_settings_of_its_section() -> None:
    file = read(FOLDER / "support-desk.yaml")
    quick = ModelSpec("openai", "gpt-5-mini", temperature=0.3, max_tokens=4000)
    assert file.agents["root"].models == {"quick": quick}
    assert file.agents["root"].model == "quick"
    assert file.agents["technician"].model == "anthropic/claude-sonnet-4-5"


def test_the_name_of_a_known_provider_may_have_any_case() -> None:
    models = read(FOLDER / "four-eyes.yaml").agents["author"].models
    assert models["critic"].ref == "deepseek/deepseek-reasoner"
    assert parse("agents: {root: {model: OpenAI/GPT-5}}").agents["root"].model == "openai/GPT-5"


def test_a_custom_provider_gives_its_models_what_they_do_not_say_themselves() -> None:
    models = read(FOLDER / "own-server.yaml").agents["root"].models
    assert models["small"] == ModelSpec(
        "cellar",
        "qwen3-8b",
        base_url="http://localhost:8000/v1",
        options={"api_type": "openai_chatcompletions"},
    )
    router = ModelSpec(
        "router",
        "deepseek/deepseek-chat",
        base_url="https://router.example.com/v1",
        token_key="ROUTER_API_KEY",
        temperature=0.2,
        top_p=0.95,
        max_tokens=8000,
        frequency_penalty=0.0,
        presence_penalty=0.0,
        parallel_tool_calls=True,
        thinking="low",
        options={"http_headers": {"X-Team": "kitchen"}},
    )
    assert models["router/deepseek/deepseek-chat"] == router
    assert models["big"] == replace(
        router,
        model="anthropic/claude-sonnet-4-5",
        token_key="ROUTER_KEY_OF_MINE",
        temperature=0.7,
        options={"http_headers": {"X-Team": "kitchen"}, "seed": 7},
    )


def test_a_provider_that_speaks_anothers_api_is_asked_like_that_one() -> None:
    models = read(FOLDER / "company-gateway.yaml").agents["root"].models
    gateway = models["claude"]
    assert (gateway.ref, gateway.base_url, gateway.token_key) == (
        "anthropic/claude-sonnet-4-5",
        "${env.GATEWAY_URL}",
        "GATEWAY_KEY",
    )
    assert models["federated/claude-haiku-4-5"] == ModelSpec("anthropic", "claude-haiku-4-5")


def test_several_models_with_commas_are_an_alloy_and_alloys_in_alloys_are_flat() -> None:
    file = read(FOLDER / "translator.yaml")
    models = file.agents["root"].models
    assert models["both"].alloy == ("opus", "gpt")
    assert models["all"].alloy == ("opus", "gpt", "mistral/mistral-large-latest")
    assert file.agents["terse"].model == "gpt,opus"
    assert models["gpt,opus"] == ModelSpec("", "gpt,opus", alloy=("gpt", "opus"))


def test_alloys_that_hold_each_other_come_to_an_end() -> None:
    file = parse("models: {a: {model: 'b,openai/x'}, b: {model: 'a,openai/y'}}\nagents: {root: {model: a}}")
    assert set(file.agents["root"].models["a"].alloy) == {"openai/x", "openai/y"}


def test_the_first_available_are_references_in_order() -> None:
    file = read(FOLDER / "whoever-is-there.yaml")
    assert file.agents["root"].models["any"] == ModelSpec(
        "", "any", first_available=("anthropic/claude-sonnet-4-5", "named", "ollama/llama3.2")
    )
    assert file.agents["auto"].model == file.agents["unsaid"].model == "auto"
    assert "auto" not in file.agents["root"].models


def test_thinking_is_an_effort_or_a_number_of_tokens() -> None:
    models = read(FOLDER / "thinkers.yaml").agents["root"].models
    assert {name: spec.thinking for name, spec in models.items()} == {
        "effort": "high",
        "tokens": 16384,
        "adaptive": "max",
        "dynamic": -1,
        "never": "none",
        "zero": 0,
        "spelled": "medium",
        "counted": 2048,
    }


def test_cost_titles_and_options_are_passed_on() -> None:
    root = read(FOLDER / "price-list.yaml").agents["root"]
    heavy = root.models["heavy"]
    assert (heavy.input_cost, heavy.output_cost, heavy.title_model) == (1.25, 10.0, "light")
    assert heavy.options == {"api_version": "2025-04-01-preview"}
    assert root.title_model == "light"


def test_a_model_or_its_provider_states_the_size_of_the_context() -> None:
    provider = "  p: {base_url: 'http://127.0.0.1:1/v1', provider_opts: {context_size: 32768}}"
    small = "  small: {provider: p, model: x, provider_opts: {context_size: 8192}}"
    models = f"models:\n{small}\n  big: {{provider: p, model: y}}"
    text = f"agents: {{root: {{model: small}}}}\nproviders:\n{provider}\n{models}"
    read_models = parse(text).agents["root"].models
    assert (read_models["small"].context_size, read_models["big"].context_size) == (8192, 32768)
    assert ModelSpec("openai", "x").context_size is None


@pytest.mark.parametrize("size", ["many", "0", "-1", "1.5", "true"])
def test_a_context_size_that_is_no_number_of_tokens_is_an_error(size: str) -> None:
    models = f"models:\n  m: {{provider: openai, model: x, provider_opts: {{context_size: {size}}}}}"
    with pytest.raises(AgentInvalid, match=r":3: 'context_size' must be a number of tokens"):
        parse(f"agents: {{root: {{model: m}}}}\n{models}")


def test_every_known_provider_can_be_asked_or_says_why_not() -> None:
    """A name that is missing on one side would load and then fail, or would work and be refused."""
    assert PROVIDERS - {"builtin"} == ALIASES.keys() | REFUSED.keys()
    assert {name for name, alias in ALIASES.items() if not alias.keys} == KEYLESS - {"builtin"}
    assert not KEYED & KEYLESS

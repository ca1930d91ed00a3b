"""Which models a reference means, and who speaks to them. Nobody is asked here."""

import re
import subprocess
import sys
from importlib import util
from pathlib import Path
from typing import Any

import pytest

from lastgood.engine.providers.chat_completions import ChatCompletions
from lastgood.engine.providers.direct import Direct
from lastgood.engine.providers.fallback_chain import FallbackChain
from lastgood.engine.providers.model_references import AUTO_MODELS, chain_of, resolve_model, why_offline
from lastgood.engine.providers.provider_aliases import ALIASES, Dialect, chat_url, key_names
from lastgood.engine.providers.provider_table import ProviderTable, unusable_key
from lastgood.engine.providers.scripted import Scripted
from lastgood.errors import KeyRefused, ModelUnknown
from lastgood.model.agents import ModelSpec
from lastgood.outside.secrets import Secrets

MODELS = Path(__file__).parents[2] / "docs" / "models.md"
FIXED = {"builtin/scripted": Scripted()}


def table(**keys: str) -> ProviderTable:
    return ProviderTable(Secrets(keys), FIXED)


def resolve(ref: str, models: dict[str, ModelSpec] | None = None, choice: str = "", **keys: str) -> str:
    return resolve_model(ref, models or {}, table(**keys).has_key, choice).ref


# -- references ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ref", "provider", "model"),
    [
        ("openai/gpt-5", "openai", "gpt-5"),
        ("openrouter/anthropic/claude-x", "openrouter", "anthropic/claude-x"),
        ("ollama/qwen3:0.6b", "ollama", "qwen3:0.6b"),
        ("dmr/ai/qwen3:latest", "dmr", "ai/qwen3:latest"),
        ("amazon-bedrock/global.anthropic.claude-v1:0", "amazon-bedrock", "global.anthropic.claude-v1:0"),
        ("nobody/knows", "nobody", "knows"),
    ],
)
def test_a_reference_is_a_provider_and_all_the_rest(ref: str, provider: str, model: str) -> None:
    assert resolve_model(ref, {}, table().has_key) == ModelSpec(provider, model)


def test_a_name_of_the_file_comes_first() -> None:
    named = ModelSpec("openai", "gpt-5", temperature=0.5)
    assert resolve_model("fast", {"fast": named}, table().has_key) is named
    assert resolve_model("openai/gpt-5", {"openai/gpt-5": named}, table().has_key) is named


@pytest.mark.parametrize("ref", ["", "gpt-5", "/", "openai/", "/gpt-5", " / ", "opnai"])
def test_invalid_references_are_rejected_with_an_example(ref: str) -> None:
    with pytest.raises(ModelUnknown, match=r"provider/model, for example openai/"):
        resolve(ref)


def test_a_misspelt_name_is_guessed() -> None:
    with pytest.raises(ModelUnknown, match="'fast'"):
        resolve("fst", {"fast": ModelSpec("openai", "x")})
    with pytest.raises(ModelUnknown, match=r"unknown model 'openai' \(did you mean 'openai/…'\?\)"):
        resolve("openai")


# -- one of several -------------------------------------------------------------------------


def test_auto_is_the_first_model_whose_key_is_there() -> None:
    assert resolve("auto") == "builtin/scripted"
    assert resolve("auto", OPENAI_API_KEY="k", MISTRAL_API_KEY="k").startswith("openai/")
    assert resolve("auto", GOOGLE_API_KEY="k").startswith("gemini/")
    assert resolve("auto", MISTRAL_API_KEY="k", OLLAMA_HOST="localhost").startswith("mistral/")
    assert resolve("auto", OLLAMA_HOST="localhost").startswith("ollama/")
    assert resolve("auto", OPENAI_API_KEY="  ") == "builtin/scripted"
    ollama = resolve_model("auto", {}, table(OLLAMA_HOST="localhost").has_key)
    assert key_names(ollama) == (), "where it runs is no key"


def test_auto_takes_no_model_that_needs_a_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve("auto", ANTHROPIC_API_KEY="k").startswith("anthropic/")
    _without_extra(monkeypatch)
    assert resolve("auto", ANTHROPIC_API_KEY="k") == "builtin/scripted"


def test_every_automatic_model_can_be_asked() -> None:
    keys = {name: "k" for model in AUTO_MODELS for name in key_names(model)}
    for model in AUTO_MODELS:
        assert table(**keys).has_key(model)
        table(**keys).find(model)


FIRST = {"any": ModelSpec("", "", first_available=("openai/a", "mistral/b", "groq/c"))}


def test_the_first_available_is_the_first_whose_key_is_there() -> None:
    assert resolve("any", FIRST, MISTRAL_API_KEY="k", GROQ_API_KEY="k") == "mistral/b"
    assert resolve("any", FIRST, OPENAI_API_KEY="k", GROQ_API_KEY="k") == "openai/a"


def test_without_any_key_all_key_names_are_reported() -> None:
    with pytest.raises(KeyRefused, match="OPENAI_API_KEY or MISTRAL_API_KEY or GROQ_API_KEY"):
        resolve("any", FIRST)


def test_the_first_available_may_be_a_name_of_the_file() -> None:
    models = {
        "any": ModelSpec("", "", first_available=("openai/a", "own")),
        "own": ModelSpec("x", "y", "http://h"),
    }
    assert resolve("any", models) == "x/y"
    nested = {**FIRST, "outer": ModelSpec("", "", first_available=("any",))}
    assert resolve("outer", nested, GROQ_API_KEY="k") == "groq/c"


def test_a_circle_is_no_model() -> None:
    circle = {"a": ModelSpec("", "", first_available=("b",)), "b": ModelSpec("", "", alloy=("a",))}
    with pytest.raises(ModelUnknown, match="refers to itself"):
        resolve("a", circle)


def test_an_alloy_takes_the_same_model_for_the_same_turn() -> None:
    alloy = {"mix": ModelSpec("", "", alloy=("openai/a", "mistral/b", "groq/c"))}
    chosen = [resolve("mix", alloy, f"turn_{n}") for n in range(60)]
    assert chosen == [resolve("mix", alloy, f"turn_{n}") for n in range(60)]
    assert set(chosen) == {"openai/a", "mistral/b", "groq/c"}
    # The same in every process: another node goes on with the same turn.
    assert resolve("mix", alloy, "turn_1") == "mistral/b"


def test_a_chain_holds_each_model_once() -> None:
    chain = chain_of("openai/a", ("mistral/b", "openai/a", "mistral/b", "groq/c"), {}, table().has_key)
    assert [model.ref for model in chain] == ["openai/a", "mistral/b", "groq/c"]


def test_a_fallback_that_cannot_be_had_fails_no_turn() -> None:
    chain = chain_of("openai/a", ("typo", "any", "mistral/b"), FIRST, table().has_key)
    assert [model.ref for model in chain] == ["openai/a", "mistral/b"]
    with pytest.raises(ModelUnknown):
        chain_of("typo", ("mistral/b",), {}, table().has_key)


def test_an_override_is_checked_without_asking_anybody() -> None:
    asking = FallbackChain(table())
    asking.check("builtin/scripted", {})
    asking.check("openai/gpt-5", {})
    for bad in ("nonsense", "opnai/gpt-5", "chatgpt/gpt-5"):
        with pytest.raises(ModelUnknown):
            asking.check(bad, {})


# -- who speaks to them ------------------------------------------------------------------------

# fmt: off
DOCKER_AGENTS = [
    "openai", "anthropic", "google", "dmr", "amazon-bedrock", "requesty", "azure", "xai", "nebius", "nvidia",
    "openrouter", "mistral", "ollama", "minimax", "baseten", "ovhcloud", "groq", "fireworks", "deepseek",
    "cerebras", "together", "huggingface", "moonshot", "vercel", "cloudflare-workers-ai",
    "cloudflare-ai-gateway", "github-copilot", "opencode-go", "opencode-zen", "atlascloud", "daoxe",
    "orcarouter",
]
# fmt: on


def test_every_provider_of_docker_agent_is_known() -> None:
    assert set(DOCKER_AGENTS) <= set(ALIASES)


def test_every_alias_is_documented_with_its_keys() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| (.*?) \| (.*?) \|$", MODELS.read_text(), re.MULTILINE)
    received = {name: (tuple(re.findall(r"`([A-Z_]+)`", keys)), address) for name, keys, address in rows}
    assert sorted(received) == sorted(ALIASES)
    for name, alias in ALIASES.items():
        keys, address = received[name]
        assert keys == alias.keys
        assert ("extra" in address.partition(";")[0]) == (alias.dialect is Dialect.DIRECT)
        if "`http" in address:
            assert f"`{alias.base_url}`" in address


@pytest.mark.parametrize("name", sorted(ALIASES))
def test_every_alias_has_an_address_and_a_speaker(name: str) -> None:
    alias = ALIASES[name]
    model = ModelSpec(name, "m", "https://h.example" if name == "azure" else None)
    secrets = Secrets({"CLOUDFLARE_ACCOUNT_ID": "acct-1", "CLOUDFLARE_GATEWAY_ID": "gate-1"})
    provider = table().find(model)
    if alias.dialect is Dialect.DIRECT:
        assert isinstance(provider, Direct)
        return
    assert isinstance(provider, ChatCompletions)
    url = chat_url(model, secrets)
    assert url.endswith("/chat/completions")
    assert url.startswith("http://localhost:" if name in ("ollama", "dmr") else "https://")
    assert "$" not in url
    assert bool(alias.keys) == (name not in ("ollama", "dmr"))


def test_an_address_may_need_the_environment() -> None:
    model = ModelSpec("cloudflare-workers-ai", "m")
    with pytest.raises(KeyRefused, match="CLOUDFLARE_ACCOUNT_ID"):
        chat_url(model, Secrets({}))
    own = ModelSpec("own", "m", "https://${env.HOST_NAME}/v1")
    assert chat_url(own, Secrets({"HOST_NAME": "h.example"})) == "https://h.example/v1/chat/completions"


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1:11434", "http://127.0.0.1:11434"),
        ("0.0.0.0", "http://localhost:11434"),
        ("0.0.0.0:9999", "http://localhost:9999"),
        ("https://box.example/", "https://box.example:11434"),
        ("http://box:1234/", "http://box:1234"),
    ],
)
def test_ollama_is_where_its_variable_says(host: str, url: str) -> None:
    assert chat_url(ModelSpec("ollama", "m"), Secrets({"OLLAMA_HOST": host})) == f"{url}/v1/chat/completions"


def test_an_address_of_ones_own_wins() -> None:
    model = ModelSpec("openai", "m", "http://localhost:8000/v1/")
    assert chat_url(model, Secrets({})) == "http://localhost:8000/v1/chat/completions"
    assert isinstance(table().find(ModelSpec("anything", "m", "http://h")), ChatCompletions)


def test_azure_needs_an_address() -> None:
    with pytest.raises(ModelUnknown, match="base_url"):
        chat_url(ModelSpec("azure", "m"), Secrets({}))
    assert (
        chat_url(ModelSpec("azure", "m", "https://h"), Secrets({})) == "https://h/openai/v1/chat/completions"
    )
    deep = ModelSpec("azure", "m", "https://h/openai/deployments/d", options={"api_version": "v"})
    assert chat_url(deep, Secrets({})) == "https://h/openai/deployments/d/chat/completions?api-version=v"


def test_fixed_providers_come_first_by_model_then_by_provider() -> None:
    one, two = Scripted(), Scripted()
    fixed = ProviderTable(Secrets({}), {"openai/m": one, "openai": two})
    assert fixed.find(ModelSpec("openai", "m")) is one
    assert fixed.find(ModelSpec("openai", "other")) is two
    assert fixed.has_key(ModelSpec("openai", "other"))


def test_a_dialect_that_is_named_is_spoken() -> None:
    model = ModelSpec("anthropic", "m", "http://h", options={"api_type": "openai_chatcompletions"})
    assert isinstance(table().find(model), ChatCompletions)
    assert isinstance(table().find(ModelSpec("anthropic", "m", "http://h")), Direct)


def test_a_misspelt_provider_is_guessed() -> None:
    with pytest.raises(ModelUnknown, match="did you mean mistral/m"):
        table().find(ModelSpec("mistrall", "m"))
    with pytest.raises(ModelUnknown, match="available: amazon-bedrock, anthropic"):
        table().find(ModelSpec("zzzzzz", "m"))


def test_what_is_refused_says_why() -> None:
    with pytest.raises(ModelUnknown, match="use openai"):
        table().find(ModelSpec("chatgpt", "m"))


def _without_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_spec(name: str, *_: Any) -> Any:
        return None if name == "pydantic_ai" else util.find_spec(name)

    monkeypatch.setattr("lastgood.engine.providers.provider_table.find_spec", find_spec)


def test_a_missing_extra_is_reported_with_its_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    _without_extra(monkeypatch)
    with pytest.raises(ModelUnknown, match=r"pip install 'lastgood\[providers\]'"):
        table(ANTHROPIC_API_KEY="k").find(ModelSpec("anthropic", "m"))
    assert not table(ANTHROPIC_API_KEY="k").has_key(ModelSpec("anthropic", "m"))


# -- keys ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "keys", "expected"),
    [
        (ModelSpec("openai", "m"), {}, False),
        (ModelSpec("openai", "m"), {"OPENAI_API_KEY": "k"}, True),
        (ModelSpec("openai", "m", token_key="MINE"), {"OPENAI_API_KEY": "k"}, False),
        (ModelSpec("openai", "m", token_key="MINE"), {"MINE": "k"}, True),
        (ModelSpec("google", "m"), {"GEMINI_API_KEY": "k"}, True),
        (ModelSpec("google", "m"), {"GOOGLE_API_KEY": "k"}, True),
        (ModelSpec("amazon-bedrock", "m"), {"AWS_PROFILE": "p"}, True),
        (ModelSpec("ollama", "m"), {}, True),
        (ModelSpec("own", "m", "http://h"), {}, True),
        (ModelSpec("own", "m", "http://h", "MINE"), {}, False),
        (ModelSpec("openai", "m", "http://h"), {}, True),
        (ModelSpec("nobody", "m"), {}, False),
        (ModelSpec("builtin", "scripted"), {}, True),
    ],
)  # fmt: skip
def test_whether_the_key_is_there(model: ModelSpec, keys: dict[str, str], expected: bool) -> None:
    assert table(**keys).has_key(model) is expected


def test_nothing_heavy_is_imported_before_it_is_asked() -> None:
    code = (
        "import sys; from lastgood.engine.providers.provider_table import ProviderTable; "
        "from lastgood.outside.secrets import Secrets; from lastgood.model.agents import ModelSpec; "
        "ProviderTable(Secrets({})).find(ModelSpec('anthropic', 'm')); "
        "print([name for name in sys.modules if name.split('.')[0] in "
        "('pydantic', 'pydantic_ai', 'anthropic', 'google', 'boto3', 'httpx2')])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


# -- what stands in for a model ------------------------------------------------------------------


def test_a_key_that_cannot_be_used_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = Secrets({"ANTHROPIC_API_KEY": "k"})
    assert unusable_key(secrets) is None
    _without_extra(monkeypatch)
    why = unusable_key(secrets) or ""
    assert "ANTHROPIC_API_KEY is set" in why
    assert "pip install 'lastgood[providers]'" in why
    assert "make providers" in why
    assert unusable_key(Secrets({"OPENAI_API_KEY": "k"})) is None


def test_the_offline_model_is_offline_only_where_auto_means_it() -> None:
    assert "no API key is set" in (why_offline(resolve_model("auto", {}, table().has_key)) or "")
    assert why_offline(resolve_model("builtin/scripted", {}, table().has_key)) is None

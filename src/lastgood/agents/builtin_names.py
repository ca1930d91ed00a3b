"""The names that an agent file may use without defining them."""

from __future__ import annotations

#: Called without a key, unless the file names one.
KEYLESS = frozenset({"builtin", "dmr", "ollama"})
# fmt: off
#: Each has a key of its own in the environment.
KEYED = frozenset({
    "amazon-bedrock", "anthropic", "atlascloud", "azure", "baseten", "cerebras", "chatgpt",
    "cloudflare-ai-gateway", "cloudflare-workers-ai", "daoxe", "deepseek", "fireworks", "gemini",
    "github-copilot", "google", "groq", "huggingface", "minimax", "mistral", "moonshot", "nebius",
    "nvidia", "openai", "opencode-go", "opencode-zen", "openrouter", "orcarouter", "ovhcloud",
    "requesty", "together", "vercel", "xai",
})
# fmt: on
#: Their keys are also found in files and on the machine itself, so a missing variable proves nothing.
SIGNED = frozenset({"amazon-bedrock"})
PROVIDERS = KEYED | KEYLESS

"""Hooks, and the evaluators they ask.

Nothing follows from them yet. A misspelt key is a mistake all the same.
"""

from __future__ import annotations

from lastgood.agents.schema.kinds import (
    FLAG,
    TEXT,
    TEXT_MAP,
    TEXTS,
    Key,
    ListOf,
    MapOf,
    Number,
    Section,
    Span,
    Text,
    Whole,
)
from lastgood.agents.schema.models import COST

_SHARE = Number(least=0, most=1, above=True)

EVALUATOR = Section(
    "evaluator",
    "an evaluator",
    {
        "provider": Key(TEXT, "the provider of the model"),
        "model": Key(TEXT, "the model that evaluates", required=True),
        "type": Key(Text(("boolean", "choice", "score")), "the type of its answer", required=True),
        "instructions": Key(TEXT, "what to evaluate", required=True),
        "base_url": Key(TEXT, "the base URL of its API"),
        "endpoint": Key(TEXT, "the complete URL of the endpoint"),
        "token_key": Key(TEXT, "the environment variable that holds the API key"),
        "bypass_models_gateway": Key(FLAG, "whether to bypass the models gateway"),
        "choices": Key(TEXT_MAP, "answers, each with its meaning"),
        "levels": Key(TEXTS, "answers, from low to high"),
        "timeout": Key(Span(), "the timeout"),
        "cost": Key(COST, "its prices"),
    },
)
EVALUATOR_POLICY = Section(
    "evaluator_policy",
    "an evaluator's policy",
    {
        "decisions": Key(
            MapOf(Text(("allow", "ask", "deny"))), "answers, each with its decision", required=True
        ),
        "min_probability": Key(_SHARE, "the minimum probability of an answer", required=True),
        "fallback": Key(Text(("ask", "deny")), "the decision below that probability", required=True),
    },
)
ROUTING_POLICY = Section(
    "routing_policy",
    "a routing policy",
    {
        "routes": Key(TEXT_MAP, "answers, each with the agent to use", required=True),
        "min_probability": Key(_SHARE, "the minimum probability of an answer", required=True),
    },
)
HOOK = Section(
    "hook",
    "a hook",
    {
        "name": Key(TEXT, "its name in logs"),
        "type": Key(Text(("command", "builtin", "model", "evaluator")), "what it is", required=True),
        "command": Key(TEXT, "the command, or the name of the built-in"),
        "args": Key(TEXTS, "its arguments"),
        "timeout": Key(Whole(least=1), "the timeout, in seconds"),
        "env": Key(TEXT_MAP, "its environment variables"),
        "working_dir": Key(TEXT, "its working directory"),
        "on_error": Key(Text(("warn", "ignore", "block")), "what to do if it fails"),
        "strict_output": Key(FLAG, "whether its output must be one JSON object"),
        "model": Key(TEXT, "the model to call"),
        "prompt": Key(TEXT, "the prompt for the model"),
        "system_prompt": Key(TEXT, "the model's system message"),
        "schema": Key(TEXT, "how to parse the model's answer"),
        "evaluator": Key(TEXT, "the evaluator to use"),
        "evaluator_policy": Key(EVALUATOR_POLICY, "how to decide from its answer"),
        "routing_policy": Key(ROUTING_POLICY, "how to choose an agent from its answer"),
    },
)
MATCHED_HOOKS = Section(
    "matched hooks",
    "hooks for some tools",
    {
        "matcher": Key(TEXT, "a regular expression for the names of tools; `*`: all"),
        "hooks": Key(ListOf(HOOK, least=1), "the hooks", required=True),
        "preempt_yolo": Key(FLAG, "whether they run before permissions are checked"),
    },
)
_MATCHED = ListOf(MATCHED_HOOKS)
_PLAIN = ListOf(HOOK)
_REFUSES = "these hooks do not run, so they cannot deny a tool call"
_WATCHES = "these hooks do not run"
_BLOCKS = "these hooks do not run, so they cannot stop anything"
_HIDES = "these hooks do not run, so they cannot remove or rewrite anything"
_ADDS = "these hooks do not run, so they cannot add anything to the prompt"
HOOKS = Section(
    "hooks",
    "the hooks of an agent",
    {
        "pre_tool_use": Key(_MATCHED, "before a tool runs", _REFUSES),
        "tool_guard": Key(_MATCHED, "before a tool call is approved", _REFUSES),
        "permission_request": Key(
            _MATCHED, "before human approval is requested", "these hooks do not run; approval is requested"
        ),
        "tool_input_transform": Key(_MATCHED, "rewrites a tool's arguments", _HIDES),
        "tool_response_transform": Key(_MATCHED, "rewrites a tool's result", _HIDES),
        "post_tool_use": Key(_MATCHED, "after a tool ran", _BLOCKS),
        "prompt_file_guard": Key(_PLAIN, "checks prompt files", _BLOCKS),
        "skill_content_guard": Key(_PLAIN, "checks skills", _BLOCKS),
        "user_prompt_submit": Key(_PLAIN, "when a user message arrives", _BLOCKS),
        "user_steering_messages_submit": Key(_PLAIN, "when a steer arrives", _BLOCKS),
        "user_followup_submit": Key(_PLAIN, "when a follow-up begins", _BLOCKS),
        "before_llm_call": Key(_PLAIN, "before a model call", _BLOCKS),
        "before_agent_run": Key(
            _PLAIN, "before an agent begins", "these hooks do not run, so they cannot choose an agent"
        ),
        "after_agent_complete": Key(
            _PLAIN, "after an agent has finished", "these hooks do not run, so they cannot choose an agent"
        ),
        "session_start": Key(_PLAIN, "when a session begins", _ADDS),
        "turn_start": Key(_PLAIN, "when a turn begins", _ADDS),
        "turn_end": Key(_PLAIN, "when a turn ends", _WATCHES),
        "after_llm_call": Key(_PLAIN, "after a model call", _WATCHES),
        "session_end": Key(_PLAIN, "when a session ends", _WATCHES),
        "pre_compact": Key(_PLAIN, "before a conversation is summarized", _WATCHES),
        "before_compaction": Key(_PLAIN, "before a conversation is summarized", _WATCHES),
        "after_compaction": Key(_PLAIN, "after a conversation was summarized", _WATCHES),
        "subagent_stop": Key(_PLAIN, "when a sub-agent has finished", _WATCHES),
        "on_user_input": Key(_PLAIN, "when the agent asks the user for input", _WATCHES),
        "stop": Key(_PLAIN, "when the agent has finished", _WATCHES),
        "notification": Key(_PLAIN, "when a notification is sent", _WATCHES),
        "on_error": Key(_PLAIN, "after an error", _WATCHES),
        "on_max_iterations": Key(_PLAIN, "when the limit of iterations is reached", _WATCHES),
        "on_agent_switch": Key(_PLAIN, "when another agent takes over", _WATCHES),
        "on_session_resume": Key(_PLAIN, "when a session continues after its limit", _WATCHES),
        "on_tool_approval_decision": Key(_PLAIN, "after a tool call was approved or denied", _WATCHES),
        "worktree_create": Key(_PLAIN, "after a git worktree was created", _WATCHES),
    },
)

"""Hooks, and the evaluators they ask. Nothing is evaluated yet."""

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
from lastgood.agents.schema.model_providers import COST

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
        "preempt_yolo": Key(
            FLAG,
            "whether they run before permissions are checked; hooks of `pre_tool_use` always do",
        ),
    },
)
_MATCHED = ListOf(MATCHED_HOOKS)
_PLAIN = ListOf(HOOK)
_NO_SUMMARY = "conversations are not summarized, so these hooks do not run"
_NO_CHOICE = "these hooks do not run, so they cannot choose an agent"
HOOKS = Section(
    "hooks",
    "the hooks of an agent",
    {
        "tool_input_transform": Key(_MATCHED, "rewrites a tool's arguments"),
        "pre_tool_use": Key(_MATCHED, "before a tool runs"),
        "tool_guard": Key(_MATCHED, "before a tool call is approved"),
        "permission_request": Key(_MATCHED, "before human approval is requested"),
        "on_tool_approval_decision": Key(_PLAIN, "after a tool call was approved or denied"),
        "tool_response_transform": Key(_MATCHED, "rewrites a tool's result"),
        "post_tool_use": Key(_MATCHED, "after a tool ran"),
        "session_start": Key(_PLAIN, "when a session begins"),
        "user_prompt_submit": Key(_PLAIN, "when a user message arrives"),
        "user_followup_submit": Key(_PLAIN, "when a follow-up begins"),
        "user_steering_messages_submit": Key(_PLAIN, "when a steer arrives"),
        "turn_start": Key(_PLAIN, "before every model call; its text is part of the prompt of that call"),
        "before_llm_call": Key(_PLAIN, "before every model call; it can end the turn"),
        "after_llm_call": Key(_PLAIN, "after a model call"),
        "turn_end": Key(_PLAIN, "when a response and its tool calls have ended"),
        "stop": Key(_PLAIN, "when the agent has finished"),
        "subagent_stop": Key(_PLAIN, "when a sub-agent has finished"),
        "on_agent_switch": Key(_PLAIN, "when another agent takes over"),
        "on_user_input": Key(_PLAIN, "when the agent asks the user for input"),
        "on_max_iterations": Key(_PLAIN, "when the limit of iterations is reached"),
        "on_error": Key(_PLAIN, "after an error"),
        "notification": Key(_PLAIN, "when a turn failed"),
        "session_end": Key(_PLAIN, "when a turn has ended"),
        "prompt_file_guard": Key(
            _PLAIN, "checks prompt files", "these hooks do not run, so they cannot stop anything"
        ),
        "skill_content_guard": Key(
            _PLAIN, "checks skills", "these hooks do not run, so they cannot stop anything"
        ),
        "before_agent_run": Key(_PLAIN, "before an agent begins", _NO_CHOICE),
        "after_agent_complete": Key(_PLAIN, "after an agent has finished", _NO_CHOICE),
        "pre_compact": Key(_PLAIN, "before a conversation is summarized", _NO_SUMMARY),
        "before_compaction": Key(_PLAIN, "before a conversation is summarized", _NO_SUMMARY),
        "after_compaction": Key(_PLAIN, "after a conversation was summarized", _NO_SUMMARY),
        "on_session_resume": Key(
            _PLAIN, "when a session continues after its limit", "a turn ends at its limit for good"
        ),
        "worktree_create": Key(_PLAIN, "after a git worktree was created", "no worktree is created"),
    },
)

"""Which test shows what a key of an agent file does: from a file, or from the options that its section"
" becomes.

`test_key_tests.py` compares this table with the schema, so a key cannot be supported without one. Keys that
every toolset has are those of `toolset`; a key that only some types have is listed with its type.
"""

from __future__ import annotations

_AGENTS = "e2e/test_keys_of_agents.py::"
_MODELS = "e2e/test_keys_of_models.py::"
_SETTINGS = "wires/test_settings_of_files.py::"
_TOOLSETS = "e2e/test_keys_of_toolsets.py::"
_HOOKS = "e2e/test_keys_of_hooks.py::"
_FETCH = "tools/test_fetch.py::"
_MCP = "mcp/test_servers.py::"
_COMMANDS = "e2e/test_cli_commands.py::"
_SENT = "test_a_setting_of_a_model_or_its_provider_is_sent"
_BECOMES = "test_a_setting_becomes_what_the_provider_expects"
_CHECK = "agents/test_agents_command.py::test_check_shows_who_wrote_a_file_and_what_for"
_EVALUATOR = "agents/test_hooks_of_files.py::test_a_hook_that_cannot_run_yet_is_a_warning"
_ORDER = "agents/test_hooks_of_files.py::test_an_order_of_hooks_that_cannot_be_had_is_a_warning"
_REDACTED = "e2e/test_agent_keys.py::test_redact_secrets_keeps_them_from_the_model_and_from_tools"


def _each(where: str, **tests: str) -> dict[str, str]:
    """`tests`: by the name of a test, the keys that it is about."""
    return {key: f"{where}{test}" for test, keys in tests.items() for key in keys.split()}


TESTS: dict[str, str] = {
    # -- the file and its agents
    **_each(
        _AGENTS,
        test_the_first_agent_answers_if_there_is_no_root="file.agents",
        test_toolsets_of_the_file_are_used_by_name="file.toolsets agent.use_toolsets agent.toolsets",
        test_clients_see_how_an_agent_presents_itself="agent.description agent.welcome_message"
        " command.description",
        test_a_key_is_part_of_the_system_message="agent.instruction agent.instruction_file agent.add_date"
        " agent.add_environment_info agent.add_prompt_files toolset.instruction",
        test_the_oldest_messages_are_left_out="agent.num_history_items",
        test_results_of_tools_are_cut_and_fade="agent.max_tool_result_tokens agent.max_old_tool_call_tokens",
        test_model_calls_are_counted="agent.max_iterations",
        test_repeated_calls_are_counted="agent.max_consecutive_tool_calls",
        test_a_budget_ends_the_turn="file.budget file.budgets agent.budgets budget.max_tokens"
        " budget.max_cost",
        test_a_budget_of_time_ends_the_turn="budget.max_time",
        test_rules_and_modes_decide_about_a_call="file.permissions permissions.allow permissions.ask"
        " permissions.deny file.runtime runtime.safety agent.safety agent.readonly",
        test_every_call_says_what_it_is_for="agent.add_description_parameter",
        test_answers_have_the_shape_that_the_file_says="agent.structured_output structured_output.name"
        " structured_output.description structured_output.schema structured_output.strict"
        " structured_output.mode",
        test_a_sub_agent_does_a_task_and_returns_its_result="agent.sub_agents",
        test_agents_may_share_a_to_do_list="todo.shared",
        test_a_handoff_makes_another_agent_answer_from_then_on="agent.handoffs",
        test_a_forced_handoff_makes_the_next_agent_of_the_chain_answer="agent.force_handoff",
        test_a_shared_skill_runs_on_its_model="file.skills agent.use_skills skill.model",
        test_the_next_model_answers_after_the_retries_and_the_first_one_is_skipped="agent.fallback"
        " fallback.models fallback.retries fallback.cooldown",
        test_the_oldest_version_has_other_keys="file.version agent.name agent.think agent.todo model.type",
    ),
    "agent.skills": "e2e/test_skills.py::test_only_the_named_skills_count",
    **_each(
        "e2e/test_skills.py::",
        test_inline_skills_are_listed_and_read_and_their_commands_do_not_run="skill.name skill.description"
        " skill.instructions",
        test_a_forked_skill_runs_apart_with_the_tools_it_names="skill.context skill.allowed_tools"
        " skill.toolsets",
    ),
    **_each(
        _COMMANDS,
        test_a_command_is_the_prompt_that_its_file_says="file.commands agent.commands agent.use_commands"
        " command.instruction",
        test_a_command_of_another_agent_is_sent_to_it="command.agent",
        test_a_command_may_name_a_page_to_open="command.url",
    ),
    **dict.fromkeys(
        (f"metadata.{name}" for name in ("author", "license", "description", "readme", "version", "tags")),
        _CHECK,
    ),
    "file.metadata": _CHECK,
    "agent.redact_secrets": _REDACTED,
    "agent.harness": "e2e/test_cli_work.py::test_a_task_is_added_shown_and_explained_with_what_it_resumed",
    "harness.type": "e2e/test_cli_work.py::test_a_task_is_added_shown_and_explained_with_what_it_resumed",
    **dict.fromkeys(
        ("harness.model", "harness.effort"),
        "e2e/test_worker.py::test_a_program_is_told_the_model_and_the_effort_of_the_file",
    ),
    "agent.memory": "agents/test_agent_spec.py::test_the_oldest_shape_says_the_same_as_todays",
    "memory.path": "e2e/test_memory.py::"
    "test_a_path_is_a_memory_of_its_own_and_the_agents_of_a_file_share_the_one_without",
    # -- models and providers
    **_each(
        _MODELS,
        test_a_model_may_be_one_of_several="agent.model file.models model.model",
        test_the_first_model_whose_key_is_there="model.first_available",
        test_requests_go_to_the_model_with_examples_like_them="model.routing model.description"
        " routing_rule.model routing_rule.examples",
        test_a_model_is_sent_the_attachments_that_it_accepts="model.capabilities capabilities.image"
        " capabilities.pdf capabilities.audio capabilities.video",
        test_prices_are_counted="model.cost cost.input cost.output",
        test_cached_tokens_have_prices_of_their_own="cost.cache_read cost.cache_write",
        test_titles_have_a_model_of_their_own="model.title_model",
        test_a_provider_gives_its_models_an_address_and_a_key="file.providers provider.provider"
        " provider.base_url provider.token_key model.provider model.base_url",
        test_usage_is_requested_unless_the_file_says_not_to="model.track_usage provider.track_usage",
        test_names_and_addresses_may_be_variables="model.bypass_models_gateway",
    ),
    "model.token_key": f"{_SETTINGS}test_the_key_is_the_one_that_the_file_names",
    **{
        f"{owner}.{key}": f"{_SETTINGS}{_SENT}"
        for owner in ("model", "provider")
        for key in (
            *("temperature", "top_p", "max_tokens", "frequency_penalty", "presence_penalty"),
            *("parallel_tool_calls", "thinking_budget", "provider_opts"),
        )
    },
    "provider.api_type": f"{_MODELS}test_a_provider_may_speak_the_responses_api",
    **dict.fromkeys(
        ("model.task_budget", "provider.task_budget", "task_budget.type", "task_budget.total"),
        f"{_SETTINGS}{_BECOMES}",
    ),
    "thinking_budget.effort": f"{_SETTINGS}{_BECOMES}",
    "thinking_budget.tokens": f"{_SETTINGS}{_BECOMES}",
    # -- toolsets
    **_each(
        _TOOLSETS,
        test_the_model_has_the_tools_that_the_file_says="toolset.type toolset.tools toolset.readonly"
        " toolset.defer",
        test_results_of_a_toolset_go_to_its_model="toolset.model",
        test_commands_have_the_variables_of_the_file="shell.env",
        test_a_command_ends_at_its_timeout="shell.timeout script.timeout",
        test_a_script_has_arguments_variables_and_a_folder="script.shell script.env script_tool.cmd"
        " script_tool.description script_tool.args script_tool.required script_tool.env"
        " script_tool.working_dir",
        test_folders_are_opened_and_closed="filesystem.allow_list filesystem.deny_list",
        test_a_command_follows_an_edit_of_files_like_this="filesystem.post_edit post_edit.path post_edit.cmd",
        test_files_that_git_ignores_are_shown_if_the_file_says_so="filesystem.ignore_vcs",
        test_a_docker_server_gets_its_configuration_in_a_file="mcp.config",
        test_an_mcp_server_is_started_as_the_file_says="file.mcps mcp.ref mcp.command mcp.args mcp.env"
        " mcp.working_dir",
    ),
    "shell.repeatable": "tools/test_shell.py::test_a_command_is_repeated_only_if_the_file_says_so",
    "script.repeatable": "tools/test_script.py::test_a_script_describes_itself",
    **_each(
        _FETCH,
        test_a_file_may_say_how_long_a_page_is_waited_for="fetch.timeout",
        test_a_file_may_say_which_hosts_are_asked="fetch.allowed_domains fetch.blocked_domains",
        test_I41_headers_of_the_file_go_to_the_host_and_their_keys_to_nobody_else="fetch.headers",
        test_a_file_may_open_private_networks="fetch.allow_private_ips",
        test_several_pages_are_escaped_where_the_file_says_so="fetch.escape_html",
    ),
    **_each(
        _MCP,
        test_a_command_that_is_not_installed_is_named_with_its_package="mcp.version",
        test_a_remote_server_in_either_transport="mcp.remote remote.url remote.transport_type",
        test_a_remote_server_gets_the_headers_of_the_file="remote.headers",
        test_a_file_may_open_private_networks_to_its_servers="mcp.allow_private_ips",
        test_a_start_that_fails_is_repeated_after_a_pause_that_grows="mcp.lifecycle lifecycle.backoff"
        " backoff.initial backoff.max backoff.multiplier",
        test_jitter_moves_a_pause_by_its_share="backoff.jitter",
        test_a_server_that_may_not_restart_stays_dead="lifecycle.profile lifecycle.restart",
        test_max_restarts_counts_the_deaths_since_a_call_succeeded="lifecycle.max_restarts",
        test_a_slow_start_has_a_time_limit="lifecycle.startup_timeout",
        test_a_call_that_hangs_fails_at_its_time_limit="lifecycle.call_timeout",
    ),
    "mcp.name": "e2e/test_mcp.py::test_a_clash_of_names_offers_both_tools",
    "lifecycle.required": "e2e/test_mcp.py::test_a_required_server_that_is_missing_fails_the_turn",
    # -- toolsets that call an API
    **_each(
        "tools/test_http_toolset_keys.py::",
        test_a_file_may_open_private_networks="api.allow_private_ips openapi.allow_private_ips",
        test_a_file_may_say_how_much_and_how_long="openapi.timeout openapi.max_output_bytes",
        test_the_model_knows_the_schema_of_the_response="api_config.output_schema",
    ),
    **_each(
        "e2e/test_http_tools.py::",
        test_a_get_needs_no_approval_and_its_arguments_stay_in_their_place="api.api_config api_config.name"
        " api_config.endpoint api_config.method api_config.args api_config.headers api_config.required"
        " api_config.instruction",
        test_I40_what_goes_wrong_is_a_bounded_tool_error="api.timeout",
        test_the_operations_of_a_document_are_tools="openapi.url openapi.headers",
    ),
    **_each(
        "e2e/test_a2a.py::",
        test_an_agent_elsewhere_is_a_tool_and_answers="a2a.url a2a.headers a2a.name",
        test_an_agent_that_does_not_finish_is_left_and_its_outcome_is_unknown="a2a.timeout",
    ),
    "a2a.allow_private_ips": "tools/test_http_toolset_keys.py::test_a_file_may_open_private_networks",
    # -- other toolsets
    "background_jobs.env": "e2e/test_background_jobs.py::"
    "test_a_job_runs_on_after_its_turn_and_is_seen_waited_for_and_stopped",
    **_each(
        "e2e/test_conversation_tools.py::",
        test_a_chosen_model_answers_from_the_next_response_on_and_in_later_turns="model_picker.models",
        test_the_user_opens_a_page_and_says_so="open_url.url open_url.name",
        test_json_results_are_toon_where_the_file_asks_for_it="toolset.toon",
    ),
    # -- hooks
    **_each(
        _HOOKS,
        test_every_event_runs_its_hooks="agent.hooks hooks.* matched_hooks.hooks hook.type hook.command",
        test_a_matcher_chooses_the_tools="matched_hooks.matcher",
        test_a_command_has_the_variables_and_the_folder_of_the_file="hook.env hook.working_dir",
        test_what_a_hook_that_fails_does_is_in_the_file="hook.on_error hook.timeout hook.strict_output"
        " hook.name",
        test_built_in_hooks_have_arguments="hook.args",
        test_a_model_is_asked_as_the_file_says="hook.model hook.prompt hook.system_prompt hook.schema",
    ),
    "matched_hooks.preempt_yolo": _ORDER,
    # Hooks of type `evaluator` are a warning, and these keys belong to them.
    **dict.fromkeys(
        (
            *("hook.evaluator", "hook.evaluator_policy", "hook.routing_policy"),
            *("evaluator_policy.decisions", "evaluator_policy.min_probability", "evaluator_policy.fallback"),
            *("routing_policy.routes", "routing_policy.min_probability"),
        ),
        _EVALUATOR,
    ),
}

#: By option of `provider_opts`; the names that models of any provider may have.
OPTIONS: dict[str, str] = {
    **_each(
        _SETTINGS,
        **{
            _SENT: "top_k min_p service_tier",
            _BECOMES: "repetition_penalty typical_p extra_body stream_options thinking_display"
            " fallbacks google_search"
            " code_execution interleaved_thinking",
            "test_an_option_becomes_a_header": "http_headers",
            "test_a_provider_of_the_file_names_its_api": "api_type",
        },
    ),
    "seed": "wires/test_chat_faults.py::test_settings_have_their_names",
    "supports_images": f"{_MODELS}test_a_model_is_sent_the_attachments_that_it_accepts",
    "supports_pdf": f"{_MODELS}test_a_model_is_sent_the_attachments_that_it_accepts",
    "context_size": "surfaces/test_console_sessions.py::"
    "test_a_turn_shows_its_share_of_the_context_where_the_size_is_known",
    "api_version": "wires/test_references.py::test_azure_needs_an_address",
    **dict.fromkeys(
        ("region", "profile", "endpoint_url"), f"{_SETTINGS}test_an_account_of_amazon_is_the_files"
    ),
}

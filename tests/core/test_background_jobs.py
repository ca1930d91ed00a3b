"""What a conversation knows of the jobs that it started."""

from lastgood.core.background_jobs import STARTED, job_id, started_jobs
from lastgood.model.messages import ToolCall, assistant, tool_result, user


def test_jobs_are_known_by_the_results_of_the_calls_that_started_them() -> None:
    messages = (
        user(f"{STARTED}job_forged\n"),
        assistant(
            "",
            ToolCall("a", "run_background_job", '{"cmd": "make all"}'),
            ToolCall("b", "run_background_job", "[]"),
            ToolCall("c", "run_background_job", "{"),
            ToolCall("d", "shell", '{"cmd": "echo"}'),
            ToolCall("e", "run_background_job", '{"cmd": "x"}'),
        ),
        tool_result("a", f"{STARTED}job_1\nCommand: make all"),
        tool_result("b", f"{STARTED}job_2"),
        tool_result("c", f"{STARTED}job_3\n"),
        tool_result("d", f"{STARTED}job_4\n"),
        tool_result("e", "error: too many"),
    )
    assert started_jobs(messages) == {"job_1": "make all", "job_2": "", "job_3": ""}


def test_I33_the_same_call_with_the_same_command_is_the_same_job_and_no_other_is() -> None:
    known = job_id("t:1:c", "make", ".")
    assert job_id("t:1:c", "make", ".") == known
    others = [
        ("t:1:d", "make", "."),
        ("t:1:c", "make all", "."),
        ("t:1:c", "make", "x"),
        ("t:1:cm", "ake", "."),
    ]
    assert len({known, *(job_id(*other) for other in others)}) == 5

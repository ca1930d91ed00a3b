"""One agent at work on one conversation: the turn's own, or a task it was given by another agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lastgood.core.context import fade_results, repeats, shown_of, trim
from lastgood.core.history import open_calls
from lastgood.core.secret_shapes import without_secret_shapes
from lastgood.core.speaker import may_speak, speaker_after
from lastgood.core.todo import NOTHING, Todos, shared_todos_of
from lastgood.errors import LoopDetected
from lastgood.model.agents import AgentSpec
from lastgood.model.answers import Answer
from lastgood.model.attempts import Step, StepKind, said
from lastgood.model.call_options import CallOptions
from lastgood.model.messages import Message, ToolCall


@dataclass(slots=True)
class Stage:
    """`within` is empty for the turn itself; for a task, it names the call it is the work for."""

    entry: AgentSpec
    earlier: tuple[Message, ...]
    own: Callable[[Sequence[Step]], tuple[Message, ...]]
    steps: list[Step]
    within: str = ""
    callers: tuple[AgentSpec, ...] = ()  # the agents that delegated the task; outermost first
    options: CallOptions = CallOptions()
    left_out: int = 0
    shared_todos: Todos = NOTHING  # when the task began
    agent: AgentSpec = field(init=False)

    def __post_init__(self) -> None:
        self.left_out = max((step.left_out for step in self.steps), default=0)
        self.agent = self.speaker()

    def speaker(self) -> AgentSpec:
        return speaker_after(self.entry, self.earlier + self.own(()), self.steps)

    def conversation(self) -> tuple[Message, ...]:
        """All of it, whatever the model is shown."""
        return self.earlier + self.own(self.steps)

    def shown(self) -> tuple[Message, ...]:
        """What the model is shown of it."""
        earlier = shown_of(self.earlier, self.left_out)
        if self.agent.num_history_items > 0:
            earlier = trim(earlier, self.agent.num_history_items)
        shown = earlier + self.own(self.steps)
        if self.agent.max_old_tool_call_tokens > 0:
            shown = fade_results(shown, self.agent.max_old_tool_call_tokens)
        return shown

    def shared_list(self) -> Todos:
        """The to-do list that agents share, as it is now."""
        specs = (spec for agent in may_speak(self.entry) for spec in agent.toolsets)
        counts = any(spec.type == "todo" and spec.options.get("shared") for spec in specs)
        return shared_todos_of(self.conversation(), self.shared_todos, counts=counts)

    @property
    def responses(self) -> int:
        return sum(step.kind is StepKind.MODEL for step in self.steps)

    @property
    def asks_again(self) -> bool:
        """Whether a model must be called again: it did not speak last, it called tools of the server, or
        another agent goes on."""
        if not self.steps:
            return True
        last = self.steps[-1]
        goes_on = last.kind is not StepKind.MODEL or bool(last.message.tool_calls or last.hands_to)
        return goes_on and not self.waits_for_caller

    @property
    def waits_for_caller(self) -> bool:
        """The model called tools that only the caller has; the turn ends with these calls open."""
        names = self.options.tool_names
        return any(call.name in names for call in open_calls(said(self.steps)))

    @property
    def sub_agent(self) -> str | None:
        """None for the agent that answers the user. What any other one says is not the answer."""
        return self.agent.name if self.within else None

    def place_of(self, call_id: str) -> str:
        """The place of a call, with the number of the response: some providers repeat ids in each."""
        return f"{self.within}{self.responses}:{call_id}"

    def redacted(self, call: ToolCall) -> ToolCall:
        """The call as it is shown and runs: without secrets, if the agent redacts them."""
        if not self.agent.redact_secrets:
            return call
        return replace(call, arguments=without_secret_shapes(call.arguments))

    def answer_to(self, call: ToolCall, answers: Mapping[str, Answer]) -> Answer | None:
        """Returns a person's answer about this call. An answer at its place that is about other arguments
        does not count: what would run is not what was shown."""
        answer = answers.get(self.place_of(call.id))
        return answer if answer is not None and answer.call == call else None

    def check_for_loops(self) -> None:
        batches = [step.message.tool_calls for step in self.steps if step.kind is StepKind.MODEL]
        most = self.agent.max_consecutive_tool_calls
        if batches[-1] and repeats(batches, most):
            raise LoopDetected(
                f"the model repeated the same tool calls {most} times in a row; nothing was committed"
            )

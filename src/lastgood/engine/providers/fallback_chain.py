"""Calls models until one responds: the same model again, then the next, as `core/fallback` decides.

Nothing is retried after the first chunk, because streamed output cannot be taken back. Cooldowns apply to the
whole process.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace

from lastgood.core.context import fitting
from lastgood.core.fallback import Decision, ModelFailure, Next, NoMoreModels, Retry, after_failure, order
from lastgood.engine.providers.model_references import OFFLINE_SPEC, Models, chain_of
from lastgood.engine.providers.provider import Chunk, ModelAnswer, ModelCall, Providers
from lastgood.engine.providers.provider_aliases import missing_key
from lastgood.errors import KeyRefused, ModelError, ModelGarbled, ModelUnknown
from lastgood.model.agents import AgentSpec, Fallback, ModelSpec
from lastgood.model.events import ModelFellBack, ModelRetried


@dataclass(frozen=True, slots=True)
class FellBack:
    failed: ModelSpec
    to: ModelSpec
    reason: str
    number: int  # number of the model that is called now
    of: int

    def as_event(self) -> ModelFellBack:
        return ModelFellBack(self.failed.ref, self.to.ref, self.reason, self.number, self.of)


@dataclass(frozen=True, slots=True)
class Retried:
    model: ModelSpec
    after_seconds: float
    reason: str
    number: int  # of the try that follows

    def as_event(self) -> ModelRetried:
        return ModelRetried(self.model.ref, self.after_seconds, self.reason, self.number)


@dataclass(frozen=True, slots=True)
class Requested:
    """A request is about to be sent to the model."""

    model: ModelSpec


Fault = ModelError | ModelUnknown
Asked = AsyncGenerator[Chunk | ModelAnswer | FellBack | Retried | Requested, None]


class FallbackChain:
    def __init__(
        self,
        providers: Providers,
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._providers = providers
        self._sleep = sleep
        self._clock = clock
        self._jitter = jitter
        self._cooling: dict[str, float] = {}  # by model reference: when it may be called again
        self.otherwise = OFFLINE_SPEC  # the model that `auto` means if no key is set

    def check(self, ref: str, models: Models) -> None:
        """Raises ModelUnknown if no provider serves the model. Does not check whether its key is valid."""
        for model in self.models(ref, (), models, ""):
            self._providers.find(model)

    def why_no_answer(self, agent: AgentSpec) -> str | None:
        """Says what the first model lacks; None if a model of the chain has a provider and a key."""
        reasons: list[str] = []
        try:
            for model in self.models(agent.model, agent.fallback.models, agent.models, ""):
                self._providers.find(model)
                if self._providers.has_key(model):
                    return None
                reasons.append(missing_key(model).message)
        except (ModelUnknown, KeyRefused) as error:
            reasons.append(error.message)
        return reasons[0]

    def models(
        self, ref: str, fallbacks: Sequence[str], models: Models, choice: str
    ) -> tuple[ModelSpec, ...]:
        first, *others = chain_of(ref, fallbacks, models, self._providers.has_key, choice, self.otherwise)
        chain = [self._providers.named(first)]
        for model in others:
            with suppress(KeyRefused):
                chain.append(self._providers.named(model))
        return tuple(chain)

    def context_size(self, model: ModelSpec) -> int:
        """0: not known, or not yet."""
        return self._providers.context_size(model)

    async def close(self) -> None:
        await self._providers.close()

    async def ask(self, chain: Sequence[ModelSpec], call: ModelCall, fallback: Fallback) -> Asked:
        queue = [chain[number] for number in order([self._is_cooling(model) for model in chain])]
        if queue[0] is not chain[0]:
            reason = f"{chain[0].ref} is rate limited and is skipped for now"
            yield FellBack(chain[0], queue[0], reason, 1, len(queue))
        faults: list[Fault] = []  # one of each model that was given up
        tries, spoken = 0, False
        while True:
            model = queue[len(faults)]
            tries += 1
            try:
                asked = call if call.model is model else replace(call, model=model)
                if model.accepts is not None:
                    asked = replace(asked, messages=fitting(call.messages, model.accepts))
                provider = self._providers.find(model)
                yield Requested(model)
                async with aclosing(provider.stream(asked)) as parts:
                    async for part in parts:
                        spoken = True
                        yield part
                        if part.__class__ is ModelAnswer:
                            return
                fault: Fault = ModelGarbled(
                    f"{model.ref} ended its stream without a response; send the turn again"
                )
            except (ModelError, ModelUnknown) as error:
                fault = error
            others = len(queue) - len(faults) - 1
            match self._decide(ModelFailure(fault, spoken, tries, others), fallback):
                case Retry(after):
                    yield Retried(model, after, str(fault), tries + 1)
                    await self._sleep(after)
                case Next(cooldown):
                    if cooldown:
                        self._cooling[model.ref] = self._clock() + cooldown
                    faults.append(fault)
                    tries = 0
                    yield FellBack(model, queue[len(faults)], str(fault), len(faults) + 1, len(queue))
                case NoMoreModels():
                    raise _summary_of_faults(queue, (*faults, fault))

    def _decide(self, failed: ModelFailure, fallback: Fallback) -> Decision:
        return after_failure(
            failed,
            retries=fallback.retries,
            cooldown_seconds=fallback.cooldown_seconds,
            jitter=self._jitter(),
        )

    def _is_cooling(self, model: ModelSpec) -> bool:
        until = self._cooling.get(model.ref)
        if until is None:
            return False
        if self._clock() < until:
            return True
        del self._cooling[model.ref]
        return False


def _summary_of_faults(queue: Sequence[ModelSpec], faults: Sequence[Fault]) -> Fault:
    """Returns the last error; its message lists the errors of all models that were tried."""
    last = faults[-1]
    if len(faults) == 1:
        return last
    failures = "; ".join(f"{model.ref}: {fault}" for model, fault in zip(queue, faults, strict=False))
    summary = type(last)(f"all models failed. {failures}")
    if isinstance(last, ModelError) and isinstance(summary, ModelError):
        summary.retry_after = last.retry_after
    return summary

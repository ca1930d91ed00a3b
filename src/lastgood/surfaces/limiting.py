"""How much one token, and one user behind it, may ask of this process."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Self, TypeVar

from lastgood.core.rate import Allowance, Used, Wait, begin, end, is_forgettable
from lastgood.errors import TooMany
from lastgood.flows.beginning import Submitted
from lastgood.surfaces.caller import Caller

_T = TypeVar("_T")

#: Names are forgotten when nothing is known of them any more; looked for whenever there are twice as many.
_FEW = 1000


@dataclass(slots=True)
class _Counted:
    what: str
    allowance: Allowance
    used: dict[str, Used] = field(default_factory=dict)
    _next_tidy: int = _FEW

    def take(self, name: str, now: float) -> None:
        found = begin(self.allowance, self.used.get(name), now)
        if isinstance(found, Wait):
            error = TooMany(f"this {self.what} asks for too much: {found.reason}; send it again later")
            error.retry_after = found.seconds
            raise error
        self.used[name] = found
        if len(self.used) >= self._next_tidy:
            self._tidy(now)

    def give_back(self, name: str) -> None:
        with suppress(KeyError):
            self.used[name] = end(self.used[name])

    def _tidy(self, now: float) -> None:
        self.used = {
            name: used for name, used in self.used.items() if not is_forgettable(self.allowance, used, now)
        }
        self._next_tidy = max(_FEW, 2 * len(self.used))


class Limiter:
    """`take` before a turn begins; what it returns is given back when the turn has ended."""

    def __init__(self, per_token: Allowance, per_user: Allowance, now: Callable[[], float]) -> None:
        self._token = _Counted("token", per_token)
        self._user = _Counted("user", per_user)
        self._now = now

    def take(self, caller: Caller, user: str) -> Taken:
        now = self._now()
        taken: list[tuple[_Counted, str]] = []
        named = [(self._token, caller.name)]
        if user:
            named.append((self._user, f"{caller.tenant}\n{user}"))
        try:
            for counted, name in named:
                if counted.allowance != Allowance():
                    counted.take(name, now)
                    taken.append((counted, name))
        except TooMany:
            Taken(taken).give_back()
            raise
        return Taken(taken)


@dataclass(slots=True)
class Taken:
    """Given back when the block ends, unless a turn has it by then."""

    _counted: Sequence[tuple[_Counted, str]]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.give_back()

    def __del__(self) -> None:
        # A generator that is closed before it has begun runs none of its code, and no `with` in it.
        self.give_back()

    def until_ended(self, submitted: Submitted) -> None:
        """What another process runs, or what has ended, counts here no longer."""
        if submitted.run is not None:
            kept, self._counted = Taken(self._counted), ()
            submitted.run.done.add_done_callback(lambda _: kept.give_back())

    async def during(self, work: AsyncGenerator[_T, None]) -> AsyncGenerator[_T, None]:
        """The same, for what is not stored: until it has come to its end, or was closed."""
        with self:
            async with aclosing(work):
                async for item in work:
                    yield item

    def give_back(self) -> None:
        counted, self._counted = self._counted, ()
        for one, name in counted:
            one.give_back(name)

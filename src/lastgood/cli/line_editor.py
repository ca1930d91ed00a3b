"""Reads what a person types in a chat: with an editor where the terminal can, else line by line.

prompt_toolkit is imported here and nowhere else, when a chat starts.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from lastgood.cli.output import can_draw, remark
from lastgood.cli.terminal_input import next_line

if TYPE_CHECKING:
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    from lastgood.cli.chat import Interrupts

#: Of the history file; the older half of a larger one is dropped.
MOST_BYTES = 1_000_000
HOW_TO_QUIT = "Ctrl-D or /exit ends the chat"
_PROMPT = "> "


class LineReader(Protocol):
    async def read(self) -> str | None:
        """Returns a message, or None if the person or a signal ends the chat."""

    def close(self) -> None: ...


def line_reader(interrupts: Interrupts, folder: Path, commands: Sequence[str]) -> LineReader:
    """`folder` keeps the history. `commands` are completed with the Tab key."""
    if not can_draw(sys.stderr):
        return PlainReader(interrupts)
    return Editor(interrupts, folder / "chat_history", commands)


class PlainReader:
    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts

    async def read(self) -> str | None:
        while (line := await next_line(self._interrupts, _PROMPT)) is None:
            if self._interrupts.final or not self._interrupts.asked.is_set():
                return None
            self._interrupts.asked.clear()
            remark(HOW_TO_QUIT)
        return line

    def close(self) -> None:
        """Nothing was changed."""


class Editor:
    def __init__(self, interrupts: Interrupts, history: Path, commands: Sequence[str]) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import WordCompleter
        from prompt_toolkit.output import create_output
        from prompt_toolkit.output.vt100 import Vt100_Output

        output = create_output(stdout=sys.stderr)
        if isinstance(output, Vt100_Output):
            output.enable_cpr = False  # a terminal that does not answer would show the question
        self._interrupts = interrupts
        self._session: PromptSession[str] = PromptSession(
            history=_history(history),
            key_bindings=_keys(),
            completer=WordCompleter(list(commands), sentence=True),
            complete_while_typing=False,
            prompt_continuation="  ",
            output=output,
        )

        self._mark_pastes()

    async def read(self) -> str | None:
        try:
            return await self._read()
        finally:
            self._mark_pastes()

    def _mark_pastes(self) -> None:
        """The editor turns this off when it returns. What is pasted while a turn runs must not become several
        messages either."""
        sys.stderr.write("\x1b[?2004h")
        sys.stderr.flush()

    def close(self) -> None:
        sys.stderr.write("\x1b[?2004l")
        sys.stderr.flush()

    async def _read(self) -> str | None:
        while True:
            reading = asyncio.create_task(self._session.prompt_async(_PROMPT, handle_sigint=False))
            signalled = asyncio.create_task(self._interrupts.asked.wait())
            try:
                await asyncio.wait({reading, signalled}, return_when=asyncio.FIRST_COMPLETED)
                if reading.done():
                    return reading.result()
            except EOFError:
                return None
            finally:
                for task in (reading, signalled):
                    task.cancel()
                await asyncio.wait({reading, signalled})
            if self._interrupts.final:
                return None
            self._interrupts.asked.clear()  # SIGINT of somebody else: here Ctrl-C is a key


def _keys() -> KeyBindings:
    from prompt_toolkit.application import run_in_terminal
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    @keys.add("c-c")
    def _(event: KeyPressEvent) -> None:
        """Clears the line; an empty one says how to quit."""
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            run_in_terminal(lambda: remark(HOW_TO_QUIT))

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys


def _history(path: Path) -> History:
    """In memory, if the file cannot be written."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    class PrivateHistory(FileHistory):
        def store_string(self, string: str) -> None:
            with suppress(OSError):  # a full disk must not end the chat
                super().store_string(string)

    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        if path.stat().st_size > MOST_BYTES:
            _shorten(path)
    except OSError:
        return InMemoryHistory()
    return PrivateHistory(path)


def _shorten(path: Path) -> None:
    """Keeps the newer half. An entry starts with a blank line and a line with `#`."""
    newer = path.read_bytes()[-MOST_BYTES // 2 :]
    path.write_bytes(b"\n#" + newer.partition(b"\n#")[2])

"""A chat in the terminal: a line is a message, a line with a slash is a command."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence

from lastgood.cli.chat import Chat, Interrupts
from lastgood.cli.output import complain, print_line, remark
from lastgood.errors import InvalidRequest, LastgoodError
from lastgood.model.agents import AgentCommand
from lastgood.model.messages import user

_HELP = {
    "/new": "start a new session",
    "/fork": "continue in a copy of this session",
    "/retry": "send the last message again; the new answer replaces the old one",
    "/session": "show the session id",
    "/help": "list the commands",
    "/exit": "end the chat (also Ctrl-D)",
}


async def chat(talk: Chat, welcome: str, known: Sequence[AgentCommand]) -> int:
    """`known`: the commands of the agent itself."""
    if welcome:
        print_line(welcome)
    commands = {f"/{command.name}": command for command in known}
    interrupts = talk.interrupts
    while (line := await _next_line(interrupts)) is not None:
        try:
            if line.strip() and not await _do(talk, line.strip(), commands):
                break
        except LastgoodError as error:
            complain(error.message)
        if interrupts.final:
            break
        interrupts.asked.clear()
    return 0


async def _do(talk: Chat, line: str, commands: dict[str, AgentCommand]) -> bool:
    """False: the chat is over."""
    word, _, rest = line.partition(" ")
    if word in commands:
        await talk.say(user(f"{commands[word].instruction}\n\n{rest}".strip()))
        return True
    match word:
        case "/new":
            talk.begin_anew()
            remark("the next message starts a new session")
        case "/fork":
            remark(f"continuing in session {(await talk.fork()).id}")
        case "/retry":
            await talk.retry()
        case "/session":
            remark(talk.session or "no session yet; send a message first")
        case "/help":
            shown = _HELP | {name: command.description for name, command in commands.items()}
            for name, about in shown.items():
                remark(f"{name:10} {about}")
        case "/exit" | "/quit":
            return False
        case _ if word.startswith("/") and "/" not in word[1:]:
            raise InvalidRequest(f"unknown command {word}; /help lists the commands")
        case _:
            await talk.say(user(line))
    return True


async def _next_line(interrupts: Interrupts) -> str | None:
    """Returns a line from the terminal, or None on Ctrl-D, Ctrl-C or SIGTERM."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    sys.stderr.write("> ")
    sys.stderr.flush()
    # Not input() on a thread: a thread that waits for a key would outlive Ctrl-C.
    loop.add_reader(sys.stdin.fileno(), ready.set)
    try:
        waits = [asyncio.create_task(event.wait()) for event in (ready, interrupts.asked)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in waits:
            task.cancel()
    finally:
        loop.remove_reader(sys.stdin.fileno())
    # A terminal hands over one line at a time.
    line = b"" if interrupts.asked.is_set() else os.read(sys.stdin.fileno(), 65536)
    if not line:
        sys.stderr.write("\n")
        return None
    return line.decode(errors="surrogateescape").rstrip("\n")

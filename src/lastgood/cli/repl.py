"""A chat in the terminal: what is typed is a message, or a command if it begins with a slash."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from lastgood.cli.chat import Chat
from lastgood.cli.commands import SlashCommands
from lastgood.cli.line_editor import line_reader
from lastgood.cli.output import complain, count, one_line, print_line, remark
from lastgood.cli.session_view import headline, print_recent
from lastgood.errors import InvalidRequest, LastgoodError, SessionBusy
from lastgood.model.agents import AgentCommand
from lastgood.model.messages import user

_HELP = {
    "/new": "start a new session",
    "/fork": "continue in a copy of this session",
    "/retry": "send the last message again; the new answer replaces the old one",
    "/model": "show the model, or use another one from the next message on: /model PROVIDER/MODEL",
    "/sessions": "list the newest sessions, or continue one of them: /sessions ID",
    "/session": "show the session id",
    "/help": "list the commands",
    "/exit": "end the chat (also Ctrl-D)",
}
_KEYS = "Alt-Enter starts a new line; Ctrl-C cancels a running turn or clears the line"
#: Turns that are shown of a session that is continued, and sessions that are listed.
_RECENT, _LISTED = 3, 10


async def chat(talk: Chat, folder: Path, welcome: str, commands: SlashCommands | None) -> int:
    """`commands`: those of the agent file. `folder` keeps the history of what was typed."""
    with closing(line_reader(talk.interrupts, folder, [*_HELP, *_known(talk, commands)])) as reader:
        if talk.session is not None:
            await _show_recent(talk, talk.session)
        elif welcome:
            print_line(welcome)
        remark(f"{one_line(talk.agent)} answers with {one_line(await talk.next_model())}")
        remark("/help lists the commands; Ctrl-D ends the chat")
        goes_on = await _survives(talk, talk.answer_waiting())
        while goes_on and (line := await reader.read()) is not None:
            goes_on = await _survives(talk, _do(talk, line.strip(), commands))
    return 0


async def _survives(talk: Chat, doing: Coroutine[Any, Any, object]) -> bool:
    """Whether the chat goes on: no error ends it, only SIGTERM and what returns False."""
    ends = False
    try:
        ends = await doing is False
    except LastgoodError as error:
        complain(error.message)
    if ends or talk.interrupts.final:
        return False
    talk.interrupts.asked.clear()
    return True


def _known(talk: Chat, commands: SlashCommands | None) -> Mapping[str, AgentCommand]:
    return {} if commands is None else commands.known(talk)


async def _do(talk: Chat, line: str, commands: SlashCommands | None) -> bool:
    """False: the chat is over."""
    if not line:
        return True
    if commands is not None and (found := commands.find(talk, line)) is not None:
        if page := commands.page(talk, found):
            remark(f"open {page}")
            return True
        prompt = commands.begin(talk, found)
        if found.command.agent is not None:
            remark(f"{found.command.agent} answers from now on")
        if prompt:
            await _say(talk, prompt)
        return True
    word, _, rest = line.partition(" ")
    match word:
        case "/new":
            talk.start_over()
            remark("the next message starts a new session")
        case "/fork":
            remark(f"continuing in session {(await talk.fork()).id}")
        case "/retry":
            await talk.retry()
        case "/model":
            if rest.strip():
                await talk.place.check_model(talk.agent, rest.strip())
                talk.model = rest.strip()
            remark(f"model: {one_line(await talk.next_model())}")
        case "/sessions":
            await _sessions(talk, rest.strip())
        case "/session":
            remark(talk.session or "no session yet; send a message first")
        case "/help":
            known = _known(talk, commands)
            shown = _HELP | {name: command.description for name, command in known.items()}
            for name, about in shown.items():
                remark(f"{name:10} {about}")
            remark(_KEYS)
        case "/exit" | "/quit":
            return False
        case _ if word.startswith("/") and "/" not in word[1:]:
            raise InvalidRequest(f"unknown command {word}; /help lists the commands")
        case _:
            await _say(talk, line)
    return True


async def _say(talk: Chat, text: str) -> None:
    try:
        await talk.say(user(text))
    except SessionBusy:
        if await talk.answer_waiting() is None:
            raise
        remark("your message was not sent: the turn before it had a question; send it again")


async def _sessions(talk: Chat, id: str) -> None:
    if not id:
        for session in (await talk.place.page(limit=_LISTED, cursor=None, query="")).sessions:
            remark(f"{'*' if session.id == talk.session else ' '} {headline(session)}")
        return
    session = await talk.place.find(id)
    talk.start_over()
    talk.session = session.id
    await _show_recent(talk, session.id)
    await talk.answer_waiting()


async def _show_recent(talk: Chat, session: str) -> None:
    turns = await talk.interrupts.unless_asked(talk.place.turns(session))
    earlier = len(turns) - _RECENT
    if earlier > 0:
        remark(f"{count(earlier, 'earlier turn')}; `lastgood sessions show {session}` prints all")
    print_recent(turns[-_RECENT:])

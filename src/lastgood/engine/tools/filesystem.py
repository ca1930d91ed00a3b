"""The `filesystem` toolset: reads and changes files under the session's working directory."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from lastgood.engine.tools import directory_listing, text_files
from lastgood.engine.tools.cancellation import StopSignal, in_thread
from lastgood.engine.tools.command_environment import Environment
from lastgood.engine.tools.file_search import Search, refused
from lastgood.engine.tools.processes import ProcessSpec, run
from lastgood.engine.tools.rooted_files import Root, make_folder_under, remove_folder_under, write_under
from lastgood.engine.tools.shell import SCRIPT_SECONDS, Shell, result_text, working_dir_of
from lastgood.engine.tools.tool import Tool, ToolFailed, ToolUse
from lastgood.model.agents import Effect, OnUnknown, ToolsetSpec

SEARCH_SECONDS = 60.0
#: Of all files that are read in one call.
READ_BYTES = 1024 * 1024

_TEXT = {"type": "string"}
_PATH = {"type": "string", "description": "The path, relative to the working directory"}
_PATHS = {
    "type": "array",
    "items": _TEXT,
    "minItems": 1,
    "description": "Paths, relative to the working directory",
}
_EDITS = {
    "type": "array",
    "minItems": 1,
    "description": "Array of edit operations",
    "items": {
        "type": "object",
        "properties": {
            "oldText": {"type": "string", "description": "The exact text to replace; it must occur once"},
            "newText": {"type": "string", "description": "The replacement text"},
        },
        "required": ["oldText", "newText"],
    },
}


def filesystem_toolset(spec: ToolsetSpec, environment: Environment) -> Sequence[Tool]:
    files = _Files(spec, environment)
    return [*_read_tools(files), *_write_tools(files)]


def _read_tools(files: _Files) -> Sequence[Tool]:
    return [
        _looks(
            "read_file",
            "Read the contents of a text file: all of it, or some of its lines.",
            files.read,
            ("path",),
            path=_PATH,
            line={"type": "integer", "minimum": 1, "description": "The first line to read, counted from 1"},
            limit={"type": "integer", "minimum": 1, "description": "How many lines to read at most"},
        ),
        _looks(
            "read_multiple_files",
            "Read the contents of multiple files simultaneously.",
            files.read_multiple,
            ("paths",),
            paths=_PATHS,
            json={"type": "boolean", "description": "Whether to return the result as JSON"},
        ),
        _looks(
            "list_directory",
            "Get a listing of all files and directories in a specified path.",
            files.listing,
            path=_PATH,
        ),
        _looks(
            "directory_tree",
            "Get a recursive tree view of files and directories as a JSON structure.",
            files.tree,
            path=_PATH,
        ),
        _looks(
            "search_files_content",
            "Searches for a text or a regular expression in the content of the files below a path.",
            files.search,
            ("path", "query"),
            path={**_PATH, "description": "The starting directory path"},
            query={"type": "string", "description": "The text or regex pattern to search for"},
            is_regex={
                "type": "boolean",
                "description": "If true, treat query as regex; otherwise literal text",
            },
            excludePatterns={
                "type": "array",
                "items": _TEXT,
                "description": "Patterns to exclude from search",
            },
        ),
    ]


def _write_tools(files: _Files) -> Sequence[Tool]:
    return [
        # The same bytes again do no harm. What a command after it would do again is another matter.
        _changes(
            "write_file",
            "Create a new file or completely overwrite an existing file with new content.",
            files.write,
            OnUnknown.FAIL if files.after_edits else OnUnknown.REPEAT,
            path=_PATH,
            content={"type": "string", "description": "The content to write to the file"},
        ),
        # Done twice, the second time finds the text elsewhere, or not at all and reports a failure.
        _changes(
            "edit_file",
            "Make edits to a text file. Each edit replaces an exact text that occurs once. All or none.",
            files.edit,
            OnUnknown.FAIL,
            path=_PATH,
            edits=_EDITS,
        ),
        _changes(
            "create_directory",
            "Create one or more new directories or nested directory structures.",
            files.make,
            OnUnknown.REPEAT,
            paths=_PATHS,
        ),
        # Done twice, it reports as missing what it removed itself.
        _changes(
            "remove_directory",
            "Remove one or more empty directories.",
            files.remove,
            OnUnknown.FAIL,
            paths=_PATHS,
        ),
    ]


Run = Callable[[ToolUse], Awaitable[str]]


def _looks(
    name: str,
    description: str,
    run: Run,
    required: tuple[str, ...] | None = None,
    **properties: Mapping[str, Any],
) -> Tool:
    schema = _schema(properties, required)
    return Tool(name, description, schema, run, on_unknown=OnUnknown.REPEAT, effect=Effect.SAFE)


def _changes(
    name: str, description: str, run: Run, on_unknown: OnUnknown, **properties: Mapping[str, Any]
) -> Tool:
    schema = _schema(properties, None)
    return Tool(name, description, schema, run, on_unknown=on_unknown, effect=Effect.DESTRUCTIVE)


def _schema(properties: Mapping[str, Any], required: tuple[str, ...] | None) -> dict[str, Any]:
    names = list(properties if required is None else required)
    return {"type": "object", "properties": dict(properties), "required": names}


@dataclass(frozen=True, slots=True)
class _Files:
    spec: ToolsetSpec
    environment: Environment

    @property
    def vcs(self) -> bool:
        return self.spec.options.get("ignore_vcs") is not False

    @property
    def after_edits(self) -> Sequence[Mapping[str, str]]:
        """Only for trusted files: commands of an untrusted file would run whenever the model writes a
        file."""
        return (self.spec.options.get("post_edit") or ()) if self.spec.trusted else ()

    def root_of(self, use: ToolUse) -> Root:
        """The session's working directory, and what of it the file opens and closes to these tools."""
        opened, closed = (self._listed(key) for key in ("allow_list", "deny_list"))
        return Root(working_dir_of(use), opened, closed)

    def _listed(self, key: str) -> tuple[str, ...]:
        listed: Sequence[str] = self.spec.options.get(key) or ()
        filled, _ = self.environment.filled({one: one for one in listed}, self.spec.trusted)
        home = self.environment.harmless().get("HOME", "/")
        return tuple(home + one[1:] if one == "~" or one.startswith("~/") else one for one in filled.values())

    async def read(self, use: ToolUse) -> str:
        root, asked = self.root_of(use), use.arguments
        path, first, most = asked["path"], asked.get("line"), asked.get("limit")
        if first is None and most is None:
            return await in_thread(lambda stop: text_files.read_text(root, path, READ_BYTES))
        return await in_thread(lambda stop: text_files.read_lines(root, path, first or 1, most, READ_BYTES))

    async def read_multiple(self, use: ToolUse) -> str:
        root, paths = self.root_of(use), use.arguments["paths"]
        found = await in_thread(lambda stop: list(_read_all(root, paths)))
        if use.arguments.get("json"):
            return json.dumps([{"path": path, "content": text} for path, text in found], ensure_ascii=False)
        return "".join(f"=== {path} ===\n{text}\n\n" for path, text in found)

    async def listing(self, use: ToolUse) -> str:
        root, path = self.root_of(use), use.arguments["path"]
        return await in_thread(lambda stop: directory_listing.list_folder(root, path, self.vcs))

    async def tree(self, use: ToolUse) -> str:
        root, path = self.root_of(use), use.arguments["path"]
        return await in_thread(lambda stop: directory_listing.tree(root, path, self.vcs, stop))

    async def search(self, use: ToolUse) -> str:
        root, asked = self.root_of(use), use.arguments
        search = Search(
            root=str(root.path),
            open=root.open,
            closed=root.closed,
            path=asked["path"],
            query=asked["query"],
            is_regex=asked.get("is_regex", False),
            exclude=asked.get("excludePatterns", ()),
            vcs=self.vcs,
        )
        command = ProcessSpec(search.command(), Path("/"), self.environment.harmless(), SEARCH_SECONDS)
        ran = await run(command, lambda text: None)
        if ran.code is None:
            raise ToolFailed("the search timed out; use a simpler query or a subfolder")
        if refused(ran.code):
            raise ToolFailed(ran.output.strip())
        if ran.code != 0:
            raise ToolFailed(f"the search failed: {ran.failure}\n{ran.output[-1000:]}")
        return ran.output.rstrip("\n")

    async def write(self, use: ToolUse) -> str:
        root, path, content = self.root_of(use), use.arguments["path"], use.arguments["content"].encode()
        where = await in_thread(lambda stop: write_under(root, path, content, stop))
        text = f"File written successfully: {path} ({len(content)} bytes)"
        return text + await self._after_edit(use, where)

    async def edit(self, use: ToolUse) -> str:
        root, path = self.root_of(use), use.arguments["path"]
        edits = [(edit["oldText"], edit["newText"]) for edit in use.arguments["edits"]]
        text, where = await in_thread(lambda stop: text_files.edit(root, path, edits, stop))
        return text + await self._after_edit(use, where)

    async def _after_edit(self, use: ToolUse, where: Path) -> str:
        below = str(where.relative_to(working_dir_of(use)))
        said = ""
        for one in self.after_edits:
            if fnmatchcase(where.name, one["path"]) or fnmatchcase(below, one["path"]):
                given = {"path": str(where), "file": str(where)}
                shell = Shell(self.spec, self.environment)
                ran = await shell.run(use, one["cmd"], folder=".", seconds=SCRIPT_SECONDS, given=given)
                said += f"\nAfter it, `{one['cmd']}`: {result_text(ran, SCRIPT_SECONDS)}"
        return said

    async def make(self, use: ToolUse) -> str:
        root, paths = self.root_of(use), use.arguments["paths"]
        return await in_thread(lambda stop: _each(root, paths, make_folder_under, "created", stop))

    async def remove(self, use: ToolUse) -> str:
        root, paths = self.root_of(use), use.arguments["paths"]
        return await in_thread(lambda stop: _each(root, paths, remove_folder_under, "removed", stop))


def _each(
    root: Root, paths: Sequence[str], work: Callable[[Root, str], None], done: str, stop: StopSignal
) -> str:
    lines: list[str] = []
    for path in paths:
        stop.check()
        try:
            work(root, path)
        except ToolFailed as error:
            # What was done before stays done, and the model must know.
            raise ToolFailed("\n".join([*lines, f"Directory not {done}: {error}"])) from None
        lines.append(f"Directory {done} successfully: {path}")
    return "\n".join(lines)


def _read_all(root: Root, paths: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Reads the files in order, up to the limit of one file for all; failed reads say why."""
    room = READ_BYTES
    for path in paths:
        try:
            text = text_files.read_text(root, path, room)
        except ToolFailed as error:
            text = f"error: {error}"
        room = max(room - len(text), 0)
        yield path, text

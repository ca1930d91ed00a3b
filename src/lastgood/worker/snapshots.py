"""Makes a bounded snapshot of a working directory: its files, and the history if it is a git repository.

A snapshot is a gzipped tar: `files/PATH` for each file, and `repository.bundle`. Files with secrets are left
out, by name and by content; what is left out is listed with the reason, because nobody may believe in files
that are not there. A folder of the owner is only read.
"""

from __future__ import annotations

import difflib
import io
import os
import stat
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lastgood.worker.git_command import GitFailed, git, is_plain_repository, visible_files
from lastgood.worker.redaction import Redaction
from lastgood.worker.secret_files import holds_secrets, is_ignored
from lastgood.worker.work_dirs import WorkDir

MAX_BYTES = 16 * 1024 * 1024
#: Of the files in it; the rest is for the tar's own blocks.
_MAX_CONTENT = MAX_BYTES - 1024 * 1024
KIND = "tar+gzip"
BUNDLE = "repository.bundle"
_MAX_FILES = 20_000
_LISTED = 500
_PATCH_CHARACTERS = 200_000
_DIFFED_BYTES = 64 * 1024
_REMEMBERED_BYTES = 8 * 1024 * 1024
_SCANNED_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Before:
    size: int
    changed_ns: int
    text: str | None  # of small text files, to show what changed


@dataclass(frozen=True, slots=True)
class Baseline:
    """A directory as it was when the task started."""

    files: Mapping[str, _Before] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MadeSnapshot:
    body: bytes
    summary: dict[str, Any]


def remember(work_dir: WorkDir) -> Baseline:
    files: dict[str, _Before] = {}
    left = _REMEMBERED_BYTES
    for path, about in _files(work_dir.path):
        text = None
        if about.st_size <= min(_DIFFED_BYTES, left) and not holds_secrets(path):
            text = _text_of(work_dir.path / path)
            left -= about.st_size
        files[path] = _Before(about.st_size, about.st_mtime_ns, text)
    return Baseline(files)


def make_snapshot(work_dir: WorkDir, before: Baseline, redaction: Redaction) -> MadeSnapshot:
    """All files of a directory that the worker made; of an owner's folder, those that changed."""
    return _Maker(work_dir, before, redaction).made()


class _Maker:
    def __init__(self, work_dir: WorkDir, before: Baseline, redaction: Redaction) -> None:
        self._root, self._is_owned = work_dir.path, work_dir.is_owned
        self._before, self._redaction = before.files, redaction
        self._left_out: list[dict[str, str]] = []
        self._kept: list[str] = []
        self._changes: list[dict[str, str]] = []
        self._patch: list[str] = []
        self._body = io.BytesIO()
        self._bytes = 0  # uncompressed: this also bounds what another machine has to unpack

    def made(self) -> MadeSnapshot:
        now = dict(_files(self._root))
        with tarfile.open(fileobj=self._body, mode="w:gz", compresslevel=6) as archive:
            self._add_history(archive)
            for path, about in now.items():
                self._add(archive, path, about)
        for path in sorted(set(self._before) - set(now)):
            self._change(path, "deleted", self._before[path].text, "")
        patch = self._redaction.text("".join(self._patch))
        summary = {
            "files": len(self._kept),
            "changes": self._changes[:_LISTED],
            "changes_total": len(self._changes),
            "left_out": self._left_out[:_LISTED],
            "left_out_total": len(self._left_out),
            "patch": patch[:_PATCH_CHARACTERS],
            "patch_cut": len(patch) > _PATCH_CHARACTERS,
        }
        return MadeSnapshot(self._body.getvalue(), summary)

    def _add(self, archive: tarfile.TarFile, path: str, about: os.stat_result) -> None:
        before = self._before.get(path)
        is_changed = before is None or (before.size, before.changed_ns) != (about.st_size, about.st_mtime_ns)
        if not is_changed and not self._is_owned:
            return
        if reason := self._reason_against(path, about):
            self._left_out.append({"path": path, "reason": reason})
            return
        data = _read(self._root / path)
        if data is None or self._redaction.is_in(data):
            reason = "unreadable" if data is None else "contains a secret"
            self._left_out.append({"path": path, "reason": reason})
            return
        if is_changed:
            self._change(
                path, "modified" if before else "added", before.text if before else "", _decoded(data)
            )
        _add_bytes(archive, f"files/{path}", data, about.st_mode & 0o111)
        self._bytes += len(data)
        self._kept.append(path)

    def _reason_against(self, path: str, about: os.stat_result) -> str:
        if holds_secrets(path):
            return "may contain secrets"
        if not stat.S_ISREG(about.st_mode):
            return "not a regular file"
        if len(self._kept) >= _MAX_FILES:
            return f"more than {_MAX_FILES} files"
        if self._bytes + about.st_size > _MAX_CONTENT:
            return f"the snapshot would exceed {MAX_BYTES >> 20} MiB"
        return ""

    def _change(self, path: str, kind: str, old: str | None, new: str | None) -> None:
        self._changes.append({"path": path, "change": kind})
        if old is None or new is None or sum(map(len, self._patch)) > _PATCH_CHARACTERS:
            return
        if len(new) <= _DIFFED_BYTES:
            lines = difflib.unified_diff(
                old.splitlines(True), new.splitlines(True), f"a/{path}", f"b/{path}", n=3
            )
            self._patch += [
                line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
            ]

    def _add_history(self, archive: tarfile.TarFile) -> None:
        if not (self._root / ".git").exists():
            return
        try:
            bundle, reason = self._bundle()
        except GitFailed as error:
            bundle, reason = b"", f"git failed: {error}"
        if reason:
            self._left_out.append({"path": ".git", "reason": reason})
        else:
            _add_bytes(archive, BUNDLE, bundle, 0)
            self._bytes += len(bundle)

    def _bundle(self) -> tuple[bytes, str]:
        """The history of the current branch, or why it is left out."""
        root = self._root
        if not is_plain_repository(root):
            return b"", "its configuration is not plain, or it is not a whole repository"
        # --cc: of a merge, what is in none of its parents.
        names = git("log", "--cc", "--format=", "--name-only", "-z", "--no-renames", "HEAD", cwd=root).decode(
            errors="replace"
        )
        if any(holds_secrets(name) for name in names.split("\0") if name.strip()):
            return b"", "its history contains files that may hold secrets"
        patches = git(
            "log", "-p", "--cc", "--text", "--no-ext-diff", "--no-textconv", "--format=%B", "HEAD", cwd=root
        )
        if len(patches) > _SCANNED_BYTES or self._redaction.is_in(patches):
            return b"", "its history is too large, or contains a secret"
        with tempfile.TemporaryDirectory(prefix="lastgood-") as folder:
            file = Path(folder) / "bundle"
            git("bundle", "create", "--quiet", str(file), *_refs(root), cwd=root)
            if file.stat().st_size > MAX_BYTES // 2:
                return b"", f"its history exceeds {MAX_BYTES >> 21} MiB"
            return file.read_bytes(), ""


def _refs(root: Path) -> list[str]:
    try:
        branch = git("symbolic-ref", "--quiet", "--short", "HEAD", cwd=root).decode().strip()
    except GitFailed:  # detached
        return ["HEAD"]
    return ["HEAD", branch]


def _files(root: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Relative paths, sorted. Folders that tools make again and what .gitignore hides are left out."""
    try:
        paths = visible_files(root)
    except GitFailed:  # not installed
        paths = list(_walk(root))
    for path in sorted(paths):
        if is_ignored(path) or any("\udc80" <= letter <= "\udcff" for letter in path):
            continue
        try:
            yield path, (root / path).lstat()
        except OSError:
            continue


def _walk(root: Path) -> Iterator[str]:
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not is_ignored(name)]
        for name in names:
            yield Path(folder, name).relative_to(root).as_posix()


def _read(file: Path) -> bytes | None:
    """Without following a symbolic link that took the file's place meanwhile."""
    try:
        with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as opened:
            return opened.read(MAX_BYTES)
    except OSError:
        return None


def _decoded(data: bytes) -> str | None:
    try:
        return None if b"\0" in data else data.decode()
    except UnicodeDecodeError:
        return None


def _text_of(file: Path) -> str | None:
    data = _read(file)
    return None if data is None else _decoded(data)


def _add_bytes(archive: tarfile.TarFile, name: str, data: bytes, executable: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), 0o700 if executable else 0o600
    archive.addfile(entry, io.BytesIO(data))

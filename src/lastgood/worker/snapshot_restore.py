"""Unpacks a snapshot into an empty directory of the worker's own.

A snapshot was made on another machine and passed through a server: its names, sizes and links are not
trusted. It is unpacked whole or not at all.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import tarfile
import tempfile
import zlib
from pathlib import Path, PurePosixPath

from lastgood.worker.git_command import GitFailed, git
from lastgood.worker.snapshots import BUNDLE, MAX_BYTES
from lastgood.worker.work_dirs import WorkDir

_MAX_UNPACKED = 8 * MAX_BYTES
_MAX_MEMBERS = 50_000
_PREFIX = "files/"


class SnapshotRefused(Exception):
    """The snapshot is damaged or hostile; nothing was unpacked."""


def restore_snapshot(body: bytes, work_dir: WorkDir) -> None:
    """Raises SnapshotRefused; then the directory is as empty as before."""
    if not work_dir.is_owned or not work_dir.is_new or any(work_dir.path.iterdir()):
        raise SnapshotRefused("a snapshot is only unpacked into a new, empty directory of the worker's own")
    try:
        files, bundle = _read(body)
        for name, (data, mode) in files.items():
            _write(work_dir.path, name, data, mode)
        if bundle is not None:
            _add_history(work_dir.path, bundle)
    except (OSError, EOFError, tarfile.TarError, zlib.error, GitFailed) as error:
        _empty(work_dir.path)
        raise SnapshotRefused(f"the snapshot cannot be unpacked: {error}") from error
    except SnapshotRefused:
        _empty(work_dir.path)
        raise


def _read(body: bytes) -> tuple[dict[str, tuple[bytes, int]], bytes | None]:
    """Everything is checked before the first file is written."""
    if len(body) > MAX_BYTES:
        raise SnapshotRefused(f"the snapshot exceeds {MAX_BYTES >> 20} MiB")
    files: dict[str, tuple[bytes, int]] = {}
    bundle: bytes | None = None
    unpacked = 0
    with tarfile.open(fileobj=io.BytesIO(body), mode="r:gz") as archive:
        for number, member in enumerate(archive):
            unpacked += max(member.size, 0)
            if number >= _MAX_MEMBERS or unpacked > _MAX_UNPACKED:
                raise SnapshotRefused("the snapshot is larger than it may be when unpacked")
            if not member.isreg() or member.issparse():
                raise SnapshotRefused(f"the snapshot contains {member.name!r}, which is not a regular file")
            content = archive.extractfile(member)
            assert content is not None
            if member.name == BUNDLE:
                bundle = content.read()
            else:
                files[_checked(member.name)] = (content.read(), 0o700 if member.mode & 0o100 else 0o600)
    return files, bundle


def _checked(name: str) -> str:
    path = name.removeprefix(_PREFIX)
    parts = path.split("/")
    bad = path == name or "\0" in path or any(part in ("", ".", "..") for part in parts)
    # A `.git` from outside could name programs that git runs.
    if bad or any(part.lower().rstrip(". ") == ".git" for part in parts) or PurePosixPath(path).is_absolute():
        raise SnapshotRefused(f"the snapshot contains the path {name!r}, which leads outside or into .git")
    return path


def _write(root: Path, name: str, data: bytes, mode: int) -> None:
    *folders, last = name.split("/")
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        for part in folders:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o700, dir_fd=folder)
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            os.close(folder)
            folder = below
        file = os.open(last, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode, dir_fd=folder)
        with os.fdopen(file, "wb") as opened:
            opened.write(data)
    finally:
        os.close(folder)


def _add_history(root: Path, bundle: bytes) -> None:
    """The files are there already: only the repository is taken over, and its index is set to HEAD."""
    with tempfile.TemporaryDirectory(prefix="lastgood-", dir=root.parent) as folder:
        file = Path(folder) / "bundle"
        file.write_bytes(bundle)
        git("clone", "--quiet", "--no-checkout", "--template=", str(file), "clone", cwd=Path(folder))
        git("remote", "remove", "origin", cwd=Path(folder) / "clone")
        os.rename(Path(folder) / "clone" / ".git", root / ".git")
    git("reset", "--quiet", cwd=root)


def _empty(root: Path) -> None:
    for entry in root.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink()

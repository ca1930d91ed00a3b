"""Runs git on folders that an agent may have changed, so that nothing in them is executed.

A repository's configuration can name programs (filters, hooks, fsmonitor, pagers). Only repositories whose
configuration consists of harmless keys are opened, and the configuration of user and system is not read.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path

_SECONDS = 60.0
_HARMLESS = re.compile(
    r"core\.(repositoryformatversion|filemode|bare|logallrefupdates|ignorecase|precomposeunicode|symlinks|"
    r"autocrlf|eol)|remote\..+\.(url|fetch|tagopt|pushurl)|branch\..+\.(remote|merge|rebase)|"
    r"user\.(name|email)|init\.defaultbranch|pull\.rebase|push\.default|commit\.gpgsign|advice\..+|"
    r"extensions\.objectformat"
)


class GitFailed(Exception):
    """git is missing, failed or took too long."""


def git(*arguments: str, cwd: Path, seconds: float = _SECONDS, stdin: bytes = b"") -> bytes:
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": "/nonexistent",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_ALLOW_PROTOCOL": "file",
        "LC_ALL": "C",
    }
    options = ["-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "safe.directory=*"]
    try:
        done = subprocess.run(
            ["git", "--no-pager", *options, *arguments],
            cwd=cwd,
            env=environment,
            input=stdin,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GitFailed(str(error)) from error
    if done.returncode != 0:
        raise GitFailed(done.stderr.decode(errors="replace").strip()[-500:])
    return done.stdout


def is_plain_repository(folder: Path) -> bool:
    """Whether git may be run in this folder: it is the top of a repository, and nothing in it is executed."""
    metadata = folder / ".git"
    config = metadata / "config"
    if metadata.is_symlink() or not metadata.is_dir() or not config.is_file():
        return False
    foreign = (metadata / "shallow", metadata / "objects/info/alternates", metadata / "config.worktree")
    if any(file.exists() for file in foreign):
        return False
    try:
        listing = git(
            "config", "--file", str(config), "--no-includes", "--list", "--name-only", "-z", cwd=folder
        )
    except GitFailed:
        return False
    keys = listing.decode(errors="replace").split("\0")
    return all(_HARMLESS.fullmatch(key) for key in keys if key)


def visible_files(folder: Path) -> list[str]:
    """Files that no .gitignore hides, by git's own rules, whether or not the folder is a repository. Files of
    repositories inside it are listed, too. Raises GitFailed."""
    with tempfile.TemporaryDirectory(prefix="lastgood-") as empty:
        git("init", "--quiet", "--bare", "--template=", empty, cwd=Path(empty))
        return _visible(Path(empty), folder, "", depth=0)


def _visible(git_dir: Path, folder: Path, prefix: str, depth: int) -> list[str]:
    where = (f"--git-dir={git_dir}", f"--work-tree={folder}", "-c", "core.bare=false")
    listing = git(*where, "ls-files", "-z", "--others", "--exclude-standard", cwd=folder)
    found: list[str] = []
    for name in listing.decode("utf-8", "surrogateescape").split("\0"):
        if name.endswith("/"):  # a repository of its own
            if depth < 3:
                found += _visible(git_dir, folder / name, f"{prefix}{name}", depth + 1)
        elif name:
            found.append(f"{prefix}{name}")
    return found

"""What a .gitignore hides; git itself is asked whether that is right."""

import subprocess
import time
from pathlib import Path

import pytest

from lastgood.engine.tools.gitignore import IgnoreRules

FILES = ["a", "a.log", "b/a.log", "b/c/a.log", "build/x", "b/build/x", "b/c/d/e", "doc/x.txt", "doc/y/x.txt",
         "#odd", "!odd", "x y", "trail ", "foo/bar", "b/foo/bar", "star*", "abc", "aXc", "a[c"]  # fmt: skip


@pytest.mark.parametrize(
    "patterns",
    [
        "*.log",
        "/a.log",
        "b/a.log",
        "b/*.log",
        "build/",
        "/build",
        "build",
        "**/build",
        "b/**",
        "b/**/a.log",
        "**/c/**",
        "doc/*.txt",
        "doc/**/*.txt",
        "foo/bar",
        "**/foo/bar",
        "a?c",
        "a[bX]c",
        "a[!b]c",
        "a[^b]c",
        "\\#odd\n\\!odd",
        "# a comment\n\n*.log\n!/a.log",
        "*.log\n!b/a.log\n/b/a.log",
        "x y",
        "trail\\ ",
        "a.log   ",
        "star\\*",
        "b/c/",
        "/*\n!/b",
        "!a",
    ],
)
def test_it_hides_what_git_ignores(tmp_path: Path, patterns: str) -> None:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / ".gitignore").write_text(patterns)
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    listed = ["git", "-C", str(tmp_path), "ls-files", "-z", "--others", "--exclude-standard"]
    theirs = subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split("\0")
    assert sorted(_visible(tmp_path, IgnoreRules().within("", patterns))) == sorted(filter(None, theirs))


def _visible(root: Path, ignored: IgnoreRules) -> list[str]:
    found = []

    def walk(folder: Path) -> None:
        for path in folder.iterdir():
            below = str(path.relative_to(root))
            if ignored.hides(below, path.is_dir()):
                continue
            if path.is_dir():
                walk(path)
            else:
                found.append(below)

    walk(root)
    return found


def test_rules_further_down_come_first() -> None:
    above = IgnoreRules().within("", "*.log\n/only")
    below = above.within("b", "!a.log\n/only")
    assert above.hides("b/a.log", False)
    assert not below.hides("b/a.log", False)
    assert below.hides("b/c.log", False)
    assert below.hides("b/only", False)
    assert not below.hides("b/c/only", False)


def test_I40_no_pattern_keeps_us_busy() -> None:
    patterns = "\n".join(["*a" * 100 + "b", "**/" * 100 + "x", "a/**/" * 60 + "b", "[" * 1000])
    path = "/".join(["a" * 200] * 60)
    began = time.process_time()
    IgnoreRules().within("", patterns).hides(path, False)
    assert time.process_time() - began < 2

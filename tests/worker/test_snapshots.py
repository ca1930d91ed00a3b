"""Snapshots: what changed goes along, secrets do not, and a hostile one is not unpacked."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from lastgood.worker.redaction import Redaction
from lastgood.worker.snapshot_restore import SnapshotRefused, restore_snapshot
from lastgood.worker.snapshots import BUNDLE, MAX_BYTES, Baseline, MadeSnapshot, make_snapshot, remember
from lastgood.worker.work_dirs import WorkDir, WorkDirs

CANARY = "canary-5be1f0a29c"
KEY = f"-----BEGIN OPENSSH PRIVATE KEY-----\n{CANARY}\n-----END OPENSSH PRIVATE KEY-----\n"
NOTHING = Redaction(())


def names(made: MadeSnapshot) -> set[str]:
    with tarfile.open(fileobj=io.BytesIO(made.body)) as archive:
        return {member.name.removeprefix("files/") for member in archive}


def contents(made: MadeSnapshot) -> bytes:
    return gzip.decompress(made.body) + repr(made.summary).encode()


def left_out(made: MadeSnapshot) -> dict[str, str]:
    return {one["path"]: one["reason"] for one in made.summary["left_out"]}


def git(folder: Path, *words: str) -> str:
    options = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    return subprocess.run(
        ["git", *options, *words], cwd=folder, check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture
def dirs(tmp_path: Path) -> WorkDirs:
    return WorkDirs(tmp_path / "root")


@pytest.fixture
def own(dirs: WorkDirs) -> WorkDir:
    return dirs.create("session")


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_files_come_back_on_another_machine(own: WorkDir, dirs: WorkDirs) -> None:
    write(own.path, {"a.txt": "one\n", "src/deep/b.py": "print(1)\n", "run.sh": "#!/bin/sh\n"})
    (own.path / "run.sh").chmod(0o755)
    made = make_snapshot(own, Baseline(), NOTHING)
    there = dirs.create("elsewhere")
    restore_snapshot(made.body, there)
    assert (there.path / "src/deep/b.py").read_text() == "print(1)\n"
    assert os.access(there.path / "run.sh", os.X_OK)
    assert not os.access(there.path / "a.txt", os.X_OK)


def test_the_summary_shows_what_changed(own: WorkDir) -> None:
    write(own.path, {"same.txt": "s\n", "old.txt": "one\ntwo\n", "gone.txt": "bye\n"})
    before = remember(own)
    write(own.path, {"old.txt": "one\nthree\n", "new.txt": "hello\n"})
    (own.path / "gone.txt").unlink()
    summary = make_snapshot(own, before, NOTHING).summary
    assert {one["path"]: one["change"] for one in summary["changes"]} == {
        "old.txt": "modified",
        "new.txt": "added",
        "gone.txt": "deleted",
    }
    for line in ("-two", "+three", "+hello", "-bye"):
        assert f"{line}\n" in summary["patch"]
    assert "same.txt" not in summary["patch"]


@pytest.mark.parametrize(
    "name",
    [
        ".env", ".env.local", "config/.env", "prod.env", "server.pem", "tls.KEY", "id_rsa", "id_ed25519.pub",
        ".netrc", "credentials", "gcp-credentials-1.json", ".aws/config", "home/.ssh/known_hosts", ".npmrc",
        "secrets.yaml", "terraform.tfstate",
    ],
)  # fmt: skip
def test_a_file_with_secrets_is_in_no_snapshot(own: WorkDir, name: str) -> None:
    write(own.path, {name: f"TOKEN={CANARY}\n", "ok.txt": "fine\n"})
    made = make_snapshot(own, Baseline(), NOTHING)
    assert names(made) == {"ok.txt"}
    assert CANARY.encode() not in contents(made)
    assert left_out(made) == {name: "may contain secrets"}


def test_a_secret_in_an_ordinary_file_is_in_no_snapshot(own: WorkDir) -> None:
    write(own.path, {"notes.md": f"the token is {CANARY}\n", "key.txt": KEY, "ok.txt": "fine\n"})
    before = remember(own)
    made = make_snapshot(own, before, Redaction([CANARY]))
    assert names(made) == {"ok.txt"}
    assert CANARY.encode() not in contents(made)
    assert set(left_out(made)) == {"notes.md", "key.txt"}


API_KEY = "ghp_Ab3dEf6hIj9lMn2pQr5tUv8xYz1bCd4eFg7h"


def test_an_api_key_that_nobody_named_is_in_no_snapshot(own: WorkDir) -> None:
    write(own.path, {"deploy.sh": f"curl -H 'token: {API_KEY}'\n", "ok.txt": "fine\n"})
    made = make_snapshot(own, remember(own), NOTHING)
    assert names(made) == {"ok.txt"}
    assert left_out(made) == {"deploy.sh": "contains a secret"}
    assert API_KEY.encode() not in contents(made)


@pytest.mark.parametrize("where", ["file", "message", "merge"])
def test_a_history_with_an_api_key_is_in_no_snapshot(own: WorkDir, where: str) -> None:
    git(own.path, "init", "-q", "-b", "main")
    write(own.path, {"a.txt": API_KEY if where == "file" else "one"})
    git(own.path, "add", "-A")
    git(own.path, "commit", "-qm", API_KEY if where == "message" else "first")
    if where == "merge":  # in none of its parents
        git(own.path, "checkout", "-qb", "side")
        git(own.path, "commit", "-q", "--allow-empty", "-m", "side")
        git(own.path, "checkout", "-q", "main")
        git(own.path, "merge", "-q", "--no-ff", "--no-commit", "side")
        write(own.path, {"a.txt": API_KEY})
        git(own.path, "commit", "-qam", "merge")
    write(own.path, {"a.txt": "clean"})
    git(own.path, "commit", "-qam", "last", "--allow-empty")
    made = make_snapshot(own, Baseline(), NOTHING)
    assert names(made) == {"a.txt"}
    assert left_out(made) == {".git": "its history is too large, or contains a secret"}
    assert API_KEY.encode() not in contents(made)


def test_a_template_of_an_env_file_is_no_secret(own: WorkDir) -> None:
    write(own.path, {".env.example": "TOKEN=\n"})
    assert names(make_snapshot(own, Baseline(), NOTHING)) == {".env.example"}


def test_what_gitignore_hides_and_tools_make_is_left_out(own: WorkDir) -> None:
    write(
        own.path,
        {
            ".gitignore": "*.log\nbuild/\n",
            "x.log": "l",
            "build/out": "b",
            "node_modules/m/index.js": "n",
            ".venv/bin/python": "p",
            "sub/__pycache__/a.pyc": "c",
            "keep.txt": "k",
        },
    )
    assert names(make_snapshot(own, Baseline(), NOTHING)) == {".gitignore", "keep.txt"}


def test_links_are_left_out_and_said(own: WorkDir, tmp_path: Path) -> None:
    (tmp_path / "outside.txt").write_text(CANARY)
    (own.path / "link").symlink_to(tmp_path / "outside.txt")
    made = make_snapshot(own, Baseline(), NOTHING)
    assert (names(made), left_out(made)) == (set(), {"link": "not a regular file"})
    assert CANARY.encode() not in contents(made)


def test_a_snapshot_is_bounded_and_says_what_is_missing(own: WorkDir) -> None:
    (own.path / "a-big.bin").write_bytes(os.urandom(10 << 20))
    (own.path / "b-big.bin").write_bytes(os.urandom(10 << 20))
    (own.path / "small.txt").write_text("s")
    made = make_snapshot(own, Baseline(), NOTHING)
    assert len(made.body) <= MAX_BYTES
    assert names(made) == {"a-big.bin", "small.txt"}
    assert left_out(made) == {"b-big.bin": "the snapshot would exceed 16 MiB"}


def test_a_repository_keeps_its_history_and_what_is_not_committed(own: WorkDir, dirs: WorkDirs) -> None:
    git(own.path, "init", "-q", "-b", "feature")
    write(own.path, {"a.txt": "one\n", "b.txt": "b\n", "c.txt": "c\n"})
    git(own.path, "add", "-A")
    git(own.path, "commit", "-qm", "first")
    write(own.path, {"a.txt": "two\n", "untracked.txt": "new\n"})
    (own.path / "c.txt").unlink()
    status = git(own.path, "status", "--porcelain")
    made = make_snapshot(own, Baseline(), NOTHING)
    assert BUNDLE in names(made)
    there = dirs.create("elsewhere")
    restore_snapshot(made.body, there)
    assert git(there.path, "log", "--format=%s %D").strip() == "first HEAD -> feature"
    assert git(there.path, "status", "--porcelain") == status
    assert git(own.path, "status", "--porcelain") == status


def test_a_secret_in_the_history_keeps_the_history_at_home(own: WorkDir) -> None:
    git(own.path, "init", "-q")
    write(own.path, {".env": CANARY, "a.txt": "a\n"})
    git(own.path, "add", "-fA")
    git(own.path, "commit", "-qm", "first")
    git(own.path, "rm", "-q", ".env")
    git(own.path, "commit", "-qm", "second")
    made = make_snapshot(own, Baseline(), NOTHING)
    assert (names(made), ".git" in left_out(made)) == ({"a.txt"}, True)


def test_a_repository_cannot_make_the_worker_run_a_program(own: WorkDir, tmp_path: Path) -> None:
    git(own.path, "init", "-q")
    write(own.path, {"a.txt": "a\n", ".gitattributes": "*.txt filter=evil diff=evil\n"})
    git(own.path, "add", "-A")
    git(own.path, "commit", "-qm", "first")
    trap = tmp_path / "trap"
    for key in (
        "filter.evil.clean",
        "filter.evil.smudge",
        "core.fsmonitor",
        "diff.evil.textconv",
        "core.pager",
    ):
        git(own.path, "config", key, f"touch {trap}; cat")
    write(own.path, {"a.txt": "b\n"})
    made = make_snapshot(own, remember(own), NOTHING)
    assert not trap.exists()
    assert BUNDLE not in names(made)
    assert "a.txt" in names(made)


def test_a_clone_inside_a_directory_goes_along_as_files(own: WorkDir) -> None:
    (own.path / "clone").mkdir()
    git(own.path / "clone", "init", "-q")
    write(own.path, {"clone/a.txt": "a\n", "clone/.gitignore": "*.log\n", "clone/x.log": "x"})
    assert names(make_snapshot(own, Baseline(), NOTHING)) == {"clone/a.txt", "clone/.gitignore"}


def test_a_folder_of_the_owner_stays_as_it_was_and_only_changes_go_along(tmp_path: Path) -> None:
    project = tmp_path / "project"
    write(project, {"old.txt": "old\n", "dirty.txt": "not committed\n"})
    theirs = WorkDir(project, is_owned=False)
    before = remember(theirs)
    write(project, {"new.txt": "new\n"})
    listing = sorted((path.name, path.stat().st_mtime_ns) for path in project.rglob("*"))
    made = make_snapshot(theirs, before, NOTHING)
    assert names(made) == {"new.txt"}
    assert sorted((path.name, path.stat().st_mtime_ns) for path in project.rglob("*")) == listing


# --- hostile snapshots -------------------------------------------------------------------------------------


def packed(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w:gz") as archive:
        for member, data in members:
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return body.getvalue()


def entry(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


@pytest.mark.parametrize(
    "hostile",
    [
        entry("files/../../escaped.txt"),
        entry("files/a/../../../escaped.txt"),
        entry("/etc/escaped.txt"),
        entry("files//etc/escaped.txt"),
        entry("escaped.txt"),
        entry("files/.git/hooks/pre-commit"),
        entry("files/sub/.GIT/config"),
        entry("files/link", tarfile.SYMTYPE, "/etc"),
        entry("files/hard", tarfile.LNKTYPE, "files/good.txt"),
        entry("files/pipe", tarfile.FIFOTYPE),
        entry("files/device", tarfile.CHRTYPE),
        entry("files/good.txt/below"),
    ],
    ids=lambda member: f"{member.name}-{member.type.decode()}",
)
def test_a_hostile_snapshot_is_refused_whole(own: WorkDir, tmp_path: Path, hostile: tarfile.TarInfo) -> None:
    body = packed((entry("files/good.txt"), b"good"), (hostile, b""))
    with pytest.raises(SnapshotRefused):
        restore_snapshot(body, own)
    assert list(own.path.iterdir()) == []
    assert list(tmp_path.rglob("*escaped*")) == []


def test_a_bomb_and_garbage_are_refused(own: WorkDir) -> None:
    bomb = packed((entry("files/zeros"), b"\0" * (9 * MAX_BYTES)))
    assert len(bomb) < MAX_BYTES
    for body in (bomb, b"garbage", packed((entry("files/a"), b"a" * 5000))[:-40]):
        with pytest.raises(SnapshotRefused):
            restore_snapshot(body, own)
        assert list(own.path.iterdir()) == []


def test_nothing_is_restored_over_somebodys_work(own: WorkDir, dirs: WorkDirs, tmp_path: Path) -> None:
    made = make_snapshot(own, Baseline(), NOTHING)
    (tmp_path / "project").mkdir()
    used = dirs.create("used")
    (used.path / "mine.txt").write_text("mine")
    for there in (WorkDir(tmp_path / "project", is_owned=False), used, dirs.find(str(own.path))):
        with pytest.raises(SnapshotRefused, match="new, empty directory"):
            restore_snapshot(made.body, there)
    assert (used.path / "mine.txt").read_text() == "mine"

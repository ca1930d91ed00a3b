"""What a streamed turn of a local agent reads: its session once, and nothing about runtimes."""

from pathlib import Path

import pytest

from tests.bench.statements import statements_of_turns

pytestmark = pytest.mark.anyio

#: Reads that the turn itself needs: its session, and its events where the run does not hand them over.
READS = {"locate_session", "locate_conversation", "read_events"}


def _is_read(statement: str) -> bool:
    return statement.startswith(("get_", "find_", "list_", "read_", "locate_", "look_"))


async def test_a_local_turn_reads_its_session_once_and_no_binding(tmp_path: Path) -> None:
    for route, counts in (await statements_of_turns(tmp_path)).items():
        reads = {name: count for name, count in counts.items() if _is_read(name)}
        assert set(reads) <= READS, (route, reads)
        assert reads.get("locate_session", 0) + reads.get("locate_conversation", 0) == 1, (route, reads)

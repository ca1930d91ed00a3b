import pytest

from lastgood.core.work_protocol import why_incompatible


@pytest.mark.parametrize(
    ("worker", "server", "upgrade"),
    [(1, 1, None), (1, 2, None), (2, 1, None), (1, 3, "worker"), (3, 1, "server"), (2, 9, "worker")],
)
def test_I30_releases_one_apart_work_together_and_others_say_what_to_upgrade(
    worker: int, server: int, upgrade: str | None
) -> None:
    problem = why_incompatible(worker=worker, server=server)
    assert (problem is None) == (upgrade is None)
    assert upgrade is None or f"Upgrade the {upgrade}" in (problem or "")

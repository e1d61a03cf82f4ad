"""Which items `bench/experts.py` plays."""

import pytest

from bench.experts import measure
from envs.registry import get_env


@pytest.mark.parametrize("items", [None, 60])
async def test_the_items_are_all_of_a_split_or_evenly_over_it(items: int | None) -> None:
    test = [item.item_id for item in get_env("textcraft").split(0).test]
    # No episode earns so much, so that all that were played are named.
    report = await measure("textcraft", items=items, marks=2.0, live=4, test=True)
    failed = report["failed"]
    assert isinstance(failed, list)
    played = [test.index(item_id) for item_id in failed]
    assert len(played) == (100 if items is None else items)
    gaps = [after - before for before, after in zip(played, [*played[1:], len(test)], strict=True)]
    assert played[0] == 0
    assert set(gaps) == ({1} if items is None else {1, 2})
    assert sum(gap == 2 for gap in gaps[:30]) == (0 if items is None else 20)

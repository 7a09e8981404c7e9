"""Rows of one more measurement beside those that are kept."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from experiments.kept_rows import add_rows

KEYS = ("llm", "prompt")
ROWS = st.dictionaries(st.tuples(st.sampled_from("ab"), st.integers(0, 3)), st.none() | st.integers(0, 9))


def table(rows: dict[tuple[str, int], int | None], name: str = "value") -> pa.Table:
    llms, prompts = [key[0] for key in rows], [key[1] for key in rows]
    types = {"llm": pa.string(), "prompt": pa.int64(), name: pa.int64()}
    return pa.table({"llm": llms, "prompt": prompts, name: list(rows.values())}, pa.schema(list(types.items())))


def values(found: pa.Table, name: str = "value") -> dict[tuple[str, int], int | None]:
    return {(row["llm"], row["prompt"]): row[name] for row in found.to_pylist()}


@given(ROWS, ROWS)
def test_every_row_is_kept_once_and_a_new_value_replaces_an_old_one(
    old: dict[tuple[str, int], int | None], new: dict[tuple[str, int], int | None]
) -> None:
    found = add_rows(table(old), table(new), KEYS)
    assert len(found) == len({*old, *new})
    assert values(found) == {**old, **{key: value for key, value in new.items() if value is not None or key not in old}}
    assert [*values(found)][: len(old)] == [*old]


def test_columns_of_both_are_kept_and_empty_where_a_table_lacks_the_row() -> None:
    found = add_rows(table({("a", 0): 1, ("a", 1): 2}), table({("a", 1): 3, ("b", 0): 4}, "other"), KEYS)
    assert values(found) == {("a", 0): 1, ("a", 1): 2, ("b", 0): None}
    assert values(found, "other") == {("a", 0): None, ("a", 1): 3, ("b", 0): 4}

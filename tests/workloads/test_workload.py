from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.errors import InputError
from lengthwise.workloads import LeftOut, Workload
from lengthwise.workloads.workload import SCHEMA
from tests.workloads.strategies import workloads


def three(**columns: Any) -> dict[str, Any]:
    return {"arrival_s": [0.0, 1.0, 4.0], "input_tokens": [10, 20, 30], "output_tokens": [5, 6, 7], **columns}


def small(**columns: Any) -> Workload:
    return Workload.from_table(three(**columns), name="small", block_size=16)


def test_columns_have_the_canonical_order() -> None:
    table = pa.table(dict(reversed(three(extra=["a", "b", "c"]).items())))
    workload = Workload.from_table(table, name="w")
    assert workload.table.schema.names == SCHEMA.names
    assert workload.table.column("priority").to_pylist() == [0, 0, 0]
    assert workload.table.column("prompt").null_count == 3


def test_narrow_and_dictionary_types_are_widened() -> None:
    table = pa.table(
        {
            "arrival_s": pa.array([0, 1], pa.int32()),
            "input_tokens": pa.array([1, 2], pa.int16()),
            "output_tokens": pa.array([3.0, 4.0]),
            "llm": pa.array(["a", "a"]).dictionary_encode(),
        }
    )
    workload = Workload.from_table(table, name="w")
    assert workload.table.schema.types == SCHEMA.types
    assert workload.output_tokens.tolist() == [3, 4]


@pytest.mark.parametrize(
    ("column", "values", "row"),
    [
        ("arrival_s", [0.0, math.nan, 2.0], 2),
        ("arrival_s", [0.0, 2.0, 1.0], 3),
        ("arrival_s", [-1.0, 2.0, 3.0], 1),
        ("arrival_s", [0.0, math.inf, math.inf], 2),
        ("input_tokens", [1, 0, 1], 2),
        ("input_tokens", ["1", "two", "3"], 2),
        ("input_tokens", [1, None, 3], 2),
        ("output_tokens", [1, 2, -3], 3),
        ("output_tokens", [1.0, 2.5, 3.0], 2),
        ("max_tokens", [None, None, 0], 3),
        ("sample_mean", [None, -1.0, 3.0], 2),
        ("ttft_limit_s", [None, 0.0, 3.0], 2),
        ("per_token_limit_s", [0.1, 0.1, -3.0], 3),
        ("e2e_limit_s", [math.nan, None, 3.0], 1),
        ("block_hashes", [[], [1, 2, 3], [1]], 2),
        ("block_hashes", [[], [], [-1]], 3),
        ("priority", ["high", "low", "low"], 1),
    ],
)
def test_the_first_bad_cell_is_named_by_source_row_and_field(column: str, values: list[Any], row: int) -> None:
    with pytest.raises(InputError) as caught:
        Workload.from_table(three(**{column: values}), name="w", block_size=16, source="w.csv")
    assert (caught.value.source, caught.value.row, caught.value.field) == ("w.csv", row, column)
    assert caught.value.hint
    assert "\n" not in str(caught.value)


def test_a_missing_column_is_named_with_the_present_ones() -> None:
    with pytest.raises(InputError, match=r"field 'output_tokens': missing column .*arrival_s, input_tokens\)"):
        Workload.from_table({"arrival_s": [0.0], "input_tokens": [1]}, name="w")


def test_a_column_of_another_type_is_refused() -> None:
    with pytest.raises(InputError, match="field 'input_tokens'") as caught:
        Workload.from_table(three(input_tokens=[[1], [2], [3]]), name="w")
    assert caught.value.row is None


def test_block_hashes_need_a_block_size() -> None:
    with pytest.raises(InputError, match="tokens per block hash"):
        Workload.from_table(three(block_hashes=[[], [], [1]]), name="w")


@given(workloads(), st.data())
def test_the_hash_depends_neither_on_chunks_nor_on_the_name(workload: Workload, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(workload)))
    pieces = pa.concat_tables([workload.table.slice(0, cut), workload.table.slice(cut)])
    other = Workload.from_table(pieces, name="other", block_size=16, left_out=(LeftOut("rule", 1),))
    assert other.content_hash == workload.content_hash
    assert other == workload
    assert hash(other) == hash(workload)


@given(workloads())
def test_the_hash_of_a_slice_is_that_of_its_rows(workload: Workload) -> None:
    for n in range(1, len(workload) + 1):
        rebuilt = Workload.from_table(
            pa.Table.from_pylist(workload.table.slice(0, n).to_pylist(), schema=SCHEMA),
            name="w",
            block_size=16,
        )
        assert workload.head(n) == rebuilt


@given(workloads(), st.data())
def test_any_changed_cell_changes_the_hash(workload: Workload, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(SCHEMA.names))
    row = data.draw(st.integers(0, len(workload) - 1))
    cells = workload.table[name].to_pylist()
    cells[row] = _another(cells[row], name)
    changed = workload.table.set_column(
        SCHEMA.names.index(name), SCHEMA.field(name), pa.array(cells, SCHEMA.field(name).type)
    )
    assert Workload(changed, "w", workload.block_size).content_hash != workload.content_hash


def _another(cell: Any, name: str) -> Any:
    if name == "block_hashes":
        return [*cell, 7]
    if name in ("prompt", "llm", "tenant", "session", "template", "request_class"):
        return "" if cell is None else None
    return 1 if cell is None else cell + 1


def test_text_moved_between_rows_changes_the_hash() -> None:
    assert small(prompt=["ab", "c", ""]) != small(prompt=["a", "bc", ""])


def test_another_block_size_changes_the_hash() -> None:
    hashes = [[], [], [1]]
    assert small(block_hashes=hashes) != small(block_hashes=hashes).replace(block_size=17)


def test_a_workload_cannot_be_changed_in_place() -> None:
    workload = small()
    with pytest.raises(ValueError, match="read-only"):
        workload.output_tokens[0] = 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        workload.name = "other"  # type: ignore[misc]


def test_replace_validates_new_columns() -> None:
    workload = small().replace(llm="a", output_tokens=np.array([1, 2, 3]))
    assert workload.table["llm"].to_pylist() == ["a", "a", "a"]
    assert workload.output_tokens.tolist() == [1, 2, 3]
    with pytest.raises(InputError, match="row 2, field 'output_tokens'"):
        workload.replace(output_tokens=[1, 0, 1])
    with pytest.raises(InputError, match="no such column"):
        workload.replace(colour="red")


def test_a_limit_caps_true_lengths_and_sets_max_tokens() -> None:
    workload = small().limited_to(6)
    assert workload.output_tokens.tolist() == [5, 6, 6]
    assert workload.table["max_tokens"].to_pylist() == [6, 6, 6]
    assert small().limited_to(None) == small()
    with pytest.raises(InputError, match="field 'max_tokens'"):
        small().limited_to(0)


def test_rate_counts_gaps_not_requests() -> None:
    workload = small()
    assert workload.duration_s == 4.0
    assert workload.rate == 0.5
    assert workload.has_arrivals


def test_a_batch_has_no_arrivals() -> None:
    batch = small(arrival_s=[0.0, 0.0, 0.0])
    assert not batch.has_arrivals
    assert batch.rate == math.inf
    assert batch.describe().rate is None
    assert batch.describe().arrival_cv is None


def test_blocks_are_returned_by_row() -> None:
    workload = small(block_hashes=[None, [2], [2, 3]])
    assert [workload.blocks(row).tolist() for row in range(3)] == [[], [2], [2, 3]]
    assert workload.has_blocks
    assert not small().has_blocks


def test_the_repeated_share_counts_only_blocks_before_the_first_new_one() -> None:
    # 16-token blocks. Row 2 repeats block 1; row 3 repeats 1 and, behind a new block, 2: only 1 is a prefix.
    workload = Workload.from_table(
        {
            "arrival_s": [0.0, 1.0, 2.0],
            "input_tokens": [32, 20, 48],
            "output_tokens": [1, 1, 1],
            "block_hashes": [[1, 2], [1], [1, 9, 2]],
        },
        name="w",
        block_size=16,
    )
    assert workload.describe().repeated_prefix == pytest.approx(32 / 100)


def test_a_repeated_partial_block_counts_the_tokens_there_are() -> None:
    workload = Workload.from_table(
        {
            "arrival_s": [0.0, 1.0],
            "input_tokens": [20, 20],
            "output_tokens": [1, 1],
            "block_hashes": [[1, 2], [1, 2]],
        },
        name="w",
        block_size=16,
    )
    assert workload.describe().repeated_prefix == pytest.approx(0.5)


def test_statistics_are_those_of_the_columns() -> None:
    statistics = small().describe()
    assert (statistics.requests, statistics.rate) == (3, 0.5)
    assert statistics.arrival_cv == pytest.approx(0.5)
    assert (statistics.input.mean, statistics.input.p50, statistics.input.max) == (20.0, 20.0, 30)
    assert statistics.repeated_prefix is None


def test_an_empty_workload_is_valid() -> None:
    empty = small().head(0)
    assert len(empty) == 0
    assert empty.describe().requests == 0
    assert empty.content_hash != small().content_hash


def test_columns_without_values_that_came_later_leave_the_hash_as_it_was() -> None:
    workload = small()
    assert workload.replace(ttft_limit_s=2.0) != workload
    assert workload.replace(ttft_limit_s=None, request_class=None) == workload
    assert workload.limit("ttft_limit_s").tolist() == [math.inf] * len(workload)

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lengthwise.errors import InputError
from lengthwise.workloads import LeftOut, read_workload
from lengthwise.workloads.formats import estimate_tokens


def turn(role: str, text: str) -> dict[str, str]:
    return {"from": role, "value": text}


def write(path: Path, *conversations: list[dict[str, str]]) -> Path:
    data = [{"id": f"c{i}", "conversations": turns} for i, turns in enumerate(conversations)]
    path.write_text(json.dumps(data))
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "sharegpt.json"


def test_each_answered_human_turn_is_a_request_of_its_session(file: Path) -> None:
    write(
        file,
        [turn("human", "one"), turn("gpt", "uno"), turn("human", "two"), turn("gpt", "dos, dos")],
        [turn("user", "three"), turn("assistant", "tres")],
    )
    workload = read_workload(file)
    assert workload.table["session"].to_pylist() == ["c0", "c0", "c1"]
    assert workload.table["prompt"].to_pylist() == [
        "user: one\n\nassistant:",
        "user: one\n\nassistant: uno\n\nuser: two\n\nassistant:",
        "user: three\n\nassistant:",
    ]
    assert workload.output_tokens.tolist() == [1, 2, 1]
    assert not workload.has_arrivals
    assert workload.left_out == ()


def test_prompts_and_blocks_of_a_conversation_grow_with_its_turns(file: Path) -> None:
    turns = [turn(role, f"{role} turn {i} " * 60) for i in range(4) for role in ("human", "gpt")]
    workload = read_workload(write(file, turns))
    prompts = workload.table["prompt"].to_pylist()
    for row in range(1, len(workload)):
        assert prompts[row].startswith(prompts[row - 1])
        before = workload.blocks(row - 1)
        assert workload.blocks(row)[: len(before)].tolist() == before.tolist()
    assert len(workload.blocks(3)) > len(workload.blocks(0)) > 0


def test_left_out_turns_are_counted_by_rule(file: Path) -> None:
    write(
        file,
        [turn("gpt", "going on from before")],
        [],
        [turn("human", "a"), turn("gpt", ""), turn("human", "b"), turn("human", "c"), turn("gpt", "d")],
        [turn("system", "be brief"), turn("human", "e"), turn("gpt", "f"), turn("human", "g")],
    )
    workload = read_workload(file)
    assert len(workload) == 2
    assert set(workload.left_out) == {
        LeftOut("conversations without a human turn that is answered", 2),
        LeftOut("turns answered with an empty text", 1),
        LeftOut("human turns without an answer", 2),
    }
    assert workload.table["prompt"].to_pylist()[1].startswith("system: be brief\n\nuser: e")


def test_a_given_tokenizer_replaces_the_estimate(file: Path) -> None:
    write(file, [turn("human", "a b c"), turn("gpt", "d e")])
    workload = read_workload(file, count_tokens=lambda text: len(text.split()))
    assert (workload.input_tokens.tolist(), workload.output_tokens.tolist()) == ([5], [2])


def test_the_estimate_is_one_token_per_four_bytes() -> None:
    assert [estimate_tokens(text) for text in ("", "a", "abcd", "abcde", "é" * 4)] == [0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("data", "row", "field"),
    [
        ([{"id": "a", "conversations": []}, {"id": "b"}], 2, "conversations"),
        ([{"id": "a", "conversations": "hello"}], 1, "conversations"),
        ([{"id": "a", "conversations": [{"from": "human"}]}], 1, "value"),
        ([{"id": "a", "conversations": [{"value": "x"}]}], 1, "from"),
        ([{"id": "a", "conversations": ["x"]}], 1, "from"),
        ([{"id": "a", "conversations": []}], None, "conversations"),
    ],
)
def test_a_conversation_of_another_shape_is_named_by_row_and_field(
    file: Path, data: Any, row: int | None, field: str
) -> None:
    file.write_text(json.dumps(data))
    with pytest.raises(InputError) as caught:
        read_workload(file)
    assert (caught.value.source, caught.value.row, caught.value.field) == (str(file), row, field)


def test_a_truncated_file_is_named_with_the_conversation_it_breaks_in(file: Path) -> None:
    text = write(file, *[[turn("human", "a"), turn("gpt", "b")]] * 3).read_text()
    file.write_text(text[: int(len(text) * 0.9)])
    with pytest.raises(InputError, match=r"row 3, .*truncated"):
        read_workload(file)


def test_an_object_in_place_of_a_list_is_an_error(file: Path) -> None:
    file.write_text('{"conversations": []}')
    with pytest.raises(InputError, match="not a JSON list"):
        read_workload(file, format="sharegpt")

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lengthwise.errors import InputError
from lengthwise.workloads import LeftOut, LengthSamples, castillo_workload, load_castillo
from lengthwise.workloads.datasets import PACKAGED

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


def record(number: int, **fields: Any) -> dict[str, Any]:
    return {
        "sample_id": f"s{number}",
        "prompt_id": f"p{number}",
        "model": LLAMA,
        "dataset": "Mbpp",
        "prompt_text": f"Write program {number}.",
        "longest_response": "...",
        "input_size": 12,
        "output_sizes": [10, 20, 30],
        "output_mean": 20.0,
        "temp": 0.6,
        **fields,
    }


@pytest.fixture
def hub_layout(tmp_path: Path) -> Path:
    """A folder in the layout of the hub: an array in one split, JSON lines in another."""
    folder = tmp_path / "original"
    folder.mkdir()
    (folder / "original_train.json").write_text(json.dumps([record(1), record(2)]))
    (folder / "original_test.json").write_text(f"{json.dumps(record(3))}\n{json.dumps(record(4))}\n")
    return tmp_path


def test_without_a_data_folder_the_packaged_sample_is_used_and_named_as_origin() -> None:
    assert load_castillo().origin == PACKAGED


def test_the_full_data_are_used_if_present(full_data: Path) -> None:
    samples = load_castillo()
    assert samples.origin == str(full_data / "castillo")
    assert (len(samples), len(samples.llms), len(samples.corpora)) == (67_565, 13, 7)
    assert samples.table["prompt"].null_count == 0
    assert (~samples.clean_mask()).sum() == 635
    six = [corpus for corpus in samples.corpora if corpus != "Alpaca"]
    assert len(samples.where(llm=LLAMA, corpus=six, split="test")) == 910


def test_the_hubs_layout_is_read_from_a_folder(hub_layout: Path) -> None:
    samples = load_castillo(hub_layout)
    assert samples.table["prompt_id"].to_pylist() == ["p1", "p2", "p3", "p4"]
    assert samples.table["split"].to_pylist() == ["train", "train", "test", "test"]
    assert samples.lengths_matrix()[0].tolist() == [10, 20, 30]
    assert samples.table["temperature"].to_pylist() == [0.6] * 4
    assert load_castillo(hub_layout, split="test").table["prompt_id"].to_pylist() == ["p3", "p4"]


def test_a_hub_name_is_fetched_as_a_dataset(hub_layout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the download is replaced, by a folder in the layout of the hub."""
    received: dict[str, Any] = {}

    def snapshot_download(**options: Any) -> str:
        received.update(options)
        return str(hub_layout)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    samples = load_castillo("danfperam/castillo")
    assert (len(samples), samples.origin) == (4, "danfperam/castillo")
    assert received == {
        "repo_id": "danfperam/castillo",
        "repo_type": "dataset",
        "allow_patterns": ["original/*"],
    }


def test_an_unreachable_hub_is_an_error_that_suggests_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(**_: Any) -> str:
        raise ConnectionError("no route to host")

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    with pytest.raises(InputError, match=r"danfperam/castillo: cannot be fetched .*or give a folder"):
        load_castillo("danfperam/castillo")


def test_without_the_hubs_package_the_error_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError, match="pip install huggingface-hub"):
        load_castillo("danfperam/castillo")


def test_a_missing_key_is_named_by_file_and_row(hub_layout: Path) -> None:
    broken = {key: value for key, value in record(5).items() if key != "output_sizes"}
    path = hub_layout / "original" / "original_train.json"
    path.write_text(json.dumps([record(1), broken]))
    with pytest.raises(InputError, match=r"original_train\.json, row 2, field 'output_sizes': missing key"):
        load_castillo(hub_layout)


@pytest.mark.parametrize(("text", "message"), [("[{", "truncated"), ('{"a": 1}\n{', "row 2"), ("[1]", "not a record")])
def test_broken_json_is_named(hub_layout: Path, text: str, message: str) -> None:
    (hub_layout / "original" / "original_train.json").write_text(text)
    with pytest.raises(InputError) as caught:
        load_castillo(hub_layout)
    assert "original_train.json" in str(caught.value)
    assert message in str(caught.value)


def test_folders_without_castillo_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no CASTILLO data"):
        load_castillo(tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        load_castillo(tmp_path / "nowhere")


def test_a_line_separator_inside_a_prompt_is_not_the_end_of_a_line(hub_layout: Path) -> None:
    text = json.dumps(record(1, prompt_text="one\u2028two"), ensure_ascii=False)
    (hub_layout / "original" / "original_train.json").write_text(f"{text}\n", encoding="utf-8")
    assert load_castillo(hub_layout, split="train").table["prompt"].to_pylist() == ["one\u2028two"]


def test_every_true_length_is_a_clean_sample_of_its_prompt(packaged: LengthSamples) -> None:
    rows = packaged.where(llm=LLAMA)
    clean = defaultdict(set)  # a few prompts share their text
    for prompt, lengths, mask in zip(
        rows.table["prompt"].to_pylist(), rows.lengths_matrix(), rows.clean_mask(), strict=True
    ):
        clean[prompt].update(lengths[mask].tolist())
    workload = castillo_workload(packaged, "llama-3.1-8b", requests=3000, rate=8, seed=1)
    for prompt, length in zip(workload.table["prompt"].to_pylist(), workload.output_tokens.tolist(), strict=True):
        assert length in clean[prompt]
    assert set(workload.table["llm"].to_pylist()) == {LLAMA}


def test_each_request_has_the_mean_of_its_clean_samples(packaged: LengthSamples) -> None:
    rows = packaged.where(llm=LLAMA)
    means = dict(zip(rows.table["prompt"].to_pylist(), rows.clean_mean().tolist(), strict=True))
    workload = castillo_workload(packaged, LLAMA, requests=50, rate=8, seed=1)
    assert workload.sample_mean.tolist() == [means[prompt] for prompt in workload.table["prompt"].to_pylist()]


def test_prompts_repeat_in_another_order_after_all_were_used(packaged: LengthSamples) -> None:
    n = len(packaged.where(llm=LLAMA))
    workload = castillo_workload(packaged, LLAMA, requests=2 * n, rate=8, seed=1)
    prompts = workload.table["prompt"].to_pylist()
    assert sorted(prompts[:n]) == sorted(prompts[n:])
    assert prompts[:n] != prompts[n:]


def test_the_rate_changes_only_the_arrivals(packaged: LengthSamples) -> None:
    slow, fast = (castillo_workload(packaged, LLAMA, requests=200, rate=rate, seed=3) for rate in (1, 10))
    assert fast.replace(arrival_s=slow.arrival_s) == slow
    assert slow != castillo_workload(packaged, LLAMA, requests=200, rate=1, seed=4)


def test_degenerate_samples_are_left_out_and_counted() -> None:
    samples = LengthSamples.from_table(
        {
            "corpus": ["Mbpp"] * 3,
            "split": ["test"] * 3,
            "prompt_id": ["a", "b", "c"],
            "llm": [LLAMA] * 3,
            "input_tokens": [1, 2, 3],
            "lengths": [[5, 15_000], [15_000, 15_000], [7, 7]],
        },
        origin="test",
    )
    workload = castillo_workload(samples, LLAMA, requests=100, rate=1, seed=0)
    assert set(workload.input_tokens.tolist()) == {1, 3}
    assert set(workload.output_tokens.tolist()) == {5, 7}
    assert workload.left_out == (
        LeftOut("degenerate samples (CASTILLO's rule), never drawn as a true length", 3),
        LeftOut("prompts of which every sample is degenerate", 1),
    )
    assert not workload.has_blocks


def test_a_limit_cuts_lengths_but_not_the_mean(packaged: LengthSamples) -> None:
    free, limited = (
        castillo_workload(packaged, LLAMA, requests=300, rate=1, seed=0, max_tokens=limit) for limit in (None, 100)
    )
    assert limited.output_tokens.tolist() == np.minimum(free.output_tokens, 100).tolist()
    assert limited.sample_mean.tolist() == free.sample_mean.tolist()


def test_zero_requests_are_refused(packaged: LengthSamples) -> None:
    with pytest.raises(InputError, match="field 'requests'"):
        castillo_workload(packaged, LLAMA, requests=0, rate=1, seed=0)

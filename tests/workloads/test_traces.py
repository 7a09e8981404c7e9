from __future__ import annotations

from pathlib import Path

import pytest

from lengthwise.errors import InputError
from lengthwise.workloads import TRACES, load_trace, read_workload, write_workload


def test_the_packaged_trace_is_always_available() -> None:
    assert TRACES["azure_sample"].path is not None
    assert len(load_trace("azure_sample")) == TRACES["azure_sample"].rows


def test_an_unknown_name_suggests_the_nearest_and_the_variable() -> None:
    with pytest.raises(
        InputError, match=r"no trace is called 'azure_smaple'; did you mean azure_sample.*LENGTHWISE_DATA"
    ):
        load_trace("azure_smaple")
    with pytest.raises(InputError, match=r"known are azure_sample, .*conv_r8_n100000"):
        load_trace("zzz")


def test_a_known_trace_that_is_missing_names_its_path() -> None:
    with pytest.raises(InputError, match=r"set LENGTHWISE_DATA .* traces/azure2023_code\.parquet"):
        load_trace("azure2023_code")


def test_a_data_folder_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LENGTHWISE_DATA", "/no/such/folder")
    with pytest.raises(InputError, match="LENGTHWISE_DATA=/no/such/folder: is not a folder"):
        load_trace("azure2023_code")


def test_a_trace_is_loaded_by_name_or_by_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sample = load_trace("azure_sample")
    write_workload(sample, tmp_path / "mine.parquet")
    assert load_trace("azure_sample") == load_trace(tmp_path / "mine.parquet") == sample
    (tmp_path / "mine.parquet").rename(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    assert load_trace("mine") == sample


def test_a_missing_file_is_not_taken_for_a_name() -> None:
    for path in ("nothing.csv", "no/such"):
        with pytest.raises(InputError, match="no such file"):
            load_trace(path)


@pytest.mark.parametrize("name", sorted(TRACES))
def test_the_catalogue_matches_the_traces(full_data: Path, name: str) -> None:
    assert full_data.is_dir()
    trace = TRACES[name]
    workload = load_trace(name)
    assert len(workload) == trace.rows
    assert workload.has_arrivals == trace.arrivals
    assert workload.has_blocks == trace.prefixes


def test_mooncake_repeats_37_percent_of_its_prompt_tokens(full_data: Path) -> None:
    statistics = read_workload(full_data / "traces" / "mooncake_conversation.parquet").describe()
    assert statistics.repeated_prefix == pytest.approx(0.374, abs=0.001)


def test_servegens_clients_are_tenants(full_data: Path) -> None:
    assert full_data.is_dir()
    assert len(load_trace("servegen_m-large").table["tenant"].unique()) > 40

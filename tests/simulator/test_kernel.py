"""The kernel is not loaded before it is used, and its cached code belongs to its sources."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lengthwise.simulator import predict_workload
from lengthwise.simulator.kernel import host, records
from lengthwise.simulator.traffic import Traffic
from tests.simulator.builders import requests


def test_looking_at_the_simulator_loads_neither_the_compiler_nor_statistics() -> None:
    program = "import sys, lengthwise.simulator; print({'numba', 'scipy.stats', 'pydantic'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_what_is_compiled_is_kept_for_these_very_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numba looks at one file only to see whether what it kept is still good; the fingerprint looks at all."""
    for source in Path(records.__file__).parent.glob("*.py"):
        (tmp_path / source.name).write_bytes(source.read_bytes())
    monkeypatch.setattr(host, "__file__", str(tmp_path / "host.py"))
    before = host._fingerprint()
    with (tmp_path / "memory.py").open("a") as stream:
        stream.write("# another line")
    assert host._fingerprint() != before


def test_every_array_of_an_engine_has_a_place_for_its_address() -> None:
    names = records.ENGINE.names or ()
    assert set(records.ARRAYS) <= set(names)
    assert all(f"{name}_size" in names for name in records.SIZED)


def test_a_routed_job_says_all_that_the_workload_knows() -> None:
    workload = requests(
        [(9, 5), (3, 2)], [0.0, 1.5], blocks=[[7, 8], []], block_size=4, llm=["x", None], session=["s", None]
    )
    traffic = Traffic.of(workload, predict_workload(workload, "oracle"))
    job = traffic.job(0)
    assert (job.id, job.arrival, job.prompt_tokens, job.llm, job.session, list(job.blocks)) == (
        "0",
        0.0,
        9,
        "x",
        "s",
        [7, 8],
    )
    assert (job.expected, job.prediction is not None and job.prediction.mean()) == (5.0, 5.0)
    late = Traffic.of(workload, predict_workload(workload, "oracle"), prediction_delay_s=1.0).job(1)
    assert late.prediction is None
    assert late.expected > 100  # the wide prior's


def test_requests_are_laid_out_as_they_come() -> None:
    workload = requests([(9, 5), (3, 2)], [0.0, 1.5])
    table = Traffic.of(workload, predict_workload(workload, "none")).requests
    assert table["prompt"].tolist() == [9, 3]
    assert table["output"].tolist() == [5, 2]
    assert np.isnan(table["finish"]).all()

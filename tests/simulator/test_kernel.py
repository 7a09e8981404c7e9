"""The kernel is loaded when it is first used, and its compiled code is cached per version of its sources."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lengthwise.simulator import predict_workload
from lengthwise.simulator.kernel import records, sources
from lengthwise.simulator.traffic import Traffic
from lengthwise.version import ROOT
from tests.simulator.builders import requests


def test_importing_the_simulator_does_not_import_numba_scipy_stats_or_pydantic() -> None:
    program = "import sys, lengthwise.simulator; print({'numba', 'scipy.stats', 'pydantic'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_the_fingerprint_of_the_cache_depends_on_every_source_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numba checks one file to validate its cache; the fingerprint covers all."""
    for source in sources.kernel_sources():
        copy = tmp_path / source.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(source.read_bytes())
    monkeypatch.setattr(sources, "ROOT", tmp_path)
    fingerprint = sources.kernel_fingerprint.__wrapped__
    before = fingerprint()
    assert before == sources.kernel_fingerprint()
    with (tmp_path / "simulator" / "kernel" / "memory.py").open("a") as stream:
        stream.write("# another line")
    assert fingerprint() != before


def test_the_fingerprint_covers_the_kernel_the_policies_and_what_both_import() -> None:
    names = {str(source.relative_to(ROOT)) for source in sources.kernel_sources()}
    assert {"simulator/kernel/loop.py", "policies/lengthwise.py", "simulator/costs.py", "lengths/log_t.py"} < names


def test_every_array_of_an_engine_has_a_field_for_its_address() -> None:
    names = records.ENGINE.names or ()
    assert set(records.ARRAYS) <= set(names)
    assert all(f"{name}_size" in names for name in records.SIZED)


def test_a_routed_job_has_every_field_of_the_workload() -> None:
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


def test_requests_are_stored_in_order_of_arrival() -> None:
    workload = requests([(9, 5), (3, 2)], [0.0, 1.5])
    table = Traffic.of(workload, predict_workload(workload, "none")).requests
    assert table["prompt"].tolist() == [9, 3]
    assert table["output"].tolist() == [5, 2]
    assert np.isnan(table["finish"]).all()

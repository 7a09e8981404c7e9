"""Whether `default` predicts the same on other CPUs: `python -m benchmarks.cpus` (Linux, x86 with VNNI, gcc).

Runs the packaged encoder on CASTILLO's test prompts with instructions of this CPU hidden (`hide_cpu.c`), by the fastest
kernels of ONNX Runtime and by those without saturation, and prints the CPU time of a prompt and how far the raw mu is
from that of this CPU. Scores of the saturating kernels:

    HIDE_CPU=vnni LD_PRELOAD=out/hide_cpu.so lengthwise evaluate default castillo
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from benchmarks import options
from lengthwise.predictors import encoder
from lengthwise.predictors.model_file import read_model_file
from lengthwise.predictors.resolve import model_path
from lengthwise.predictors.stated_length import stated
from lengthwise.reports.tables import Table, print_tables
from lengthwise.workloads import load_castillo

LIBRARY = Path("out/hide_cpu.so")
HIDDEN = {"": "this CPU", "vnni": "without VNNI", "avx512": "without VNNI and AVX-512"}


def measure(out: Path, prompts: int, *, exact: bool) -> None:
    """Write the raw mu of each prompt and LLM, and the CPU time of each prompt."""
    path = model_path("default")
    with patch.object(encoder, "CPU_INFO", Path("unknown") if exact else encoder.CPU_INFO):
        predictor = encoder.EncoderPredictor.load(read_model_file(path), path)
    found, times = [], []
    for text in sorted(set(load_castillo(split="test").table["prompt"].to_pylist()))[:prompts]:
        ids, size = predictor.text.encode(text)
        began = time.process_time()
        found.append(predictor.outputs_of_ids(ids, size, np.array(stated(text).numbers()))[:, 0])
        times.append(time.process_time() - began)
    np.savez(out, mu=np.array(found), times=np.array(times))


def measured(hidden: str, prompts: int, *, exact: bool) -> dict[str, NDArray[Any]]:
    """Measure in another process, from which instructions are hidden."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.npz"
        command = [sys.executable, "-m", "benchmarks.cpus", "--out", str(out), "--prompts", str(prompts)]
        environment = {**os.environ, "HIDE_CPU": hidden, "LD_PRELOAD": str(LIBRARY.resolve())}
        subprocess.run([*command, *["--exact"] * exact], env=environment, check=True)  # noqa: S603
        with np.load(out) as stored:
            return dict(stored)


def main() -> None:
    """Print the table, or measure in this process with --out."""
    chosen = options(__doc__, prompts=300, out=None, exact=False)
    if chosen.out is not None:
        measure(Path(chosen.out), chosen.prompts, exact=chosen.exact)
        return
    LIBRARY.parent.mkdir(exist_ok=True)
    source = Path(__file__).with_name("hide_cpu.c")
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", str(LIBRARY), str(source)], check=True)  # noqa: S603, S607
    rows = []
    base = measured("", chosen.prompts, exact=False)["mu"]
    for hidden, name in HIDDEN.items():
        for exact in (False, True):
            found = measured(hidden, chosen.prompts, exact=exact)
            off = np.abs(found["mu"] - base)
            cells = (f"{1e3 * found['times'].mean():.1f}", f"{off.mean():.4f}", f"{off.max():.4f}")
            rows.append([name, "exact" if exact else "fastest", *cells])
    title = f"`default` on other CPUs, {chosen.prompts} prompts"
    print_tables([Table(title, ("CPU", "kernels", "CPU-ms", "mean |mu - mu here|", "largest"), rows)])


if __name__ == "__main__":
    main()

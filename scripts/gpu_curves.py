"""Measure the loss curves of the study `castillo`: every training of experiments/castillo_training.py.

python scripts/gpu_train.py pack --folder .device/minilm      # here: token ids, lengths, MiniLM's weights
python -m scripts.gpu_curves --folder .device/minilm   # there (Python, torch, NumPy): castillo_curves.json
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import time
from pathlib import Path
from typing import Any

from scripts.gpu_alpaca20 import bare
from scripts.gpu_train import configured

FILE = "castillo_curves.json"


def work(job: tuple[Path, str, dict[str, Any], int, float]) -> tuple[str, list[dict[str, Any]]]:
    """Run one training; return its name and its curves."""
    folder, name, changes, limit, until = job
    bare()
    import torch

    from experiments.castillo_training import TRAININGS, only, run
    from lengthwise.training.encoder.backbones import empty_backbone
    from lengthwise.training.encoder.network import LengthNetwork
    from lengthwise.training.encoder.pack import Pack, bin_edges

    study = next(each for each in TRAININGS if each.name == name)
    config = configured(folder, {**study.changes, **changes})
    data = only(Pack.read(folder / "pack.npz"), study.llm)
    edges = bin_edges(config.head, data)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.set_num_threads(1)
    torch.manual_seed(0)
    backbone = empty_backbone(json.loads((folder / "backbone.json").read_text()))
    backbone.load_state_dict({k: v.float() for k, v in torch.load(folder / "weights.pt").items()})
    network = LengthNetwork(backbone, config, data.features, 0 if edges is None else len(edges) - 1)
    deadline = time.monotonic() + until - time.time()
    curves = run(
        study,
        network,
        data,
        config,
        edges,
        device=device,
        deadline=deadline,
        limit=limit,
        progress=lambda row: print(name, json.dumps(row), flush=True),  # noqa: T201
    )
    return name, curves


def main() -> None:
    """Run all trainings in parallel."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(".device/minilm"))
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "out")))
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--parallel", type=int, default=10)
    parser.add_argument("--budget", type=float, default=300.0, help="seconds for all of it")
    parser.add_argument("--limit", type=int, default=0, help="train on this many prompts only, for a trial")
    parser.add_argument("--trainings", type=Path, help="metrics.json of gpu_train.py, whose curves are added")
    parser.add_argument("--only", action="append", help="the name of a training; repeatable")
    arguments = parser.parse_args()
    bare()
    import torch

    from experiments.castillo_training import TRAININGS

    changes = {"optimiser.epochs": arguments.epochs, "early_stopping.patience": arguments.epochs}
    began = time.time()
    until = began + arguments.budget - 20
    names = [study.name for study in TRAININGS if not arguments.only or study.name in arguments.only]
    jobs = [(arguments.folder, name, changes, arguments.limit, until) for name in names]
    with multiprocessing.get_context("spawn").Pool(min(len(jobs), arguments.parallel)) as pool:
        curves = dict(pool.map(work, jobs, chunksize=1))
    machine = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    about = {"machine": machine, "seconds": round(time.time() - began), "limit": arguments.limit}
    arguments.out.mkdir(parents=True, exist_ok=True)
    results = json.loads(arguments.trainings.read_text())["results"] if arguments.trainings else []
    trainings = [{key: each[key] for key in ("name", "settings", "curves")} for each in results if each.get("curves")]
    (arguments.out / FILE).write_text(json.dumps({"about": about, "curves": curves, "trainings": trainings}))


if __name__ == "__main__":
    main()

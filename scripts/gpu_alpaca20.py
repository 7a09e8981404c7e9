"""The training of the study `alpaca20` on a bare GPU machine (Python, torch, NumPy), or slowly on a CPU.

    python scripts/gpu_train.py pack --config configs/alpaca20.yaml --folder .device/alpaca20          # here
    python -m scripts.gpu_alpaca20 --folder .device/alpaca20 --variant a: --variant b:epochs=6,lr=5e-5 # there
    python -m experiments run alpaca20 --set predictions=out/alpaca20.npz                              # here again

Variants are scored on held-out prompts; the best settings are trained once more on bins of equal width, and the
predictions of both for the test prompts are written. Alpaca's licence is non-commercial, so no weights are stored.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from scripts.gpu_train import bare_package, configured, load_packed_backbone, parse_variant, prepare_torch


def work(job: tuple[argparse.Namespace, str, str, float]) -> tuple[str, Any]:
    """Train one variant on one binning; return its name and its predictions."""
    arguments, binning, variant, until = job
    bare_package()
    from experiments.alpaca20_training import thinned, train_bins, width_settings
    from lengthwise.training.encoder.network import LengthNetwork
    from lengthwise.training.encoder.pack import Pack, bin_edges

    name, settings = parse_variant(variant)
    data = Pack.read(arguments.folder / "pack.npz")
    bins = {f"head.{key}": value for key, value in width_settings(data).items()} if binning == "width" else {}
    config = configured(arguments.folder, {**settings, **bins})
    edges = bin_edges(config.head, data)
    assert edges is not None  # noqa: S101
    seed = int(settings.get("seed", 0))
    device = prepare_torch(seed)
    backbone = load_packed_backbone(arguments.weights or arguments.folder)
    made = train_bins(
        LengthNetwork(backbone, config, data.features, len(edges) - 1),
        thinned(data, arguments.limit),
        config,
        edges,
        seed=seed,
        device=device,
        deadline=time.monotonic() + until - time.time(),
        progress=lambda row: print(binning, name, json.dumps(row), flush=True),  # noqa: T201
    )
    settings = {"variant": variant, **json.loads((arguments.folder / "config.json").read_text())}
    return name, replace(made, about={**made.about, "settings": settings})


def train(arguments: argparse.Namespace) -> None:
    """Train the variants side by side, the best one on the other binning too, and write the predictions."""
    bare_package()
    from experiments.alpaca20_training import together, write_predictions

    began = time.time()
    first, last = began + 0.7 * arguments.budget, began + arguments.budget - 30
    variants = arguments.variant or ["a:"]
    with multiprocessing.get_context("spawn").Pool(min(len(variants), arguments.parallel)) as pool:
        jobs = [(arguments, "equal_mass", variant, first) for variant in variants]
        found = dict(pool.map(work, jobs, chunksize=1))
        tried = {name: made.about["held_out"] for name, made in found.items()}
        best = max(found, key=lambda name: tried[name]["accuracy"])
        variant = next(text for text in variants if parse_variant(text)[0] == best)
        _, wide = pool.apply(work, ((arguments, "width", variant, last),))
    several = [found[best], *(made for name, made in found.items() if name != best)] if arguments.together else []
    chosen = together(several or [found[best]])
    chosen = replace(chosen, about={**chosen.about, "tried": tried, "kept": best})
    write_predictions(arguments.out / "alpaca20.npz", {"equal_mass": chosen, "width": wide})
    for name, scores in tried.items():
        print(f"{name:16} {json.dumps(scores)}{'  kept' if name == best else ''}")  # noqa: T201
    print(f"equal width      {json.dumps(wide.about['held_out'])}; {time.time() - began:.0f} s in all")  # noqa: T201


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="what `gpu_train.py pack` wrote")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "out")))
    parser.add_argument("--parallel", type=int, default=10)
    parser.add_argument("--budget", type=float, default=400.0, help="seconds for all of it")
    parser.add_argument("--limit", type=int, default=0, help="only this many prompts of each part, for a trial")
    parser.add_argument("--variant", action="append", help="name:key=value,... as in gpu_train.py; repeatable")
    parser.add_argument("--together", action="store_true", help="the mean of all variants, not the best alone")
    parser.add_argument("--weights", type=Path, help="folder of the encoder's weights [default: --folder]")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    train(arguments)


if __name__ == "__main__":
    main()

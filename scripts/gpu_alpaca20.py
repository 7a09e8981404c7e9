"""The training of the study `alpaca20` on a bare GPU machine.

    python -m scripts.gpu_alpaca20 pack                                              # here: token ids, lengths, weights
    python -m scripts.gpu_alpaca20 train --variant a: --variant b:epochs=6,lr=5e-5   # there: Python, torch, NumPy
    python -m experiments run alpaca20 --set predictions=alpaca20.npz                # here again

Variants are scored on held-out prompts; the best settings are trained once more on bins of equal width, and the
predictions of both for the test prompts are written to alpaca20.npz. Alpaca's licence is non-commercial, so no weights
are stored.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

from scripts.gpu_train import SOURCE, bare_package, configured, parse_variant

FILES = ("pack.npz", "config.json", "backbone.json", "weights.pt")


def pack(arguments: argparse.Namespace) -> None:
    """Write the data of a training into one folder."""
    import torch

    from lengthwise.training.encoder.backbones import load_backbone
    from lengthwise.training.encoder.config import read_config
    from lengthwise.training.encoder.data import load_samples, make_pack

    config = read_config(arguments.config)
    loaded = load_backbone(config.backbone, config.max_tokens)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    make_pack(load_samples(config.data), config.data, loaded.text).write(arguments.folder / FILES[0])
    (arguments.folder / FILES[1]).write_text(config.model_dump_json(indent=1))
    (arguments.folder / FILES[2]).write_text(json.dumps(loaded.config))
    torch.save({k: v.half() for k, v in loaded.module.state_dict().items()}, arguments.folder / FILES[3])
    for name in FILES:
        print(f"{name:12} {(arguments.folder / name).stat().st_size / 1e6:6.1f} MB")  # noqa: T201


def bare() -> None:
    """Make the package, as in gpu_train.py, and `experiments` importable without dependencies."""
    bare_package()
    module = types.ModuleType("experiments")
    module.__path__ = [str(SOURCE.parent / "experiments")]
    sys.modules[module.__name__] = module


def work(job: tuple[Path, Path, str, str, int, float]) -> tuple[str, Any]:
    """Train one variant on one binning; return its name and its predictions."""
    folder, weights, binning, variant, limit, until = job
    bare()
    import torch

    from experiments.alpaca20_training import thinned, train_bins, width_settings
    from lengthwise.training.encoder.backbones import empty_backbone
    from lengthwise.training.encoder.network import LengthNetwork
    from lengthwise.training.encoder.pack import Pack, bin_edges

    name, settings = parse_variant(variant)
    data = Pack.read(folder / FILES[0])
    bins = {f"head.{key}": value for key, value in width_settings(data).items()} if binning == "width" else {}
    config = configured(folder, {**settings, **bins})
    edges = bin_edges(config.head, data)
    assert edges is not None  # noqa: S101
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.set_num_threads(1)
    seed = int(settings.get("seed", 0))
    torch.manual_seed(seed)
    backbone = empty_backbone(json.loads((weights / FILES[2]).read_text()))
    backbone.load_state_dict({k: v.float() for k, v in torch.load(weights / FILES[3]).items()})
    network = LengthNetwork(backbone, config, data.features, len(edges) - 1)
    made = train_bins(
        network,
        thinned(data, limit),
        config,
        edges,
        seed=seed,
        device=device,
        deadline=time.monotonic() + until - time.time(),
        progress=lambda row: print(binning, name, json.dumps(row), flush=True),  # noqa: T201
    )
    settings = {"variant": variant, **json.loads((folder / FILES[1]).read_text())}
    return name, replace(made, about={**made.about, "settings": settings})


def train(arguments: argparse.Namespace) -> None:
    """Train the variants side by side, the best one on the other binning too, and write the predictions."""
    bare()
    from experiments.alpaca20_training import together, write_predictions

    began = time.time()
    first, last = began + 0.7 * arguments.budget, began + arguments.budget - 30
    folders = (arguments.folder, arguments.weights or arguments.folder)
    jobs = [(*folders, "equal_mass", variant, arguments.limit, first) for variant in arguments.variant]
    with multiprocessing.get_context("spawn").Pool(min(len(jobs), arguments.parallel)) as pool:
        found = dict(pool.map(work, jobs, chunksize=1))
        tried = {name: made.about["held_out"] for name, made in found.items()}
        best = max(found, key=lambda name: tried[name]["accuracy"])
        variant = next(text for text in arguments.variant if parse_variant(text)[0] == best)
        _, wide = pool.apply(work, ((*folders, "width", variant, arguments.limit, last),))
    several = [found[best], *(made for name, made in found.items() if name != best)] if arguments.together else []
    chosen = together(several or [found[best]])
    chosen = replace(chosen, about={**chosen.about, "tried": tried, "kept": best})
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_predictions(arguments.out / "alpaca20.npz", {"equal_mass": chosen, "width": wide})
    for name, scores in tried.items():
        print(f"{name:16} {json.dumps(scores)}{'  kept' if name == best else ''}")  # noqa: T201
    print(f"equal width      {json.dumps(wide.about['held_out'])}; {time.time() - began:.0f} s in all")  # noqa: T201


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["pack", "train"])
    parser.add_argument("--folder", type=Path, default=Path(".device/alpaca20"))
    parser.add_argument("--weights", type=Path, help="folder of the encoder's weights [default: --folder]")
    parser.add_argument("--config", type=Path, default=Path("configs/alpaca20.yaml"))
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "out/alpaca20")))
    parser.add_argument("--variant", action="append", help="name:key=value,...; repeatable, as in gpu_train.py")
    parser.add_argument("--together", action="store_true", help="the mean of all variants, not the best alone")
    parser.add_argument("--parallel", type=int, default=6)
    parser.add_argument("--budget", type=float, default=400.0, help="seconds for all of it")
    parser.add_argument("--limit", type=int, default=0, help="only this many prompts of each part, for a trial")
    arguments = parser.parse_args()
    arguments.variant = arguments.variant or ["a:"]
    {"pack": pack, "train": train}[arguments.mode](arguments)


if __name__ == "__main__":
    main()

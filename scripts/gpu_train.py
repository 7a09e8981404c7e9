"""Train variants of the encoder in parallel on a bare GPU machine, and a student of the best.

    pack    here: tokenise, and write everything a run needs into one folder (needs the package and its data)
    train   there: variants side by side; their scores, their outputs and the weights of the best are written
    distil  there: an ensemble over folds, then students trained on it; the weights of the best are written
    join    here: the weights as one file, for `lengthwise train --weights`

A variant is name:key=value,...; `without=NAME` trains without an LLM. `train` and `distil` need torch, transformers and
SciPy, not the other dependencies of the package: its modules are imported without its `__init__` files.
docs/guides/training.md says how to run it. Other heads and LLMs alone: gpu_papers.py.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WORK = Path("/tmp/lengthwise-training")  # noqa: S108  (a rented machine)
PIECE = 8_000_000  # fp16 numbers per file: 16 MB
SHORT = {
    "lr": "optimiser.lr", "head_lr": "optimiser.head_lr", "epochs": "optimiser.epochs", "batch": "optimiser.batch",
    "ema": "optimiser.ema", "decay": "optimiser.layer_decay", "wd": "optimiser.weight_decay",
    "dropout": "regularisation.dropout", "mask": "regularisation.token_mask",
    "weight": "regularisation.row_weight", "head_dropout": "head.dropout",
    "hidden": "head.hidden", "nll": "loss.nll", "log_mean": "loss.log_mean", "mean": "loss.mean",
    "log_std": "loss.log_std", "pairwise": "loss.pairwise", "soft": "loss.soft",
    "drop": "identity.drop", "pooling": "pooling", "layers": "layers",
}  # fmt: skip
PACKAGES = ("lengthwise", "lengthwise.predictors", "lengthwise.training", "lengthwise.training.encoder")
JOB_KEYS = ("seed", "fold", "smollm2", "extra", "without")


def bare_package() -> None:
    """Make the modules for training importable without the dependencies of their packages."""
    for name in PACKAGES:
        module = types.ModuleType(name)
        module.__path__ = [str(ROOT / "src" / name.replace(".", "/"))]
        sys.modules[name] = module
    try:
        import tokenizers  # noqa: F401  (a pack holds token ids: there is nothing to tokenise)
    except ModuleNotFoundError:
        sys.modules["tokenizers"] = types.ModuleType("tokenizers")
        sys.modules["tokenizers"].Tokenizer = object  # type: ignore[attr-defined]


def prepare_torch(seed: int) -> str:
    """Set torch up for one of several parallel trainings; return its device."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.set_num_threads(1 if device == "cpu" else 2)
    torch.manual_seed(seed)
    return device


def pack(arguments: argparse.Namespace) -> None:
    """Write pack.npz, config.json, backbone.json and the weights."""
    import torch

    from lengthwise.training.data import load_samples, make_pack, unlabelled_prompts
    from lengthwise.training.encoder.config import read_config
    from lengthwise.training.encoder.network import load_backbone

    config = read_config(arguments.config)
    loaded = load_backbone(config.backbone, config.max_tokens)
    samples = load_samples(config.data)
    # Students learn from pieces and noise; diverse prompts need none.
    unlabelled = [] if config.data.diverse else unlabelled_prompts(samples, config.data)
    packed = make_pack(samples, config.data, loaded.text, unlabelled)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    packed.write(arguments.folder / "pack.npz")
    (arguments.folder / "config.json").write_text(config.model_dump_json(indent=1))
    (arguments.folder / "backbone.json").write_text(json.dumps(loaded.config))
    torch.save({k: v.half() for k, v in loaded.module.state_dict().items()}, arguments.folder / "weights.pt")
    for path in sorted(arguments.folder.iterdir()):
        print(f"{path.name:14} {path.stat().st_size / 1e6:6.1f} MB")  # noqa: T201


def load_packed_backbone(folder: Path) -> Any:
    """Return the encoder of a packed folder."""
    import torch

    from lengthwise.training.encoder.network import empty_backbone

    encoder = empty_backbone(json.loads((folder / "backbone.json").read_text()))
    encoder.load_state_dict({k: v.float() for k, v in torch.load(folder / "weights.pt").items()})
    return encoder


def parse_variant(text: str, known: Iterable[str] = ()) -> tuple[str, dict[str, Any]]:
    """Read name:key=value,key=value; `known` has further keys."""
    name, _, rest = text.partition(":")
    pairs = dict(item.split("=", 1) for item in rest.split(",") if item)
    settings = {}
    for key, value in pairs.items():
        try:
            settings[key] = [int(n) for n in value.split("-")] if key == "layers" else json.loads(value)
        except json.JSONDecodeError:
            settings[key] = value
        if key not in (settable := [*SHORT, *JOB_KEYS, *known]) and "." not in key:
            raise SystemExit(f"{name}: '{key}' is not a setting; known: {', '.join(settable)}")
    return name, settings


def settings_tree(folder: Path, settings: dict[str, Any], own: Iterable[str] = ()) -> Any:
    """Return the settings of the pack with changes, as an object with the attributes of TrainingConfig."""
    tree = json.loads((folder / "config.json").read_text())
    for key, value in settings.items():
        if key in JOB_KEYS or key in own:
            continue
        *way, last = SHORT.get(key, key).split(".")
        place = tree
        for part in way:
            place = place[part]
        if last not in place:
            raise SystemExit(f"'{key}' is not a setting; known there: {', '.join(place)}")
        place[last] = value
    return json.loads(json.dumps(tree), object_hook=lambda d: types.SimpleNamespace(**d))


def work(arguments: argparse.Namespace) -> None:
    """Train one variant in this process and write its outputs for every prompt."""
    bare_package()
    import numpy as np
    import torch

    from lengthwise.training.encoder.ensemble import scores_of
    from lengthwise.training.encoder.network import LengthNetwork
    from lengthwise.training.encoder.pack import Pack
    from lengthwise.training.encoder.trainer import Trainer

    WORK.mkdir(parents=True, exist_ok=True)
    name, settings = parse_variant(arguments.variant[0])
    folder = arguments.folder
    config = settings_tree(folder, settings)
    data = Pack.read(folder / "pack.npz")
    if "without" in settings:
        data = data.without(settings["without"])
    if not settings.get("smollm2", True):
        data.lengths[:, [i for i, llm in enumerate(data.llms) if "SmolLM2" in llm]] = 0
    seed = int(settings.get("seed", 0))
    device = prepare_torch(seed)
    backbone = load_packed_backbone(folder)
    backbone.keep_layers(config.layers)
    network = LengthNetwork(backbone, config, data.features)
    task, everything = make_task(arguments, settings, data)
    left = arguments.until - time.time()
    trainer = Trainer(network, task, config, seed, device, deadline=time.monotonic() + left)
    trainer.progress = lambda row: print(name, json.dumps(row), flush=True)  # noqa: T201
    curves = trainer.run()
    network.identity.forget(np.flatnonzero(~(data.lengths[task.train] > 0).any((0, 2))))
    outputs, _ = trainer.predict(everything)
    np.savez(WORK / f"{name}.npz", outputs=outputs.astype(np.float16), saw=np.isin(np.arange(len(data)), task.train))
    state = {k: v.detach().half().cpu() for k, v in network.state_dict().items()}
    torch.save(state, WORK / f"{name}.pt")
    finished = {"name": name, "settings": settings, "curves": curves}
    finished["scores"] = scores_of(outputs, data)
    (WORK / f"{name}.json").write_text(json.dumps(finished))


def make_task(arguments: argparse.Namespace, settings: dict[str, Any], data: Any) -> tuple[Any, Any]:
    """Return the task, and the prompts to predict after training."""
    import numpy as np

    from lengthwise.training.encoder.pack import HELD_OUT, TRAIN, UNLABELLED
    from lengthwise.training.encoder.trainer import TrainingTask

    soft = np.load(arguments.soft) if arguments.soft else None
    train = (data.part == TRAIN) & (data.fold != settings.get("fold", -1))
    train &= (data.lengths > 0).any((1, 2))
    learns = train | ((data.part == UNLABELLED) & (soft is not None and bool(settings.get("extra", True))))
    held_out = np.flatnonzero(data.part == HELD_OUT)
    everything = np.arange(len(data))
    if arguments.limit:  # the shortest of each part, for a trial without a GPU
        short = np.argsort(np.diff(data.offsets), kind="stable")
        kept = [short[data.part[short] == part][: arguments.limit] for part in range(UNLABELLED + 1)]
        everything = np.sort(np.concatenate(kept))
        learns &= np.isin(np.arange(len(data)), everything)
        held_out = np.intersect1d(held_out, everything)
    return TrainingTask(data, np.flatnonzero(learns), held_out, soft=soft, unscored=("SmolLM2",)), everything


def run_all(arguments: argparse.Namespace, variants: list[str], until: float, soft: Path | None = None) -> list[str]:
    """Run variants in parallel processes; return the names of those that finished."""
    waiting, names = list(variants), []
    running: list[subprocess.Popen[bytes]] = []
    while waiting or running:
        running = [process for process in running if process.poll() is None]
        while waiting and len(running) < arguments.parallel and time.time() < until - 20:
            variant = waiting.pop(0)
            names.append(parse_variant(variant)[0])
            command = [sys.executable, __file__, "work", "--folder", str(arguments.folder), "--variant", variant]
            command += ["--until", str(until), "--limit", str(arguments.limit)]
            command += ["--soft", str(soft)] if soft else []
            running.append(subprocess.Popen(command, env={**os.environ, "PYTHONUNBUFFERED": "1"}))  # noqa: S603
        if time.time() >= until - 20:
            waiting = []
        time.sleep(0.2)
    return [name for name in names if (WORK / f"{name}.json").is_file()]


def train(arguments: argparse.Namespace) -> None:
    """Train the variants and report them."""
    until = time.time() + arguments.budget
    listed = arguments.variants.read_text().split() if arguments.variants else []
    names = run_all(arguments, [*listed, *(arguments.variant or [])], until - 15)
    report(arguments, names, names)


def distil(arguments: argparse.Namespace) -> None:
    """Train the ensemble, average it, train the students, keep the best student's weights."""
    bare_package()
    import numpy as np

    from lengthwise.training.encoder.ensemble import Member, soft_targets
    from lengthwise.training.encoder.pack import Pack

    began = time.time()
    until = began + arguments.budget - 20
    teachers = [
        f"{name}_f{fold}:{recipe}{',' if recipe else ''}fold={fold},seed={fold + 1}"
        for fold in range(arguments.folds)
        for name, _, recipe in [arguments.teacher[fold % len(arguments.teacher)].partition(":")]
    ]
    done = run_all(arguments, teachers, began + arguments.teachers_share * arguments.budget)
    names = best_teachers(done, arguments.slack)
    data = Pack.read(arguments.folder / "pack.npz")
    members = [Member(**dict(np.load(WORK / f"{name}.npz"))) for name in names]
    targets = soft_targets(members, data, oof=arguments.oof, disagreement=arguments.disagreement)
    np.save(WORK / "soft.npy", targets.astype(np.float32))
    students = run_all(arguments, arguments.student, until, soft=WORK / "soft.npy")
    report(arguments, [*names, *students], students)


def best_teachers(names: list[str], slack: float) -> list[str]:
    """Return the finished ones with a tau on held-out prompts near the best."""
    done = {name: json.loads((WORK / f"{name}.json").read_text()) for name in names}
    tau = {name: result["scores"]["held_out"]["tau"] for name, result in done.items()}
    print("teachers:", json.dumps(tau))  # noqa: T201
    return [name for name in tau if tau[name] >= max(tau.values()) - slack]


def report(arguments: argparse.Namespace, names: list[str], candidates: list[str]) -> None:
    """Write metrics.json, the outputs for prompts that none trained on, and the weights of the best candidate."""
    bare_package()
    import numpy as np

    from lengthwise.training.encoder.pack import ELSEWHERE, HELD_OUT, TEST, Pack

    results = {name: json.loads((WORK / f"{name}.json").read_text()) for name in names}
    kept = max(candidates, key=lambda name: results[name]["scores"]["held_out"]["tau"])
    arguments.out.mkdir(parents=True, exist_ok=True)
    summary = {"kept": kept, "results": list(results.values()), "weights": save_pieces(kept, arguments.out)}
    (arguments.out / "metrics.json").write_text(json.dumps(summary))
    prompts = np.flatnonzero(np.isin(Pack.read(arguments.folder / "pack.npz").part, (HELD_OUT, TEST, ELSEWHERE)))
    outputs = {name: np.load(WORK / f"{name}.npz")["outputs"][prompts] for name in names}
    np.savez_compressed(arguments.out / "outputs.npz", prompts=prompts, **outputs)
    for name, result in results.items():
        print(f"{name:24}", json.dumps(result["scores"]))  # noqa: T201
    print("kept:", kept)  # noqa: T201


def save_pieces(name: str, out: Path) -> list[Any]:
    """Write all weights as fp16 numbers in several files; return names and shapes, in order."""
    import numpy as np
    import torch

    state = torch.load(WORK / f"{name}.pt")
    flat = np.concatenate([value.numpy().ravel() for value in state.values()])
    for number, first in enumerate(range(0, len(flat), PIECE)):
        np.save(out / f"weights_{number}.npy", flat[first : first + PIECE])
    return [[key, list(value.shape)] for key, value in state.items()]


def join(arguments: argparse.Namespace) -> None:
    """Join the files of `save_pieces`."""
    import numpy as np
    import torch

    flat = np.concatenate([np.load(path) for path in sorted(arguments.out.glob("weights_*.npy"))])
    state, at = {}, 0
    for key, shape in json.loads((arguments.out / "metrics.json").read_text())["weights"]:
        size = int(np.prod(shape, dtype=np.int64))
        state[key] = torch.as_tensor(flat[at : at + size].reshape(shape)).float()
        at += size
    torch.save(state, arguments.to)
    print(f"{arguments.to}: {at:,} weights")  # noqa: T201


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=list(MODES))
    parser.add_argument("--folder", type=Path, default=Path(".device"))
    parser.add_argument("--config", type=Path, default=Path("configs/default.yaml"))
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "out/gpu")))
    parser.add_argument("--to", type=Path, default=Path("out/student.pt"))
    parser.add_argument("--variant", action="append", help="name:key=value,...; repeatable")
    parser.add_argument("--variants", type=Path, help="a file of them, one per line")
    parser.add_argument("--teacher", action="append", help="the same; several are used in turn over the folds")
    parser.add_argument("--student", action="append", help="the same; the best on held-out prompts is kept")
    parser.add_argument("--folds", type=int, default=10)
    parser.add_argument("--oof", type=float, default=0.5)
    parser.add_argument("--disagreement", type=float, default=1.0)
    parser.add_argument("--budget", type=float, default=560.0, help="seconds for all of it")
    parser.add_argument("--teachers-share", type=float, default=0.6, help="of the budget")
    parser.add_argument("--parallel", type=int, default=6)
    parser.add_argument("--slack", type=float, default=0.01, help="teachers this far below the best are not used")
    parser.add_argument("--limit", type=int, default=0, help="train on this many prompts only, for a trial")
    parser.add_argument("--until", type=float, default=0.0)
    parser.add_argument("--soft", type=Path)
    arguments = parser.parse_args()
    MODES[arguments.mode](arguments)


MODES = {"pack": pack, "train": train, "distil": distil, "join": join, "work": work}

if __name__ == "__main__":
    main()

"""Train many variants of the encoder at once on a bare GPU machine, then one student of the best.

    pack     here: tokenise, and write everything a run needs into one folder (needs the package and its data)
    explore  there: variants side by side, scored on held-out prompts
    distil   there: an ensemble over folds, then students taught by it; the best one's weights are kept
    join     here: the pieces of the weights as one file, for `lengthwise.predictors.encoder.export`

`explore` and `distil` need Python, torch and NumPy, nothing else: the package's own modules are imported without the
package's `__init__` files. docs/training.md says how to run it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parent.parent / "src"
WORK = Path("/tmp/lengthwise-training")  # noqa: S108  (a machine of its own, given back after)
PIECE = 8_000_000  # fp16 numbers per file: 16 MB
SHORT = {
    "lr": "optimiser.lr", "head_lr": "optimiser.head_lr", "epochs": "optimiser.epochs", "batch": "optimiser.batch",
    "ema": "optimiser.ema", "decay": "optimiser.layer_decay", "wd": "optimiser.weight_decay",
    "dropout": "regularisation.dropout", "mask": "regularisation.token_mask", "rdrop": "regularisation.rdrop",
    "passes": "regularisation.passes", "weight": "regularisation.row_weight", "head_dropout": "head.dropout",
    "hidden": "head.hidden", "nll": "loss.nll", "log_mean": "loss.log_mean", "mean": "loss.mean",
    "log_std": "loss.log_std", "pairwise": "loss.pairwise", "sigma_prior": "loss.sigma_prior", "soft": "loss.soft",
    "drop": "identity.drop", "pooling": "pooling", "layers": "layers",
}  # fmt: skip
JOB_KEYS = ("seed", "fold", "smollm2", "stop", "extra")


def bare_package() -> None:
    """Let `lengthwise.predictors.encoder.x` be imported without the packages around it."""
    for name in ("lengthwise", "lengthwise.predictors", "lengthwise.predictors.encoder"):
        module = types.ModuleType(name)
        module.__path__ = [str(SOURCE / name.replace(".", "/"))]
        sys.modules[name] = module


def pack(arguments: argparse.Namespace) -> None:
    """Write pack.npz, weights.pt and config.json."""
    import torch

    from lengthwise.predictors.encoder.augment import more_prompts
    from lengthwise.predictors.encoder.backbones import load_backbone
    from lengthwise.predictors.encoder.config import read_config
    from lengthwise.predictors.encoder.data import load_samples, make_pack

    config = read_config(arguments.config)
    loaded = load_backbone(config.backbone, config.max_tokens)
    samples = load_samples(config.data)
    extra = more_prompts(samples, config.data)
    made = make_pack(samples, config.data, loaded.text, extra)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    made.write(arguments.folder / "pack.npz")
    (arguments.folder / "config.json").write_text(config.model_dump_json(indent=1))
    (arguments.folder / "shape.json").write_text(json.dumps(loaded.shape))
    torch.save({k: v.half() for k, v in loaded.module.state_dict().items()}, arguments.folder / "weights.pt")
    for path in sorted(arguments.folder.iterdir()):
        print(f"{path.name:14} {path.stat().st_size / 1e6:6.1f} MB")  # noqa: T201


def parse_variant(text: str) -> tuple[str, dict[str, Any]]:
    """Read name:key=value,key=value."""
    name, _, rest = text.partition(":")
    pairs = dict(item.split("=", 1) for item in rest.split(",") if item)
    settings = {}
    for key, value in pairs.items():
        try:
            settings[key] = [int(n) for n in value.split("-")] if key == "layers" else json.loads(value)
        except json.JSONDecodeError:
            settings[key] = value
        if key not in SHORT and key not in JOB_KEYS and "." not in key:
            raise SystemExit(f"{name}: '{key}' is no setting; known: {', '.join([*SHORT, *JOB_KEYS])}")
    return name, settings


def configured(folder: Path, settings: dict[str, Any]) -> Any:  # noqa: ANN401
    """The pack's settings with some changed, as an object that reads like the package's."""
    tree = json.loads((folder / "config.json").read_text())
    for key, value in settings.items():
        if key in JOB_KEYS:
            continue
        *way, last = SHORT.get(key, key).split(".")
        place = tree
        for part in way:
            place = place[part]
        if last not in place:
            raise SystemExit(f"'{key}' is no setting; known there: {', '.join(place)}")
        place[last] = value
    return json.loads(json.dumps(tree), object_hook=lambda d: types.SimpleNamespace(**d))


def work(arguments: argparse.Namespace) -> None:
    """Train one variant in this process and write what it says of every prompt."""
    bare_package()
    import numpy as np
    import torch

    from lengthwise.predictors.encoder.bert import Bert, BertShape
    from lengthwise.predictors.encoder.ensemble import scores_of
    from lengthwise.predictors.encoder.network import LengthNetwork
    from lengthwise.predictors.encoder.pack import Pack
    from lengthwise.predictors.encoder.training import Trainer

    name, settings = parse_variant(arguments.variant[0])
    config = configured(arguments.folder, settings)
    data = Pack.read(arguments.folder / "pack.npz")
    if not settings.get("smollm2", True):
        data.lengths[:, [i for i, llm in enumerate(data.llms) if "SmolLM2" in llm]] = 0
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.set_num_threads(1 if device == "cpu" else 2)
    seed = int(settings.get("seed", 0))
    torch.manual_seed(seed)
    backbone = Bert(BertShape(**json.loads((arguments.folder / "shape.json").read_text())))
    backbone.load_state_dict({k: v.float() for k, v in torch.load(arguments.folder / "weights.pt").items()})
    if config.layers is not None:
        backbone.keep_layers(config.layers)
    network = LengthNetwork(backbone, config, data.features)
    task, everything = make_task(arguments, settings, data)
    left = arguments.until - time.time()
    trainer = Trainer(network, task, config, seed, device, deadline=time.monotonic() + left)
    trainer.progress = lambda row: print(name, json.dumps(row), flush=True)  # noqa: T201
    curves = trainer.run()
    outputs, _ = trainer.predict(everything)
    np.savez(WORK / f"{name}.npz", outputs=outputs.astype(np.float16), saw=np.isin(np.arange(len(data)), task.train))
    state = {k: v.detach().half().cpu() for k, v in network.state_dict().items()}
    torch.save(state, WORK / f"{name}.pt")
    finished = {"name": name, "settings": settings, "scores": scores_of(outputs, data), "curves": curves}
    (WORK / f"{name}.json").write_text(json.dumps(finished))


def make_task(arguments: argparse.Namespace, settings: dict[str, Any], data: Any) -> tuple[Any, Any]:  # noqa: ANN401
    """What is trained on, and the prompts to predict after."""
    import numpy as np

    from lengthwise.predictors.encoder.pack import HELD_OUT, TRAIN, UNLABELLED
    from lengthwise.predictors.encoder.training import Task

    soft = np.load(arguments.soft) if arguments.soft else None
    train = (data.part == TRAIN) & (data.fold != settings.get("fold", -1))
    learns = train | ((data.part == UNLABELLED) & (soft is not None and bool(settings.get("extra", True))))
    held_out = np.flatnonzero(data.part == HELD_OUT)
    everything = np.arange(len(data))
    if arguments.limit:  # the shortest of each part, to try things out without a GPU
        short = np.argsort(np.diff(data.offsets), kind="stable")
        kept = [short[data.part[short] == part][: arguments.limit] for part in range(UNLABELLED + 1)]
        everything = np.sort(np.concatenate(kept))
        learns &= np.isin(np.arange(len(data)), everything)
        held_out = np.intersect1d(held_out, everything)
    return Task(data, np.flatnonzero(learns), held_out, soft=soft, watch_only=("SmolLM2",)), everything


def run_all(arguments: argparse.Namespace, variants: list[str], until: float, soft: Path | None = None) -> list[str]:
    """Run variants side by side, each in a process of its own; return the names of those that finished."""
    WORK.mkdir(parents=True, exist_ok=True)
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


def explore(arguments: argparse.Namespace) -> None:
    """Train the variants and report them."""
    until = time.time() + arguments.budget
    listed = arguments.variants.read_text().split() if arguments.variants else []
    names = run_all(arguments, [*listed, *(arguments.variant or [])], until - 15)
    report(arguments, names)


def distil(arguments: argparse.Namespace) -> None:
    """Train the ensemble, average it, train the students, keep the best student's weights."""
    bare_package()
    import numpy as np

    from lengthwise.predictors.encoder.ensemble import Member, soft_targets
    from lengthwise.predictors.encoder.pack import Pack

    began = time.time()
    until = began + arguments.budget - 20
    teachers = [
        f"{name}_f{fold}:{recipe}{',' if recipe else ''}fold={fold},seed={fold + 1}"
        for fold in range(arguments.folds)
        for name, _, recipe in [arguments.teacher[fold % len(arguments.teacher)].partition(":")]
    ]
    names = run_all(arguments, teachers, began + arguments.teachers_share * arguments.budget)
    data = Pack.read(arguments.folder / "pack.npz")
    members = [Member(**dict(np.load(WORK / f"{name}.npz"))) for name in names]
    targets = soft_targets(members, data, oof=arguments.oof, disagreement=arguments.disagreement)
    np.save(WORK / "soft.npy", targets.astype(np.float32))
    students = run_all(arguments, arguments.student, until, soft=WORK / "soft.npy")
    report(arguments, [*names, *students], members=members, keep=students)


def report(arguments: argparse.Namespace, names: list[str], members: Any = (), keep: list[str] | None = None) -> None:  # noqa: ANN401
    """Write metrics.json, predictions.npz and the pieces of the kept weights, and print the scores."""
    bare_package()
    import numpy as np

    from lengthwise.predictors.encoder.ensemble import Member, average, scores_of
    from lengthwise.predictors.encoder.pack import Pack

    data = Pack.read(arguments.folder / "pack.npz")
    results = [json.loads((WORK / f"{name}.json").read_text()) for name in names]
    kept = max((r for r in results if r["name"] in (keep or names)), key=lambda r: r["scores"]["held_out"]["tau"])
    files = {name: dict(np.load(WORK / f"{name}.npz")) for name in names}
    together = members or [Member(**file) for file in files.values()]
    ensemble = {"name": "ensemble of all" if not members else "ensemble", "scores": scores_of(average(together), data)}
    summary = {"kept": kept["name"], "results": [*results, ensemble]}
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "metrics.json").write_text(
        json.dumps({**summary, "weights": save_pieces(kept["name"], arguments.out)})
    )
    wanted = [name for name in names if not keep or name in keep]
    predictions: dict[str, Any] = {name: files[name]["outputs"] for name in wanted[:12]}
    soft = WORK / "soft.npy"
    if keep and soft.is_file():
        predictions["soft"] = np.load(soft).astype(np.float16)
    predictions["ensemble"] = average(together).astype(np.float16)
    np.savez_compressed(arguments.out / "predictions.npz", **predictions)
    for result in sorted(summary["results"], key=lambda r: r["scores"]["held_out"]["tau"]):
        scores = {part: list(row.values()) for part, row in result["scores"].items()}
        print(f"{result['name']:24}", json.dumps(scores))  # noqa: T201
    print("kept:", kept["name"], "| columns: tau, MAE, raw coverage 50, 90, [calibrated 50, 90]")  # noqa: T201


def save_pieces(name: str, out: Path) -> list[Any]:
    """All weights as one row of fp16 numbers, cut into files; return names and shapes, in order."""
    import numpy as np
    import torch

    state = torch.load(WORK / f"{name}.pt")
    flat = np.concatenate([value.numpy().ravel() for value in state.values()])
    for number, first in enumerate(range(0, len(flat), PIECE)):
        np.save(out / f"weights_{number}.npy", flat[first : first + PIECE])
    return [[key, list(value.shape)] for key, value in state.items()]


def join(arguments: argparse.Namespace) -> None:
    """Put the pieces together again."""
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
    parser.add_argument("mode", choices=["pack", "explore", "distil", "join", "work"])
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
    parser.add_argument("--limit", type=int, default=0, help="train on this many prompts only, to try things out")
    parser.add_argument("--until", type=float, default=0.0)
    parser.add_argument("--soft", type=Path)
    arguments = parser.parse_args()
    {"pack": pack, "explore": explore, "distil": distil, "join": join, "work": work}[arguments.mode](arguments)


if __name__ == "__main__":
    main()

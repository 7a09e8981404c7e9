"""Train variants of the encoder in parallel on a bare GPU machine, then one student of the best.

    pack     here: tokenise, and write everything a run needs into one folder (needs the package and its data)
    explore  there: variants side by side, scored on held-out prompts
    distil   there: an ensemble over folds, then students trained on it; the weights of the best are written
    left_out there: variants trained without one LLM
    rivals   there: the predictors that TIE's paper compares, for `python -m experiments run tie_rivals`
    diverse  there: teachers on all sources, networks without some groups of sources, then a student
    join     here: the weights as one file, for `lengthwise train --weights`

`explore` and `distil` need torch, transformers and SciPy, not the other dependencies of the package: its modules are
imported without its `__init__` files. docs/guides/training.md says how to run it.
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
JOB_KEYS = ("seed", "fold", "smollm2", "extra", "without", "llm", "groups", "only")
RIVALS = {
    "ssjf": "pooling=mean,head.kind=mean_std,mean=1,log_mean=0,log_std=0",
    "ltr": "pooling=mean,head.kind=rank,early_stopping.metric=tau",
    "tie": "pooling=all,nll=0,log_mean=0,mean=0,log_std=0,pairwise=0,loss.fitted=1,loss.fitted_sigma=3",
}
"""A point regressor of the length, a ListMLE ranker, and mu and sigma by squared error of the prompt's fit."""
RIVAL_LLM = "llm=Llama-3.1-8B"
"""They train on the answers of the LLM that is served, as in the papers."""


def bare_package() -> None:
    """Make the modules for training importable without the dependencies of their packages."""
    for name in PACKAGES:
        module = types.ModuleType(name)
        module.__path__ = [str(ROOT / "src" / name.replace(".", "/"))]
        sys.modules[name] = module


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
    alone = config.head.kind == "bins" or config.data.diverse
    unlabelled = [] if alone else unlabelled_prompts(samples, config.data)
    packed = make_pack(samples, config.data, loaded.text, unlabelled)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    packed.write(arguments.folder / "pack.npz")
    (arguments.folder / "config.json").write_text(config.model_dump_json(indent=1))
    (arguments.folder / "backbone.json").write_text(json.dumps(loaded.config))
    torch.save({k: v.half() for k, v in loaded.module.state_dict().items()}, arguments.folder / "weights.pt")
    for path in sorted(arguments.folder.iterdir()):
        print(f"{path.name:14} {path.stat().st_size / 1e6:6.1f} MB")  # noqa: T201


def load_packed_backbone(folder: Path) -> Any:  # noqa: ANN401
    """Return the encoder of a packed folder."""
    import torch

    from lengthwise.training.encoder.network import empty_backbone

    encoder = empty_backbone(json.loads((folder / "backbone.json").read_text()))
    encoder.load_state_dict({k: v.float() for k, v in torch.load(folder / "weights.pt").items()})
    return encoder


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
            raise SystemExit(f"{name}: '{key}' is not a setting; known: {', '.join([*SHORT, *JOB_KEYS])}")
    return name, settings


def configured(folder: Path, settings: dict[str, Any]) -> Any:  # noqa: ANN401
    """Return the settings of the pack with changes, as an object with the attributes of TrainingConfig."""
    tree = json.loads((folder / "config.json").read_text())
    for key, value in settings.items():
        if key in JOB_KEYS:
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
    config = configured(folder, settings)
    data = Pack.read(folder / "pack.npz")
    if "without" in settings:
        data = data.without(settings["without"])
    if "llm" in settings:
        data.lengths[:, [i for i, llm in enumerate(data.llms) if settings["llm"] not in llm]] = 0
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
    finished["scores"] = scores_of(outputs, data, kind=config.head.kind)
    absent = left_out_groups(settings, data)
    if absent:
        finished["left_out"] = scores_by_group(outputs, data, absent)
    (WORK / f"{name}.json").write_text(json.dumps(finished))


def left_out_groups(settings: dict[str, Any], data: Any) -> list[str]:  # noqa: ANN401
    """Return the corpora that a variant does not train on: those in `groups` (a+b), or all but those in `only`."""
    given = {key: str(settings[key]).split("+") for key in ("groups", "only") if key in settings}
    unknown = [name for names in given.values() for name in names if name not in data.corpora]
    if unknown:
        raise SystemExit(f"'{unknown[0]}' is not a corpus; known: {', '.join(data.corpora)}")
    only = given.get("only", data.corpora)
    return [name for name in data.corpora if name in given.get("groups", ()) or name not in only]


def scores_by_group(outputs: Any, data: Any, groups: list[str]) -> dict[str, Any]:  # noqa: ANN401
    """Return the scores on prompts of each group, over LLMs with at least 30 prompts there."""
    import numpy as np

    from lengthwise.predictors.encoder import places_and_spreads
    from lengthwise.training.encoder.ensemble import score, sigma_factors
    from lengthwise.training.encoder.pack import HELD_OUT, TEST

    mu, spread = places_and_spreads(outputs, "logt")
    here = np.isfinite(mu[:, 0])
    held = np.flatnonzero(
        (data.part == HELD_OUT) & here & ~np.isin(data.corpus, [data.corpora.index(g) for g in groups])
    )
    sigma = np.asarray(spread)[:, :-1] * sigma_factors(mu, np.asarray(spread), data, held)
    found = {}
    for group in groups:
        rows = np.flatnonzero((data.corpus == data.corpora.index(group)) & here)
        rows = rows[(data.part[rows] <= HELD_OUT) | (data.part[rows] == TEST)]
        if len(rows) >= 30:
            found[group] = {"prompts": len(rows), **score(mu, sigma, data, rows, leave_out=("SmolLM2",), least=30)}
    return found


def make_task(arguments: argparse.Namespace, settings: dict[str, Any], data: Any) -> tuple[Any, Any]:  # noqa: ANN401
    """Return the task, and the prompts to predict after training."""
    import numpy as np

    from lengthwise.training.encoder.pack import HELD_OUT, TRAIN, UNLABELLED
    from lengthwise.training.encoder.trainer import TrainingTask

    soft = np.load(arguments.soft) if arguments.soft else None
    train = (data.part == TRAIN) & (data.fold != settings.get("fold", -1))
    absent = [data.corpora.index(name) for name in left_out_groups(settings, data)]
    train &= ~np.isin(data.corpus, absent) & (data.lengths > 0).any((1, 2))
    learns = train | ((data.part == UNLABELLED) & (soft is not None and bool(settings.get("extra", True))))
    held_out = np.flatnonzero((data.part == HELD_OUT) & ~np.isin(data.corpus, absent))
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


def explore(arguments: argparse.Namespace) -> None:
    """Train the variants and report them."""
    until = time.time() + arguments.budget
    listed = arguments.variants.read_text().split() if arguments.variants else []
    names = run_all(arguments, [*listed, *(arguments.variant or [])], until - 15)
    report(arguments, names)


def left_out(arguments: argparse.Namespace) -> None:
    """Train the variants, each without one LLM, and write their outputs for all prompts with lengths."""
    bare_package()
    import numpy as np

    from lengthwise.training.encoder.pack import UNLABELLED, Pack

    names = run_all(arguments, arguments.variant, time.time() + arguments.budget - 10)
    kept = Pack.read(arguments.folder / "pack.npz").part != UNLABELLED
    outputs = {name: np.load(WORK / f"{name}.npz")["outputs"][kept] for name in names}
    arguments.out.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(arguments.out / "left_out.npz", **outputs)


def rivals(arguments: argparse.Namespace) -> None:
    """Train the networks of RIVALS, two seeds each, and write their outputs for the prompts that none trained on."""
    bare_package()
    import numpy as np

    from lengthwise.training.encoder.pack import ELSEWHERE, HELD_OUT, TEST, Pack

    variants = [
        f"{rival}_{seed}:{RIVAL_LLM},{recipe},seed={seed}" for seed in range(2) for rival, recipe in RIVALS.items()
    ]
    names = run_all(arguments, variants, time.time() + arguments.budget - 10)
    prompts = np.flatnonzero(np.isin(Pack.read(arguments.folder / "pack.npz").part, (HELD_OUT, TEST, ELSEWHERE)))
    outputs = {name: np.load(WORK / f"{name}.npz")["outputs"][prompts] for name in names}
    arguments.out.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(arguments.out / "rivals.npz", prompts=prompts, **outputs)
    results = [json.loads((WORK / f"{name}.json").read_text()) for name in names]
    (arguments.out / "metrics.json").write_text(json.dumps(results))
    for result in results:
        print(f"{result['name']:12}", json.dumps(result["scores"]))  # noqa: T201


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
    report(arguments, [*names, *students], members=members, keep=students)


def diverse(arguments: argparse.Namespace) -> None:
    """Train on all sources in one go: teachers and left-out networks in parallel, then the student.

    Writes metrics.json (scores of all; `left_out` by group, for training on other groups and on CASTILLO alone), the
    weights of the student, and soft.npz: the teachers' mean for every prompt and CASTILLO's LLMs, which
    `scripts/train_fast.py` learns from (`outputs` makes its file).
    """
    bare_package()
    import numpy as np

    from lengthwise.training.encoder.ensemble import Member, soft_targets
    from lengthwise.training.encoder.pack import Pack, is_castillo

    began = time.time()
    until = began + arguments.budget - 20
    data = Pack.read(arguments.folder / "pack.npz")
    castillo = [name for name in data.corpora if is_castillo(name)]
    code = [name for name in castillo if name not in ("Alpaca", "DollyDataset", "ShareGPT")]
    groups = [name for name in data.corpora if name not in castillo]
    recipe = arguments.recipe
    teachers = [f"t{n}:{recipe},fold={n},seed={n + 1}" for n in range(arguments.folds)]
    short = f"{recipe},epochs={arguments.left_out_epochs}"
    others = [f"without_{n}:{short},groups={'+'.join(groups[n :: arguments.parts])}" for n in range(arguments.parts)]
    others += [f"without_code:{short},groups={'+'.join(code)}"]
    trained = "+".join(name for name in castillo if name != "Alpaca")
    others += [f"castillo:{recipe},epochs={arguments.castillo_epochs},only={trained}"]
    done = run_all(arguments, [*teachers, *others], began + arguments.teachers_share * arguments.budget)
    names = [name for name in done if name.startswith("t")]
    members = [Member(**dict(np.load(WORK / f"{name}.npz"))) for name in names]
    targets = soft_targets(members, data, oof=arguments.oof, disagreement=arguments.disagreement)
    np.save(WORK / "soft.npy", targets.astype(np.float32))
    students = run_all(
        arguments, [f"student:{recipe},epochs={arguments.student_epochs}"], until, soft=WORK / "soft.npy"
    )
    results = {name: json.loads((WORK / f"{name}.json").read_text()) for name in [*done, *students]}
    kept = "student" if students else names[0]
    arguments.out.mkdir(parents=True, exist_ok=True)
    left_out = {name: result["left_out"] for name, result in results.items() if "left_out" in result}
    summary = {"kept": kept, "left_out": left_out, "results": list(results.values()), "seconds": time.time() - began}
    (arguments.out / "metrics.json").write_text(json.dumps({**summary, "weights": save_pieces(kept, arguments.out)}))
    columns = [number for number, llm in enumerate(data.llms) if "/" in llm]
    llms = np.array([data.llms[number] for number in columns])
    np.savez_compressed(arguments.out / "soft.npz", outputs=targets[:, columns].astype(np.float16), llms=llms)
    for name, result in results.items():
        print(f"{name:14}", json.dumps(result["scores"]), json.dumps(result.get("left_out", {})))  # noqa: T201


def outputs(arguments: argparse.Namespace) -> None:
    """Write soft.npz of --out, with the prompts of the data, as the teacher's file of scripts/train_fast.py (--to)."""
    import numpy as np

    from lengthwise.training.data import PromptTable, load_samples
    from lengthwise.training.encoder.config import parse_config
    from lengthwise.training.fast.train import TeacherOutputs

    config = json.loads((arguments.folder / "config.json").read_text())
    texts = PromptTable.of(load_samples(parse_config(config).data)).column("prompt")
    with np.load(arguments.out / "soft.npz") as archive:
        found, llms = archive["outputs"][: len(texts)].astype(np.float32), tuple(archive["llms"].tolist())
    known = np.isfinite(found[:, 0, 0])
    kept = TeacherOutputs(tuple(text for text, use in zip(texts, known, strict=True) if use), llms, found[known])
    kept.write(arguments.to)
    print(f"{arguments.to}: {len(kept.texts)} prompts, {len(llms)} LLMs")  # noqa: T201


def best_teachers(names: list[str], slack: float) -> list[str]:
    """Return the finished ones with a tau on held-out prompts near the best."""
    done = {name: json.loads((WORK / f"{name}.json").read_text()) for name in names}
    tau = {name: result["scores"]["held_out"]["tau"] for name, result in done.items()}
    print("teachers:", json.dumps(tau))  # noqa: T201
    return [name for name in tau if tau[name] >= max(tau.values()) - slack]


def report(arguments: argparse.Namespace, names: list[str], members: Any = (), keep: list[str] | None = None) -> None:  # noqa: ANN401
    """Write metrics.json, predictions.npz and the weights of the best network, and print the scores."""
    bare_package()
    import numpy as np

    from lengthwise.training.encoder.ensemble import Member, average, scores_of
    from lengthwise.training.encoder.pack import Pack

    data = Pack.read(arguments.folder / "pack.npz")
    results = [json.loads((WORK / f"{name}.json").read_text()) for name in names]
    kept = max((r for r in results if r["name"] in (keep or names)), key=lambda r: r["scores"]["held_out"]["tau"])
    files = {name: dict(np.load(WORK / f"{name}.npz")) for name in names}
    used = members or [Member(**file) for file in files.values()]
    ensemble = {"name": "ensemble of all" if not members else "ensemble", "scores": scores_of(average(used), data)}
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
    predictions["ensemble"] = average(used).astype(np.float16)
    np.savez_compressed(arguments.out / "predictions.npz", **predictions)
    for result in sorted(summary["results"], key=lambda r: r["scores"]["held_out"]["tau"]):
        scores = {part: list(row.values()) for part, row in result["scores"].items()}
        print(f"{result['name']:24}", json.dumps(scores))  # noqa: T201
    print("kept:", kept["name"], "| columns: tau, MAE, raw coverage 50, 90, [calibrated 50, 90]")  # noqa: T201


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
    parser.add_argument("--recipe", default="weight=sqrt_corpus", help="settings of every network of `diverse`")
    parser.add_argument("--parts", type=int, default=4, help="networks of `diverse` without a share of the groups")
    parser.add_argument("--left-out-epochs", type=int, default=3)
    parser.add_argument("--castillo-epochs", type=int, default=16, help="a sixth of the prompts: more epochs")
    parser.add_argument("--student-epochs", type=int, default=8)
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


MODES = {
    "pack": pack, "explore": explore, "distil": distil, "left_out": left_out, "rivals": rivals, "diverse": diverse,
    "outputs": outputs, "join": join, "work": work,
}  # fmt: skip

if __name__ == "__main__":
    main()

"""Train the networks of CASTILLO's and TIE's papers end to end, many side by side, on a bare GPU machine.

    pack    here: token ids, lengths and the weights of MiniLM and MPNet, rounded, in one folder
    train   there: the variants of configs/papers.txt, most important first; what they predict, after each that ends
    keep    here: the predictions as the rows that `experiments run castillo` and `experiments run tie_rivals` read

`train` needs torch, NumPy and SciPy only. A variant is name:key=value,... as in gpu_train.py, and further keys are in
SETTINGS. docs/guides/training.md says how to run it.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from gpu_train import PIECE, bare_package, parse_variant, prepare_torch, settings_tree  # type: ignore[import-not-found] # noqa: E402

if sys.argv[1:2] in (["train"], ["work"]):  # there, without the other dependencies of the package
    bare_package()

from lengthwise.training.encoder.trainer import Trainer  # noqa: E402

SETTINGS: Final[dict[str, Any]] = {
    "head": "logt", "llms": "", "network": "minilm", "identity": 1, "graph": 1, "keep": 0, "seed": 0, "seconds": 1000.0,
    "widths": "50-100-200-500-1000", "readings": "mean-p99", "stated": True,
}  # fmt: skip
"""Of a variant. `llms`: names of LLMs to learn from, joined by +; `network`: the encoder; `identity`: 0 hides the LLM;
`graph`: 1 records steps as CUDA graphs; `keep`: 1 writes the weights; `seconds`: at most, the schedule included;
`widths`, `readings`: of the head `classes`."""
OWN: Final = tuple(name for name in SETTINGS if name != "stated")
NETWORKS: Final = ("minilm", "mpnet")
ALPACA: Final = "Alpaca"
LEAST: Final = 20.0
"""Seconds: with less time left no variant is started."""
ROUND_TO: Final = 64
"""Tokens: a batch is padded to a multiple, so that few graphs are recorded."""
SPARE: Final = 6.0
"""Seconds before the end at which every training has ended."""


def pack(arguments: argparse.Namespace) -> None:
    """Write pack.npz, config.json and the weights, with the words that occur in the prompts only."""
    from experiments.plain_encoder import from_transformers, write_small
    from lengthwise.training.data import load_samples, make_pack
    from lengthwise.training.encoder.config import read_config
    from lengthwise.training.encoder.network import load_backbone

    config = read_config(arguments.config)
    loaded = load_backbone(str(arguments.minilm or config.backbone), config.max_tokens)
    data = make_pack(load_samples(config.data), config.data, loaded.text)
    special = {data.pad_id, data.mask_id, loaded.text.start, loaded.text.end}
    words = np.union1d(np.unique(data.tokens), np.array(sorted(special))).astype(np.int64)
    number = {int(word): place for place, word in enumerate(words)}
    data = replace(
        data,
        tokens=np.searchsorted(words, data.tokens).astype(np.uint16),
        pad_id=number[data.pad_id],
        mask_id=number[data.mask_id],
    )
    folder = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    data.write(folder / "pack.npz")
    (folder / "config.json").write_text(config.model_dump_json(indent=1))
    np.save(folder / "words.npy", words.astype(np.uint16))
    minilm = from_transformers(loaded.config, loaded.module.model.state_dict(), words=words.tolist())
    write_small(minilm, folder, "minilm", steps=arguments.steps[0])
    if arguments.mpnet is not None:
        settings, state, theirs = read_mpnet(arguments.mpnet, loaded.tokenizer)
        mpnet = from_transformers(settings, state, words=[theirs[word] for word in words], layers=arguments.layers)
        write_small(mpnet, folder, "mpnet", steps=arguments.steps[1], files=3)
    for path in sorted(folder.iterdir()):
        print(f"{path.name:14} {path.stat().st_size / 1e6:6.1f} MB")  # noqa: T201


def read_mpnet(folder: Path, tokenizer: bytes) -> tuple[dict[str, Any], dict[str, Any], dict[int, int]]:
    """Return configuration, weights, and MPNet's number of each word of BERT's vocabulary."""
    special = {"[CLS]": "<s>", "[SEP]": "</s>", "[PAD]": "<pad>", "[MASK]": "<mask>"}
    vocabulary = {word: at for at, word in enumerate((folder / "vocab.txt").read_text("utf-8").split("\n"))}
    bert = json.loads(tokenizer)["model"]["vocab"]
    unknown = vocabulary["[UNK]"]
    theirs = {at: vocabulary.get(special.get(word, word), unknown) for word, at in bert.items()}
    files = sorted(folder.glob("*.safetensors"))
    if files:
        from safetensors.torch import load_file

        state = load_file(files[0])
    else:
        state = torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True)
    return json.loads((folder / "config.json").read_text()), state, theirs


class GraphTrainer(Trainer):
    """A trainer that records the step of each batch width once, as a CUDA graph, and replays it.

    A step of MiniLM is some 600 small kernels: launching them one by one takes longer than running them.
    """

    def __post_init__(self) -> None:
        """Keep the learning rates on the device, where a recorded step reads them."""
        super().__post_init__()
        self.stream = torch.cuda.Stream()
        self.pool: Any = None
        self.graphs: dict[tuple[int, bool], tuple[Any, Any, Any] | None] = {}
        self.filler = np.random.default_rng(self.seed)
        for group in self.optimiser.param_groups:
            group["capturable"] = True
            group["lr"] = torch.tensor(float(group["lr"]), device=self.device)

    def _one_epoch(self) -> float:
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            return super()._one_epoch()

    def train_on(self, prompts: NDArray[np.int64]) -> Any:
        """Fill the batch up with other prompts, then run its step: at first as it is, then recorded."""
        spare = self.config.optimiser.batch - len(prompts)
        prompts = np.concatenate([prompts, self.filler.choice(self.task.train, max(spare, 0))])
        at = torch.as_tensor(prompts, device=self.device)
        width = min(-(-self.tensors.width(prompts) // ROUND_TO) * ROUND_TO, int(self.tensors.ids.shape[1]))
        key = (width, self.epoch >= self.config.optimiser.epochs)
        if key not in self.graphs:
            self.graphs[key] = None
            return self.update(self.tensors.gather(at, width))
        recorded = self.graphs[key]
        if recorded is None:
            graph, numbers = torch.cuda.CUDAGraph(), at.clone()
            self.optimiser.zero_grad(set_to_none=True)
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
                loss = self.update(self.tensors.gather(numbers, width))
            self.pool = self.pool or graph.pool()
            recorded = self.graphs[key] = (graph, numbers, loss)
        graph, numbers, loss = recorded
        numbers.copy_(at)
        graph.replay()
        return loss.clone()


def make_head(settings: dict[str, Any], data: Any, train: NDArray[np.intp]) -> Any:
    """Return the head of a variant; classes reach to the longest, and moments are standardised by, training answers."""
    from experiments.heads import HEADS, LengthClasses, Moments

    lengths = data.lengths[train].astype(np.float64)
    if settings["head"] == "classes":
        widths = [int(width) for width in str(settings["widths"]).split("-")]
        return LengthClasses(float(lengths.max()), widths, settings["readings"].split("-"))
    if settings["head"] in ("squared", "absolute"):
        rows = lengths[(lengths > 0).any(-1)]
        masked = np.where(rows > 0, rows, np.nan)
        moments = np.nanmean(masked, axis=-1), np.nanstd(masked, axis=-1)
        power = 2 if settings["head"] == "squared" else 1
        return Moments(power, [each.mean() for each in moments], [each.std() for each in moments])
    return HEADS[settings["head"]]


def work(arguments: argparse.Namespace) -> None:
    """Train variants in this process, one after the other, until each has been taken by some process."""
    while (variant := take(arguments)) is not None:
        train_one(arguments, variant)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def take(arguments: argparse.Namespace) -> str | None:
    """Return the next variant that no process has taken, None without one or without time."""
    for variant in listed(arguments):
        claim = arguments.work / f"{variant.partition(':')[0]}.claim"
        if time.time() > arguments.until - LEAST:
            return None
        with contextlib.suppress(FileExistsError), claim.open("x") as stream:
            stream.write(str(os.getpid()))
            return variant
    return None


def listed(arguments: argparse.Namespace) -> list[str]:
    """Return the variants, most important first."""
    lines = arguments.variants.read_text().split("\n") if arguments.variants else []
    return [line.strip() for line in [*lines, *(arguments.variant or [])] if line.strip() and line[0] != "#"]


def train_one(arguments: argparse.Namespace, variant: str) -> None:
    """Train a variant; write what it predicts for the prompts that are scored."""
    from experiments.plain_encoder import read_small
    from lengthwise.training.encoder.ensemble import scores_of
    from lengthwise.training.encoder.network import LengthNetwork
    from lengthwise.training.encoder.pack import Pack
    from lengthwise.training.encoder.trainer import TrainingTask

    began = time.monotonic()
    name, given = parse_variant(variant, SETTINGS)
    settings = {**SETTINGS, **given}
    config = settings_tree(arguments.folder, {**given, "stated": settings["stated"]}, OWN)
    data = Pack.read(arguments.folder / "pack.npz")
    words = [word for word in str(settings["llms"]).split("+") if word]
    if words:
        data = data.of_llms([at for at, llm in enumerate(data.llms) if any(word in llm for word in words)])
    learns, held, asked = parts(data, arguments.limit)
    device = prepare_torch(int(settings["seed"]))
    network = LengthNetwork(
        read_small(arguments.folder, settings["network"]), config, data.features, make_head(settings, data, learns)
    )
    if not settings["identity"]:
        hide_identity(network)
    left = min(arguments.until - time.time(), float(settings["seconds"]))
    eager = device == "cpu" or not settings["graph"] or (arguments.work / f"{name}.eager").exists()
    kind = Trainer if eager else GraphTrainer
    task = TrainingTask(data, learns, held)
    trainer = kind(network, task, config, int(settings["seed"]), device, deadline=time.monotonic() + left)
    trainer.progress = lambda row: print(name, json.dumps(row), flush=True)  # noqa: T201
    curves = trainer.run()
    outputs, _ = trainer.predict(np.union1d(asked, held))
    head = network.head.kind
    predicted = getattr(head, "predicted", lambda values: values.astype(np.float16))
    np.savez(arguments.work / f"{name}.npz", prompts=asked, predicted=predicted(outputs[asked][:, : len(data.llms)]))
    if settings["keep"]:
        torch.save({k: v.detach().half().cpu() for k, v in network.state_dict().items()}, arguments.work / f"{name}.pt")
    about = {"name": name, "settings": settings, "llms": data.llms, "of": list(getattr(head, "names", ()))}
    about |= {"eager": eager, "seconds": round(time.monotonic() - began, 1), "prompts": len(learns)}
    text = json.dumps({**about, "curves": curves, "scores": scores_of(outputs, data, head)})
    (arguments.work / f"{name}.partial").write_text(text)
    (arguments.work / f"{name}.partial").replace(arguments.work / f"{name}.json")


def parts(data: Any, limit: int) -> tuple[NDArray[np.intp], ...]:
    """Return the prompts to learn from, those held out, and those to predict: held out, test, and all of Alpaca's."""
    from lengthwise.training.encoder.pack import HELD_OUT, TEST, TRAIN

    has = (data.lengths > 0).any((1, 2))
    alpaca = data.corpora.index(ALPACA) if ALPACA in data.corpora else -1
    chosen = (
        has & (data.part == TRAIN),
        has & (data.part == HELD_OUT),
        np.isin(data.part, (HELD_OUT, TEST)) | (data.corpus == alpaca),
    )
    if not limit:
        return tuple(map(np.flatnonzero, chosen))
    short = np.argsort(np.diff(data.offsets), kind="stable")  # for a trial without a GPU
    return tuple(np.sort(short[each[short]][:limit]) for each in chosen)


def hide_identity(network: Any) -> None:
    """Give every LLM the same vector, which is not trained."""
    with torch.no_grad():
        network.identity.embedding.weight.zero_()
        network.features.zero_()
    network.identity.embedding.weight.requires_grad_(False)


def train(arguments: argparse.Namespace) -> None:
    """Run processes that take the variants in order; whenever one has ended, write all that have."""
    began = time.time()
    until = began + arguments.budget
    for folder in (arguments.work, arguments.out):
        folder.mkdir(parents=True, exist_ok=True)
    (arguments.work / "variants.txt").write_text("\n".join(listed(arguments)))
    order = [parse_variant(variant, SETTINGS)[0] for variant in listed(arguments)]
    running: list[subprocess.Popen[bytes]] = []
    kept: list[str] = []
    while True:
        for process in [each for each in running if each.poll() is not None]:
            running.remove(process)
            again(arguments, process.pid)
        open_ones = [name for name in order if not (arguments.work / f"{name}.claim").is_file()]
        if time.time() < until - LEAST and len(running) < min(arguments.parallel, len(running) + len(open_ones)):
            running.append(start(arguments, until))
        done = [name for name in order if (arguments.work / f"{name}.json").is_file()]
        if len(done) > len(kept):
            for name in [each for each in done if each not in kept]:
                about = json.loads((arguments.work / f"{name}.json").read_text())
                print(f"{time.time() - began:5.0f} s  {name}", about["seconds"], about["eager"], flush=True)  # noqa: T201
            kept = done
            write_results(arguments, kept)
        if not running:
            break
        time.sleep(0.2)
    for log in sorted(arguments.work.glob("*.log")):  # why some failed
        text = log.read_text(errors="replace")
        if "Traceback" in text:
            print(log.name, text[text.index("Traceback") :][:2000])  # noqa: T201


def start(arguments: argparse.Namespace, until: float) -> subprocess.Popen[bytes]:
    """Start one process of `work`, with two threads, so that many fit on the machine."""
    command = [sys.executable, __file__, "work", "--folder", str(arguments.folder), "--work", str(arguments.work)]
    command += ["--variants", str(arguments.work / "variants.txt")]
    command += ["--until", str(until - SPARE), "--limit", str(arguments.limit)]
    number = len(list(arguments.work.glob("*.log")))
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "2"}
    with (arguments.work / f"{number:03}.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment)  # noqa: S603


def again(arguments: argparse.Namespace, pid: int) -> None:
    """Give what a process left unfinished to another, once and without graphs."""
    for claim in arguments.work.glob("*.claim"):
        name = claim.name.removesuffix(".claim")
        eager = arguments.work / f"{name}.eager"
        if claim.read_text() == str(pid) and not (arguments.work / f"{name}.json").is_file():
            print(f"{name} failed" + ("" if eager.exists() else ", again without graphs"), flush=True)  # noqa: T201
            if not eager.exists():
                eager.touch()
                claim.unlink()


def write_results(arguments: argparse.Namespace, done: list[str]) -> None:
    """Write results.json, predictions.npz and the weights of the variants that have ended, each as a whole."""
    results = {name: json.loads((arguments.work / f"{name}.json").read_text()) for name in done}
    arrays: dict[str, Any] = {}
    for name in done:
        with np.load(arguments.work / f"{name}.npz") as archive:
            arrays |= {"prompts": archive["prompts"], name: archive["predicted"]}
        weights = arguments.work / f"{name}.pt"
        if weights.is_file():
            results[name]["weights"] = save_weights(name, torch.load(weights, mmap=True), arguments.out)
    partial = arguments.work / "partial.npz"
    np.savez_compressed(partial, **arrays)
    shutil.copy(partial, arguments.out / "predictions.npz.partial")
    (arguments.out / "predictions.npz.partial").replace(arguments.out / "predictions.npz")
    (arguments.out / "results.partial").write_text(json.dumps(list(results.values())))
    (arguments.out / "results.partial").replace(arguments.out / "results.json")


def save_weights(name: str, state: dict[str, Any], out: Path) -> list[Any]:
    """Write fp16 numbers in several files; return names and shapes, in order."""
    flat = np.concatenate([value.numpy().ravel() for value in state.values()])
    for number, first in enumerate(range(0, len(flat), PIECE)):
        path = out / f"{name}_{number}.npy"
        if not path.is_file():
            np.save(path, flat[first : first + PIECE])
    return [[key, list(value.shape)] for key, value in state.items()]


def keep(arguments: argparse.Namespace) -> None:
    """Write the rows that the studies read, from the files that `train` wrote."""
    from experiments import tie_rivals
    from experiments.castillo import finetuned

    for rows in (finetuned.keep(arguments.out), tie_rivals.keep(arguments.out)):
        print(rows)  # noqa: T201


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=list(MODES))
    parser.add_argument("--folder", type=Path, default=Path(".device/papers"))
    parser.add_argument("--config", type=Path, default=ROOT / "configs" / "papers.yaml")
    parser.add_argument("--minilm", type=Path, help="pack: folder with MiniLM [default: its installed package]")
    parser.add_argument("--mpnet", type=Path, help="pack: folder with all-mpnet-base-v2")
    parser.add_argument("--layers", type=int, default=12, help="pack: of MPNet, from the bottom")
    parser.add_argument("--steps", type=float, nargs=2, default=(8.0, 3.5), help="pack: rounding, MiniLM and MPNet")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "out/gpu")))
    parser.add_argument("--work", type=Path, default=Path("/tmp/lengthwise-papers"))  # noqa: S108  (a rented machine)
    parser.add_argument("--variant", action="append", help="name:key=value,...; repeatable")
    parser.add_argument("--variants", type=Path, help="a file of them, one per line")
    parser.add_argument("--budget", type=float, default=330.0, help="seconds for all of it")
    parser.add_argument(
        "--parallel", type=int, default=12, help="processes; 12 are too many for MPNet in 139 GiB [default: 12]"
    )
    parser.add_argument("--limit", type=int, default=0, help="train on this many prompts only, for a trial")
    parser.add_argument("--until", type=float, default=0.0)
    arguments = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        MODES[arguments.mode](arguments)


MODES: Final = {"pack": pack, "train": train, "keep": keep, "work": work}

if __name__ == "__main__":
    main()

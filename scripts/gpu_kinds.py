"""Train `default` on kinds of prompts that weigh alike, and judge the recipe by kinds left out of training.

    pack    here: prompts as token ids, lengths, and the weights to start from, in one folder
    train   there: variants side by side (name:key=value,...); scores, and the weights of each with `keep=1`
    join    here: the mean of the weights of some variants, for `lengthwise train --weights`

A kind is a group of `workloads/datasets.py`. A batch draws CASTILLO with a fixed share and every other kind equally. An
answer's log length is that of the prompt plus a level of its (kind, LLM), which is learned beside the network and
dropped: what remains is what the prompt says. The order of answers within a kind is a loss of its own. The spread is
learned without the levels, so that it includes what is unknown about a new source. On CASTILLO's prompts the outputs of
the starting weights are further targets. `train` needs torch, transformers and SciPy only; `without=a+b` leaves kinds
out. docs/guides/training.md says how to run it.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_train import bare_package, parse_variant, prepare_torch, settings_tree  # type: ignore[import-not-found]
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

if sys.argv[1:2] in (["train"], ["work"]):  # there, without the other dependencies of the package
    bare_package()

from lengthwise.training.encoder import losses
from lengthwise.training.encoder.network import LengthNetwork, empty_backbone

Array = NDArray[Any]

SETTINGS: dict[str, Any] = {
    "lr": 2e-4, "head_lr": 1e-3, "decay": 0.9, "steps": 1200, "batch": 96, "castillo": 0.3, "rank": 1.0, "soft": 1.0,
    "hide": 0.3, "prior": 0.005, "dropout": 0.1, "ema": 0.995, "seed": 0, "without": "", "keep": 0, "outputs": 0,
}  # fmt: skip
"""Of a variant. `castillo`: its share of a batch; `hide`: of answers shown as those of an unknown LLM; `prior`: weight
of the squared levels; `keep`: 1 writes the change of the weights, `outputs`: 1 the outputs for every prompt and row, as
targets of `train_fast.py`."""
CASTILLO = ("castillo-code", "castillo-chat")
JUDGED = ("alpaca", "arena", "noncompliance")
"""Kinds that are never trained on: their licences do not allow it."""
ANSWERS = 6  # of a prompt in a batch
LEVEL_RATE = 3e-2
MIN_GAP = 0.2  # of two log lengths: closer ones have no order
ORDER_SCALE = 0.25
TOGETHER = 8  # batches whose prompts are sorted by length
MIN_PROMPTS = 30  # of an LLM in a kind, for a tau


def pack(arguments: argparse.Namespace) -> None:
    """Write data.npz, base.npz, backbone.json and config.json."""
    from lengthwise.llm_names import identify
    from lengthwise.predictors.stated_length import stated
    from lengthwise.training.data import PromptTable, load_samples
    from lengthwise.training.encoder.config import read_config
    from lengthwise.training.encoder.pack import HELD_OUT
    from lengthwise.training.encoder.run import prepare
    from lengthwise.training.fast.train import packed_pairs
    from lengthwise.workloads.datasets import prompt_key

    prepared = prepare(read_config(arguments.config))
    held = PromptTable.of(load_samples(prepared.config.data)).rows(np.flatnonzero(prepared.pack.part == HELD_OUT))
    aside = {prompt_key(text) for text in held.column("prompt")}  # what `lengthwise train` calibrates on
    table = packed_pairs()
    tokens, offsets, sizes = prepared.loaded.text.encode_all(table.texts)
    rows = [prepared.pack.llms.index(llm) if llm in prepared.pack.llms else -1 for llm in table.llms]
    arrays: dict[str, Any] = {
        "tokens": tokens,
        "offsets": offsets,
        "sizes": sizes,
        "stated": np.array([stated(text).numbers() for text in table.texts], np.float16),
        "kind": table.group.astype(np.int8),
        "test": table.test,
        "aside": np.array([prompt_key(text) in aside for text in table.texts]),
        "prompt": table.prompt.astype(np.int32),
        "llm": table.llm.astype(np.int16),
        "row": np.array(rows, np.int16),
        "lengths": table.lengths.astype(np.int32),
        "censored": table.censored,
        "features": prepared.pack.features,
        "names": np.array([identify(llm).features() for llm in table.llms], np.float32),
        "plain": np.array(json.dumps({"kinds": table.groups, "llms": table.llms, "pad": prepared.pack.pad_id})),
    }
    arguments.folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(arguments.folder / "data.npz", **arrays)
    state = torch.load(arguments.start, map_location="cpu", weights_only=True)
    small: dict[str, Any] = {name: value.numpy().astype(np.float16) for name, value in state.items()}
    np.savez_compressed(arguments.folder / "base.npz", **small)
    (arguments.folder / "backbone.json").write_text(json.dumps(prepared.loaded.config))
    (arguments.folder / "config.json").write_text(prepared.config.model_dump_json())
    for path in sorted(arguments.folder.iterdir()):
        print(f"{path.name:14} {path.stat().st_size / 1e6:6.1f} MB")  # noqa: T201


class Data:
    """The pack on one device."""

    def __init__(self, folder: Path, device: str) -> None:
        with np.load(folder / "data.npz") as archive:
            found = {name: archive[name] for name in archive.files}
        plain = json.loads(str(found["plain"]))
        self.kinds, self.llms, self.device = plain["kinds"], plain["llms"], device
        self.count = np.diff(found["offsets"]).astype(np.int32)
        ids = np.full((len(self.count), int(self.count.max())), plain["pad"], np.int32)
        ids[np.arange(ids.shape[1]) < self.count[:, None]] = found["tokens"]
        self.ids, self.counts = self.tensor(ids), self.tensor(self.count)
        self.log_size = self.tensor(np.log1p(found["sizes"].astype(np.float32)) - np.float32(5.0))
        self.stated = self.tensor(found["stated"].astype(np.float32))
        self.kind, self.test, self.aside = found["kind"].astype(np.int64), found["test"], found["aside"]
        self.prompt, self.llm = found["prompt"].astype(np.int64), found["llm"].astype(np.int64)
        self.lengths, self.censored = found["lengths"], found["censored"]
        self.lengths_on_device, self.censored_on_device = (
            self.tensor(self.lengths.astype(np.float32)),
            self.tensor(self.censored),
        )
        unknown = len(found["features"]) - 1
        self.row = np.where(found["row"] < 0, unknown, found["row"]).astype(np.int64)
        """By LLM of the pack: its row in the network, or that of the unknown LLM."""
        self.unknown, self.llm_features = unknown, found["features"]
        # Rows of the network, then the names of the pack's LLMs.
        self.features = self.tensor(np.concatenate([found["features"], found["names"]]))
        self.name = np.where(found["row"] < 0, unknown + 1 + np.arange(len(self.row)), found["row"]).astype(np.int64)
        self.first = np.searchsorted(self.prompt, np.arange(len(self.count)))
        self.many = np.searchsorted(self.prompt, np.arange(len(self.count)), side="right") - self.first
        total, count = self.lengths.sum(1), (self.lengths > 0).sum(1)
        self.log_mean = np.log(np.maximum(total / np.maximum(count, 1), 1.0))

    def tensor(self, values: Array) -> Any:
        """Return an array on the device."""
        return torch.as_tensor(values, device=self.device)

    def inputs(self, prompts: Array) -> tuple[Any, Any, Any, Any]:
        """Return token ids, mask, size and stated length of these prompts, padded to the longest."""
        width = min(-(-int(self.count[prompts].max()) // 32) * 32, self.ids.shape[1])
        at = self.tensor(prompts)
        mask = torch.arange(width, device=self.device) < self.counts[at].unsqueeze(1)
        return self.ids[at, :width], mask, self.log_size[at], self.stated[at]

    def of_kinds(self, names: tuple[str, ...] | list[str]) -> Array:
        """Return which prompts are of these kinds."""
        return np.isin(self.kind, [self.kinds.index(name) for name in names if name in self.kinds])


class Training:
    """One variant."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.device = prepare_torch(settings["seed"])
        self.rng = np.random.default_rng(settings["seed"])
        self.data = data = Data(folder, self.device)
        config = settings_tree(folder, {}, own=())
        self.network = LengthNetwork(
            empty_backbone(json.loads((folder / "backbone.json").read_text())), config, data.llm_features
        )
        self.base = load_weights(folder, self.network)
        self.network.load_state_dict(self.base)
        self.network.to(self.device)
        self.network.backbone.set_dropout(settings["dropout"])
        self.without = [name for name in settings["without"].split("+") if name]
        left_out = data.of_kinds([*self.without, *JUDGED])
        self.train = np.flatnonzero(~data.test & ~data.aside & ~left_out & (data.many > 0))
        self.levels = torch.zeros(len(data.kinds), len(data.llms), device=self.device, requires_grad=True)
        self.soft: Any = self._own_outputs() if settings["soft"] else None

    def run(self) -> None:
        """Train; the running mean of the weights stays."""
        settings, optimiser = self.settings, self._optimiser()
        rates = [group["lr"] for group in optimiser.param_groups]
        learned = {name: value for name, value in self.network.named_parameters() if value.requires_grad}
        mean = {name: value.detach().clone() for name, value in learned.items()}
        batches = self._batches()
        for step in range(settings["steps"]):
            share = min(1.0, (step + 1) / (0.06 * settings["steps"]))
            share *= 0.5 * (1.0 + math.cos(math.pi * step / settings["steps"]))
            for group, rate in zip(optimiser.param_groups, rates, strict=True):
                group["lr"] = rate * share
            self.network.train()
            with self._autocast():
                loss = self._loss(next(batches))
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(list(learned.values()), 1.0)
            optimiser.step()
            kept = min(settings["ema"], (1 + step) / (10 + step))
            with torch.no_grad():
                torch._foreach_lerp_(list(mean.values()), [value.detach() for value in learned.values()], 1.0 - kept)
        with torch.no_grad():
            for name, value in learned.items():
                value.copy_(mean[name])

    def predicted(self) -> tuple[Array, Array]:
        """Return mu and sigma of every pair, as served."""
        data, found = self.data, np.full((len(self.data.prompt), 2), np.nan, np.float32)
        self.network.eval()
        order = np.argsort(data.count, kind="stable")
        with torch.no_grad(), self._autocast():
            for start in range(0, len(order), 256):
                prompts = order[start : start + 256]
                vectors = self.network.encode(*data.inputs(prompts))
                pairs = np.concatenate([np.arange(data.first[p], data.first[p] + data.many[p]) for p in prompts])
                owner = data.tensor(np.repeat(np.arange(len(prompts)), data.many[prompts]))
                llm = data.llm[pairs]
                outputs = self._head(vectors[owner], data.row[llm], data.name[llm])
                found[pairs] = torch.stack([outputs[..., 0], losses.log_sigma(outputs[..., 1])], -1).cpu().numpy()
        return found[:, 0], np.exp(found[:, 1])

    def _optimiser(self) -> Any:
        settings, backbone = self.settings, self.network.backbone
        bottom, *layers = backbone.groups()
        for parameter in bottom:  # word vectors stay: most are rarely seen
            parameter.requires_grad_(False)
        groups = [
            {"params": layer, "lr": settings["lr"] * settings["decay"] ** (len(layers) - 1 - depth)}
            for depth, layer in enumerate(layers)
        ]
        head = [*self.network.identity.parameters(), *self.network.head.parameters()]
        groups.append({"params": head, "lr": settings["head_lr"]})
        groups.append({"params": [self.levels], "lr": LEVEL_RATE, "weight_decay": 0.0})
        return torch.optim.AdamW(groups, weight_decay=0.01, fused=self.device == "cuda")

    def _batches(self) -> Iterator[Array]:
        """Yield batches without end: CASTILLO with its share, every other kind equally."""
        data, size, rng = self.data, self.settings["batch"], self.rng
        kinds = [number for number in range(len(data.kinds)) if (data.kind[self.train] == number).any()]
        of = {number: self.train[data.kind[self.train] == number] for number in kinds}
        castillo = np.array([data.kinds[number] in CASTILLO for number in kinds])
        share = np.where(castillo, [len(of[number]) for number in kinds], 1.0)
        for group, part in ((castillo, self.settings["castillo"]), (~castillo, 1.0 - self.settings["castillo"])):
            share[group] *= part / max(share[group].sum(), 1e-9)
        share /= share.sum()
        while True:
            counts = rng.multinomial(size * TOGETHER, share)
            drawn = np.concatenate([rng.choice(of[number], n) for number, n in zip(kinds, counts, strict=True) if n])
            drawn = drawn[np.argsort(data.count[drawn] + rng.random(len(drawn)))].reshape(TOGETHER, size)
            yield from (drawn[number] for number in rng.permutation(TOGETHER))

    def _loss(self, prompts: Array) -> Any:
        data, settings = self.data, self.settings
        vectors = self.network.encode(*data.inputs(prompts))
        shape = (len(prompts), ANSWERS)
        answers = data.first[prompts][:, None] + (self.rng.random(shape) * data.many[prompts][:, None]).astype(np.int64)
        llm, chance = data.llm[answers], self.rng.random(shape)
        hidden = chance < settings["hide"]
        row = np.where(hidden, data.unknown, data.row[llm])
        name = np.where(chance < settings["hide"] / 2, data.unknown, data.name[llm])
        outputs = self._head(vectors.unsqueeze(1), row, name)
        kind = data.tensor(data.kind[prompts])
        castillo = data.tensor(data.of_kinds(CASTILLO)[prompts])
        own = self.levels[kind.unsqueeze(1), data.tensor(llm)]
        # CASTILLO's LLMs have rows of their own; hidden, the level of an LLM is unknown there too.
        level = torch.where(castillo.unsqueeze(1) & ~data.tensor(hidden), torch.zeros_like(own), own)
        at = data.tensor(answers)
        targets = losses.make_targets(data.lengths_on_device[at], data.censored_on_device[at])
        mu, spread, log_mean = outputs[..., 0], losses.log_sigma(outputs[..., 1]), outputs[..., 2] + level
        loss = losses.negative_log_likelihood(mu + level, spread.detach(), targets)
        loss = loss + losses.negative_log_likelihood(mu.detach(), spread, targets)
        far = (torch.exp(log_mean.clamp(max=9.0)) - targets.mean).abs() / 300.0
        loss = loss + torch.where(targets.whole, (log_mean - targets.log_mean).abs() + 0.3 * far, 0.0)
        repeated = targets.whole & (targets.present.sum(-1) > 1)
        loss = loss + 0.3 * torch.where(repeated, (outputs[..., 3] - targets.log_std).abs(), 0.0)
        total = loss.mean() + settings["prior"] * (own**2).mean()
        total = total + settings["rank"] * self._order_loss(mu, level, targets, prompts, kind)
        return total + (settings["soft"] * self._soft_loss(vectors, prompts) if self.soft is not None else 0.0)

    def _order_loss(self, mu: Any, level: Any, targets: Any, prompts: Array, kind: Any) -> Any:
        """Logistic loss on the order of answers to two prompts of one kind, levels removed."""
        flat, true = mu.flatten(), (targets.log_mean - level.detach()).flatten()
        gap = true.unsqueeze(0) - true.unsqueeze(1)
        kinds, owner = kind.repeat_interleave(ANSWERS), self.data.tensor(np.repeat(prompts, ANSWERS))
        whole = targets.whole.flatten()
        known = (kinds.unsqueeze(0) == kinds.unsqueeze(1)) & (owner.unsqueeze(0) != owner.unsqueeze(1))
        known &= (gap.abs() > MIN_GAP) & whole.unsqueeze(0) & whole.unsqueeze(1)
        loss = functional.softplus(-torch.sign(gap) * (flat.unsqueeze(0) - flat.unsqueeze(1)) / ORDER_SCALE)
        return (torch.where(known, loss, 0.0).sum(1) / known.sum(1).clamp(min=1)).mean()

    def _soft_loss(self, vectors: Any, prompts: Array) -> Any:
        """Distance to the outputs of the starting weights, on CASTILLO's prompts."""
        here = np.flatnonzero(self.data.of_kinds(CASTILLO)[prompts])
        if not len(here):
            return 0.0
        outputs, _ = self.network.all_llms(vectors[self.data.tensor(here)])
        distance, known = losses.soft_loss(outputs, self.soft[self.data.tensor(prompts[here])])
        return (distance * known).sum() / known.sum().clamp(min=1)

    def _own_outputs(self) -> Any:
        return self.outputs(np.flatnonzero(self.data.of_kinds(CASTILLO)))

    def outputs(self, prompts: Array) -> Any:
        """Return the outputs for every row (prompts of the pack, rows, 4), log sigma bounded; NaN for other prompts."""
        data = self.data
        prompts = prompts[np.argsort(data.count[prompts], kind="stable")]
        found = torch.full((len(data.count), data.unknown + 1, 4), math.nan, device=self.device)
        self.network.eval()
        with torch.no_grad(), self._autocast():
            for start in range(0, len(prompts), 256):
                at = prompts[start : start + 256]
                outputs, _ = self.network.all_llms(self.network.encode(*data.inputs(at)))
                outputs[..., 1] = losses.log_sigma(outputs[..., 1])
                found[data.tensor(at)] = outputs.float()
        return found

    def _head(self, vectors: Any, row: Array, name: Array) -> Any:
        features = self.data.features[self.data.tensor(name)]
        return self.network.head(vectors, self.network.identity(self.data.tensor(row), features)).float()

    def _autocast(self) -> Any:
        return torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda")


def load_weights(folder: Path, network: Any) -> dict[str, Any]:
    """Return the weights to start from; inputs of the head that the file does not have begin at zero."""
    with np.load(folder / "base.npz") as archive:
        stored = {name: torch.as_tensor(archive[name].astype(np.float32)) for name in archive.files}
    state = {}
    for name, own in network.state_dict().items():
        given = stored.get(name, own)
        if given.shape != own.shape:  # a wider input of the head
            given = torch.cat([given, torch.zeros(len(own), own.shape[1] - given.shape[1])], dim=1)
        state[name] = given
    return state


def scores(data: Data, mu: Array, sigma: Array, seen: Array) -> dict[str, dict[str, float]]:
    """Return tau, coverage and median error of each kind on prompts not trained on, and of CASTILLO's official test."""
    from scipy import stats

    reach, fresh = stats.t.isf(0.05, losses.NU), ~np.isin(np.arange(len(data.count)), seen)
    sets = {name: data.of_kinds([name]) & fresh for name in data.kinds if name not in CASTILLO}
    sets |= {name: data.of_kinds([name]) & fresh & data.test for name in CASTILLO}
    sets["official"] = data.of_kinds(CASTILLO) & data.test
    sets["held_out"] = data.aside & fresh
    found = {}
    for name, prompts in sets.items():
        rows = []
        for number, llm in enumerate(data.llms):
            pairs = np.flatnonzero(prompts[data.prompt] & (data.llm == number) & np.isfinite(mu))
            if len(pairs) < MIN_PROMPTS or "SmolLM2" in llm:
                continue
            tau = stats.kendalltau(mu[pairs], data.log_mean[pairs]).statistic
            here = (data.lengths[pairs] > 0) & ~data.censored[pairs]
            error = np.log(np.maximum(data.lengths[pairs], 1)) - mu[pairs][:, None]
            inside = np.abs(error) <= reach * sigma[pairs][:, None]
            rows.append((tau, inside[here].mean(), np.median(np.abs(error[here])), np.median(error[here])))
        if rows:
            tau, inside, error, bias = np.nanmean(np.array(rows), axis=0)
            found[name] = {
                "tau": round(float(tau), 4),
                "cover90": round(float(inside), 4),
                "error": round(float(np.exp(error)), 3),
                "bias": round(float(np.exp(bias)), 3),
                "llms": len(rows),
                "prompts": int(prompts.sum()),
            }
    return found


def work(arguments: argparse.Namespace) -> None:
    """Train one variant in this process."""
    name, given = parse_variant(arguments.variant[0], SETTINGS)
    settings, began = {**SETTINGS, **given}, time.time()
    training = Training(arguments.folder, settings)
    if settings["steps"]:
        training.run()
    mu, sigma = training.predicted()
    result = {"name": name, "settings": settings, "seconds": round(time.time() - began, 1)}
    result["scores"] = scores(training.data, mu, sigma, training.train if settings["steps"] else np.zeros(0))
    arguments.out.mkdir(parents=True, exist_ok=True)
    if settings["keep"]:
        state = training.network.state_dict()
        changed = {key: (value.cpu() - training.base[key]).half() for key, value in state.items()}
        torch.save({k: v for k, v in changed.items() if v.abs().sum() > 0}, arguments.out / f"{name}.pt")
    if settings["outputs"]:
        found = training.outputs(np.arange(len(training.data.count))).cpu().numpy()
        rows = zip(training.data.row, training.data.llms, strict=True)
        llms = [llm for row, llm in sorted(rows) if row < training.data.unknown]
        np.savez_compressed(arguments.out / f"{name}.npz", outputs=found.astype(np.float16), llms=np.array(llms))
    (arguments.out / f"{name}.json").write_text(json.dumps(result))
    short = {kind: (each["tau"], each["cover90"]) for kind, each in result["scores"].items()}
    print(name, result["seconds"], json.dumps(short), flush=True)  # noqa: T201


def train(arguments: argparse.Namespace) -> None:
    """Train every variant in its own process, `parallel` at a time."""
    command = [sys.executable, __file__, "work", "--folder", str(arguments.folder), "--out", str(arguments.out)]
    waiting: list[str] = list(arguments.variant)
    running: list[subprocess.Popen[bytes]] = []
    while waiting or running:
        running = [process for process in running if process.poll() is None]
        while waiting and len(running) < arguments.parallel:
            running.append(subprocess.Popen([*command, "--variant", waiting.pop(0)]))  # noqa: S603
        time.sleep(0.2)


def join(arguments: argparse.Namespace) -> None:
    """Write the weights that training started from plus the variants' mean change."""
    from lengthwise.training.encoder.config import read_config
    from lengthwise.training.encoder.run import prepare

    network = prepare(read_config(arguments.config)).network()
    state = load_weights(arguments.folder, network)
    for name in arguments.variant:
        change = torch.load(arguments.out / f"{name}.pt", weights_only=True)
        for key, value in change.items():
            state[key] = state[key] + value.float() / len(arguments.variant)
    torch.save(state, arguments.to)
    print(f"{arguments.to}: mean of {', '.join(arguments.variant)}")  # noqa: T201


MODES = {"pack": pack, "train": train, "join": join, "work": work}


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=list(MODES))
    parser.add_argument("--folder", type=Path, default=Path(".device/kinds"))
    parser.add_argument("--config", type=Path, default=Path("configs/default.yaml"))
    parser.add_argument("--start", type=Path, help="pack: weights of `gpu_train.py join`")
    parser.add_argument("--out", type=Path, default=Path("out/kinds"))
    parser.add_argument("--variant", action="append", help="name:key=value,...; repeatable")
    parser.add_argument("--parallel", type=int, default=5, help="train: variants at a time")
    parser.add_argument("--to", type=Path, default=Path("out/student.pt"))
    arguments = parser.parse_args()
    MODES[arguments.mode](arguments)


if __name__ == "__main__":
    main()

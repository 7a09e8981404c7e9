"""The training loop on CPU or GPU: batches, optimiser, early stopping, and checkpoints that resume to the bit."""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from lengthwise.predictors.encoder import log_size
from lengthwise.training.encoder import losses
from lengthwise.training.encoder.ensemble import score
from lengthwise.training.encoder.losses import Targets, make_targets
from lengthwise.training.encoder.network import LengthNetwork
from lengthwise.training.encoder.pack import MADE, MADE_WEIGHT, TRAIN, Pack

if TYPE_CHECKING:
    from lengthwise.training.encoder.config import TrainingConfig

    Progress = Callable[[dict[str, Any]], None]


_EVALUATION_BATCH = 256
_CHECKPOINT = "checkpoint.pt"
_CURVES = "curves.jsonl"
_ROUND_TO = 32  # tokens; few batch widths are few shapes for a GPU to plan for


@dataclass(frozen=True, eq=False)
class Batch:
    """Inputs of the encoder for some prompts, and their targets."""

    ids: Any
    mask: Any
    log_size: Any
    stated: Any
    targets: Targets

    @property
    def inputs(self) -> tuple[Any, ...]:
        """The arguments of `LengthNetwork.encode`."""
        return self.ids, self.mask, self.log_size, self.stated


class Tensors:
    """All of a pack as tensors on one device."""

    def __init__(self, pack: Pack, device: str, *, row_weight: str = "equal", soft: NDArray[Any] | None = None) -> None:
        self.pack = pack
        self.device = device
        ids, count = pack.padded()
        self.ids = torch.as_tensor(ids, device=device)
        self.count = torch.as_tensor(count, device=device)
        self.counts = count
        self.log_size = torch.as_tensor(log_size(pack.sizes), device=device)
        self.stated = torch.as_tensor(pack.stated, device=device)
        self._lengths = torch.as_tensor(pack.lengths.astype(np.float32), device=device)
        self._censored = torch.as_tensor(pack.censored, device=device)
        self._fitted = torch.as_tensor(pack.fitted.astype(np.float32), device=device)
        self._fitted_variance = fitted_variance(pack)
        self._prompt_weight = torch.as_tensor(prompt_weights(pack, row_weight), device=device)
        self._soft = None if soft is None else torch.as_tensor(soft.astype(np.float32), device=device)

    def batch(self, prompts: NDArray[np.int64]) -> Batch:
        """Return these prompts, padded to the longest of them."""
        return self.gather(torch.as_tensor(prompts, device=self.device), self.width(prompts))

    def width(self, prompts: NDArray[np.int64]) -> int:
        """Return the tokens that a batch of these prompts is padded to."""
        widest = int(self.counts[prompts].max())
        step = 1 if self.device == "cpu" else _ROUND_TO
        return min(-(-widest // step) * step, int(self.ids.shape[1]))

    def gather(self, at: Any, width: int) -> Batch:
        """Return the prompts of a tensor of numbers, without waiting for the device."""
        mask = torch.arange(width, device=self.device) < self.count[at].unsqueeze(1)
        targets = make_targets(
            self._lengths[at],
            self._censored[at],
            fitted=self._fitted[at],
            prompt_weight=self._prompt_weight[at].unsqueeze(1),
            soft=None if self._soft is None else self._soft[at],
            fitted_variance=self._fitted_variance,
        )
        return Batch(self.ids[at, :width], mask, self.log_size[at], self.stated[at], targets)

    def shuffled(
        self, prompts: NDArray[np.int64], size: int, rng: np.random.Generator, together: int
    ) -> Iterator[NDArray[np.int64]]:
        """Yield every prompt once, in random batches; the prompts of `together` batches are sorted by length."""
        order = rng.permutation(prompts)
        batches = []
        for first in range(0, len(order), size * together):
            near = order[first : first + size * together]
            near = near[np.argsort(self.counts[near], kind="stable")]
            batches += [near[start : start + size] for start in range(0, len(near), size)]
        yield from (batches[i] for i in rng.permutation(len(batches)))

    def in_order(self, prompts: NDArray[np.int64], size: int) -> Iterator[NDArray[np.int64]]:
        """Yield every prompt once, by length: for evaluation."""
        order = prompts[np.argsort(self.counts[prompts], kind="stable")]
        yield from (order[start : start + size] for start in range(0, len(order), size))


def fitted_variance(pack: Pack) -> tuple[float, float]:
    """Return the variances of mu and log1p(sigma) over the training pairs that have a fit; (1, 1) without one."""
    known = (pack.part == TRAIN)[:, None] & (pack.lengths > 0).any(-1) & np.isfinite(pack.fitted).all(-1)
    mu, sigma = pack.fitted[known].astype(np.float64).T
    if len(mu) < 2:
        return 1.0, 1.0
    return max(float(mu.var()), 1e-3), max(float(np.log1p(np.maximum(sigma, 0.0)).var()), 1e-3)


def prompt_weights(pack: Pack, kind: str) -> NDArray[np.float32]:
    """Weights of mean 1 over the training prompts; `corpus` gives every corpus the same sum."""
    weights = np.ones(len(pack), np.float32)
    if kind != "equal":
        train = pack.part == TRAIN
        counts = np.bincount(pack.corpus[train], minlength=len(pack.corpora))
        share = counts / max(counts.sum(), 1)
        power = {"corpus": -1.0, "sqrt_corpus": -0.5}[kind]
        by_corpus = np.maximum(share, 1.0 / max(counts.sum(), 1)) ** power
        by_corpus /= (by_corpus * share).sum()
        weights = by_corpus[pack.corpus].astype(np.float32)
    if MADE in pack.corpora:
        weights[pack.corpus == pack.corpora.index(MADE)] *= MADE_WEIGHT
    return weights


def make_optimiser(network: LengthNetwork, config: TrainingConfig, *, fused: bool) -> Any:
    """Return AdamW with a rate for the head and rates that fall towards the encoder's bottom layer."""
    settings = config.optimiser
    layers = network.backbone.groups()
    rates = [settings.lr * settings.layer_decay ** (len(layers) - 1 - depth) for depth in range(len(layers))]
    head = [*network.identity.parameters(), *network.head.parameters()]
    groups = []
    for parameters, rate in [*zip(layers, rates, strict=True), (head, settings.head_lr)]:
        # Biases and norms are not decayed: that would only move their zero.
        for decay, chosen in (
            (settings.weight_decay, [p for p in parameters if p.ndim > 1]),
            (0.0, [p for p in parameters if p.ndim <= 1]),
        ):
            if chosen:
                groups.append({"params": chosen, "lr": rate, "weight_decay": decay})
    return torch.optim.AdamW(groups, fused=fused)


@dataclass(frozen=True, eq=False)
class TrainingTask:
    """Prompts to train on, prompts to evaluate on, and targets of a teacher, if any."""

    pack: Pack
    train: NDArray[np.int64]
    held_out: NDArray[np.int64]
    soft: NDArray[Any] | None = None
    """(P, L, outputs): predictions of a teacher for every pair; NaN where it has none."""
    unscored: tuple[str, ...] = ()
    """LLMs (parts of their names) that are trained on but not scored."""


@dataclass
class Trainer:
    """Trains a network. After `run` the network has the weights to keep."""

    network: LengthNetwork
    task: TrainingTask
    config: TrainingConfig
    seed: int = 0
    device: str = "cpu"
    folder: Path | None = None
    deadline: float = math.inf
    """Stop at this time (time.monotonic); the learning rate decays so that it is near zero by then."""
    progress: Progress = lambda _: None
    curves: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        self.network.to(self.device)
        config = self.config
        self.network.backbone.set_dropout(config.regularisation.dropout)
        self.tensors = Tensors(
            self.task.pack, self.device, row_weight=config.regularisation.row_weight, soft=self.task.soft
        )
        self.epoch = 0
        self.step = 0
        self._began = math.inf
        self.steps_per_epoch = -(-len(self.task.train) // config.optimiser.batch)
        self.optimiser = make_optimiser(self.network, config, fused=self.device.startswith("cuda"))
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimiser, self._rate_share)
        self.average = copy.deepcopy(self.network) if config.optimiser.ema else None
        self.best: dict[str, Any] | None = None
        self.best_score = -math.inf
        self.since_best = 0

    @property
    def epochs(self) -> int:
        """Epochs of both phases."""
        return self.config.optimiser.epochs + self.config.optimiser.head_epochs

    def run(self, *, resume: bool = False) -> list[dict[str, Any]]:
        """Train to the end, or to the deadline; return the curves."""
        if resume and self.folder is not None and (self.folder / _CHECKPOINT).is_file():
            self._restore(self.folder / _CHECKPOINT)
        stopping = self.config.early_stopping
        self._began = time.monotonic()
        while self.epoch < self.epochs and self.since_best < stopping.patience and time.monotonic() < self.deadline:
            began = time.monotonic()
            loss = self._one_epoch()
            self.epoch += 1
            row = {"epoch": self.epoch, "train_loss": round(loss, 4), **self.evaluate()}
            self._record({**row, "seconds": round(time.monotonic() - began, 2)})
        if stopping.keep_best and self.best is not None:
            self.network.load_state_dict(self.best)
        elif self.average is not None:
            self.network.load_state_dict(self.average.state_dict())
        return self.curves

    @property
    def kept(self) -> LengthNetwork:
        """The network that is evaluated and returned: the running mean of the weights, if there is one."""
        return self.network if self.average is None else self.average

    def _one_epoch(self) -> float:
        self.network.train()
        head_only = self.epoch >= self.config.optimiser.epochs
        for parameter in self.network.backbone.parameters():
            parameter.requires_grad_(not head_only)
        rng = np.random.default_rng([self.seed, self.epoch])
        losses_seen = []
        together = self.network.head.kind.together
        for prompts in self.tensors.shuffled(self.task.train, self.config.optimiser.batch, rng, together):
            losses_seen.append(self.train_on(prompts))
            self.schedule.step()
            self.step += 1
            self._update_average()
            if time.monotonic() >= self.deadline:
                break
        return float(torch.stack(losses_seen).mean())

    def train_on(self, prompts: NDArray[np.int64]) -> Any:
        """Take one step on a batch of prompts; return its loss."""
        return self.update(self.tensors.batch(prompts))

    def update(self, batch: Batch) -> Any:
        """Change the weights by the gradient of a batch; return its loss."""
        with self._autocast():
            loss = self._loss(batch)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.config.optimiser.clip)
        self.optimiser.step()
        return loss.detach()

    def _autocast(self) -> Any:  # torch's types are not seen
        kind = self.device.split(":")[0]
        return torch.autocast(kind, torch.bfloat16, enabled=kind != "cpu")

    def _loss(self, batch: Batch) -> Any:  # tensors are Any without torch's types
        ids, share = batch.ids, self.config.regularisation.token_mask
        if share:
            spare = torch.rand(ids.shape, device=ids.device) < share
            spare[:, 0] = False
            ids = torch.where(spare, self.task.pack.mask_id, ids)
        vectors = self.network.encode(ids, *batch.inputs[1:])
        outputs, hidden = self.network.all_llms(vectors, self.config.identity.drop)
        outputs, hidden = outputs[:, :-1], hidden[:, :-1]  # the unknown LLM has no lengths
        targets, weight = batch.targets, batch.targets.weight
        each = self.network.head.kind.loss(outputs, targets, self.config.loss)
        total = (each * weight).sum() / weight.sum().clamp(min=1.0)
        if targets.soft is not None:
            # A teacher predicts for a known LLM: no target for a pair whose LLM is hidden.
            distance, known = losses.soft_loss(outputs, targets.soft)
            known = known & ~hidden
            total = total + self.config.loss.soft * (distance * known).sum() / known.sum().clamp(min=1)
        return total

    def _rate_share(self, at: int) -> float:
        """Share of the full learning rate at a step: linear warm-up, then cosine decay, in each phase."""
        settings = self.config.optimiser
        of = max(1, settings.epochs * self.steps_per_epoch)
        if math.isfinite(self.deadline) and self._began < self.deadline:
            at = max(at, round(of * (time.monotonic() - self._began) / (self.deadline - self._began)))
        if at >= of:
            at, of = at - of, max(1, settings.head_epochs * self.steps_per_epoch)
        warm = max(1, round(settings.warmup * of))
        return (at + 1) / warm if at < warm else 0.5 * (1 + math.cos(math.pi * (at - warm) / max(1, of - warm)))

    def _update_average(self) -> None:
        """Update the running mean of the weights; it starts as a plain mean, so that it does not lag at first."""
        if self.average is None:
            return
        decay = min(self.config.optimiser.ema, self.step / (self.step + 10))
        with torch.no_grad():  # one launch for all
            torch._foreach_lerp_(list(self.average.parameters()), list(self.network.parameters()), 1.0 - decay)

    def evaluate(self) -> dict[str, Any]:
        """Score the held-out prompts with the weights that would be returned."""
        if not len(self.task.held_out):
            return {}
        outputs, loss = self.predict(self.task.held_out, self.kept, with_loss=True)
        mu, sigma = self.network.head.kind.places_and_spreads(outputs)
        scores = score(mu, sigma, self.task.pack, self.task.held_out, leave_out=self.task.unscored)
        return {"held_out_loss": round(loss, 4), **scores}

    def predict(
        self, prompts: NDArray[np.int64], network: LengthNetwork | None = None, *, with_loss: bool = False
    ) -> tuple[NDArray[np.float32], float]:
        """Return outputs (P, L + 1, outputs), NaN for prompts not in `prompts`, and the mean loss."""
        network = self.network if network is None else network
        network.eval()
        found: NDArray[np.float32] | None = None
        total = weight = 0.0
        with torch.no_grad():
            for at in self.tensors.in_order(prompts, _EVALUATION_BATCH):
                batch = self.tensors.batch(at)
                with self._autocast():
                    outputs, _ = network.all_llms(network.encode(*batch.inputs))
                if found is None:
                    found = np.full((len(self.task.pack), *outputs.shape[1:]), np.nan, np.float32)
                found[at] = outputs.float().cpu().numpy()
                if with_loss:
                    each = network.head.kind.loss(outputs[:, :-1], batch.targets, self.config.loss)
                    total += float((each * batch.targets.weight).sum())
                    weight += float(batch.targets.weight.sum())
        assert found is not None, "no prompt to predict"  # noqa: S101
        return found, total / max(weight, 1.0)

    def _record(self, row: dict[str, Any]) -> None:
        self.curves.append(row)
        better = row.get("tau", 0.0) if self.config.early_stopping.metric == "tau" else -row.get("held_out_loss", 0.0)
        self.since_best += 1
        if better > self.best_score or not len(self.task.held_out):
            self.best_score, self.since_best = better, 0
            if self.config.early_stopping.keep_best and len(self.task.held_out):
                self.best = copy.deepcopy(self.kept.state_dict())
        if self.folder is not None:
            with (self.folder / _CURVES).open("a", encoding="utf-8") as stream:
                stream.write(json.dumps({"seed": self.seed, **row}) + "\n")
            self._save(self.folder / _CHECKPOINT)
        self.progress(row)

    @property
    def _stateful(self) -> dict[str, Any]:
        found = {"network": self.network, "optimiser": self.optimiser, "schedule": self.schedule}
        return found if self.average is None else {**found, "average": self.average}

    def _save(self, path: Path) -> None:
        state = {name: getattr(self, name) for name in _RESUMED}
        state |= {name: part.state_dict() for name, part in self._stateful.items()}
        cuda = torch.cuda.get_rng_state() if self.device.startswith("cuda") else None
        partial = path.with_suffix(".partial")
        torch.save({**state, "rng": torch.get_rng_state(), "cuda": cuda}, partial)
        partial.replace(path)

    def _restore(self, path: Path) -> None:
        state = torch.load(path, map_location=self.device, weights_only=True)
        for name in _RESUMED:
            setattr(self, name, state[name])
        for name, part in self._stateful.items():
            part.load_state_dict(state[name])
        torch.set_rng_state(state["rng"].cpu())
        if state["cuda"] is not None:
            torch.cuda.set_rng_state(state["cuda"].cpu())


_RESUMED = ("epoch", "step", "best", "best_score", "since_best", "curves")

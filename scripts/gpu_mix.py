"""Continue a trained `default` on CASTILLO and on prompts of many kinds, from its weights, without forgetting.

    pack   here: the weights of a model file, CASTILLO's prompts and the diverse prompts, in one folder
    train  there: variants side by side (name:key=value,...); scores and the change of the weights of each
    join   here: weights + share x mean change of the variants, for `lengthwise train --weights`

CASTILLO's prompts keep the network's own outputs as targets beside their lengths. A diverse prompt has the lengths of
LLMs that CASTILLO mostly does not have: each answer is shown as the LLM itself, as an unknown one or as one of
CASTILLO's, with the LLM's level (its mean residual in the source) added to the output, so that the network learns what
the prompt says about the length and not which source it is from. `train` needs torch, transformers and SciPy only.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gpu_train import bare_package, parse_variant, prepare_torch, settings_tree  # type: ignore[import-not-found]
from torch.nn import functional

if sys.argv[1:2] in (["train"], ["work"]):  # there, without the other dependencies of the package
    bare_package()

from collections.abc import Iterator

from numpy.typing import NDArray

from lengthwise.training.encoder import losses
from lengthwise.training.encoder.ensemble import scores_of
from lengthwise.training.encoder.network import LengthNetwork, empty_backbone
from lengthwise.training.encoder.pack import ELSEWHERE, HELD_OUT, TEST, TRAIN, UNLABELLED, Pack
from lengthwise.training.encoder.trainer import Tensors, Trainer, TrainingTask

if TYPE_CHECKING:
    Array = NDArray[Any]


LIMITS = {
    "chat": 9999, "ifeval": 9999, "mt-bench": 3500, "writing": 1300, "essays": 2200, "gpteacher": 3000, "riddles": 9999,
    "code": 1500, "zero-eval": 1500, "mmlu-pro": 1500, "chinese": 1500, "agent": 1500,
}  # fmt: skip
"""Most prompts of each source; `essays` are those of the group `writing` with a stated number of words."""
WEIGHTS = {
    "chat": 3, "ifeval": 3, "mt-bench": 2.5, "writing": 1.2, "essays": 1.3, "gpteacher": 1, "riddles": 1, "code": 0.7,
    "zero-eval": 0.6, "mmlu-pro": 0.5, "chinese": 0.5, "agent": 0.5,
}  # fmt: skip
"""Share of each source in a batch: instructions of users above templates of benchmarks."""
OWN_LEVEL = {"gpteacher": 1.0, "chat": 0.6, "chinese": 0.7, "agent": 0.5, "essays": 0.3}
"""Share of a source's mean residual that is due to its LLMs, where CASTILLO's LLMs did not answer it."""
INSTRUCTIONS = ("chat", "ifeval", "mt-bench")  # short English prompts of these count more
ESSAYS_LLM = "gpt-3.5-turbo (2023)"
KEPT_ASIDE = 0.12
"""Share of the diverse prompts that are not trained on."""
SETTINGS: dict[str, Any] = {
    "lr": 1e-4, "head_lr": 3e-4, "decay": 0.85, "soft": 2.0, "epochs": 8, "wd": 0.0, "ema": 0.995,
    "optimiser.warmup": 0.015, "diverse": 0.5, "rank": 0.3, "seed": 0, "limit": 0,
}  # fmt: skip
"""Of a variant: those of `gpu_train.py`, the weights of the diverse prompts and of their order, and a trial's limit."""
EPOCH = 496  # steps, a multiple of eight
BATCH = (14, 4, 18)  # prompts of CASTILLO, unlabelled ones, diverse ones
ANSWERS = 4  # of a diverse prompt in a batch


def pack(arguments: argparse.Namespace) -> None:
    """Write castillo.npz, diverse.npz, base.npz, backbone.json and config.json."""
    from lengthwise.training.encoder.config import read_config
    from lengthwise.training.encoder.run import prepare

    prepared = prepare(read_config(arguments.config))
    arguments.folder.mkdir(parents=True, exist_ok=True)
    prepared.pack.write(arguments.folder / "castillo.npz")
    state = torch.load(arguments.start, map_location="cpu", weights_only=True)
    small: dict[str, Any] = {name: value.numpy().astype(np.float16) for name, value in state.items()}
    np.savez_compressed(arguments.folder / "base.npz", **small)
    (arguments.folder / "backbone.json").write_text(json.dumps(prepared.loaded.config))
    (arguments.folder / "config.json").write_text(prepared.config.model_dump_json())
    arrays: dict[str, Any] = diverse_arrays(prepared)
    np.savez_compressed(arguments.folder / "diverse.npz", **arrays)
    for path in sorted(arguments.folder.iterdir()):
        print(f"{path.name:14} {path.stat().st_size / 1e6:6.1f} MB")  # noqa: T201


def diverse_arrays(prepared: Any) -> dict[str, Array]:
    """Return the prompts as token ids, and one row per prompt and LLM with up to five lengths."""
    import xxhash

    from lengthwise.llm_names import identify
    from lengthwise.training.data import SMOLLM2, PromptTable, load_samples
    from lengthwise.workloads.datasets import load_diverse, prompt_key

    known = [llm for llm in prepared.pack.llms if llm != SMOLLM2]
    taken = {prompt_key(text) for text in PromptTable.of(load_samples(prepared.config.data)).column("prompt")}
    answers: dict[str, list[tuple[str, list[int], list[bool]]]] = {}
    source_of: dict[str, str] = {}
    for row in load_diverse(known_llms=known, ships=True).table.to_pylist():
        if prompt_key(row["prompt"]) not in taken:
            source = "essays" if row["llm"] == ESSAYS_LLM and row["corpus"] == "writing" else row["corpus"]
            source_of[row["prompt"]] = source
            answers.setdefault(row["prompt"], []).append((row["llm"], row["lengths"][:5], row["capped"][:5]))
    sources = sorted(LIMITS)
    texts: list[str] = []
    for source in sources:
        own = [text for text in answers if source_of[text] == source]
        own.sort(key=lambda text: xxhash.xxh3_64_intdigest(text.encode(), 7))
        own.sort(key=lambda text: source == "mt-bench" and text.startswith("User:"))  # second turns last
        texts += own[: LIMITS[source]]
    tokens, offsets, sizes = prepared.loaded.text.encode_all(texts)
    pairs = [(number, *answer) for number, text in enumerate(texts) for answer in answers[text]]
    llms = sorted({llm for _, llm, _, _ in pairs})
    source = np.array([sources.index(source_of[text]) for text in texts], np.int8)
    english = np.array([sum(map(str.isascii, text)) > 0.97 * len(text) for text in texts])
    preferred = english & (sizes < 250) & np.isin(source, [sources.index(name) for name in INSTRUCTIONS])
    weight = np.where(preferred, 2.5, 1.0)
    for number, name in enumerate(sources):
        weight[source == number] *= WEIGHTS[name] / max(weight[source == number].sum(), 1.0)
    plain = {"sources": sources, "llms": llms}
    return {
        "plain": np.array(json.dumps(plain)),
        "tokens": tokens,
        "offsets": offsets,
        "sizes": sizes,
        "source": source,
        "weight": weight,
        "held_out": np.array([xxhash.xxh3_64_intdigest(prompt_key(t).encode(), 0) < KEPT_ASIDE * 2**64 for t in texts]),
        "prompt": np.array([pair[0] for pair in pairs], np.int64),
        "llm": np.array([llms.index(pair[1]) for pair in pairs], np.int64),
        "lengths": np.array([(pair[2] + [0] * 5)[:5] for pair in pairs], np.int32),
        "capped": np.array([(pair[3] + [False] * 5)[:5] for pair in pairs]),
        "row": np.array([prepared.pack.llms.index(llm) if llm in known else -1 for llm in llms], np.int64),
        "features": np.array([identify(llm).features() for llm in llms], np.float32),
    }


@dataclass(eq=False)
class Mix:
    """All prompts of one run: CASTILLO's first, then the diverse ones, whose answers are in arrays."""

    folder: Path
    limit: int
    answers: dict[str, Array] = field(init=False)

    def __post_init__(self) -> None:
        self.castillo = Pack.read(self.folder / "castillo.npz")
        with np.load(self.folder / "diverse.npz") as archive:
            self.answers = arrays = {name: archive[name] for name in archive.files}
        plain = json.loads(str(arrays.pop("plain")))
        self.sources, self.llms = plain["sources"], plain["llms"]
        self.first_diverse, self.unknown = len(self.castillo), len(self.castillo.llms)
        self.everything = self.castillo.extended(arrays["tokens"], arrays["offsets"], arrays["sizes"])
        # CASTILLO's LLMs, the unknown one, then those of the diverse prompts.
        self.features = np.concatenate([self.castillo.features, arrays["features"]])
        self.own_row = arrays["row"][arrays["llm"]]
        prompts = np.arange(len(arrays["sizes"]))
        self.first = np.searchsorted(arrays["prompt"], prompts)
        self.many = np.searchsorted(arrays["prompt"], prompts, side="right") - self.first
        learned = ~arrays["held_out"]
        if self.limit:  # a trial without a GPU
            learned &= np.diff(arrays["offsets"]) < 20
        self.learned = np.flatnonzero(learned)

    def part(self, *numbers: int) -> Array:
        """Return CASTILLO's prompts of some parts of the pack."""
        size = np.diff(self.castillo.offsets)
        found = [np.flatnonzero(self.castillo.part == number) for number in numbers]
        return np.concatenate([at[np.argsort(size[at], kind="stable")[: self.limit or None]] for at in found])


class MixTensors(Tensors):
    """Batches of all three kinds of prompts, without end; those of eight batches are sorted by length."""

    def __init__(self, mix: Mix, device: str) -> None:
        super().__init__(mix.everything, device)
        self._mix = mix

    def shuffled(
        self, prompts: Array, size: int, rng: np.random.Generator, together: int = 8
    ) -> Iterator[NDArray[np.int64]]:
        """Yield the batches of an epoch: CASTILLO's prompts, unlabelled ones, diverse ones by weight."""
        mix, count = self._mix, EPOCH // together
        weight = mix.answers["weight"][mix.learned]
        diverse = mix.first_diverse + rng.choice(mix.learned, EPOCH * BATCH[2], p=weight / weight.sum())
        drawn = [
            np.resize(rng.permutation(mix.part(kind)), EPOCH * n)
            for kind, n in zip((TRAIN, UNLABELLED), BATCH, strict=False)
        ]
        for number in range(count):
            parts = [each.reshape(count, -1)[number] for each in (*drawn, diverse)]
            sorted_ = [each[np.argsort(self.counts[each], kind="stable")].reshape(together, -1) for each in parts]
            yield from (np.concatenate([each[at] for each in sorted_]) for at in rng.permutation(together))


class Continued(Trainer):
    """A continued training: the network as its own teacher, levels of diverse LLMs, and the loss of a batch."""

    def __init__(
        self,
        mix: Mix,
        network: LengthNetwork,
        config: Any,  # as TrainingConfig, read without pydantic
        settings: dict[str, Any],
        deadline: float,
    ) -> None:
        prompts = np.concatenate([mix.part(TRAIN, UNLABELLED), mix.first_diverse + mix.learned])
        task = TrainingTask(mix.everything, prompts, mix.part(HELD_OUT), unscored=("SmolLM2",))
        super().__init__(network, task, config, settings["seed"], prepare_torch(settings["seed"]), deadline=deadline)
        self.mix, self.settings, self.steps_per_epoch = mix, settings, EPOCH
        self.tensors = MixTensors(mix, self.device)
        self.rng = np.random.default_rng(settings["seed"])
        self.features = torch.as_tensor(mix.features, device=self.device)
        self.soft = torch.as_tensor(self.predict(prompts)[0], device=self.device)
        self.soft[..., 1] = losses.log_sigma(self.soft[..., 1])
        self._set_levels()

    def scores(self) -> dict[str, Any]:
        """Score CASTILLO's held-out and test prompts."""
        outputs, _ = self.predict(self.mix.part(HELD_OUT, TEST, ELSEWHERE))
        return scores_of(outputs[: self.mix.first_diverse], self.mix.castillo)

    def _medians(self, answers: Array) -> Array:
        """Return mu of answers as served: the LLM's row, or the unknown one with the features of the name."""
        mix, prompt = self.mix, self.mix.answers["prompt"][answers]
        own = mix.own_row[answers]
        row = np.where(own >= 0, own, mix.unknown)
        features = np.where(own >= 0, own, mix.unknown + 1 + mix.answers["llm"][answers])
        found = np.empty(len(answers))
        self.network.eval()
        for prompts in self.tensors.in_order(mix.first_diverse + np.unique(prompt), 128):
            here = np.flatnonzero(np.isin(mix.first_diverse + prompt, prompts))
            batch = self.tensors.batch(prompts)
            with torch.no_grad(), self._autocast():
                vectors = self.network.encode(batch.ids, batch.mask, batch.log_size)
                order = np.argsort(prompts)
                at = order[np.searchsorted(prompts[order], mix.first_diverse + prompt[here])]
                identity = self.network.identity(self._tensor(row[here]), self.features[self._tensor(features[here])])
                found[here] = self.network.head(vectors[self._tensor(at)], identity)[:, 0].float().cpu().numpy()
        return found

    def _tensor(self, values: Array) -> Any:
        return torch.as_tensor(values, device=self.device)

    def _set_levels(self) -> None:
        """Set the level of each answer (its LLM's mean residual in its source, less what the source keeps), and means.

        Where CASTILLO's LLMs answered a source, their residual is the one that the network is to learn.
        """
        mix = self.mix
        used = np.flatnonzero(np.isin(mix.answers["prompt"], mix.learned))
        predicted = self._medians(used)
        teacher = self.soft[mix.first_diverse :, :, 0].cpu().numpy()
        lengths = mix.answers["lengths"][used]
        residual = np.log(lengths.sum(1) / (lengths > 0).sum(1)) - predicted
        prompt, llm = mix.answers["prompt"][used], mix.answers["llm"][used]
        source = mix.answers["source"][prompt]
        self.level = np.zeros(len(mix.answers["prompt"]), np.float32)
        self.row_mean = np.zeros((len(mix.sources), mix.unknown + 1), np.float32)
        self.llm_mean = np.zeros((len(mix.sources), len(mix.llms)), np.float32)
        for number in np.unique(source):
            here, name = source == number, mix.sources[number]
            known = here & (mix.own_row[used] >= 0)
            own = {each: np.flatnonzero(here & (llm == each)) for each in np.unique(llm[here])}
            middle = float(np.mean([residual[at].mean() for at in own.values()]))
            anchored = name not in OWN_LEVEL and known.sum() >= 40
            kept = float(residual[known].mean()) if anchored else (1.0 - OWN_LEVEL.get(name, 0.7)) * middle
            self.row_mean[number] = np.nanmean(teacher[np.unique(prompt[here])], 0)
            for each, at in own.items():
                if mix.answers["row"][each] < 0:
                    shrunk = middle + (residual[at].mean() - middle) * len(at) / (len(at) + 8)
                    self.level[used[at]] = shrunk - kept
                unlike = predicted[at].mean() - teacher[prompt[at]].mean()
                self.llm_mean[number, each] = unlike + self.row_mean[number].mean()

    def _loss(self, prompts: NDArray[np.int64]) -> Any:
        """Return the loss: lengths and own outputs on CASTILLO, lengths on diverse prompts."""
        for key, parameter in self.network.named_parameters():  # word vectors stay: most are rarely seen
            if "_embeddings." in key or "pooler" in key:
                parameter.requires_grad_(False)
        batch, mine = self.tensors.batch(prompts), BATCH[0] + BATCH[1]
        vectors = self.network.encode(batch.ids, batch.mask, batch.log_size)
        outputs, hidden = self.network.all_llms(vectors[:mine], self.config.identity.drop)
        targets = self.tensors.batch(prompts[:mine]).targets
        each = losses.LOG_T.loss(outputs[:, :-1], targets, self.config.loss)
        total = (each * targets.weight).sum() / targets.weight.sum().clamp(min=1.0)
        distance, known = losses.soft_loss(outputs, self.soft[self._tensor(prompts[:mine])])
        known = known & ~hidden
        total = total + self.config.loss.soft * (distance * known).sum() / known.sum().clamp(min=1)
        diverse = self._diverse_loss(vectors[mine:], prompts[mine:] - self.mix.first_diverse)
        return total + self.settings["diverse"] * diverse

    def _diverse_loss(self, vectors: Any, prompts: Array) -> Any:
        mix = self.mix
        answers, row, features, level = self._shown(prompts)
        values = {"row": row, "features": features, "level": level, "prompt": mix.first_diverse + prompts}
        values |= {"lengths": mix.answers["lengths"][answers].astype(np.float32)}
        tensor = {name: self._tensor(each) for name, each in values.items()}
        identity = self.network.identity(tensor["row"], self.features[tensor["features"]])
        outputs = self.network.head(vectors.unsqueeze(1), identity).float()
        targets = losses.make_targets(tensor["lengths"], self._tensor(mix.answers["capped"][answers]))
        mu, log_mean = outputs[..., 0] + tensor["level"], outputs[..., 2] + tensor["level"]
        loss = losses.negative_log_likelihood(mu, losses.log_sigma(outputs[..., 1]), targets)
        far = (torch.exp(log_mean.clamp(max=8.5)) - targets.mean).abs() / 300.0
        loss = loss + torch.where(targets.whole, (log_mean - targets.log_mean).abs() + 0.15 * far, 0.0)
        # One answer has no std: the ratio of std and mean stays the teacher's.
        soft = self.soft[tensor["prompt"].unsqueeze(1), tensor["row"]]
        loss = loss + 0.3 * (outputs[..., 3] - (outputs[..., 2].detach() + soft[..., 3] - soft[..., 2])).abs()
        return loss.mean() + self.settings["rank"] * self._order_loss(outputs[..., 0], targets, tensor, prompts)

    def _order_loss(self, mu: Any, targets: Any, tensor: dict[str, Any], prompts: Array) -> Any:
        """Logistic loss on the order of answers to two prompts of one source, levels removed."""
        flat, true = mu.flatten(), (targets.log_mean - tensor["level"]).flatten()
        apart = true.unsqueeze(0) - true.unsqueeze(1)
        ids = self._tensor(np.repeat(prompts, ANSWERS))
        source = self._tensor(np.repeat(self.mix.answers["source"][prompts], ANSWERS))
        whole = targets.whole.flatten()
        known = (source.unsqueeze(0) == source.unsqueeze(1)) & (ids.unsqueeze(0) != ids.unsqueeze(1))
        known &= (apart.abs() > 0.3) & whole.unsqueeze(0) & whole.unsqueeze(1)
        loss = functional.softplus(-torch.sign(apart) * (flat.unsqueeze(0) - flat.unsqueeze(1)) / 0.25)
        return torch.where(known, loss, 0.0).sum() / known.sum().clamp(min=1)

    def _shown(self, prompts: Array) -> tuple[Array, Array, Array, Array]:
        """Draw answers (prompts, ANSWERS) with the row and features they are shown with, and the level to add."""
        mix, rng = self.mix, self.rng
        shape = (len(prompts), ANSWERS)
        answers = mix.first[prompts][:, None] + (rng.random(shape) * mix.many[prompts][:, None]).astype(np.int64)
        chance, own, llm = rng.random(shape), mix.own_row[answers], mix.answers["llm"][answers]
        rows = [number for number, name in enumerate(mix.castillo.llms) if "SmolLM2" not in name]
        row = np.where(chance < 0.5, rng.choice(rows, shape), mix.unknown)
        row = np.where((own >= 0) & (chance < 0.6), own, row)
        named = (row == mix.unknown) & (own < 0) & (chance < 0.8)
        source = mix.answers["source"][mix.answers["prompt"][answers]]
        mean = np.where(own >= 0, self.row_mean[source, own], self.llm_mean[source, llm])
        other = np.where(named | (row == own), 0.0, mean - self.row_mean[source, row])
        features = np.where(named, mix.unknown + 1 + llm, row)
        return answers, row, features, (self.level[answers] + other).astype(np.float32)


def work(arguments: argparse.Namespace) -> None:
    """Train one variant in this process."""
    name, given = parse_variant(arguments.variant[0], SETTINGS)
    settings = {**SETTINGS, **given}
    mix = Mix(arguments.folder, settings["limit"])
    config = settings_tree(arguments.folder, settings, own=("diverse", "rank", "limit"))
    backbone = empty_backbone(json.loads((arguments.folder / "backbone.json").read_text()))
    network = LengthNetwork(backbone, config, mix.castillo.features)
    base = base_weights(arguments.folder, network)
    network.load_state_dict(base)
    task = Continued(mix, network, config, settings, time.monotonic() + arguments.until - time.time())
    task.progress = lambda row: print(name, json.dumps(row), flush=True)  # noqa: T201
    result = {"name": name, "settings": settings, "start": task.scores(), "curves": task.run(), "end": task.scores()}
    changed = {key: value.cpu() - base[key] for key, value in network.state_dict().items()}
    arguments.out.mkdir(parents=True, exist_ok=True)
    torch.save(
        {key: value.half() for key, value in changed.items() if value.abs().sum() > 0}, arguments.out / f"{name}.pt"
    )
    (arguments.out / f"{name}.json").write_text(json.dumps(result))


def base_weights(folder: Path, network: Any) -> dict[str, Any]:
    """Return the weights that training starts from; what the file does not have (an unused pooler) is the network's."""
    with np.load(folder / "base.npz") as archive:
        stored = {name: torch.as_tensor(archive[name].astype(np.float32)) for name in archive.files}
    return {key: stored.get(key, value) for key, value in network.state_dict().items()}


def train(arguments: argparse.Namespace) -> None:
    """Train every variant in its own process, all at once."""
    until = time.time() + arguments.budget
    command = [sys.executable, __file__, "work", "--folder", str(arguments.folder), "--out", str(arguments.out)]
    running = [
        subprocess.Popen([*command, "--until", str(until), "--variant", variant])  # noqa: S603
        for variant in arguments.variant
    ]
    raise SystemExit(max(process.wait() for process in running))


def join(arguments: argparse.Namespace) -> None:
    """Write the weights that training started from plus a share of the variants' mean change."""
    from lengthwise.training.encoder.config import read_config
    from lengthwise.training.encoder.run import prepare

    base = base_weights(arguments.folder, prepare(read_config(arguments.config)).network())
    state = dict(base)
    for name in arguments.variant:
        change = torch.load(arguments.out / f"{name}.pt", weights_only=True)
        for key, value in change.items():
            state[key] = state[key] + arguments.share / len(arguments.variant) * value.float()
    torch.save(state, arguments.to)
    print(f"{arguments.to}: mean of {', '.join(arguments.variant)}, share {arguments.share:g}")  # noqa: T201


MODES = {"pack": pack, "train": train, "join": join, "work": work}


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=list(MODES))
    parser.add_argument("--folder", type=Path, default=Path(".device/mix"))
    parser.add_argument("--config", type=Path, default=Path("configs/default.yaml"))
    parser.add_argument("--start", type=Path, help="pack: weights of `gpu_train.py join`")
    parser.add_argument("--out", type=Path, default=Path("out/mix"))
    parser.add_argument("--variant", action="append", help="name:key=value,...; repeatable")
    parser.add_argument("--share", type=float, default=1.0, help="join: of the change of the weights")
    parser.add_argument("--to", type=Path, default=Path("out/student.pt"))
    parser.add_argument("--budget", type=float, default=270.0, help="train: seconds")
    parser.add_argument("--until", type=float, default=0.0)
    arguments = parser.parse_args()
    MODES[arguments.mode](arguments)


if __name__ == "__main__":
    main()

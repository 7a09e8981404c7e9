"""Continue a trained `default` on CASTILLO and on prompts of many kinds, from its weights, without forgetting.

    pack   here: the weights of a model file, CASTILLO's prompts and the diverse prompts, in one folder
    train  there: variants side by side (name:key=value,...); scores and the change of the weights of each
    join   here: weights + share x mean change of the variants, for `lengthwise train --weights`

CASTILLO's prompts keep the network's own outputs as targets beside their lengths. A diverse prompt has the lengths of
LLMs that CASTILLO mostly does not have: each answer is shown as the LLM itself, as an unknown one or as one of
CASTILLO's, with the LLM's level (its mean residual in the source) added to the output, so that the network learns what
the prompt says about the length and not which source it is from. `train` needs torch, transformers and SciPy.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import subprocess
import sys
import time
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gpu_train import bare_package, prepare_torch  # type: ignore[import-not-found]  # beside this script
from numpy.typing import NDArray

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
HELD_OUT = 0.12
SETTINGS: dict[str, Any] = {
    "lr": 1e-4, "head_lr": 3e-4, "decay": 0.85, "diverse": 0.5, "soft": 2.0, "rank": 0.3, "steps": 4000, "seed": 0,
    "limit": 0,
}  # fmt: skip
BATCH = {"castillo": 14, "unlabelled": 4, "diverse": 18}
ANSWERS = 4  # of a diverse prompt in a batch
EMA = 0.995


def pack(arguments: argparse.Namespace) -> None:
    """Write castillo.npz, diverse.npz, base.npz, backbone.json and config.json."""
    import torch

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


def diverse_arrays(prepared: Any) -> dict[str, Array]:  # noqa: ANN401
    """Return the prompts as token ids, and one row per prompt and LLM with up to five lengths."""
    import xxhash

    from lengthwise.predictors.llm_names import identify
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
        "held_out": np.array([xxhash.xxh3_64_intdigest(prompt_key(t).encode(), 0) < HELD_OUT * 2**64 for t in texts]),
        "prompt": np.array([pair[0] for pair in pairs], np.int64),
        "llm": np.array([llms.index(pair[1]) for pair in pairs], np.int64),
        "lengths": np.array([(pair[2] + [0] * 5)[:5] for pair in pairs], np.int32),
        "capped": np.array([(pair[3] + [False] * 5)[:5] for pair in pairs]),
        "row": np.array([prepared.pack.llms.index(llm) if llm in known else -1 for llm in llms], np.int64),
        "features": np.array([identify(llm).features() for llm in llms], np.float32),
    }


@dataclass(eq=False)
class Mix:
    """All prompts of one run on one device: CASTILLO's first, then the diverse ones."""

    folder: Path
    settings: dict[str, Any]
    device: str
    answers: dict[str, Array] = field(init=False)

    def __post_init__(self) -> None:
        import torch

        from lengthwise.predictors.encoder import log_size
        from lengthwise.training.encoder.pack import Pack

        self.castillo = Pack.read(self.folder / "castillo.npz")
        with np.load(self.folder / "diverse.npz") as archive:
            arrays = {name: archive[name] for name in archive.files}
        plain = json.loads(str(arrays.pop("plain")))
        self.sources, self.llms = plain["sources"], plain["llms"]
        self.answers = arrays
        self.first_diverse, self.unknown = len(self.castillo), len(self.castillo.llms)
        everything = self.castillo.extended(arrays["tokens"], arrays["offsets"], arrays["sizes"])
        ids, self.counts = everything.padded()
        self.ids = torch.as_tensor(ids, device=self.device)
        self.count = torch.as_tensor(self.counts, device=self.device)
        self.size = torch.as_tensor(log_size(everything.sizes), device=self.device)
        self.lengths = torch.as_tensor(self.castillo.lengths.astype(np.float32), device=self.device)
        self.censored = torch.as_tensor(self.castillo.censored, device=self.device)
        rows = np.concatenate([self.castillo.features, arrays["features"]])  # CASTILLO's, the unknown LLM, diverse ones
        self.features = torch.as_tensor(rows, device=self.device)
        self.own_row = arrays["row"][arrays["llm"]]
        prompts = np.arange(len(arrays["sizes"]))
        self.first = np.searchsorted(arrays["prompt"], prompts)
        self.many = np.searchsorted(arrays["prompt"], prompts, side="right") - self.first
        learned = ~arrays["held_out"]
        if self.settings["limit"]:  # a trial without a GPU
            learned &= self.counts[self.first_diverse :] < 20
        self.learned = np.flatnonzero(learned)

    def inputs(self, prompts: Array) -> tuple[Any, Any, Any]:
        """Return token ids, mask and log sizes, padded to a multiple of 32."""
        import torch

        at = torch.as_tensor(prompts, device=self.device)
        width = min(-(-int(self.counts[prompts].max()) // 32) * 32, self.ids.shape[1])
        return (
            self.ids[at, :width],
            torch.arange(width, device=self.device) < self.count[at].unsqueeze(1),
            self.size[at],
        )

    def part(self, number: int) -> Array:
        """Return CASTILLO's prompts of a part of the pack."""
        found = np.flatnonzero(self.castillo.part == number)
        limit = self.settings["limit"]
        return found[np.argsort(self.counts[found], kind="stable")[:limit]] if limit else found


def encoded(mix: Mix, network: Any, prompts: Array) -> Any:  # noqa: ANN401
    """Return the vectors (all prompts, width) of these prompts, zero for all others."""
    import torch

    network.eval()
    found = None
    order = prompts[np.argsort(mix.counts[prompts], kind="stable")]
    with torch.no_grad(), autocast(mix.device):
        for start in range(0, len(order), 128):
            at = order[start : start + 128]
            vectors = network.encode(*mix.inputs(at)).half()
            if found is None:
                found = torch.zeros(len(mix.counts), vectors.shape[1], device=mix.device, dtype=torch.float16)
            found[torch.as_tensor(at, device=mix.device)] = vectors
    return found


def autocast(device: str) -> Any:  # noqa: ANN401
    """Return the context of mixed precision; a CPU computes in float32."""
    import torch

    return torch.autocast(device, torch.bfloat16, enabled=device != "cpu")


def castillo_outputs(network: Any, vectors: Any, prompts: Array) -> Any:  # noqa: ANN401
    """Return outputs (prompts, LLMs + 1, 4) as a tensor."""
    import torch

    at = torch.as_tensor(prompts, device=vectors.device)
    with torch.no_grad():
        return torch.cat([network.all_llms(vectors[some].float())[0].float() for some in at.split(1024)])


def answer_outputs(mix: Mix, network: Any, vectors: Any, answers: Array) -> Array:  # noqa: ANN401
    """Return outputs (answers, 4) as served: the LLM's row, or the unknown one with the features of the name."""
    import torch

    own = mix.own_row[answers]
    row = np.where(own >= 0, own, mix.unknown)
    features = np.where(own >= 0, own, mix.unknown + 1 + mix.answers["llm"][answers])
    found = []
    for some in np.array_split(np.arange(len(answers)), max(1, len(answers) // 8192)):
        at = torch.as_tensor(mix.first_diverse + mix.answers["prompt"][answers[some]], device=mix.device)
        identity = torch.as_tensor(row[some], device=mix.device), mix.features[torch.as_tensor(features[some])]
        with torch.no_grad():
            found.append(network.head(vectors[at].float(), network.identity(*identity)).float().cpu().numpy())
    return np.concatenate(found)


def evaluate(mix: Mix, network: Any) -> dict[str, Any]:  # noqa: ANN401
    """Score CASTILLO's held-out and test prompts."""
    from lengthwise.training.encoder.ensemble import scores_of
    from lengthwise.training.encoder.pack import ELSEWHERE, HELD_OUT, TEST

    prompts = np.concatenate([mix.part(number) for number in (HELD_OUT, TEST, ELSEWHERE)])
    outputs = np.full((len(mix.castillo), mix.unknown + 1, 4), np.nan, np.float32)
    outputs[prompts] = castillo_outputs(network, encoded(mix, network, prompts), prompts).cpu().numpy()
    return scores_of(outputs, mix.castillo)


class Continued:
    """One continued training: the network as its own teacher, levels of diverse LLMs, and the loss of a batch."""

    def __init__(self, mix: Mix, network: Any) -> None:  # noqa: ANN401
        import torch

        from lengthwise.training.encoder import losses
        from lengthwise.training.encoder.pack import TRAIN, UNLABELLED

        self.mix, self.network, self.settings = mix, network, mix.settings
        self.rng = np.random.default_rng(mix.settings["seed"])
        self.castillo, self.unlabelled = mix.part(TRAIN), mix.part(UNLABELLED)
        weight = mix.answers["weight"][mix.learned]
        self.chance = weight / weight.sum()
        prompts = np.concatenate([self.castillo, self.unlabelled, mix.first_diverse + mix.learned])
        vectors = encoded(mix, network, prompts)
        self.soft = torch.full((len(mix.counts), mix.unknown + 1, 4), float("nan"), device=mix.device)
        self.soft[torch.as_tensor(prompts, device=mix.device)] = castillo_outputs(network, vectors, prompts)
        self.soft[..., 1] = losses.log_sigma(self.soft[..., 1])
        self._set_levels(vectors)
        config = json.loads((mix.folder / "config.json").read_text())
        self.config = json.loads(json.dumps(config), object_hook=lambda tree: types.SimpleNamespace(**tree))

    def _set_levels(self, vectors: Any) -> None:  # noqa: ANN401
        """Set the level of each answer (its LLM's mean residual in its source, less what the source keeps), and means.

        Where CASTILLO's LLMs answered a source, their residual is the one that the network is to learn.
        """
        mix = self.mix
        used = np.flatnonzero(np.isin(mix.answers["prompt"], mix.learned))
        predicted = answer_outputs(mix, self.network, vectors, used)[:, 0].astype(np.float64)
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

    def batches(self) -> Any:  # noqa: ANN401
        """Yield batches without end; eight at a time are sorted by length."""
        streams = [self._stream(self.castillo), self._stream(self.unlabelled)]
        mix = self.mix
        while True:
            sizes = BATCH["castillo"], BATCH["unlabelled"]
            drawn = [np.array([next(s) for _ in range(8 * n)]) for s, n in zip(streams, sizes, strict=True)]
            drawn.append(mix.first_diverse + self.rng.choice(mix.learned, 8 * BATCH["diverse"], p=self.chance))
            by_length = [each[np.argsort(mix.counts[each], kind="stable")].reshape(8, -1) for each in drawn]
            for number in self.rng.permutation(8):
                yield [each[number] for each in by_length]

    def _stream(self, prompts: Array) -> Any:  # noqa: ANN401
        while True:
            yield from self.rng.permutation(prompts)

    def loss(self, castillo: Array, unlabelled: Array, diverse: Array) -> Any:  # noqa: ANN401
        """Return the loss: lengths and own outputs on CASTILLO, lengths on diverse prompts."""
        import torch

        from lengthwise.training.encoder import losses

        mix, settings = self.mix, self.settings
        vectors = self.network.encode(*mix.inputs(np.concatenate([castillo, unlabelled, diverse])))
        mine = len(castillo) + len(unlabelled)
        outputs, hidden = self.network.all_llms(vectors[:mine], 0.1)
        at = torch.as_tensor(castillo, device=mix.device)
        targets = losses.make_targets(mix.lengths[at], mix.censored[at])
        each = losses.label_loss(outputs[: len(castillo), :-1], targets, self.config, None)
        total = (each * targets.weight).sum() / targets.weight.sum().clamp(min=1.0)
        both = torch.as_tensor(np.concatenate([castillo, unlabelled]), device=mix.device)
        distance, known = losses.soft_loss(outputs, self.soft[both])
        known = known & ~hidden
        total = total + settings["soft"] * (distance * known).sum() / known.sum().clamp(min=1)
        return total + settings["diverse"] * self._diverse_loss(vectors[mine:], diverse - mix.first_diverse)

    def _diverse_loss(self, vectors: Any, prompts: Array) -> Any:  # noqa: ANN401
        import torch

        from lengthwise.training.encoder import losses

        mix = self.mix
        answers, row, features, level = self._shown(prompts)
        tensor = {name: torch.as_tensor(value, device=mix.device) for name, value in
                  {"row": row, "features": features, "level": level, "prompt": mix.first_diverse + prompts,
                   "lengths": mix.answers["lengths"][answers].astype(np.float32),
                   "capped": mix.answers["capped"][answers]}.items()}  # fmt: skip
        identity = self.network.identity(tensor["row"], mix.features[tensor["features"]])
        outputs = self.network.head(vectors.unsqueeze(1), identity).float()
        targets = losses.make_targets(tensor["lengths"], tensor["capped"])
        mu, log_mean = outputs[..., 0] + tensor["level"], outputs[..., 2] + tensor["level"]
        loss = losses.negative_log_likelihood(mu, losses.log_sigma(outputs[..., 1]), targets)
        far = (torch.exp(log_mean.clamp(max=8.5)) - targets.mean).abs() / 300.0
        loss = loss + torch.where(targets.whole, (log_mean - targets.log_mean).abs() + 0.15 * far, 0.0)
        # One answer has no std: the ratio of std and mean stays the teacher's.
        soft = self.soft[tensor["prompt"].unsqueeze(1), tensor["row"]]
        loss = loss + 0.3 * (outputs[..., 3] - (outputs[..., 2].detach() + soft[..., 3] - soft[..., 2])).abs()
        return loss.mean() + self.settings["rank"] * self._order_loss(outputs[..., 0], targets, tensor, prompts)

    def _order_loss(self, mu: Any, targets: Any, tensor: dict[str, Any], prompts: Array) -> Any:  # noqa: ANN401
        """Logistic loss on the order of answers to two prompts of one source, levels removed."""
        import torch
        from torch.nn import functional

        flat, true = mu.flatten(), (targets.log_mean - tensor["level"]).flatten()
        apart = true.unsqueeze(0) - true.unsqueeze(1)
        ids = torch.as_tensor(np.repeat(prompts, ANSWERS), device=mu.device)
        source = torch.as_tensor(np.repeat(self.mix.answers["source"][prompts], ANSWERS), device=mu.device)
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
    bare_package()
    import torch

    from lengthwise.training.encoder.network import LengthNetwork

    name, _, rest = arguments.variant[0].partition(":")
    settings = dict(SETTINGS)
    for key, value in (item.split("=", 1) for item in rest.split(",") if item):
        if key not in SETTINGS:
            raise SystemExit(f"{name}: '{key}' is not a setting; known: {', '.join(SETTINGS)}")
        settings[key] = json.loads(value)
    device = prepare_torch(settings["seed"])
    mix = Mix(arguments.folder, settings, device)
    config = json.loads((arguments.folder / "config.json").read_text())
    tree = json.loads(json.dumps(config), object_hook=lambda node: types.SimpleNamespace(**node))
    network = LengthNetwork(load_empty(arguments.folder), tree, mix.castillo.features)
    base = base_weights(arguments.folder, network)
    network.load_state_dict(base)
    network.to(device)
    for key, parameter in network.named_parameters():  # word vectors stay: most are rarely seen
        parameter.requires_grad_("_embeddings." not in key and "pooler" not in key)
    network.backbone.set_dropout(tree.regularisation.dropout)
    result = {"name": name, "settings": settings, "start": evaluate(mix, network)}
    average = run_steps(Continued(mix, network), arguments.until, lambda row: print(name, json.dumps(row), flush=True))  # noqa: T201
    result["end"] = evaluate(mix, average)
    changed = {key: value.cpu() - base[key] for key, value in average.state_dict().items()}
    arguments.out.mkdir(parents=True, exist_ok=True)
    torch.save(
        {key: value.half() for key, value in changed.items() if value.abs().sum() > 0}, arguments.out / f"{name}.pt"
    )
    (arguments.out / f"{name}.json").write_text(json.dumps(result))


def run_steps(task: Continued, until: float, progress: Any) -> Any:  # noqa: ANN401
    """Train for the steps of the settings or until the time is over; return the running mean of the weights."""
    import torch

    network, settings = task.network, task.settings
    layers = network.backbone.groups()
    groups = [
        {
            "params": [p for p in layer if p.requires_grad],
            "lr": settings["lr"] * settings["decay"] ** (len(layers) - 1 - depth),
        }
        for depth, layer in enumerate(layers)
    ]
    groups.append({"params": [*network.identity.parameters(), *network.head.parameters()], "lr": settings["head_lr"]})
    rates = [group["lr"] for group in groups]
    optimiser = torch.optim.AdamW(groups, weight_decay=0.0, fused=task.mix.device != "cpu")
    average = copy.deepcopy(network)
    learned = [p for p in network.parameters() if p.requires_grad]
    means = [q for p, q in zip(network.parameters(), average.parameters(), strict=True) if p.requires_grad]
    began = time.time()
    for step, prompts in enumerate(task.batches()):
        done = max(step / settings["steps"], (time.time() - began) / max(until - began, 1e-9))
        if done >= 1.0:
            break
        share = min(1.0, (step + 1) / 60) * 0.5 * (1 + math.cos(math.pi * done))
        for group, rate in zip(optimiser.param_groups, rates, strict=True):
            group["lr"] = rate * share
        network.train()
        with autocast(task.mix.device):
            loss = task.loss(*prompts)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learned, 1.0)
        optimiser.step()
        decay = min(EMA, (step + 1) / (step + 11))
        with torch.no_grad():
            torch._foreach_lerp_(means, learned, 1.0 - decay)
        if step % 500 == 0:
            progress({"step": step, "loss": round(float(loss.detach()), 3), "seconds": round(time.time() - began, 1)})
    return average


def load_empty(folder: Path) -> Any:  # noqa: ANN401
    """Return the encoder with random weights."""
    from lengthwise.training.encoder.network import empty_backbone

    return empty_backbone(json.loads((folder / "backbone.json").read_text()))


def base_weights(folder: Path, network: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return the weights that training starts from; what the file does not have (an unused pooler) is the network's."""
    import torch

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
    import torch

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

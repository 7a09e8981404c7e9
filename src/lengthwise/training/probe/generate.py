"""Lets an LLM of transformers answer prompts, and keeps its hidden states on the way. torch and NumPy only, no files.

Prompts of about one length are answered together; who has ended leaves the batch. Penalties are vLLM's, so that a small
LLM does not run in circles: repetition (over prompt and answer, a factor), frequency (over the answer, by count).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


@dataclass(frozen=True)
class Speech:
    """How the LLM answers, and what is kept."""

    layers: tuple[int, ...] = (10, 15, 20)
    """States after so many layers."""
    temperature: float = 0.7
    top_p: float = 0.9
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    max_tokens: int = 1024
    every: int = 16
    positions: int = 8
    """States kept of an answer, chosen at random among those every so many tokens."""
    batch: int = 16
    seed: int = 0


@dataclass
class Kept:
    """Rows of hidden states: prompt, tokens generated so far, entropy, states by layer; and each answer's length."""

    prompt: list[int] = field(default_factory=list)
    generated: list[int] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)
    states: dict[int, list[NDArray[np.float16]]] = field(default_factory=dict)
    length: dict[int, int] = field(default_factory=dict)
    capped: dict[int, bool] = field(default_factory=dict)

    def columns(self, held_out: Sequence[bool], positions: int, seed: int) -> dict[str, NDArray[Any]]:
        """Return the columns of a states file, with at most so many rows of each answer."""
        generator = np.random.default_rng(seed)
        order = np.argsort(generator.random(len(self.prompt)), kind="stable")
        taken: dict[int, int] = {}
        rows = []
        for row in order.tolist():
            if taken.setdefault(self.prompt[row], 0) < positions:
                taken[self.prompt[row]] += 1
                rows.append(row)
        rows.sort(key=lambda row: (self.prompt[row], self.generated[row]))
        prompt = [self.prompt[row] for row in rows]
        left = [self.length[self.prompt[row]] - self.generated[row] for row in rows]
        return {
            "pid": np.array(prompt, np.int32),
            "pos": np.array([self.generated[row] for row in rows], np.int32),
            "rem": np.array(left, np.int32),
            "capped": np.array([self.capped[one] for one in prompt], bool),
            "test": np.array([held_out[one] for one in prompt], bool),
            "entropy": np.array([self.entropy[row] for row in rows], np.float32),
            **{f"L{layer}": np.array([states[row] for row in rows]) for layer, states in self.states.items()},
        }


def answer_all(
    model: Any,  # noqa: ANN401  (a causal LLM of transformers)
    prompts: Sequence[Sequence[int]],
    ends: Sequence[int],
    speech: Speech,
    on_progress: Callable[[int], None] = lambda _: None,
) -> Kept:
    """Answer every prompt (token ids) once; `ends` are the ids that end an answer, which count as a token of it."""
    kept = Kept(states={layer: [] for layer in speech.layers})
    seen: dict[int, Any] = {}
    hooks = [model.model.layers[layer - 1].register_forward_hook(_catch(seen, layer)) for layer in speech.layers]
    torch.manual_seed(speech.seed)
    by_length = sorted(range(len(prompts)), key=lambda number: len(prompts[number]))
    try:
        with torch.inference_mode():
            for start in range(0, len(by_length), speech.batch):
                _answer(model, prompts, by_length[start : start + speech.batch], ends, speech, seen, kept)
                on_progress(min(start + speech.batch, len(by_length)))
    finally:
        for hook in hooks:
            hook.remove()
    return kept


def _catch(seen: dict[int, Any], layer: int) -> Callable[..., None]:
    def hook(module: Any, inputs: Any, output: Any) -> None:  # noqa: ANN401
        seen[layer] = (output[0] if isinstance(output, tuple) else output)[:, -1]

    return hook


def _answer(
    model: Any,  # noqa: ANN401
    prompts: Sequence[Sequence[int]],
    numbers: Sequence[int],
    ends: Sequence[int],
    speech: Speech,
    seen: dict[int, Any],
    kept: Kept,
) -> None:
    device, widest = model.device, max(len(prompts[number]) for number in numbers)
    new = torch.full((len(numbers), widest), ends[0], device=device)
    mask = torch.zeros((len(numbers), widest), dtype=torch.long, device=device)
    vocabulary = model.get_input_embeddings().num_embeddings
    said = torch.zeros((len(numbers), vocabulary), device=device)
    in_prompt = torch.zeros((len(numbers), vocabulary), dtype=torch.bool, device=device)
    for row, number in enumerate(numbers):  # padded on the left: the last column is everybody's last token
        ids = torch.tensor(prompts[number], device=device)
        new[row, widest - len(ids) :], mask[row, widest - len(ids) :] = ids, 1
        in_prompt[row, ids] = True
    here, past = torch.tensor(numbers), None
    last = torch.tensor(ends, device=device)
    for generated in range(speech.max_tokens):
        place = (mask.cumsum(dim=1) - 1).clamp(min=0)[:, -new.shape[1] :]
        out = model(input_ids=new, attention_mask=mask, position_ids=place, past_key_values=past, use_cache=True,
                    logits_to_keep=1)  # fmt: skip
        past, logits = out.past_key_values, out.logits[:, -1].float()
        if generated % speech.every == 0:
            _keep(kept, here.tolist(), generated, logits, seen)
        token = _drawn(_penalised(logits, said, in_prompt, speech), speech)
        said[torch.arange(len(token)), token] += 1
        over = torch.isin(token, last).cpu()
        for number in here[over].tolist():
            kept.length[number], kept.capped[number] = generated + 1, False
        stay = torch.nonzero(~over)[:, 0]
        if not len(stay):
            return
        if len(stay) < len(token):
            rows = stay.to(device)
            past.batch_select_indices(rows)
            token, mask, said, in_prompt, here = token[rows], mask[rows], said[rows], in_prompt[rows], here[stay]
        new = token[:, None]
        mask = torch.cat([mask, torch.ones_like(new)], dim=1)
    for number in here.tolist():
        kept.length[number], kept.capped[number] = speech.max_tokens, True


def _keep(kept: Kept, numbers: list[int], generated: int, logits: Any, seen: dict[int, Any]) -> None:  # noqa: ANN401
    log_share = torch.log_softmax(logits, dim=-1)
    kept.prompt += numbers
    kept.generated += [generated] * len(numbers)
    kept.entropy += (-(log_share.exp() * log_share).sum(dim=-1)).tolist()
    for layer, states in kept.states.items():
        states.extend(seen[layer].to(torch.float16).cpu().numpy())


def _penalised(logits: Any, said: Any, in_prompt: Any, speech: Speech) -> Any:  # noqa: ANN401
    if speech.repetition_penalty != 1.0:
        factor = speech.repetition_penalty
        lower = torch.where(logits > 0, logits / factor, logits * factor)
        logits = torch.where(in_prompt | (said > 0), lower, logits)
    return logits - speech.frequency_penalty * said


def _drawn(logits: Any, speech: Speech) -> Any:  # noqa: ANN401
    """Draw each row's next token from the smallest set with a share of top_p."""
    if speech.temperature == 0.0:
        return logits.argmax(dim=-1)
    share, token = torch.softmax(logits / speech.temperature, dim=-1).sort(dim=-1, descending=True)
    share = torch.where(share.cumsum(dim=-1) - share < speech.top_p, share, 0.0)
    return token.gather(1, torch.multinomial(share, 1))[:, 0]

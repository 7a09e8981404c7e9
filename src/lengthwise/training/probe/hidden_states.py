"""Collects hidden states: lets an LLM of transformers answer prompts and writes a folder of states.

Prompts of similar length are answered in one batch; a finished answer leaves the batch. The states of each batch are
stored when it ends, and its random choices are its own, so that a collection that was stopped resumes and ends as if it
had not been. Penalties are those of vLLM, because a small LLM repeats itself without them: repetition (over prompt and
answer, a factor) and frequency (over the answer, by count).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import transformers
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.files import atomic_path
from lengthwise.training.probe.states import PARTS, read_arrays

if TYPE_CHECKING:
    from lengthwise.client.collect import Prompt

EMBEDDED: Final = "embedded"
LONGEST_PROMPT: Final = 1500
"""Tokens; longer prompts are cut."""


@dataclass(frozen=True)
class AnswerSettings:
    """How the LLM samples its answers, and which states are collected."""

    layers: tuple[int, ...] = (10, 15, 20)
    """States after these layers, counted from 1."""
    temperature: float = 0.7
    top_p: float = 0.9
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    max_tokens: int = 1024
    every: int = 16
    positions: int = 8
    """States per answer, chosen at random among those at every `every` tokens."""
    batch: int = 16
    seed: int = 0


@dataclass
class Collected:
    """Rows of hidden states (prompt, tokens generated, entropy, states by layer) and the length of each answer."""

    prompt: list[int] = field(default_factory=list)
    generated: list[int] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)
    states: dict[int, list[NDArray[np.float16]]] = field(default_factory=dict)
    length: dict[int, int] = field(default_factory=dict)
    capped: dict[int, bool] = field(default_factory=dict)

    def columns(self, held_out: Sequence[bool], positions: int, seed: int) -> dict[str, NDArray[Any]]:
        """Return the columns of a states file, with at most `positions` rows of each answer."""
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


def answer(
    model: Any,  # a causal LLM of transformers
    prompts: Sequence[Sequence[int]],
    numbers: Sequence[int],
    ends: Sequence[int],
    settings: AnswerSettings,
    seed: int = 0,
) -> Collected:
    """Answer the numbered prompts (token ids) once, in one batch; `ends` are the ids that end an answer."""
    collected = Collected(states={layer: [] for layer in settings.layers})
    seen: dict[int, Any] = {}
    hooks = [model.model.layers[layer - 1].register_forward_hook(_catch(seen, layer)) for layer in settings.layers]
    torch.manual_seed(seed)
    try:
        with torch.inference_mode():
            _answer(model, prompts, numbers, ends, settings, seen, collected)
    finally:
        for hook in hooks:
            hook.remove()
    return collected


def _catch(seen: dict[int, Any], layer: int) -> Callable[..., None]:
    def hook(module: Any, inputs: Any, output: Any) -> None:
        seen[layer] = (output[0] if isinstance(output, tuple) else output)[:, -1]

    return hook


def _answer(
    model: Any,
    prompts: Sequence[Sequence[int]],
    numbers: Sequence[int],
    ends: Sequence[int],
    settings: AnswerSettings,
    seen: dict[int, Any],
    collected: Collected,
) -> None:
    device, widest = model.device, max(len(prompts[number]) for number in numbers)
    new = torch.full((len(numbers), widest), ends[0], device=device)
    mask = torch.zeros((len(numbers), widest), dtype=torch.long, device=device)
    vocabulary = model.get_input_embeddings().num_embeddings
    counts = torch.zeros((len(numbers), vocabulary), device=device)
    in_prompt = torch.zeros((len(numbers), vocabulary), dtype=torch.bool, device=device)
    for row, number in enumerate(numbers):  # padded on the left: the last column is the last token of every prompt
        ids = torch.tensor(prompts[number], device=device)
        new[row, widest - len(ids) :], mask[row, widest - len(ids) :] = ids, 1
        in_prompt[row, ids] = True
    here, past = torch.tensor(numbers), None
    last = torch.tensor(ends, device=device)
    for generated in range(settings.max_tokens):
        place = (mask.cumsum(dim=1) - 1).clamp(min=0)[:, -new.shape[1] :]
        out = model(input_ids=new, attention_mask=mask, position_ids=place, past_key_values=past, use_cache=True,
                    logits_to_keep=1)  # fmt: skip
        past, logits = out.past_key_values, out.logits[:, -1].float()
        if generated % settings.every == 0:
            _collect(collected, here.tolist(), generated, logits, seen)
        token = _sampled(_penalised(logits, counts, in_prompt, settings), settings)
        counts[torch.arange(len(token)), token] += 1
        over = torch.isin(token, last).cpu()
        for number in here[over].tolist():
            collected.length[number], collected.capped[number] = generated + 1, False
        stay = torch.nonzero(~over)[:, 0]
        if not len(stay):
            return
        if len(stay) < len(token):
            rows = stay.to(device)
            past.batch_select_indices(rows)
            token, mask, counts, in_prompt, here = token[rows], mask[rows], counts[rows], in_prompt[rows], here[stay]
        new = token[:, None]
        mask = torch.cat([mask, torch.ones_like(new)], dim=1)
    for number in here.tolist():
        collected.length[number], collected.capped[number] = settings.max_tokens, True


def _collect(
    collected: Collected,
    numbers: list[int],
    generated: int,
    logits: Any,
    seen: dict[int, Any],
) -> None:
    log_share = torch.log_softmax(logits, dim=-1)
    collected.prompt += numbers
    collected.generated += [generated] * len(numbers)
    collected.entropy += (-(log_share.exp() * log_share).sum(dim=-1)).tolist()
    for layer, states in collected.states.items():
        states.extend(seen[layer].to(torch.float16).cpu().numpy())


def _penalised(logits: Any, counts: Any, in_prompt: Any, settings: AnswerSettings) -> Any:
    if settings.repetition_penalty != 1.0:
        factor = settings.repetition_penalty
        lower = torch.where(logits > 0, logits / factor, logits * factor)
        logits = torch.where(in_prompt | (counts > 0), lower, logits)
    return logits - settings.frequency_penalty * counts


def _sampled(logits: Any, settings: AnswerSettings) -> Any:
    """Sample the next token of each row from the smallest set with probability top_p."""
    if settings.temperature == 0.0:
        return logits.argmax(dim=-1)
    share, token = torch.softmax(logits / settings.temperature, dim=-1).sort(dim=-1, descending=True)
    share = torch.where(share.cumsum(dim=-1) - share < settings.top_p, share, 0.0)
    return token.gather(1, torch.multinomial(share, 1))[:, 0]


@dataclass(frozen=True)
class CollectionSummary:
    """Counts of a collection, the share of capped answers and the mean length."""

    answers: int
    rows: int
    capped: float
    mean: float


def collect_states(
    prompts: Sequence[Prompt],
    out: Path,
    model: str,
    settings: AnswerSettings,
    held_out: float,
    report: Callable[[str, float], None],
) -> CollectionSummary:
    """Answer every prompt once, and write states.npz and prompts.parquet into a folder; resume what was stopped."""
    if not prompts:
        raise InputError("there are no prompts", source="--prompts")
    llm, tokenizer = load_llm(model)
    depth = len(llm.model.layers)
    if not all(1 <= layer <= depth for layer in settings.layers):
        raise InputError(f"the LLM has {depth} layers", field="--layers", hint=f"give numbers from 1 to {depth}")
    keys = [prompt.key for prompt in prompts]
    parts = _begin(out, {**asdict(settings), "model": model, "held_out": held_out, "prompts": _digest(prompts)})
    ids, ends = [prompt_ids(tokenizer, prompt.text) for prompt in prompts], _ends(llm, tokenizer)
    kept_apart = [hash_fraction(key) < held_out for key in keys]
    by_length = sorted(range(len(ids)), key=lambda number: len(ids[number]))
    for batch, start in enumerate(range(0, len(by_length), settings.batch)):
        part = parts / f"{batch:06}.npz"
        if not part.is_file():
            seed = int(np.random.SeedSequence((settings.seed, batch)).generate_state(1)[0])
            collected = answer(llm, ids, by_length[start : start + settings.batch], ends, settings, seed)
            _save(part, collected.columns(kept_apart, settings.positions, seed))
        done = min(start + settings.batch, len(by_length))
        report(f"{done:,} answers", done / len(by_length))
    return _finish(out, parts, prompts)


def _begin(out: Path, settings: dict[str, Any]) -> Path:
    """Return the folder of the batches; one that is there already has been begun with the same settings."""
    parts, settings = out / PARTS, json.loads(json.dumps(settings))
    kept = parts / "settings.json"
    parts.mkdir(parents=True, exist_ok=True)
    if kept.is_file():
        begun = json.loads(kept.read_text(encoding="utf-8"))
        other = [name for name, value in settings.items() if begun.get(name) != value]
        if other:
            hint = "give those of the first call, or another folder"
            raise InputError(f"was begun with other settings ({', '.join(other)})", source=out, hint=hint)
    else:
        with atomic_path(kept) as temporary:
            temporary.write_text(json.dumps(settings), encoding="utf-8")
    return parts


def _finish(out: Path, parts: Path, prompts: Sequence[Prompt]) -> CollectionSummary:
    """Write the states of all batches into one file, and the table of the prompts, which says that all is there."""
    columns = read_arrays(parts)
    first = np.unique(columns["pid"], return_index=True)[1]  # of every answer at least one state is kept
    length, capped = (columns["pos"] + columns["rem"])[first], columns["capped"][first]
    _save(out / "states.npz", columns)
    table = {
        "corpus": [prompt.corpus for prompt in prompts],
        "prompt_id": [prompt.prompt_id for prompt in prompts],
        "split": [prompt.split for prompt in prompts],
        "prompt": [prompt.text for prompt in prompts],
        "length": length.tolist(),
        "capped": capped.tolist(),
    }
    with atomic_path(out / "prompts.parquet") as temporary:
        pq.write_table(pa.table(table), temporary, compression="zstd")
    shutil.rmtree(parts)
    return CollectionSummary(len(prompts), len(columns["pid"]), float(capped.mean()), float(length.mean()))


def _save(path: Path, columns: dict[str, NDArray[Any]]) -> None:
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **columns)


def _digest(prompts: Sequence[Prompt]) -> str:
    import xxhash

    return xxhash.xxh3_128_hexdigest(json.dumps([(each.key, each.text) for each in prompts]).encode())


def hash_fraction(key: str) -> float:
    """Return a number in [0, 1) by hash of a prompt: it does not change when prompts are added."""
    import xxhash

    return xxhash.xxh3_64_intdigest(f"states\n{key}".encode()) / 2.0**64


def load_llm(name: str) -> tuple[Any, Any]:
    """Return the LLM and its tokenizer, on a GPU if there is one."""
    from lengthwise.vllm.smollm2 import model_folder

    where = str(model_folder()) if name == EMBEDDED else name
    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(where)
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        llm = transformers.AutoModelForCausalLM.from_pretrained(where, dtype=dtype).to(device).eval()
    except (OSError, ValueError) as error:
        reason = str(error).split("\n")[0]
        raise InputError(f"transformers cannot load it ({reason})", source=name, field="--model") from error
    if not hasattr(getattr(llm, "model", None), "layers"):
        raise InputError(
            "has no `model.layers`", source=name, field="--model", hint="use a Llama or a model built like one"
        )
    return llm, tokenizer


def prompt_ids(tokenizer: Any, text: str) -> list[int]:
    """Return one user turn in the chat template, cut if long; without a template, the text."""
    cut = tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)[:LONGEST_PROMPT])
    if tokenizer.chat_template is None:
        return list(tokenizer.encode(cut))
    turn = tokenizer.apply_chat_template([{"role": "user", "content": cut}], tokenize=False, add_generation_prompt=True)
    return list(tokenizer.encode(turn, add_special_tokens=False))


def _ends(llm: Any, tokenizer: Any) -> list[int]:
    """Ids that end an answer."""
    named = llm.generation_config.eos_token_id
    ids = [tokenizer.eos_token_id, *(named if isinstance(named, list) else [named])]
    return sorted({one for one in ids if one is not None})

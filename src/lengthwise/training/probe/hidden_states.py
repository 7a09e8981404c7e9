"""Hidden states of an LLM in this process: loads it with transformers, asks, and writes a folder of states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import transformers
import xxhash

from lengthwise.engines.smollm2 import model_folder
from lengthwise.errors import InputError
from lengthwise.training.probe.generate import Speech, answer_all

if TYPE_CHECKING:
    from lengthwise.engines.collect import Prompt

EMBEDDED: Final = "embedded"
LONGEST_PROMPT: Final = 1500
"""Tokens; of longer prompts the first so many are asked."""


@dataclass(frozen=True)
class Told:
    """What was collected."""

    answers: int
    rows: int
    capped: float
    mean: float


def collect_states(
    prompts: Sequence[Prompt],
    out: Path,
    model: str,
    speech: Speech,
    held_out: float,
    report: Callable[[str, float], None],
) -> Told:
    """Ask every prompt once, and write states.npz and prompts.parquet into a new folder."""
    if not prompts:
        raise InputError("there are no prompts", source="--prompts")
    llm, tokenizer = load_llm(model)
    depth = len(llm.model.layers)
    if not all(1 <= layer <= depth for layer in speech.layers):
        raise InputError(f"the LLM has {depth} layers", field="--layers", hint=f"give numbers from 1 to {depth}")
    ids = [prompt_ids(tokenizer, prompt.text) for prompt in prompts]
    kept = answer_all(
        llm, ids, _ends(llm, tokenizer), speech, lambda done: report(f"{done:,} answers", done / len(prompts))
    )
    columns = kept.columns([drawn(prompt.key) < held_out for prompt in prompts], speech.positions, speech.seed)
    out.mkdir()
    table = {
        "corpus": [prompt.corpus for prompt in prompts],
        "prompt_id": [prompt.prompt_id for prompt in prompts],
        "split": [prompt.split for prompt in prompts],
        "prompt": [prompt.text for prompt in prompts],
        "length": [kept.length[number] for number in range(len(prompts))],
        "capped": [kept.capped[number] for number in range(len(prompts))],
    }
    pq.write_table(pa.table(table), out / "prompts.parquet", compression="zstd")
    np.savez_compressed(out / "states.npz", allow_pickle=False, **columns)
    lengths, capped = list(kept.length.values()), list(kept.capped.values())
    return Told(len(prompts), len(columns["pid"]), float(np.mean(capped)), float(np.mean(lengths)))


def drawn(key: str) -> float:
    """A number in [0, 1) for a prompt, by hash: it does not move when prompts are added."""
    return xxhash.xxh3_64_intdigest(f"states\n{key}".encode()) / 2.0**64


def load_llm(name: str) -> tuple[Any, Any]:
    """The LLM and its tokenizer, on a GPU where there is one."""
    where = str(model_folder()) if name == EMBEDDED else name
    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(where)
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        llm = transformers.AutoModelForCausalLM.from_pretrained(where, dtype=dtype).to(device).eval()
    except (OSError, ValueError) as error:
        said = str(error).split("\n")[0]
        raise InputError(f"transformers cannot load it ({said})", source=name, field="--model") from error
    if not hasattr(getattr(llm, "model", None), "layers"):
        raise InputError(
            "has no `model.layers` to look into", source=name, field="--model", hint="use a Llama or a kin"
        )
    return llm, tokenizer


def prompt_ids(tokenizer: Any, text: str) -> list[int]:  # noqa: ANN401
    """One user turn in the LLM's template, a long one cut; without a template, the text itself."""
    cut = tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)[:LONGEST_PROMPT])
    if tokenizer.chat_template is None:
        return list(tokenizer.encode(cut))
    turn = tokenizer.apply_chat_template([{"role": "user", "content": cut}], tokenize=False, add_generation_prompt=True)
    return list(tokenizer.encode(turn, add_special_tokens=False))


def _ends(llm: Any, tokenizer: Any) -> list[int]:  # noqa: ANN401
    """The ids that end an answer."""
    named = llm.generation_config.eos_token_id
    ids = [tokenizer.eos_token_id, *(named if isinstance(named, list) else [named])]
    return sorted({one for one in ids if one is not None})

"""Collect hidden states of the embedded LLM on a bare GPU machine, for `lengthwise probe train`.

    pack     here: the prompts as token ids and the LLM's weights, into one folder (needs the package and its data)
    collect  there: one answer to each prompt, states collected; as many files as come back, under --out
    join     here: these files and the table of the prompts as a folder for `lengthwise probe train`

`collect` needs torch, transformers and pyarrow, not the other dependencies of the package. docs/studies/trail.md
says how to run it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path
from typing import Any

from scripts.gpu_train import bare_package, llama_weights, pack_llama

PIECE_BYTES = 12_000_000  # of states in one file


def pack(arguments: argparse.Namespace) -> None:
    """Write prompts.npz, prompts.parquet, config.json and the weights in pieces."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    import transformers

    from lengthwise.cli.collect import read_prompts
    from lengthwise.engines.smollm2 import model_folder
    from lengthwise.training.probe.hidden_states import hash_fraction, prompt_ids
    from lengthwise.training.probe.states import NOT_TRAINED

    arguments.folder.mkdir(parents=True, exist_ok=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(model_folder()))
    prompts = sorted(read_prompts(arguments.prompts), key=lambda prompt: hash_fraction("order\n" + prompt.key))
    prompts = [each for each in prompts if each.corpus not in NOT_TRAINED or _held_out(each, arguments.held_out)]
    prompts = prompts[: arguments.limit]
    ids = [prompt_ids(tokenizer, prompt.text) for prompt in prompts]
    held_out = [_held_out(prompt, arguments.held_out) for prompt in prompts]
    np.savez_compressed(
        arguments.folder / "prompts.npz",
        ids=np.concatenate(ids).astype(np.uint16),
        sizes=np.array([len(one) for one in ids]),
        held_out=np.array(held_out),
        ends=np.array([tokenizer.eos_token_id]),
    )
    table = {name: [getattr(prompt, name) for prompt in prompts] for name in ("corpus", "prompt_id", "split")}
    table["prompt"] = [prompt.text for prompt in prompts]
    pq.write_table(pa.table(table), arguments.folder / "prompts.parquet", compression="zstd")
    shutil.copy(model_folder() / "config.json", arguments.folder / "config.json")
    pack_llama(arguments.folder)
    for path in sorted(arguments.folder.iterdir()):
        print(f"{path.name:16} {path.stat().st_size / 1e6:6.1f} MB")  # noqa: T201


def _held_out(prompt: Any, part: float) -> bool:  # noqa: ANN401
    from lengthwise.training.probe.hidden_states import hash_fraction

    return prompt.split == "test" or hash_fraction(prompt.key) < part


def load_packed(folder: Path) -> Any:  # noqa: ANN401
    """Return the LLM in transformers with the packed weights."""
    import torch
    import transformers

    llm = transformers.LlamaForCausalLM(transformers.LlamaConfig(**json.loads((folder / "config.json").read_text())))
    missing, unexpected = llm.load_state_dict(llama_weights(folder), strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise SystemExit(f"the weights do not fit: {missing[:3]} are missing, {unexpected[:3]} unknown")
    llm.tie_weights()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return llm.to(device, torch.bfloat16 if device == "cuda" else torch.float32).eval()


def collect(arguments: argparse.Namespace) -> None:
    """Answer every prompt and write states_*.npz, each small enough to come back, and collected_*.json."""
    bare_package()
    import numpy as np

    from lengthwise.training.probe.hidden_states import AnswerSettings, answer_all

    with np.load(arguments.folder / "prompts.npz") as packed:
        sizes, held_out = packed["sizes"][: arguments.limit], packed["held_out"][: arguments.limit]
        ids = np.split(packed["ids"].astype(int)[: sizes.sum()], np.cumsum(sizes)[:-1])
        ends = packed["ends"].tolist()
    numbers = np.array_split(np.argsort(sizes, kind="stable"), arguments.parts)[arguments.part]  # of about one length
    ids, held_out, prompts = [ids[number] for number in numbers], held_out[numbers], len(sizes)
    settings = AnswerSettings(
        layers=tuple(int(layer) for layer in arguments.layers.split(",")),
        repetition_penalty=arguments.repetition_penalty,
        frequency_penalty=arguments.frequency_penalty,
        max_tokens=arguments.max_tokens,
        positions=arguments.positions,
        batch=arguments.batch,
        seed=(arguments.seed + arguments.answer) * arguments.parts + arguments.part,
    )
    began = time.time()
    llm = load_packed(arguments.folder)

    def report(done: int) -> None:
        print(f"{done} of {len(ids)} answers, {time.time() - began:.0f} s", flush=True)  # noqa: T201

    collected = answer_all(llm, [one.tolist() for one in ids], ends, settings, report)
    columns = collected.columns(held_out.tolist(), settings.positions, settings.seed)
    arguments.out.mkdir(parents=True, exist_ok=True)
    rows = max(1, PIECE_BYTES // (2 * sum(columns[f"L{layer}"].shape[1] for layer in settings.layers) + 24))
    for number, start in enumerate(range(0, len(columns["pid"]), rows)):
        piece = {name: column[start : start + rows] for name, column in columns.items()}
        piece["pid"] = (numbers[piece["pid"]] + arguments.answer * prompts).astype(np.int32)
        path = arguments.out / f"states_{arguments.answer}_{arguments.part}_{number}.npz"
        np.savez(path, allow_pickle=False, **piece)
    lengths, capped = list(collected.length.values()), list(collected.capped.values())
    summary = {
        "settings": vars(settings), "answers": len(lengths), "mean": float(np.mean(lengths)),
        "capped": float(np.mean(capped)), "rows": len(columns["pid"]), "seconds": time.time() - began,
    }  # fmt: skip
    (arguments.out / f"collected_{arguments.answer}_{arguments.part}.json").write_text(json.dumps(summary, indent=1))
    print(json.dumps(summary))  # noqa: T201


def join(arguments: argparse.Namespace) -> None:
    """Join states and prompts in --to; the table has each prompt once for each answer."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    arguments.to.mkdir(parents=True, exist_ok=True)
    for path in sorted(arguments.out.glob("states_*.npz")):
        shutil.copy(path, arguments.to / path.name)
    answers = 1 + max(int(path.stem.split("_")[1]) for path in arguments.to.glob("states_*.npz"))
    table = pq.read_table(arguments.folder / "prompts.parquet")
    pq.write_table(pa.concat_tables([table] * answers), arguments.to / "prompts.parquet", compression="zstd")


def main() -> None:
    """Run one of the stages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=("pack", "collect", "join"))
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--prompts", default="castillo")
    parser.add_argument("--limit", type=int, default=10_000)
    parser.add_argument("--held-out", type=float, default=0.2)
    parser.add_argument("--layers", default="15,20,25")
    parser.add_argument("--repetition-penalty", type=float, default=1.0)
    parser.add_argument("--frequency-penalty", type=float, default=0.3)
    parser.add_argument("--max-tokens", type=int, default=1024)
    parser.add_argument("--positions", type=int, default=8)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", type=int, default=0, help="which part of the prompts, from 0: one process each")
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--answer", type=int, default=0, help="which answer to the prompts this is, from 0")
    parser.add_argument("--out", type=Path, default=Path("out/states"))
    parser.add_argument("--to", type=Path, default=Path("out/probe_states"))
    arguments = parser.parse_args()
    {"pack": pack, "collect": collect, "join": join}[arguments.mode](arguments)


if __name__ == "__main__":
    main()

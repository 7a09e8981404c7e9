"""How well an LLM left out of training is known after `adapt` on 100 of its lengths, beside the one trained with it.

    LENGTHWISE_DATA=... python -m benchmarks.left_out --models DIR [--known default]     # DIR/without-gemma-3-4b.lw ...
    LENGTHWISE_DATA=... python -m benchmarks.left_out --said DIR --pack .device/minilm   # from scripts/gpu_train.py

Model files: `data: {without: [gemma-3-4b]}` in a config of `lengthwise train`. Ten draws of lengths from prompts no
training saw (`data.held_out`, the same by hash in all of them); judged on official test prompts of six corpora.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from experiments.left_out.study import (
    DRAWS,
    LENGTHS,
    LLMS,
    TARGET_COVERAGE,
    TARGET_TAU,
    LeftOut,
    Prompts,
    Said,
    known_as,
    leave_out,
)
from lengthwise.errors import InputError
from lengthwise.predictors import load_predictor
from lengthwise.predictors.llm_names import resolve_llm
from lengthwise.reports.tables import Table, print_tables, share, signed, to_json
from lengthwise.workloads import load_castillo


def main() -> None:
    options = _options()
    samples = load_castillo()
    wanted = [resolve_llm(name, samples.llms) for name in options.llm or LLMS]
    prompts = {llm: Prompts.of(samples, llm, options.pool) for llm in wanted}
    said = _read(options, prompts)
    known = load_predictor(options.known)
    rows = []
    for llm, told in said.items():
        figure = known_as(known, prompts[llm])
        rows += [
            leave_out(told, prompts[llm], figure, lengths=lengths, draws=options.draws)
            for lengths in options.lengths or [LENGTHS]
        ]
    if options.json:
        print(to_json([{**asdict(row), "adapted": row.adapted, "met": row.met} for row in rows]))
    else:
        print_tables([_table(rows, options)])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--models", type=Path, help="folder of model files without-NAME.lw")
    source.add_argument("--said", type=Path, help="folder of left_out.npz and NAME.json")
    parser.add_argument("--pack", type=Path, help="with --said: folder of the pack")
    parser.add_argument("--known", default="default", help="the predictor that was trained with all LLMs")
    parser.add_argument("--llm", action="append", help=f"repeatable; without it {', '.join(LLMS)}")
    parser.add_argument("--lengths", type=int, action="append", help=f"repeatable; without it {LENGTHS}")
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--pool", nargs="+", default=["validate"], help="splits whose held-out prompts are drawn from")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _read(options: argparse.Namespace, prompts: dict[str, Prompts]) -> dict[str, Said]:
    if options.said is not None:
        from experiments.left_out.said import read_said

        if options.pack is None:
            raise InputError("no pack", field="--pack", hint="the folder these networks were trained from")
        return read_said(options.said, options.pack, prompts)
    found = {}
    for path in sorted(options.models.glob("without-*.lw")):
        llm = resolve_llm(path.stem.removeprefix("without-"), tuple(prompts))
        found[llm] = Said.by(load_predictor(path), prompts[llm])
    if not found:
        raise InputError("no model files without-NAME.lw", source=options.models)
    return found


def _table(rows: Sequence[LeftOut], options: argparse.Namespace) -> Table:
    def spread(values: Sequence[float]) -> str:
        return f"{min(values):.3f} to {max(values):.3f}"

    low, high = TARGET_COVERAGE
    return Table(
        title=f"Left out of training, then adapted: {options.models or options.said}",
        columns=["LLM", "lengths", "pool", "known tau", "in 90 %", "unknown tau", "in 90 %", "adapted tau", "draws",
                 "to known", "in 50 %", "in 90 %", "draws", "met"],
        rows=[
            [
                row.llm.rsplit("/", 1)[-1],
                str(row.lengths),
                str(row.pool),
                f"{row.known.tau:.3f}",
                share(row.known.coverage_90),
                f"{row.unknown.tau:.3f}",
                share(row.unknown.coverage_90),
                f"{row.adapted.tau:.3f}",
                spread([each.tau for each in row.draws]),
                signed(row.adapted.tau - row.known.tau),
                share(row.adapted.coverage_50),
                share(row.adapted.coverage_90),
                spread([each.coverage_90 for each in row.draws]),
                "yes" if row.met else "no",
            ]
            for row in rows
        ],
        notes=[
            f"known: {options.known}; mean of {options.draws} draws, one length of each held-out prompt drawn from "
            + ", ".join(options.pool),
            f"met: tau at most {TARGET_TAU} below the known one, 90 % intervals covering {low:.0%} to {high:.0%}",
        ],
    )  # fmt: skip


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(f"error: {error}")

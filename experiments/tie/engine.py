"""Figure 4 on a real engine: the kept rows of vLLM on an H200, in which policies took turns on the same bursts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from experiments.study import Claim
from experiments.tie import paper
from lengthwise.bench.analysis import analyse, read_episodes
from lengthwise.bench.store import BenchStore, read_measured
from lengthwise.intervals import over_pairs
from lengthwise.simulator.metrics import LatencyLimits

KEPT: Final = Path(__file__).parents[1] / "results" / "h200-32-policies"
SETTING: Final = "vLLM on an H200"
_PAIRS: Final = (("sjf", "fcfs"), ("tie", "fcfs"), ("tie", "sjf"))
_DEFINITIONS: Final = {"": "per_token", ", total E2E / total tokens": "mean"}


def figures_by_block(folder: Path = KEPT) -> dict[str, list[Mapping[str, float]]]:
    """Return the latencies of each policy, block by block."""
    episodes = read_episodes(read_measured(BenchStore(folder)).rows, LatencyLimits())
    return {arm.policy: [blocks[b].figures for b in sorted(blocks)] for (_, arm), blocks in episodes.items()}


def engine_claims(folder: Path = KEPT) -> list[Claim]:
    """Compare with the paper's highest rate; the bursts are at twice the capacity, all with the same predictions."""
    main, found = paper.ONLINE[paper.MAIN], figures_by_block(folder)
    return [
        Claim(
            f"{policy} over {base}{suffix}",
            main[policy] / main[base],
            over_pairs(*([each[figure] for each in found[name]] for name in (policy, base))),
            SETTING,
        )
        for suffix, figure in _DEFINITIONS.items()
        for policy, base in _PAIRS
    ]


def engine_note(folder: Path = KEPT) -> str:
    """Return what was measured."""
    result = analyse(read_measured(BenchStore(folder)))
    arm = next(each for each in result.arms if each.arm.policy == "tie")
    engine = result.settings["engine"]
    return (
        f"{SETTING}: {engine['engine']}, {engine['max_num_seqs']} slots, {arm.blocks} blocks of bursts of "
        f"{arm.requests // arm.blocks} requests at twice the capacity, tau {arm.tau:.2f} "
        f"(experiments/results/{folder.name})."
    )

"""docs/studies/evidence.md, written from the results: the answer first, then what it rests on.

What stands below the line `<!-- by hand -->` of an earlier page is kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from lengthwise.bench.evidence.lines import Evidence, Line
from lengthwise.bench.evidence.own import sampling_said
from lengthwise.bench.evidence.pace import SLACK
from lengthwise.bench.evidence.plan import ORACLE
from lengthwise.bench.evidence.targets import target_table
from lengthwise.bench.evidence.traffic import PLAYED
from lengthwise.bench.evidence.view import tables, times, under
from lengthwise.reports.tables import Table, share
from lengthwise.workloads.castillo import PACKAGED

BY_HAND: Final = "<!-- by hand -->"
_LITTLE: Final = 0.02
_TAIL: Final = 1.2
_AGAIN: Final = """\
It says how many cells and hours there are once capacity is measured, keeps every cell in `out/evidence` and goes on
where it was stopped. Without the full data it uses the packaged sample's prompts, and says so. `--only headline`
measures what the first table needs; `--no-run` writes the page from what is there. On a server of one's own (`--url`)
one order is measured at a time: a server's policy cannot be changed from outside."""


def markdown(evidence: Evidence, picture: str | None, kept: str = "") -> str:
    """The page; `picture` is where its figure lies, `kept` what was written by hand."""
    parts = [
        "# Evidence: does knowing the length pay?",
        "<!-- Written by `lengthwise bench engine --page docs/studies/evidence.md`. -->",
        *_answer(evidence),
        "" if picture is None else f"![E2E latencies and gains at the highest load]({picture})",
        _markdown(target_table(evidence)),
        "## Where it does not pay",
        *_not_paying(evidence),
        "## What was measured, and on what",
        "\n".join(f"- {each}" for each in _measured(evidence)),
        "## All figures",
        *(_markdown(table) for table in tables(evidence)),
        "## Again",
        f"    LENGTHWISE_DATA=... lengthwise bench engine {_options(evidence)}--page docs/studies/evidence.md",
        _AGAIN,
        BY_HAND,
    ]
    return "\n\n".join(part for part in parts if part) + "\n" + kept


def kept_by_hand(text: str) -> str:
    """What stands below the line."""
    return text.partition(BY_HAND)[2].removeprefix("\n")


def _answer(evidence: Evidence) -> list[str]:
    busy = evidence.line("a", 1.1, "lengthwise", "default")
    calm = evidence.line("a", 0.7, "lengthwise", "default")
    if busy is None or math.isnan(busy.mean.ratio):
        return ["The headline cells are not measured yet."]
    said = [_shown(busy) if busy.mean.high < 1 else _not_shown(busy)]
    if not math.isnan(busy.gain_mean.ratio):
        said[0] += (
            f" That is {share(busy.gain_mean.ratio)} of what the same policy gains on true lengths "
            f"({share(busy.gain_per_token.ratio)} per token)."
        )
    said += _shortest_first(evidence)
    if calm is not None and not math.isnan(calm.mean.ratio):
        mean, tail = under(calm.mean_by_requests), under(calm.p99_by_requests)
        harm = calm.mean_by_requests.low > 1
        does = "it costs something" if harm else "little queues and there is little to win"
        does = does if calm.mean_by_requests.high > 1 - _LITTLE else "it wins something too"
        said.append(f"At load 0.7 {does}: mean E2E {mean} of FCFS's, p99 {tail} (intervals over requests).")
    return said


def _shown(line: Line) -> str:
    tail = "." if line.p99.ratio <= _TAIL else ", and the slowest pay for it."
    return (
        f"**Yes, where requests queue{tail}** On a real vLLM that is offered 1.1 times what it "
        f"can serve, `lengthwise` on the shipped `default` predictor is {times(line.per_token)} better in per-token "
        f"latency and {times(line.mean)} in mean E2E latency than stock vLLM's first come, first served, with the "
        f"p99 at {under(line.p99)} of FCFS's and {share(line.throughput)} of its throughput."
    )


def _not_shown(line: Line) -> str:
    return (
        "**Not shown.** On a real vLLM that is offered 1.1 times what it can serve, `lengthwise` on the shipped "
        f"`default` predictor has {under(line.mean)} of stock vLLM's mean E2E latency, {under(line.per_token)} of "
        f"its per-token latency and {under(line.p99)} of its p99."
    )


def _shortest_first(evidence: Evidence) -> list[str]:
    found = [evidence.line("a", 1.1, "sjf", name) for name in ("default", ORACLE)]
    lines = [line for line in found if line is not None and not math.isnan(line.mean.ratio)]
    if not lines:
        return []
    each = "; ".join(
        f"on {line.name.partition(', ')[2]} {times(line.mean)} better on the mean, p99 {under(line.p99)} of FCFS's"
        for line in lines
    )
    return [f"Pure shortest-job-first, for comparison: {each}."]


def _not_paying(evidence: Evidence) -> list[str]:
    """Orders that win nothing, and orders whose tail pays, by their figures."""
    compared = [line for line in evidence.lines if not line.stock and not math.isnan(line.mean.ratio)]
    nothing = [line for line in compared if line.mean.high > 1 - _LITTLE]
    tail = [line for line in compared if line.p99.ratio > _TAIL]
    said = []
    if nothing:
        said.append("No gain on the mean E2E that the interval is sure of (2 % or more):\n" + _list(nothing, "mean"))
    if tail:
        said.append(f"p99 more than {_TAIL:g} times FCFS's:\n" + _list(tail, "p99"))
    said.append("Where the batch holds every request at once there is no order to choose, and nothing to win.")
    return said


def _list(lines: Sequence[Line], figure: str) -> str:
    return "\n".join(f"- ({x.setting}) load {x.load:g}, {x.name}: {under(getattr(x, figure))}" for x in lines)


def _measured(evidence: Evidence) -> list[str]:
    sizes, machine = evidence.settings, evidence.machine
    versions = ", ".join(f"{name} {version}" for name, version in evidence.versions.items())
    busy = f"{min(evidence.busy):.1f} to {max(evidence.busy):.1f}" if evidence.busy else "unknown"
    rates = ", ".join(f"({setting}) {rate:.3g} requests/s" for setting, rate in evidence.capacity.items())
    embedded = "the embedded engine (SmolLM2-135M-Instruct), started anew for each cell"
    engine = "a server of one's own" if sizes.get("own_server") else embedded
    said = [
        f"Engine: {engine}; max_num_seqs {sizes['slots']}. {versions}.",
        f"Machine: {machine.get('cpu', 'unknown')}, {machine.get('cores')} cores; load average {busy} at each start.",
        _setting_a(evidence),
        f"Load: the share of the capacity that stock vLLM has under backlog, {rates}; Poisson arrivals, run to drain.",
        _compared(evidence),
        f"{len(evidence.busy)} cells, {evidence.hours / sizes.get('at_once', 1):.1f} hours in all.",
    ]
    if any(line.setting == "b" for line in evidence.lines):
        said.insert(3, _setting_b(evidence))
    return said


def _options(evidence: Evidence) -> str:
    compiled, at_once = evidence.settings.get("compiled"), evidence.settings.get("at_once", 1)
    return ("--compile " if compiled else "") + (f"--at-once {at_once} " if at_once > 1 else "")


def _compared(evidence: Evidence) -> str:
    said, at_once = "Every order has the same arrivals, prompts and lengths", evidence.settings.get("at_once", 1)
    if at_once == 1:
        return f"{said}; the cells of a repeat in random order."
    return (
        f"{said}. {at_once} cells at a time were measured together, stock vLLM of the same repeat among them, on "
        "engines that keep one pace, because this machine is not steady: each step of the LLM is held to the time that "
        f"a cost model says for what is in it, {SLACK:g} times what it took while all were busy. What is done between "
        f"steps is not held.{_kept(evidence)} Capacity was measured in the same company."
    )


def _kept(evidence: Evidence) -> str:
    """How well the pace was kept."""
    if not evidence.kept:
        return ""
    steps, late, seconds = (sum(kept[name] for kept in evidence.kept) for name in ("steps", "late_steps", "seconds"))
    behind = sum(kept["steps"] * kept["behind_s"] for kept in evidence.kept)
    return (
        f" Of {steps:,} steps under load {share(late / steps)} ended more than a tenth of their time late, which those "
        f"after made up for; the mean step was to take {1000 * seconds / steps:.0f} ms, and ended "
        f"{behind / steps:.1f} s behind."
    )


def _setting_a(evidence: Evidence) -> str:
    sizes = evidence.settings
    packaged = " (the packaged sample of them, not the full data)" if sizes.get("data") == PACKAGED else ""
    left = "; ".join(f"left out: {rows} {rule}" for rule, rows in evidence.left_out.items())
    return (
        f"Setting (a): CASTILLO's official test prompts of six corpora{packaged}, {sizes['n']} requests. Each answer "
        f"has one of the clean lengths that {PLAYED} had, times {sizes['scale']:g}, at most {sizes['cap']}, played "
        f"with ignore_eos and max_tokens. The predictor is asked about that LLM and never sees the limit. {left}."
    )


def _setting_b(evidence: Evidence) -> str:
    sizes = evidence.settings
    return (
        f"Setting (b): the same prompts, {sizes['own_n']} requests, answers as the LLM samples them "
        f"({sampling_said()}; one seed per request; at most {sizes['cap']} tokens). The predictors were adapted with "
        f"{sizes['own_lengths']} lengths of other prompts. True lengths are those of the stock run with the same seeds."
    ) + _changed(evidence)


def _changed(evidence: Evidence) -> str:
    """How many answers came out differently, where any order was compared."""
    shares = [x.lengths_changed for x in evidence.lines if x.setting == "b" and not math.isnan(x.lengths_changed)]
    if not shares:
        return ""
    return (
        f" What else is in a batch changes roundings, and with them answers: {share(min(shares))} to "
        f"{share(max(shares))} of them had another length than in the stock run, so that true lengths are not quite "
        "true, and orders do not have quite the same work (tokens/answer)."
    )


def _markdown(table: Table) -> str:
    head = "| " + " | ".join(table.columns) + " |"
    rule = "|" + "---|" * len(table.columns)
    rows = ["| " + " | ".join(row) + " |" for row in table.rows]
    return "\n".join([f"**{table.title}**", "", head, rule, *rows, *(f"\n{note}" for note in table.notes)])

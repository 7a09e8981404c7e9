"""Why a request went where it went, as a table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from lengthwise.reports.tables import Table


def reasons_table(row: Mapping[str, Any], weighed: Mapping[int, Mapping[str, float]] | None) -> Table:
    """The engines that could have been chosen, the cheapest first; `row` is the request in a written run."""
    chosen, predicted = row["engine"], row["predictor"]
    kind = f"{row['policy']} behind {row['router']}" + (f", predictor {predicted}" if predicted else "")
    title = f"Request {row['request']}"
    where = f"It went to engine {chosen}: {kind}, load {row['load']:.2f}, seed {row['seed']}."
    notes = [where, _story(row)]
    if not weighed or not any(weighed.values()):
        return Table(title, ("engine",), [(f"{chosen} chosen",)], [*notes, "This router goes by no cost."])
    names = list(weighed.get(chosen, {}))
    totals = {engine: sum(terms.values()) for engine, terms in weighed.items()}
    if len(weighed) == 1:
        notes.append("One engine was weighed, or the router tells the terms of its choice only.")
    rows = [
        [f"{engine} chosen" if engine == chosen else f"{engine}", *(_figure(weighed[engine][name]) for name in names)]
        + [_figure(totals[engine])] * (len(weighed) > 1)
        for engine in sorted(weighed, key=lambda engine: (totals[engine], engine))
    ]
    return Table(title, ("engine", *names, *(["sum"] * (len(weighed) > 1))), rows, notes)


def _story(row: Mapping[str, Any]) -> str:
    anew = f", sent anew {row['resubmissions']} times" if row["resubmissions"] else ""
    if row["finish_s"] is None:
        return f"It was refused{anew}."
    waited, whole = row["first_token_s"] - row["arrival_s"], row["finish_s"] - row["arrival_s"]
    return (
        f"{row['input_tokens']:,} tokens of prompt, {row['cached_tokens']:,} of them cached; first token after "
        f"{waited:.3f} s, {row['output_tokens']:,} tokens after {whole:.3f} s{anew}."
    )


def _figure(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.4g}"

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path

from experiments import NAMES, log, papers
from tests.experiments.test_log import RUN


def rows() -> list[dict[str, object]]:
    return [row for paper in tomllib.loads(papers.CLAIMS.read_text(encoding="utf-8"))["paper"] for row in paper["row"]]


def line(text: str, claim: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(f"| {claim} |"))


def test_every_row_names_a_study_or_a_command_that_is_written_out() -> None:
    assert len(rows()) > 40
    for row in rows():
        for command in row["command"]:  # type: ignore[attr-defined]
            assert command in NAMES or re.match(r"(lengthwise|python -m) ", command), command


def test_a_row_is_dated_by_the_last_run_of_its_study(tmp_path: Path) -> None:
    kept = tmp_path / "log.jsonl"
    claim = "figure 1: 256 answers to one prompt are log-t"
    assert line(papers.page(kept), claim).endswith("| by 2026-11-17 |")
    run = replace(RUN, study="one_prompt", machine="a machine")
    log.append(kept, replace(run, date="2099-01-02 03:04 UTC"))
    text = papers.page(kept)
    assert line(text, claim).endswith("| 2099-01-02, A |")
    assert "Machine A: a machine." in text


def test_figures_that_are_newer_than_the_last_logged_run_keep_their_own_date(tmp_path: Path) -> None:
    kept = tmp_path / "log.jsonl"
    log.append(kept, replace(RUN, study="one_prompt", date="2026-11-16 00:00 UTC"))
    assert line(papers.page(kept), "figure 1: 256 answers to one prompt are log-t").endswith("| by 2026-11-17 |")


def test_a_row_of_two_studies_has_the_date_of_the_older_run(tmp_path: Path) -> None:
    kept = tmp_path / "log.jsonl"
    claim = "figure 2, abstract: true lengths in E2, 8 engines, 64/s; 128/s"
    log.append(kept, replace(RUN, study="preble", date="2099-01-02 03:04 UTC"))
    assert "| by 2026-11-" in line(papers.page(kept), claim)
    log.append(kept, replace(RUN, study="preble_figures", date="2098-01-02 03:04 UTC"))
    assert line(papers.page(kept), claim).endswith("| 2098-01-02, A |")


def test_a_row_of_a_command_is_dated_by_the_last_logged_run_of_it(tmp_path: Path) -> None:
    kept = tmp_path / "log.jsonl"
    log.append(kept, replace(RUN, study="python -m benchmarks.routing --rates", date="2099-01-02 03:04 UTC"))
    claim = "its overhead grows with engines and rate: 8 to 128/s on 4, 8 and 32 engines"
    assert line(papers.page(kept), claim).endswith("| 2099-01-02, A |")

"""`lengthwise demo`: a race of two orders in the browser, on simulated engines in real time."""

from __future__ import annotations

import logging
import os
import sys
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from lengthwise.cli.output import AsJson, MaxNumSeqs, need_folder, note, show
from lengthwise.defaults import DEFAULT_POLICY
from lengthwise.demo.race import Race
from lengthwise.demo.server import run_demo
from lengthwise.demo.traffic import MAX_LOAD, MIN_LOAD, RaceTraffic
from lengthwise.policies import make_policy
from lengthwise.simulator.fleet import Fleet

_FLEET = "2*llama-3.1-8b@a100"
_SLOTS = 16
_SECONDS = 120.0
_RECORDED_S = 20.0


def demo(
    log: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="DIR", help="Replay a traffic log of your own gateway (`lengthwise serve --log DIR`)."
        ),
    ] = None,
    policy: Annotated[str, typer.Option(help="Order of the right side.")] = DEFAULT_POLICY,
    load: Annotated[
        float | None,
        typer.Option(
            min=MIN_LOAD, max=MAX_LOAD, help="Offered rate over the capacity [default: 1.2; of a log its own]."
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            min=1.0,
            help="Send requests for N seconds, and end once they are answered "
            "[default: 120, and the page stays until Ctrl-C].",
        ),
    ] = None,
    fleet: Annotated[
        str | None,
        typer.Option(help=f"Engines of each side [default: {_FLEET}; of a log those that served it, fitted]."),
    ] = None,
    max_num_seqs: MaxNumSeqs = None,
    seed: Annotated[int, typer.Option(min=0, help="Of prompts, lengths and arrivals.")] = 0,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the page [default: any free one].")] = 0,
    record: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.webp",
            help="Record one race as an animation, 20 s of traffic unless --seconds is given; needs Chromium.",
        ),
    ] = None,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open a browser.")] = False,
    as_json: AsJson = False,
) -> None:
    """See two orders race: the same traffic to two simulated fleets behind two gateways, in real time, in the browser.

    First come, first served is on the left, the policy on the right. Load, predictor and policy can be changed while it
    runs. It ends with a verdict. It needs no GPU and no LLM: answers have the lengths that CASTILLO's prompts had.

    Example: `lengthwise demo`

    Example: `lengthwise demo --from traffic/`

    Example: `lengthwise demo --seconds 30 --json --no-open`
    """
    make_policy(policy)
    need_folder(record, "--record", ".webp")
    recording = None
    if record is not None:
        from lengthwise.demo.recording import Recording

        recording = Recording(record)
    slots = max_num_seqs or _SLOTS
    if log is None:
        traffic = RaceTraffic.of_castillo(Fleet.parse(fleet or _FLEET).limited_to(max_num_seqs=slots), load, seed)
    else:
        given = None if fleet is None else Fleet.parse(fleet).limited_to(max_num_seqs=slots)
        traffic = RaceTraffic.of_log(log, given, max_num_seqs, load)

    def on_ready(url: str) -> None:
        typer.echo(f"demo on {url} (Ctrl-C ends it)", err=as_json)
        if not no_open and record is None and not _open(url):
            note(f"no browser is found here: open {url}")

    def on_end(race: Race) -> None:
        document = race.document()
        show(document, as_json=as_json)
        if not as_json:
            typer.echo("\nOn your own engine:\n" + "\n".join(f"  {command}" for command in document.facts["next"]))

    with _only_errors_logged():  # a gateway logs every change of its policy
        run_demo(
            traffic,
            policy=policy,
            port=port,
            seconds_s=seconds or (_SECONDS if record is None else _RECORDED_S),
            once=seconds is not None or as_json or record is not None,
            on_ready=on_ready,
            on_end=on_end,
            recording=recording,
        )


def _open(url: str) -> bool:
    """Open a browser with windows; False where there is none: one in this terminal would take it over."""
    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return False
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return False
    threading.Thread(target=browser.open, args=(url,), daemon=True).start()
    return True


@contextmanager
def _only_errors_logged() -> Iterator[None]:
    logger = logging.getLogger("lengthwise")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)

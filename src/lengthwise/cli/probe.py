"""`lengthwise probe`: collect hidden states of an LLM and train probes that predict the remaining tokens from them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from lengthwise.cli.output import AsJson, need_folder, need_report, show
from lengthwise.errors import InputError
from lengthwise.reports.page import Origin
from lengthwise.reports.progress import late_bar
from lengthwise.reports.tables import share

app = typer.Typer(no_args_is_help=True, help="Predict remaining tokens from an LLM's hidden states (TRAIL).")
EMBEDDED = "HuggingFaceTB/SmolLM2-135M-Instruct"


@app.command()
def train(
    states: Annotated[Path, typer.Argument(help="A folder that `probe collect` wrote.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Model file to write.")],
    predictor: Annotated[
        str, typer.Option(help="Predictor of the prompt-only prediction: `default`, `fast` or a model file.")
    ] = "default",
    llm: Annotated[str, typer.Option(help="The LLM of the hidden states.")] = EMBEDDED,
    bins: Annotated[
        Literal["log", "paper"],
        typer.Option(help="log: bins that grow up to the cap; paper: TRAIL's ten on 0 to 512."),
    ] = "log",
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training states.")] = 12,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the initial weights.")] = 0,
    report: Annotated[Path | None, typer.Option(help="Also write an HTML report with plots.")] = None,
    as_json: AsJson = False,
) -> None:
    """Train a probe: layers are compared on held-out training prompts, and the best is written as one small file.

    Held-out prompts, official test prompts and Alpaca are not trained on. Scores are on held-out and test prompts, by
    tokens generated so far, beside baselines without hidden states.

    Example: `lengthwise probe train states/ -o probe.lw`
    """
    need_folder(out, "--out")
    need_report(report)
    from lengthwise.predictors.probe import log_bins, paper_bins, write_probe
    from lengthwise.reports.probe import probe_document
    from lengthwise.training.probe.learn import ProbeRecipe, train_probe
    from lengthwise.training.probe.states import read_states

    with late_bar() as bar:
        bar("predictions from the prompts", 0.0)
        found = read_states(states, predictor, llm)
        chosen = paper_bins() if bins == "paper" else log_bins(found.cap)
        recipe = ProbeRecipe(epochs=epochs, seed=seed)
        trained = train_probe(found, chosen, llm, recipe=recipe, name=out.stem, report=bar)
    write_probe(out, trained.probe)
    show(probe_document(trained, out, Origin.here(seed=seed)), report, as_json=as_json)
    typer.echo(f"{out}: layer {trained.probe.layer}, {out.stat().st_size / 1e6:.2f} MB", err=as_json)


@app.command()
def card(
    probe: Annotated[str, typer.Argument(help="`default` (packaged) or a probe file.")] = "default",
) -> None:
    """Print a probe's card as Markdown: training data, errors and limits.

    Example: `lengthwise probe card probe.lw`
    """
    from lengthwise.predictors.probe import load_probe
    from lengthwise.training.probe.errors_by_age import card_page

    typer.echo(card_page(load_probe(probe), command=f"lengthwise probe card {Path(probe).name}"), nl=False)


@app.command()
def collect(
    out: Annotated[
        Path, typer.Option("-o", "--out", help="Folder to write; it is new, or its collection was stopped.")
    ],
    model: Annotated[
        str, typer.Option(help="`embedded`, or a folder or hub name that transformers loads.")
    ] = "embedded",
    prompts: Annotated[str, typer.Option(help="As in `lengthwise collect`.")] = "castillo",
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N prompts.")] = None,
    layers: Annotated[str, typer.Option(help="Layers after which states are taken, separated by commas.")] = "10,15,20",
    max_tokens: Annotated[int, typer.Option(min=1, help="Longer answers are cut and marked as such.")] = 1024,
    temperature: Annotated[float, typer.Option(min=0, help="0: greedy.")] = 0.7,
    top_p: Annotated[float, typer.Option(min=0.01, max=1)] = 0.9,
    repetition_penalty: Annotated[float, typer.Option(min=0.01, help="Above 1 it prevents loops.")] = 1.0,
    frequency_penalty: Annotated[float, typer.Option(help="Above 0 it prevents loops.")] = 0.3,
    every: Annotated[int, typer.Option(min=1, help="Tokens between states.")] = 16,
    positions: Annotated[int, typer.Option(min=1, help="States stored per answer, chosen at random.")] = 8,
    batch: Annotated[int, typer.Option(min=1, help="Prompts answered together.")] = 16,
    held_out: Annotated[float, typer.Option(min=0, max=1, help="Share of the prompts never trained on.")] = 0.2,
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """Let an LLM answer prompts on the CPU or a GPU, and store its hidden states with the remaining tokens.

    States are stored after every batch; stopped and called again, it resumes.

    Example: `lengthwise probe collect --model embedded --prompts castillo --limit 20 -o states/`
    """
    from lengthwise.training.probe.states import unfinished

    if not out.exists():
        need_folder(out, "--out")
    elif not unfinished(out):
        raise InputError("exists already", source=out, field="--out", hint="name another folder, or remove it")
    try:
        depth = tuple(sorted({int(layer) for layer in layers.split(",")}))
    except ValueError as error:
        raise InputError(f"'{layers}' names no layers", field="--layers", hint="such as 10,15,20") from error
    from lengthwise.cli.collect import read_prompts  # HTTP, which training does not need

    selected = read_prompts(prompts)[:limit]
    from lengthwise.training.probe.hidden_states import AnswerSettings, collect_states

    settings = AnswerSettings(
        layers=depth, temperature=temperature, top_p=top_p, repetition_penalty=repetition_penalty,
        frequency_penalty=frequency_penalty, max_tokens=max_tokens, every=every, positions=positions, batch=batch,
        seed=seed,
    )  # fmt: skip
    with late_bar() as bar:
        summary = collect_states(selected, out, model, settings, held_out, report=bar)
    typer.echo(
        f"{out}: {summary.answers:,} answers, {summary.rows:,} states; {share(summary.capped)} cut at "
        f"{max_tokens:,} tokens; "
        f"mean length {summary.mean:.0f}"
    )

"""Table 1 of length-aware Preble (its appendix A.1): MiniLM, 20 classes of length, Alpaca, split 60/20/20.

Without `data` the study shows the kept rows of experiments/results/alpaca20.json. To train:

    python -m experiments run alpaca20 --set data=alpaca_data_cleaned.json     # a file: JSON, JSON lines or Parquet
    python -m experiments run alpaca20 --set data=yahma/alpaca-cleaned         # by its name on the hub
    python -m experiments run alpaca20 --set data=alpaca52k                    # the stand-in of $LENGTHWISE_DATA

Each training is cached, so that an interrupted study resumes; on a GPU one takes minutes, on two cores hours. Alpaca is
for non-commercial use: weights are not saved.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from scipy import stats

from experiments.alpaca20_training import (
    AUTHORS_SEED,
    BINS,
    EPOCHS,
    LONGEST,
    TokenisedPrompts,
    authors_classes,
    fair_classes,
    score,
    train_as_authors,
    train_ours,
)
from experiments.study import Claim, Run, SeededGrid, Study
from lengthwise.errors import InputError
from lengthwise.files import check_readable, data_home, read_parquet_table
from lengthwise.intervals import Ratio
from lengthwise.reports.tables import Table

PAPER: Final[Mapping[str, float]] = {
    "accuracy": 0.24, "f1": 0.22, "precision": 0.23, "recall": 0.24, "auroc": 0.85, "mcc": 0.20,
}  # fmt: skip
AUTHORS, AUTHORS_FAIR, OURS = "as the authors", "their network, fair", "ours, fair"
RECIPES: Final = (AUTHORS, AUTHORS_FAIR, OURS)
STAND_IN: Final = "alpaca52k"
KEPT: Final = Path(__file__).parent / "results" / "alpaca20.json"
CONFIG: Final = Path(__file__).parents[1] / "configs" / "alpaca20.yaml"
_CLEANED_FILE: Final = "alpaca_data_cleaned.json"


def authors_prompt(instruction: str, given: str) -> str:
    """Join instruction and input as the authors do; the instruction's ending decides on both full stops."""
    stop = "" if instruction.endswith((".", "?", "!", "\n", ":")) else "."
    space = "" if instruction.endswith(" ") else " "
    return f"{instruction}{stop}{space}{given}{stop}" if given else f"{instruction}{stop}"


def data_file(data: str) -> Path:
    """The file behind `data`: the stand-in, a file, or the cleaned set of a hub name, which is downloaded."""
    if data == STAND_IN:
        home = data_home()
        if home is None:
            raise InputError("the stand-in needs LENGTHWISE_DATA", field="data", hint="or give a file or a hub name")
        return home / STAND_IN / f"{STAND_IN}.parquet"
    if Path(data).is_file() or data.count("/") != 1:
        return Path(check_readable(data))
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(data, _CLEANED_FILE, repo_type="dataset"))
    except OSError as error:
        hint = f"check name and network, or give the file {_CLEANED_FILE}"
        raise InputError(f"cannot be fetched from the hub ({type(error).__name__})", source=data, hint=hint) from error


def read_alpaca(path: Path) -> tuple[list[str], list[str] | list[int]]:
    """Read prompts as the authors write them, and answers; the stand-in has their lengths in SmolLM2 tokens instead.

    A file with `out_tokens` in place of `output` is the stand-in.
    """
    rows = read_parquet_table(path).to_pylist() if path.suffix == ".parquet" else _json_rows(path)
    known = rows[0].keys() if rows and isinstance(rows[0], dict) else ()
    answer = next((name for name in ("output", "out_tokens") if name in known), None)
    if answer is None or not {"instruction", "input"} <= set(known):
        raise InputError("is not Alpaca", source=path, hint="needed: instruction, input, and output or out_tokens")
    if answer == "out_tokens":
        rows = [row for row in rows if row["out_tokens"] > 0]
    return [authors_prompt(row["instruction"], row["input"]) for row in rows], [row[answer] for row in rows]


def _json_rows(path: Path) -> list[dict[str, Any]]:
    text = check_readable(path).read_text(encoding="utf-8")
    try:
        whole = json.loads(text) if text.lstrip().startswith("[") else [json.loads(line) for line in text.splitlines()]
    except json.JSONDecodeError as error:
        raise InputError(f"is not JSON: {error.msg}", source=path, hint="give a list, or one record a line") from error
    return list(whole)


def tokenise(prompts: list[str], answers: list[str] | list[int], tokenizer: bytes) -> TokenisedPrompts:
    """WordPiece ids of prompts and lengths of answers, both truncated at 512 with their two special tokens."""
    from tokenizers import Tokenizer

    pieces = Tokenizer.from_str(tokenizer.decode())
    pieces.no_padding()
    pieces.enable_truncation(LONGEST)
    ids = [np.array(each.ids, np.int32) for each in pieces.encode_batch(prompts)]
    texts = [each for each in answers if isinstance(each, str)]
    lengths = [len(each.ids) for each in pieces.encode_batch(texts)]
    lengths += [min(tokens + 2, LONGEST) for tokens in answers if isinstance(tokens, int)]  # the stand-in
    return TokenisedPrompts(ids, np.array(lengths, np.int64))


def training_run(data: Path, backbone: str, recipe: str, seed: int, epochs: int, settings: Path) -> dict[str, Any]:
    """Train once, on a GPU if there is one, and score; `settings` are those of our recipe."""
    import torch

    from lengthwise.training.encoder.config import read_config

    loaded, prompts = _loaded(data, backbone)
    where: dict[str, Any] = {"seed": seed, "device": "cuda" if torch.cuda.is_available() else "cpu"}
    classes = authors_classes(prompts.lengths) if recipe == AUTHORS else fair_classes(prompts.lengths, seed)
    if recipe == OURS:
        config, mask_id = read_config(settings), loaded.text.mask_id
        predicted, curve = train_ours(loaded.module, prompts, classes, config, mask_id=mask_id, **where)
    else:
        predicted, curve = train_as_authors(loaded.module, prompts, classes, epochs=epochs, **where)
    return {"recipe": recipe, "seed": seed, **score(classes, prompts.lengths, predicted), "validation_loss": curve}


@cache
def _loaded(data: Path, backbone: str) -> tuple[Any, TokenisedPrompts]:
    from lengthwise.training.encoder.network import load_backbone

    loaded = load_backbone(backbone, LONGEST)
    return loaded, tokenise(*read_alpaca(data), loaded.tokenizer)


@dataclass(frozen=True)
class Alpaca20Grid(SeededGrid):
    """`data`: a file, a hub name, or alpaca52k for the stand-in; without it the rows in `kept` are shown."""

    data: str = ""
    backbone: str = "sentence-transformers/all-MiniLM-L6-v2"
    seeds: int = 5
    epochs: int = EPOCHS
    kept: Path = KEPT


@dataclass(frozen=True)
class Alpaca20Result:
    """One row per training, and what it was trained on."""

    data: str
    stand_in: bool
    runs: Sequence[Mapping[str, Any]]

    @property
    def recipes(self) -> list[str]:
        """Those that were trained, in the order of RECIPES."""
        return [recipe for recipe in RECIPES if self.of(recipe)]

    def of(self, recipe: str) -> list[Mapping[str, Any]]:
        """The trainings of a recipe."""
        return [row for row in self.runs if row["recipe"] == recipe]

    def mean(self, recipe: str, name: str, part: str = "scores") -> Ratio:
        """A score over seeds, with a 95 % interval."""
        values = np.array([row[part][name] for row in self.of(recipe)])
        half = float(stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values)))
        middle = float(values.mean())
        return Ratio(middle, middle - half, middle + half)

    @property
    def notes(self) -> list[str]:
        """What stands in, where something does."""
        if not self.stand_in:
            return [f"Trained on {self.data}."]
        return [
            (
                f"STAND-IN: lengths of Stanford's Alpaca-52k ({self.data}) in SmolLM2 tokens, not of alpaca-cleaned in "
                "WordPiece tokens. Most answers of the cleaned set are GPT-4's, other and longer, so the labels differ."
            )
        ]


def measure(run: Run, grid: Alpaca20Grid) -> Alpaca20Result:
    """Train, or read the kept rows."""
    if not grid.data:
        found = Alpaca20Result(**json.loads(grid.kept.read_text(encoding="utf-8")))
    else:
        path = data_file(grid.data)
        stand_in = isinstance(read_alpaca(path)[1][0], int)
        first = {AUTHORS: AUTHORS_SEED}
        runs = [
            (path, grid.backbone, recipe, first.get(recipe, 0) + number, grid.epochs, CONFIG)
            for recipe in RECIPES
            for number in range(grid.seeds)
        ]
        found = Alpaca20Result(grid.data, stand_in, run.each("trainings", training_run, runs))
    if found.stand_in:
        run.note(found.notes[0])
    return found


def tables(found: Alpaca20Result) -> list[Table]:
    """What each recipe was trained on, and a constant beside it."""
    rows = []
    for recipe in found.recipes:
        runs = found.of(recipe)
        epochs = max(len(row["validation_loss"]) for row in runs)
        best = [1 + int(np.argmin(row["validation_loss"])) for row in runs]
        constant = [f"{found.mean(recipe, name, 'constant').ratio:.3f}" for name in ("accuracy", "auroc", "mcc")]
        counts = (len(runs), runs[0]["trained_on"], runs[0]["tested_on"], len(runs[0]["edges"]) - 1)
        rows.append([recipe, *(f"{count:,}" for count in counts), f"{min(best)} to {max(best)} of {epochs}", *constant])
    columns = ("training", "seeds", "trained on", "tested on", "classes", "best epoch")
    constants = tuple(f"constant's {name}" for name in ("accuracy", "AUROC", "MCC"))
    notes = [
        *found.notes,
        (
            "as the authors: their code's split, half of the training prompts, edges from all rows with the test rows, "
            "the last incomplete batch of test prompts not scored; seeds change the training only."
        ),
        "fair: a split for each seed, all training prompts, edges from them, every test prompt scored.",
        "best epoch: if it is the last one that ran, training was stopped early and the scores are lower bounds.",
        "constant: the most frequent class of the training prompts.",
    ]
    return [Table("Trainings", (*columns, *constants), rows, notes)]


def claims(found: Alpaca20Result) -> list[Claim]:
    """The paper's six scores beside each training, and the accuracy over that of a random class."""
    names = {"f1": "F1", "auroc": "AUROC", "mcc": "MCC"}
    rows = [
        Claim(names.get(name, name), value, found.mean(recipe, name), recipe, neutral=None)
        for name, value in PAPER.items()
        for recipe in found.recipes
    ]
    for recipe in found.recipes:
        accuracy = found.mean(recipe, "accuracy")
        over_random = Ratio(*(BINS * each for each in (accuracy.ratio, accuracy.low, accuracy.high)))
        rows.append(Claim("accuracy over random", BINS * PAPER["accuracy"], over_random, recipe, neutral=None))
    return rows


STUDY: Study[Alpaca20Grid, Alpaca20Result] = Study(
    name="alpaca20",
    title="MiniLM, 20 classes of length, Alpaca",
    question="How well does MiniLM classify Alpaca's lengths into 20 classes?",
    paper="length-aware Preble, appendix A.1, table 1",
    source="Alpaca",
    grid=Alpaca20Grid(),
    quick=Alpaca20Grid(),
    minutes=(0.1, 0.1),
    serial=True,
    measure=measure,
    tables=tables,
    claims=claims,
    claim_notes=lambda found: [
        *found.notes,
        "Means over seeds with 95 % intervals. Precision, recall and F1 are weighted by class, AUROC is not.",
    ],
)

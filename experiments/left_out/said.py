"""What networks trained without an LLM said of every prompt on a GPU machine (`scripts/gpu_train.py left_out`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from experiments.left_out.study import Prompts, Said
from lengthwise.errors import InputError
from lengthwise.predictors.encoder.readout import mu_and_sigma
from lengthwise.predictors.llm_names import resolve_llm
from lengthwise.training.encoder.config import parse_config
from lengthwise.training.encoder.data import load_samples, prompt_table
from lengthwise.training.encoder.pack import HELD_OUT, Pack
from lengthwise.training.encoder.package import calibrate


def read_said(folder: Path, pack_folder: Path, prompts: Mapping[str, Prompts]) -> dict[str, Said]:
    """By LLM left out: calibrated on held-out prompts of the other LLMs, as a model file would be.

    `folder` holds left_out.npz and NAME.json beside it, `pack_folder` the pack they were trained from.
    """
    pack, config = Pack.read(pack_folder / "pack.npz"), json.loads((pack_folder / "config.json").read_text())
    table, _ = prompt_table(load_samples(parse_config({"data": config["data"]}).data))
    keys = zip(table["corpus"].to_pylist(), table["prompt_id"].to_pylist(), strict=True)
    places = {key: place for place, key in enumerate(keys)}
    found = {}
    with np.load(folder / "left_out.npz") as archive:
        for name in archive.files:
            word = str(json.loads((folder / f"{name}.json").read_text())["settings"]["without"])
            llm = resolve_llm(next((each for each in pack.llms if word in each), word), tuple(prompts))
            known = pack.without(word)
            mu, sigma = (np.full((len(pack), len(known.llms) + 1), np.nan) for _ in range(2))
            mu[: len(table)], sigma[: len(table)] = mu_and_sigma(archive[name], "logt")
            told = calibrate(mu, sigma, known, np.flatnonzero(known.part == HELD_OUT))
            shift, factor = told.columns([*known.llms, ""])
            if any(key not in places for key in prompts[llm].keys):
                raise InputError("is of other prompts", source=pack_folder, hint="set LENGTHWISE_DATA as it was there")
            rows = [places[key] for key in prompts[llm].keys]
            found[llm] = Said(known.llms, (mu + shift)[rows], (sigma * factor)[rows], told.nu)
    return found

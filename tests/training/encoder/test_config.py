from __future__ import annotations

from pathlib import Path

import pytest

from lengthwise.errors import InputError
from lengthwise.training.encoder.config import parse_config, read_config

CONFIGS = [Path(__file__).parents[3] / "configs" / f"{name}.yaml" for name in ("default", "papers", "alpaca20")]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_training_config_is_valid(path: Path) -> None:
    assert read_config(path).name == path.stem


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "bakbone: x",
            r"field 'bakbone': there is no field 'bakbone'; did you mean backbone\? known are name, backbone",
        ),
        ("optimiser: {epoch: 3}", r"field 'optimiser\.epoch': .* did you mean epochs\? known are lr, head_lr"),
        ("distil: {epoch: 3}", r"field 'distil\.epoch': .* known are epochs"),
        ("pooling: best", r"field 'pooling': .*'cls', 'mean', 'max' or 'all'"),
        ("data: {splits: [test]}", r"field 'data\.splits\.0': .*'train' or 'validate'"),
        ("optimiser: {lr: -1}", r"field 'optimiser\.lr': .*greater than 0"),
        ("head: [", r"is not YAML"),
        ("- a list", r"holds no fields"),
    ],
)
def test_an_invalid_setting_is_named(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        read_config(path)
    assert "\n" not in str(caught.value)


def test_an_empty_config_has_the_defaults() -> None:
    assert parse_config({}).head.hidden == 256

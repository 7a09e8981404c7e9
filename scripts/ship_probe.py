"""Put a trained probe into the package and write its card: `python scripts/ship_probe.py probe.lw`.

The file becomes src/lengthwise/predictors/models/probe.lw, which `--probe default` names, and its card
docs/studies/probe-card.md. Without a file, only the card is written.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from lengthwise.engines.refine import check_fit
from lengthwise.engines.smollm2 import MODEL_NAME
from lengthwise.predictors.probe import SHIPPED, load_probe
from lengthwise.training.probe.compare import card_page

COMMAND = "python scripts/ship_probe.py"
PAGE = Path(__file__).parent.parent / "docs" / "studies" / "probe-card.md"


def main() -> None:
    """Check and copy the probe, and write its card."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?", default=SHIPPED)
    given: Path = parser.parse_args().file
    probe = load_probe(given)
    check_fit(probe, [MODEL_NAME], hidden_size=None, layers=None)
    if given.resolve() != SHIPPED.resolve():
        shutil.copyfile(given, SHIPPED)
    PAGE.write_text(card_page(probe, command=COMMAND), encoding="utf-8")
    print(f"{SHIPPED}: {SHIPPED.stat().st_size / 1e6:.2f} MB; its card: {PAGE}")  # noqa: T201


if __name__ == "__main__":
    main()

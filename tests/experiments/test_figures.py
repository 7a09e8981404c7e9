"""Still figures in one style."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import numpy as np
import pytest

from experiments.figures import (
    boxes,
    describe,
    dots,
    figure,
    log_tokens,
    percent_axis,
    png,
    save,
    with_dark_scheme,
)
from lengthwise.errors import InputError


def test_panels_are_numbered_row_by_row_and_the_style_does_not_leak() -> None:
    import matplotlib as mpl

    before = mpl.rcParams["axes.grid"]
    with figure(2, 3, size=(6, 4), title="A title") as (drawing, panels):
        assert len(panels) == 6
        assert mpl.rcParams["axes.grid"] is True
        assert drawing.get_suptitle() == "A title"
    assert mpl.rcParams["axes.grid"] == before


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_a_figure_is_written_in_the_format_of_its_name(suffix: str, tmp_path: Path) -> None:
    with figure(1, 1, size=(2, 2), title="") as (drawing, _):
        save(drawing, tmp_path / f"out{suffix}")
    begins = (tmp_path / f"out{suffix}").read_bytes()[:8]
    assert begins.lstrip(b"\x89").startswith({".png": b"PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[suffix])


def test_an_svg_has_short_coordinates_and_whole_labels(tmp_path: Path) -> None:
    with figure(1, 1, size=(2, 2), title="0.01234") as (drawing, _):
        save(drawing, tmp_path / "out.svg")
    text = (tmp_path / "out.svg").read_text(encoding="utf-8")
    assert ">0.01234<" in text
    assert not re.search(r"L \d+\.\d{3}", text)


FIGURES = sorted((Path(__file__).parents[2] / "docs" / "figures").glob("*.svg"))


def test_an_svg_has_colours_for_a_dark_page_beside_those_of_a_light_one() -> None:
    svg = '<svg><path style="fill: #ffffff"/><path style="fill: none; stroke: #1f77d0"/><g id="text_1"/></svg>\n'
    drawn = with_dark_scheme(svg)
    assert drawn.startswith(svg.removesuffix("</svg>\n"))
    assert "[style*='fill: #ffffff'] { fill: #1e2129 !important }" in drawn
    assert "[id^='text_'] { fill: #eeeeee }" in drawn
    assert drawn.count("#1f77d0") == 1, "a colour of a series is seen on both grounds"
    assert with_dark_scheme(drawn) == drawn


def test_a_scale_of_colours_keeps_its_order_on_a_dark_page() -> None:
    greys = ["#000000", "#333333", "#666666", "#999999", "#cccccc", "#eeeeee"]
    drawn = with_dark_scheme("".join(f'<path style="fill: {grey}"/>' for grey in greys) + "</svg>")
    dark = [re.search(rf"fill: {grey}'\] {{ fill: (#......)", drawn) for grey in greys]
    assert [found[1] for found in dark if found] == sorted((found[1] for found in dark if found), reverse=True)
    assert None not in dark


@pytest.mark.parametrize("path", FIGURES, ids=lambda path: path.stem)
def test_every_figure_of_the_documentation_fits_a_dark_page(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert "@media (prefers-color-scheme: dark)" in text
    assert with_dark_scheme(text) == text


def test_an_unknown_format_and_a_missing_folder_are_input_errors(tmp_path: Path) -> None:
    with figure(1, 1, size=(2, 2), title="") as (drawing, _):
        with pytest.raises(InputError, match="is not a picture format"):
            save(drawing, tmp_path / "out.txt")
        with pytest.raises(InputError, match="no such folder"):
            save(drawing, tmp_path / "none" / "out.png")


def test_a_figure_is_embedded_as_a_png() -> None:
    with figure(1, 1, size=(2, 2), title="") as (drawing, _):
        assert base64.b64decode(png(drawing)).startswith(b"\x89PNG")


def test_dots_have_a_row_per_label_and_a_colour_per_series() -> None:
    with figure(1, 1, size=(2, 2), title="") as (_, (axes,)):
        dots(axes, ["a", "b"], [("ours", [1.0, 2.0]), ("theirs", [3.0, 1.0])])
        assert [text.get_text() for text in axes.get_yticklabels()] == ["a", "b"]
        assert len(axes.collections) == 2
        assert [line.get_xdata().tolist() for line in axes.lines] == [[1.0, 3.0], [1.0, 2.0]]  # type: ignore[union-attr]


def test_boxes_have_a_row_per_entry() -> None:
    with figure(1, 1, size=(2, 2), title="") as (_, (axes,)):
        boxes(axes, {"one": np.linspace(0.0, 9.0, 10), "two": np.linspace(0.0, 4.0, 5)})
        assert [text.get_text() for text in axes.get_yticklabels()] == ["one", "two"]


def test_axes_show_percent_and_plain_tokens() -> None:
    with figure(1, 2, size=(2, 2), title="") as (_, (shares, tokens)):
        percent_axis(shares)
        assert shares.xaxis.get_major_formatter()(0.25, 0) == "25 %"
        log_tokens(tokens, [10, 1000])
        assert [text.get_text() for text in tokens.get_xticklabels()] == ["10", "1,000"]
        tokens.plot([10], [1], label="a")
        describe(tokens, "T", x="tokens", y="share", legend_at="upper left")
        assert (tokens.get_title(loc="left"), tokens.get_xlabel()) == ("T", "tokens")
        assert tokens.get_legend() is not None

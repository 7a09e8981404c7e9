"""Hypothesis strategies for predictions, shared by all tests."""

from __future__ import annotations

from hypothesis import strategies as st

from lengthwise.lengths import After, Histogram, LogT, Point

caps = st.one_of(st.integers(16, 131_072), st.sampled_from([16, 512, 8192, 131_072]))


def logts() -> st.SearchStrategy[LogT]:
    """The range of mu and sigma for which the accuracy is stated."""
    return st.builds(LogT, mu=st.floats(0, 9.5), sigma=st.floats(0.01, 2.5), cap=caps)


@st.composite
def histograms(draw: st.DrawFn) -> Histogram:
    widths = draw(st.lists(st.integers(1, 500), min_size=1, max_size=20))
    start = draw(st.integers(0, 50))
    edges = [float(start)]
    for width in widths:
        edges.append(edges[-1] + width)
    weights = draw(st.lists(st.integers(0, 100), min_size=len(widths), max_size=len(widths)))
    total = sum(weights)
    shares = [w / total for w in weights] if total else [1.0 / len(widths)] * len(widths)
    return Histogram(edges, shares, draw(st.one_of(st.none(), st.integers(1, 12_000))))


def points() -> st.SearchStrategy[Point]:
    return st.builds(Point, tokens=st.floats(0.5, 10_000), cap=caps)


def afters() -> st.SearchStrategy[After]:
    """The predictions of a probe: often bins of the remaining length."""
    return st.builds(After, rest=st.one_of(histograms(), logts(), points()), generated=st.integers(0, 3_000))


def predictions() -> st.SearchStrategy[LogT | Histogram | Point | After]:
    return st.one_of(logts(), histograms(), points(), afters())

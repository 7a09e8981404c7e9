"""TIE (arXiv 2604.00499): scheduling by a length distribution, the tail priced in."""

from experiments.study import Study
from experiments.tie.engine import engine_note
from experiments.tie.study import HIGH, LOW, TieGrid, TieResult, measure
from experiments.tie.tables import CLAIM_NOTE, claims, figures, tables

STUDY: Study[TieGrid, TieResult] = Study(
    name="tie",
    title="TIE's experiments, simulated",
    question="How much does pricing the tail in gain over the median's order, online and offline?",
    paper="TIE, arXiv 2604.00499",
    source="CASTILLO and synthetic log-t traffic",
    grid=TieGrid(),
    quick=TieGrid(seeds=3, requests=600, loads=(0.9, LOW, HIGH), pool=1200, predictor="fast"),
    minutes=(5, 0.2),
    serial=True,
    measure=measure,
    tables=tables,
    figures=figures,
    claims=claims,
    claim_notes=lambda _: [CLAIM_NOTE, engine_note()],
)

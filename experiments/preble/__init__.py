"""Preble (Arango et al., ICLR 2025 workshop): routing by prefix and length."""

from experiments.preble.figures import draw, figures
from experiments.preble.study import PrebleGrid, PrebleResult, measure
from experiments.preble.tables import claims, tables
from experiments.study import Study

STUDY: Study[PrebleGrid, PrebleResult] = Study(
    name="preble",
    title="Preble and lengths: routing among engines",
    question="How much do routers gain from prefixes and from predicted lengths?",
    paper="Arango et al., ICLR 2025 workshop on Sparsity in LLMs",
    source="ReAct, CASTILLO",
    grid=PrebleGrid(),
    quick=PrebleGrid(
        seeds=2,
        engines=(4, 8),
        rates=(8.0, 64.0, 128.0),
        seconds=5.0,
        least=100,
        loads=(0.9,),
        shared_requests=600,
    ),
    minutes=(60, 0.5),
    measure=measure,
    tables=tables,
    figures=figures,
    claims=claims,
    claim_notes=lambda _: ["Figures 1A to 1D, and figure 2 by the paper's rule: the study `preble_figures`."],
    draw=draw,
)

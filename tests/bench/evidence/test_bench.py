"""The measurement against a server that is not vLLM: what is sent, what is kept, and how a run goes on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lengthwise.bench.evidence.bench import Bench, from_outside
from lengthwise.bench.evidence.cell import CellFailedError, Run, run_cell
from lengthwise.bench.evidence.plan import ORACLE, Asked, Cell, capacity_cell
from lengthwise.bench.evidence.store import Store
from lengthwise.bench.evidence.together import CellBarrier
from lengthwise.bench.evidence.traffic import Sizes, Traffic, official_test, played_traffic
from lengthwise.errors import InputError
from tests.gateway.engine import StandIn, served

SIZES = Sizes(n=8, own_n=6, slots=2, cap=64)
STOCK = Cell("a", "fcfs", "none", 1.1)


@pytest.fixture(autouse=True)
def packaged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LENGTHWISE_DATA", raising=False)


@pytest.fixture
def engine() -> StandIn:
    return StandIn(token_s=0.0005)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def bench(tmp_path: Path, engine: StandIn, said: list[str]) -> Iterator[Bench]:
    with served(engine.app()) as url:
        made = Bench(Store(tmp_path / "out"), SIZES, said.append, lambda *_: None, url)
        made.begin()
        yield made


def measured(engine: StandIn) -> list[dict[str, Any]]:
    """Requests beside the warm-up."""
    return [body for body in engine.bodies if not body["messages"][0]["content"].startswith("Warm up")]


def test_every_order_gets_the_same_prompts_lengths_and_arrivals(bench: Bench) -> None:
    cells = [capacity_cell("a"), STOCK, Cell("a", "sjf", "fast", 1.1), Cell("a", "sjf", ORACLE, 1.1)]
    bench.run(cells)
    assert not bench.failed
    tables = [bench.store.read(cell).requests for cell in cells[1:]]
    for name in ("prompt", "true_tokens", "output_tokens", "due_s"):
        assert tables[0][name].to_pylist() == tables[1][name].to_pylist() == tables[2][name].to_pylist()
    assert tables[0]["output_tokens"].to_pylist() == tables[0]["true_tokens"].to_pylist()
    told = bench.store.read(cells[1]).told
    assert told["rate"] == pytest.approx(1.1 * bench.capacity("a"))
    assert (told["kind"], told["n"], told["counts"]["errors"]) == ("online", 8, {})


def test_predictions_are_kept_with_the_requests_and_stock_has_none(bench: Bench) -> None:
    cells = [capacity_cell("a"), STOCK, Cell("a", "sjf", "fast", 1.1)]
    bench.run(cells)
    assert bench.store.read(cells[1]).requests["prediction_mu"].null_count == SIZES.n
    mu = bench.store.read(cells[2]).requests["prediction_mu"].to_pylist()
    assert len(set(mu)) > SIZES.n // 2


def test_the_true_length_is_told_by_an_oracle_only(bench: Bench, engine: StandIn) -> None:
    bench.run([capacity_cell("a")])
    assert all("vllm_xargs" not in body for body in measured(engine))
    engine.bodies.clear()
    bench.run([Cell("a", "sjf", "fast", 1.1)])
    assert [body["vllm_xargs"] for body in measured(engine)] == [{"cap": 64}] * SIZES.n
    engine.bodies.clear()
    bench.run([Cell("a", "sjf", ORACLE, 1.1)])
    lengths = bench.traffic(STOCK).lengths.tolist()
    told = sorted(body["vllm_xargs"]["expected_tokens"] for body in measured(engine))
    assert told == sorted(lengths)


def test_a_finished_cell_is_never_run_again(bench: Bench, engine: StandIn) -> None:
    cells = [capacity_cell("a"), STOCK]
    bench.run(cells[:1])
    before = len(engine.bodies)
    bench.run(cells)
    between = len(engine.bodies)
    bench.run(cells)
    assert before < between == len(engine.bodies)


def test_a_run_that_was_stopped_goes_on_with_the_cell_it_was_in(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    cells = [capacity_cell("a"), STOCK, Cell("a", "sjf", "fast", 1.1)]

    def interrupted(run: Run, *rest: object) -> object:
        if run.cell == STOCK:
            raise KeyboardInterrupt
        return run_cell(run, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr("lengthwise.bench.evidence.bench.run_cell", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench.run(cells)
    assert [bench.store.has(cell) for cell in cells] == [True, False, False]
    monkeypatch.undo()
    monkeypatch.delenv("LENGTHWISE_DATA", raising=False)
    bench.run(cells)
    assert all(bench.store.has(cell) for cell in cells)
    assert any("3 cells, 1 of them there already; 2 to run take about" in line for line in said)


def test_a_cell_whose_requests_fail_is_tried_again_and_then_left_out(bench: Bench, engine: StandIn) -> None:
    bench.run([capacity_cell("a")])
    engine.mode = "refuse"
    bench.run([STOCK])
    assert set(bench.failed) == {STOCK.id}
    assert not bench.store.has(STOCK)
    engine.mode = "ok"
    bench.run([STOCK])
    assert not bench.failed


def test_in_setting_b_the_oracle_tells_the_lengths_of_the_stock_run(bench: Bench, engine: StandIn) -> None:
    stock, oracle = Cell("b", "fcfs", "none", 1.1), Cell("b", "sjf", ORACLE, 1.1)
    bench.run([capacity_cell("b"), oracle])
    assert "b-1.1-fcfs-r0" in bench.failed[oracle.id], "nobody knows them before"
    bench.run([stock])
    engine.bodies.clear()
    bench.run([oracle])
    lengths = bench.store.read(stock).requests["output_tokens"].to_pylist()
    bodies = measured(engine)
    assert sorted(body["vllm_xargs"]["expected_tokens"] for body in bodies) == sorted(lengths)
    assert {body["max_tokens"] for body in bodies} == {SIZES.cap}
    assert all("ignore_eos" not in body and body["frequency_penalty"] for body in bodies)


def test_cells_of_a_round_are_run_at_once_and_kept_or_lost_together(
    bench: Bench, engine: StandIn, said: list[str]
) -> None:
    bench.at_once = 2
    cells = Asked(["fcfs", "sjf"], ["fast"], [1.1], ["a"], repeats=1, at_once=2).cells()
    bench.run(cells)
    assert not bench.failed
    assert [cell.id for cell in cells] == [
        "a-offline-fcfs-r0",
        "a-offline-sjf-fast-r0",
        "a-1.1-fcfs-r0",
        "a-1.1-sjf-fast-r0",
    ]
    assert any(line.startswith("round 2 of 2") for line in said)
    stock, ours = (bench.store.read(cell) for cell in cells[2:])
    assert stock.told["began"] < ours.told["began"] + ours.told["took_s"]
    assert ours.told["began"] < stock.told["began"] + stock.told["took_s"]
    assert stock.requests["prompt"].to_pylist() == ours.requests["prompt"].to_pylist()
    (bench.store.place(cells[3]) / "cell.json").unlink()
    engine.bodies.clear()
    bench.run(cells)
    assert len(measured(engine)) == 2 * SIZES.n, "one of them is not there: both are run again"


def test_a_round_in_which_one_fails_is_left_out_whole(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    bench.at_once = 2
    cells = Asked(["fcfs", "sjf"], ["fast"], [1.1], ["a"], repeats=1, at_once=2).cells()
    bench.run(cells[:2])

    def failing(run: Run, *rest: object) -> object:
        if run.cell.stock:
            raise CellFailedError("it died")
        return run_cell(run, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr("lengthwise.bench.evidence.bench.run_cell", failing)
    bench.run(cells)
    assert bench.failed == dict.fromkeys((cell.id for cell in cells[2:]), "it died")
    assert not any(bench.store.has(cell) for cell in cells[2:])
    assert any("it died" in line for line in said)


def test_where_one_of_a_round_fails_the_others_send_no_more(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.at_once = 2
    cells = Asked(["fcfs", "sjf"], ["fast"], [1.1], ["a"], repeats=1, at_once=2).cells()
    bench.run(cells[:2])
    monkeypatch.setattr(Bench, "capacity", lambda *_: 0.01)  # arrivals over a quarter of an hour
    began = threading.Event()

    def failing(run: Run, traffic: Traffic, folder: Path, _: object, company: CellBarrier) -> object:
        if run.cell.stock:
            company.ready(None)
            began.wait()
            raise CellFailedError("it died")
        return run_cell(run, traffic, folder, began.set, company)

    monkeypatch.setattr("lengthwise.bench.evidence.bench.run_cell", failing)
    bench.run(cells)
    assert set(bench.failed) == {cell.id for cell in cells[2:]}


def test_where_cells_are_run_at_once_an_oracle_of_setting_b_tells_the_lengths_of_the_batch(
    bench: Bench, engine: StandIn
) -> None:
    bench.at_once = 2
    cells = Asked(["fcfs", "sjf"], [ORACLE], [1.1], ["b"], repeats=1, at_once=2).cells()
    bench.run(cells[:1])
    engine.bodies.clear()
    bench.run(cells[2:])
    lengths = bench.store.read(capacity_cell("b")).requests["output_tokens"].to_pylist()
    told = [body["vllm_xargs"]["expected_tokens"] for body in measured(engine) if "vllm_xargs" in body]
    assert sorted(told) == sorted(lengths)


def test_without_an_engine_there_is_no_capacity_and_nothing_else_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    def missing(_: object) -> None:
        raise InputError("vLLM is not installed")

    monkeypatch.setattr("lengthwise.engines.embedded.EmbeddedEngine.start", missing)
    bench = Bench(Store(tmp_path), SIZES, said.append, lambda *_: None)
    bench.__dict__["count"] = None  # the embedded LLM's tokenizer may be missing too
    with pytest.raises(InputError, match="capacity cannot be measured: vLLM is not installed"):
        bench.run([capacity_cell("a"), STOCK])


def test_progress_is_that_of_the_whole(bench: Bench) -> None:
    shares: list[float] = []
    bench.progress = lambda _, share: shares.append(share)
    bench.run([capacity_cell("a"), STOCK])
    assert shares == sorted(shares)
    assert shares[SIZES.n - 1] == pytest.approx(0.5)
    assert shares[-1] == pytest.approx(1.0)


def test_without_capacity_no_load_can_be_offered(bench: Bench) -> None:
    with pytest.raises(InputError, match="capacity of setting a is not measured"):
        bench.run([STOCK])


def test_the_packaged_sample_is_named_where_it_stands_in_for_the_data(bench: Bench, said: list[str]) -> None:
    assert bench.store.settings["data"] == "packaged sample"
    assert any("packaged sample" in line for line in said)


def test_servers_of_two_orders_share_one_folder(bench: Bench) -> None:
    other = Bench(bench.store, SIZES, bench.say, bench.progress, "http://127.0.0.1:9")
    other.begin()
    with pytest.raises(InputError, match="own_server True, now False"):
        Bench(bench.store, SIZES, bench.say, bench.progress).begin()


def test_from_outside_one_order_is_measured_and_stock_measures_capacity() -> None:
    cells = Asked(settings=["a"]).cells()
    assert from_outside(cells, "fcfs", "fast")[0] == capacity_cell("a")
    served_order = from_outside(cells, "lengthwise", "default")
    assert {(cell.policy, cell.predictor) for cell in served_order} == {("lengthwise", "default")}
    assert {cell.repeat for cell in served_order} == {0, 1, 2}


def test_an_engine_is_started_with_what_the_cell_says(tmp_path: Path) -> None:
    traffic = played_traffic(official_test(), SIZES, 0, None)
    run = Run(Cell("a", "sjf", "default", 1.1), SIZES, 1.0, "default", traffic.lengths)
    options = run.options(tmp_path)
    assert (options.policy, options.predictor, options.max_num_seqs, options.plugin) == ("sjf", "default", 2, True)
    assert options.plugin_options["forced_lengths"] == {"llm": "meta-llama/Llama-3.1-8B-Instruct", "scale": 0.15}
    assert replace(run, cell=Cell("a", "sjf", ORACLE, 1.1)).options(tmp_path).predictor == "none"
    assert not replace(run, cell=STOCK).options(tmp_path).plugin
    assert "forced_lengths" not in replace(run, cell=Cell("b", "sjf", "default", 1.1)).options(tmp_path).plugin_options

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import experiments.__main__ as command
from experiments import NAMES, log
from experiments.study import Call, Claim, Run, SeededGrid, Study, sections, table_of
from lengthwise.errors import InputError
from lengthwise.intervals import Ratio
from lengthwise.reports.tables import Table
from lengthwise.simulator.tasks import ResultCache, Task, Workers, content_key
from lengthwise.version import install_line

COMPUTED: list[int] = []


@dataclass(frozen=True)
class Square:
    number: int

    @property
    def key(self) -> str:
        return content_key(kind="square", number=self.number)

    def run(self) -> dict[str, Any]:
        COMPUTED.append(self.number)
        return {"square": self.number**2}


@dataclass(frozen=True)
class Grid:
    numbers: tuple[int, ...] = (1, 2, 3)
    fails: bool = False
    file: Path | None = None


@dataclass(frozen=True)
class EngineGrid(Grid):
    measure: bool = False


def measure(run: Run, grid: Grid) -> list[int]:
    run.note("numbers are small")
    squares = [each["square"] for each in run.results("squares", [Square(number) for number in grid.numbers])]
    if grid.fails:
        raise InputError("interrupted")
    return squares


TOY: Study[Grid, list[int]] = Study(
    name="toy",
    title="Squares",
    question="How large is a square?",
    source="none",
    grid=Grid(),
    quick=Grid((2,)),
    minutes=(10, 0.1),
    measure=measure,
    tables=lambda squares: [Table("Squares", ("square",), [[str(each)] for each in squares])],
    claims=lambda squares: [Claim("the last over the first", 4.0, Ratio(squares[-1] / squares[0], 3.0, 10.0))],
    needs=lambda grid: None if grid.file is None or grid.file.is_file() else "needs its file",
)


@pytest.fixture
def toy(tmp_path: Path) -> Iterator[None]:
    COMPUTED.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "NAMES", ("toy",))
        patch.setattr(command, "load", lambda _: TOY)
        patch.delenv("LENGTHWISE_DATA", raising=False)
        patch.chdir(tmp_path)
        yield


def run(*arguments: str, name: str = "toy") -> int:
    return command.main(["run", name, "--jobs", "1", "--cache", "cache", *arguments])


@pytest.mark.usefixtures("toy")
class TestRunner:
    def test_tables_and_claims_are_printed_a_page_and_json_written(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run() == 0
        printed = capsys.readouterr()
        assert "Squares" in printed.out
        assert "the last over the first" in printed.out
        assert "numbers are small" in printed.err
        assert "this takes about 20 min on 1 core" in printed.err, "declared for two cores"
        assert Path("out/experiments/toy.html").read_text(encoding="utf-8").startswith("<!doctype html>")
        facts = json.loads(Path("out/experiments/toy.json").read_text(encoding="utf-8"))
        assert facts["tables"][0]["rows"] == [["1"], ["4"], ["9"]]
        assert facts["claims"][0]["verdict"] == "the same"

    def test_json_is_printed_alone(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("--quick", "--json") == 0
        assert json.loads(capsys.readouterr().out)["tables"][0]["rows"] == [["4"]]
        assert Path("out/experiments/toy-quick.html").is_file()

    def test_a_finished_study_comes_from_the_cache(self, capsys: pytest.CaptureFixture[str]) -> None:
        run()
        first = capsys.readouterr()
        assert run() == 0
        again = capsys.readouterr()
        assert COMPUTED == [1, 2, 3]
        assert again.out == first.out
        assert "from the cache" in again.err
        assert "this takes" not in again.err

    def test_an_interrupted_study_resumes(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("--set", "fails=true") == 2
        assert run() == 0
        assert COMPUTED == [1, 2, 3]
        assert "3 simulations from the cache" in capsys.readouterr().err

    def test_ctrl_c_ends_it_with_one_line(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def stop(_run: Run, _grid: Grid) -> list[int]:
            raise KeyboardInterrupt

        monkeypatch.setattr(command, "load", lambda _: replace(TOY, measure=stop))
        assert run("--quick") == 130
        assert capsys.readouterr().err == "interrupted; the same command resumes\n"

    def test_a_run_is_logged_and_the_next_estimate_is_its_cpu_time(self, capsys: pytest.CaptureFixture[str]) -> None:
        run()
        run()
        (entry,) = log.read(Path("out/experiments/log.jsonl"))
        assert (entry.study, entry.quick, entry.computed, entry.cached) == ("toy", False, 3, 0)
        assert entry.cpu_s is not None
        assert entry.answer.startswith("Of 1 statements")
        log.append(Path("own.jsonl"), replace(entry, cpu_s=3600.0))
        capsys.readouterr()
        assert run("--cache", "other", "--log", "own.jsonl") == 0
        assert "this takes about 60 min on 1 core" in capsys.readouterr().err
        assert len(log.read(Path("own.jsonl"))) == 2

    def test_all_says_first_how_long_each_study_takes_and_which_are_finished(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        studies = {"toy": TOY, "other": replace(TOY, name="other", minutes=(20, 1))}
        monkeypatch.setattr(command, "NAMES", ("toy", "other"))
        monkeypatch.setattr(command, "load", studies.__getitem__)
        assert run() == 0
        capsys.readouterr()
        assert run(name="all") == 0
        lines = capsys.readouterr().err.splitlines()
        assert lines[:3] == [
            "finished with this code, data and settings: toy",
            "other: 40 min of CPU time (declared)",
            "this takes about 40 min on 1 core; stopped and run again, it resumes",
        ]

    def test_a_setting_replaces_a_field_of_the_grid(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("--json", "--set", "numbers=5,6") == 0
        assert json.loads(capsys.readouterr().out)["tables"][0]["rows"] == [["25"], ["36"]]

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--set", "nubmers=1"], "numbers=1,2,3"),
            (["--set", "numbers=x"], "valid integer"),
            (["--set", "file=missing"], "toy needs its file"),
            (["--plot", "toy.svg"], "static figure"),
            (["--measure"], "toy does not run an engine"),
        ],
    )
    def test_an_invalid_input_is_one_line_and_exit_code_2(
        self, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run(*arguments) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1

    def test_all_prints_no_tables_and_skips_studies_without_their_input(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run(name="all") == 0
        printed = capsys.readouterr()
        assert "Squares" not in printed.out
        assert printed.out.startswith("toy: Of 1 statements that can be compared with the paper"), "the answer"
        assert run("--set", "file=missing", name="all") == 0
        assert "toy is left out: it needs its file" in capsys.readouterr().err

    def test_measure_reaches_the_studies_of_an_engine_only(self, monkeypatch: pytest.MonkeyPatch) -> None:
        measured: list[bool] = []

        def note(run: Run, grid: Grid) -> list[int]:
            measured.append(isinstance(grid, EngineGrid) and grid.measure)
            return measure(run, grid)

        engine = replace(TOY, name="engine", grid=EngineGrid(), measure=note)
        monkeypatch.setattr(command, "NAMES", ("toy", "engine"))
        monkeypatch.setattr(command, "load", {"toy": TOY, "engine": engine}.__getitem__)
        assert run(name="all") == run("--measure", name="all") == 0
        assert measured == [False, True]

    def test_list_shows_question_and_duration(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert command.main(["list"]) == 0
        printed = capsys.readouterr().out
        assert "How large is a square?" in printed
        assert "20 min" in printed


def test_serial_studies_run_in_parallel_workers_and_then_come_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []

    def inside(jobs: int) -> Workers:
        def work(tasks: Sequence[Task]) -> Iterator[tuple[int, dict[str, Any]]]:
            for number, task in reversed(list(enumerate(tasks))):
                assert isinstance(task, Call)
                name, grid, cache = task.arguments
                ran.append(name)
                took = studies[name].run(grid, ResultCache(cache)).took
                assert took is not None
                yield number, asdict(took)

        return work

    studies = {name: replace(TOY, name=name, serial=name != "other") for name in ("first", "other", "second")}
    monkeypatch.setattr(command, "load", studies.__getitem__)
    monkeypatch.setattr(command, "in_processes", inside)
    monkeypatch.chdir(tmp_path)
    arguments = ["run", "first", "other", "second", "--cache", "cache"]
    studies["other"] = replace(studies["other"], measure=lambda _run, _grid: [1, 4])
    assert command.main(arguments) == 0
    assert ran == ["second", "first"]
    lines = [line.split(":")[0] for line in capsys.readouterr().err.splitlines() if "took" in line]
    assert lines == ["second", "first", "other", lines[-1]]
    assert command.main(arguments) == 0
    assert ran == ["second", "first"], "known from the cache"


def test_grid_and_content_of_named_files_are_part_of_the_key(tmp_path: Path) -> None:
    file = tmp_path / "input"
    file.write_text("one")
    other = tmp_path / "other"
    other.write_text("two")
    keys = {TOY.key(grid) for grid in (Grid(), Grid((5, 6)), Grid(file=file), Grid(file=other))}
    assert len(keys) == 4


def test_a_section_begins_where_the_first_cell_changes() -> None:
    assert sections([["a", "1"], ["a", "2"], ["b", "3"], ["a", "4"]]) == {2, 3}
    assert sections([]) == frozenset()


def square(number: int, file: Path | None = None) -> dict[str, Any]:
    COMPUTED.append(number)
    return {"square": number**2}


def test_a_function_of_a_study_is_called_once_for_each_tuple_of_arguments(tmp_path: Path) -> None:
    COMPUTED.clear()
    for _ in range(2):
        found = Run(ResultCache(tmp_path)).each("squares", square, [(2,), (3,)])
        assert [each["square"] for each in found] == [4, 9]
    assert COMPUTED == [2, 3]


def test_the_content_of_a_file_is_part_of_the_key_of_a_call(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text("one")
    other.write_text("two")
    assert len({Call(square, arguments).key for arguments in ((1,), (2,), (1, one), (1, other))}) == 4


def test_a_table_has_a_row_per_item_and_a_rule_between_groups() -> None:
    table = table_of(
        "x",
        [1000, 1001, 2000],
        [("number", lambda n: n), ("half", lambda n: None if n % 2 else Ratio(n / 2, 1.0, 2.0))],
        group=lambda n: n // 1000,
    )
    assert table.columns == ["number", "half"]
    assert table.rows == [["1,000", "500.000 [1.000, 2.000]"], ["1,001", "–"], ["2,000", "1000.000 [1.000, 2.000]"]]
    assert table.rule_before == {2}


@pytest.mark.parametrize(
    ("paper", "ours", "verdict"),
    [
        (0.5, Ratio(0.9, 0.8, 1.1), "no difference here"),
        (0.5, Ratio(1.5, 1.4, 1.6), "the opposite"),
        (0.5, Ratio(0.5, 0.4, 0.6), "the same"),
        (0.5, Ratio(0.2, 0.1, 0.3), "same direction, more"),
        (2.0, Ratio(1.2, 1.1, 1.3), "same direction, less"),
        (2.0, Ratio.none(), "–"),
        (None, Ratio(1.2, 1.1, 1.3), "–"),
    ],
)
def test_a_verdict_is_decided_by_the_interval(paper: float | None, ours: Ratio, verdict: str) -> None:
    assert Claim("", paper, ours).verdict == verdict


def test_every_study_is_listed_under_the_name_of_its_module(capsys: pytest.CaptureFixture[str]) -> None:
    assert [command.load(name).name for name in NAMES] == list(NAMES)
    assert command.main(["list"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in NAMES)


def test_the_quick_grids_take_a_fifteenth_of_the_time() -> None:
    """Of each study, as measured on one machine; where none has run both, as both are declared."""
    runs = [run for run in log.read(log.KEPT) if run.measured]
    total = {False: 0.0, True: 0.0}
    for study in map(command.load, NAMES):
        measured = {
            quick: {run.machine: run.cpu_s for run in runs if (run.study, run.quick) == (study.name, quick)}
            for quick in total
        }
        both = [machine for machine in measured[True] if machine in measured[False]]
        for quick in total:
            known = measured[quick][both[-1]] if both else None
            total[quick] += command.cpu_s(study, [], quick=quick)[0] if known is None else known
    assert total[True] < total[False] / 15


def test_one_seed_has_no_interval() -> None:
    grids = [grid for name in NAMES if isinstance(grid := command.load(name).grid, SeededGrid)]
    assert len(grids) > 5
    for grid in grids:
        with pytest.raises(InputError, match="1 seeds; give at least 2"):
            replace(grid, seeds=1)


def test_studies_are_listed_without_torch() -> None:
    program = """if 1:
        import sys
        import scipy.stats  # which takes an entry None for an installed torch
        from experiments.__main__ import main
        sys.modules["torch"] = None
        assert main(["list"]) == 0
        sys.exit(main(["run", "left_out"]))
    """
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.returncode == 2, ran.stderr
    assert "torch is not installed" in " ".join(ran.stdout.split())
    assert f"left_out: torch is not installed; run: {install_line('train')}" in ran.stderr


def test_an_unknown_name_is_exit_code_2_with_the_closest_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["run", "tei"]) == 2
    assert "did you mean tie?" in capsys.readouterr().err


def test_a_study_without_claims_opens_with_its_answer() -> None:
    def study(**more: Any) -> Study[None, int]:
        return Study(
            name="x", title="X", question="How much?", source="none", grid=None, quick=None, minutes=(1, 1),
            measure=lambda _run, _grid: 3, tables=lambda _: [], **more,
        )  # fmt: skip

    assert study().output(3).verdict == "How much?"
    page = study(answer=lambda found: f"It is {found}.").output(3).html("0")
    assert "<h1>It is 3.</h1>" in page
    assert "<dt>Seed</dt><dd>0</dd>" in page

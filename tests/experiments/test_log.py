from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from experiments import __main__ as command
from experiments.log import Entry, append, cpu_seconds, last, last_measured, read, run_command
from lengthwise.errors import InputError
from lengthwise.workloads.traces import SAMPLE_ONLY

RUN = Entry(study="toy", cpu_s=8.0, seconds=5.0, cached=0, computed=3, answer="It is 3.")


def test_entries_are_read_in_the_order_in_which_they_were_added(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    assert read(path) == []
    append(path, RUN)
    append(path, replace(RUN, study="other"))
    assert [entry.study for entry in read(path)] == ["toy", "other"]
    assert replace(read(path)[0], settings=(), notes=()) == RUN


def test_a_file_that_is_no_log_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"study": "toy"}')
    with pytest.raises(InputError, match="is not a log of runs"):
        read(path)


def test_only_runs_of_the_declared_grid_on_the_whole_data_count() -> None:
    others = [replace(RUN, settings=["seeds=2"]), replace(RUN, notes=[SAMPLE_ONLY]), replace(RUN, quick=True)]
    assert last([RUN, *others], "toy") == RUN
    assert last(others, "toy") is None
    assert last(others, "toy", quick=True) == others[2]


def test_a_resumed_run_counts_as_run_but_not_as_measured() -> None:
    resumed, remote = replace(RUN, cached=2, cpu_s=1.0), replace(RUN, cpu_s=None)
    assert last([RUN, resumed], "toy") == resumed
    assert last_measured([RUN, resumed, remote], "toy") == RUN


def test_cpu_time_includes_that_of_ended_processes() -> None:
    before, own = cpu_seconds(), time.process_time()
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.2: pass"], check=True)
    assert cpu_seconds() - before > 0.1 + time.process_time() - own


def test_a_command_that_is_no_study_is_logged_under_its_text_with_what_it_printed_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORD", "two words")
    text, path = """python -c "print('$WORD'); print('last'); print()" """, tmp_path / "new" / "log.jsonl"
    assert command.main(["log", text, "--log", str(path)]) == 0
    assert capfd.readouterr().out == "two words\nlast\n\n"
    (entry,) = read(path)
    assert (entry.study, entry.answer, entry.complete) == (text, "last", True)
    assert entry.cpu_s is not None


def test_the_command_line_of_this_environment_is_run() -> None:
    assert run_command("lengthwise --version").answer.startswith("lengthwise ")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("make bench", "a command that begins with 'lengthwise' or 'python'"),
        ("", "a command that begins with"),
        ("python -c 'print", "No closing quotation"),
        ("python -c 'exit(3)'", "exit code 3; it is not logged"),
    ],
)
def test_a_command_that_fails_is_not_logged(
    text: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log.jsonl"
    assert command.main(["log", text, "--log", str(path)]) == 2
    assert problem in capsys.readouterr().err
    assert not path.exists()

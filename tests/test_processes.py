"""Workers end with the process that started them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import multiprocessing, os, time
from concurrent.futures import ProcessPoolExecutor
from lengthwise.processes import end_with_parent

if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(1, mp_context=spawn, initializer=end_with_parent)
    print(pool.submit(os.getpid).result(), flush=True)
    pool.submit(time.sleep, 3600).result()
"""


def test_a_worker_ends_in_the_middle_of_a_task_when_its_parent_is_killed(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    with subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert int(parent.stdout.readline()) != parent.pid
        parent.kill()
        # The worker has the same standard output, which ends with the last process that has it.
        assert parent.communicate(timeout=60)[0] == ""

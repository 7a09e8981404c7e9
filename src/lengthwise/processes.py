"""Child processes that end with their parent."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from typing import Final

_STOPS_IN_S: Final = 10.0
_PR_SET_PDEATHSIG: Final = 1  # from <linux/prctl.h>
_LIBC: Final = ctypes.CDLL(None)


def end_process(process: subprocess.Popen[bytes]) -> None:
    """Terminate the child, then kill its session: a killed parent would leave workers behind."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOPS_IN_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def die_with_parent() -> None:
    """Have the kernel stop the child when this process is killed (Linux only)."""
    if sys.platform == "linux":
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def end_with_parent() -> None:
    """End this process, a worker of multiprocessing, at Ctrl-C or once its parent has ended, however long its task."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if (parent := multiprocessing.parent_process()) is not None:
        threading.Thread(target=_end_after, args=(parent,), daemon=True).start()


def _end_after(parent: multiprocessing.process.BaseProcess) -> None:
    parent.join()
    os._exit(1)

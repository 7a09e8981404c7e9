"""Child processes that end with their parent."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
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

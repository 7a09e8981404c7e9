"""For all tests."""

from __future__ import annotations

import os
import signal

# One thread for small products of matrices: on a busy machine several spend most of their time waiting for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# A shell that starts the tests in the background has them ignore Ctrl-C, and with them every process they start;
# those that look at what Ctrl-C does would wait for ever.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

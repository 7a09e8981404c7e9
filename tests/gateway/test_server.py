from __future__ import annotations

import pytest
from starlette.applications import Starlette

from lengthwise.errors import InputError
from lengthwise.gateway.server import bind, run_app


def test_of_two_processes_that_bind_a_port_at_once_the_second_says_so() -> None:
    first = bind("127.0.0.1", 0)
    second = bind("127.0.0.1", first.getsockname()[1])  # allowed while neither listens
    first.listen(1)
    try:
        with pytest.raises(InputError, match="cannot listen on port"):
            run_app(Starlette(), second, shutdown_timeout_s=0)
    finally:
        first.close()
        second.close()

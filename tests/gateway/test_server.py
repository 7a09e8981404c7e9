from __future__ import annotations

import pytest
from starlette.applications import Starlette

from lengthwise.errors import InputError
from lengthwise.gateway.server import bind, run_app


def test_the_second_of_two_processes_that_bind_a_port_gets_an_error() -> None:
    first = bind("127.0.0.1", 0)
    second = bind("127.0.0.1", first.getsockname()[1])  # allowed while neither listens
    first.listen(1)
    try:
        with pytest.raises(InputError, match="cannot listen on port"):
            run_app(Starlette(), second, shutdown_timeout_s=0)
    finally:
        first.close()
        second.close()

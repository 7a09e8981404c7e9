from __future__ import annotations

import subprocess
import sys

import pytest

from lengthwise.errors import InputError
from lengthwise.routers import ROUTERS, Router, make_router
from lengthwise.routers.base import Random


@pytest.mark.parametrize("name", ROUTERS)
def test_every_router_is_made_by_its_name_and_documents_its_formula(name: str) -> None:
    router = make_router(name)
    assert isinstance(router, Router)
    assert router.name == name
    assert "\n\n" in (type(router).__doc__ or "")


def test_a_name_has_the_parameters_that_differ_from_their_defaults() -> None:
    assert make_router(" dynamo : active = 2 , prefill=1 ").name == "dynamo:active=2"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("lengthwize", "did you mean lengthwise"),
        ("e2:windw=3", "it takes window, imbalance, hits"),
        ("round_robin:seed=1", "it takes none"),
        ("random:seed=x", "give a number"),
        ("random:seed=-1", "from 0 to"),
        ("random:seed=1,seed=2", "given twice"),
        ("random:", "it takes seed"),
        ("collections:OrderedDict", "is not a router"),
        ("e2(random)", "wraps no other router"),
    ],
)
def test_the_error_of_a_wrong_spec_names_the_valid_ones(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_router(spec)


def test_routers_import_without_numba() -> None:
    program = "import sys, lengthwise.routers; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


class Outside(Random):
    """A router outside the package, without a `kind`."""


def test_a_router_without_a_kind_is_named_by_its_dotted_path() -> None:
    path = f"{__name__}:Outside"
    assert make_router(f"{path}:seed=3").name == f"{path}:seed=3"

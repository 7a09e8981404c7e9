"""The switch of `lengthwise bench` inside vLLM's scheduler: its token, what it clears, how it ends."""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

import pytest

from tests.vllm.need import need_vllm

need_vllm()
pytestmark = pytest.mark.engine

from pathlib import Path

from lengthwise.lengths import LogT
from lengthwise.predictors.service import PredictionService
from lengthwise.vllm import bench_switch as vllm_bench
from lengthwise.vllm.scheduler import LengthwiseScheduler
from tests.vllm.probed import LAYER, exact_probe, probed_host
from tests.vllm.scheduling import drain, make_request, make_scheduler, tiny_model

TOKEN = "secret"  # noqa: S105
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def scheduler(model: Path) -> Any:
    return make_scheduler(
        LengthwiseScheduler,
        model,
        policy="sjf",
        predictor="none",
        prefix_caching=True,
        measuring={"bench_token": TOKEN},
    )


class Console:
    """Sends commands to a scheduler and reads the replies, as the HTTP server would."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.sent = 0

    def __call__(self, do: str, token: str = TOKEN, **command: Any) -> dict[str, Any] | None:
        self.sent += 1
        name = f"command {self.sent}"
        xargs = {"bench_token": token, "bench_command": json.dumps({"do": do, **command})}
        replies: list[Any] = []
        free = self.scheduler._free_request

        def noting(request: Any, *args: Any, **kwargs: Any) -> Any:
            freed = free(request, *args, **kwargs)
            if request.request_id == name:
                replies.append(freed[0])
            return freed

        self.scheduler._free_request = noting
        try:
            drain(self.scheduler, {0: [make_request(name, 1, 1, extra_args=xargs)]}, {})
        finally:
            self.scheduler._free_request = free
        return None if replies[0] is None else dict(replies[0]["lengthwise"])


def serve(scheduler: Any, lengths: list[int], **extra_args: Any) -> list[str]:
    """Serve requests of an episode that arrive at once; return the order of their admission."""
    requests = [
        make_request(
            f"request {row} {next(NUMBERS)}",
            40,
            tokens,
            prompt=[row * 100 + place for place in range(40)],
            extra_args={"bench_token": TOKEN, "bench_row": row, "expected_tokens": tokens, **extra_args},
        )
        for row, tokens in enumerate(lengths)
    ]
    return [name.split()[1] for name in drain(scheduler, {0: requests}, {}).admitted]


def test_policies_alternate_and_the_servers_own_is_restored(scheduler: Any) -> None:
    bench = Console(scheduler)
    lengths = [30, 20, 10, 5, 40, 1]
    begun = bench("begin", policy="fcfs")
    assert begun is not None
    assert (begun["policy"], begun["ready"], begun["cached_blocks"]) == ("fcfs", True, 0)
    assert serve(scheduler, lengths) == list("012345")
    first = bench("end")
    bench("begin", policy="sjf")
    assert serve(scheduler, lengths) == list("532104")
    second = bench("end")
    assert first is not None
    assert second is not None
    for seen in (first, second):
        assert sorted(row["row"] for row in seen["rows"]) == list(range(6))
        assert {row["row"]: row["output_tokens"] for row in seen["rows"]} == dict(enumerate(lengths))
        assert seen["first_cached"] == 0, "nothing is left of the twin episode"
        assert seen["foreign"] == seen["unfinished"] == 0
    restored = bench("restore")
    assert restored is not None
    assert restored["policy"] == "sjf"


def test_an_episode_begins_with_a_predictor_that_is_idle_and_is_reset_once(
    scheduler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, resets = Console(scheduler), list[PredictionService]()
    reset = PredictionService.reset

    def counted(service: PredictionService) -> None:
        resets.append(service)
        reset(service)

    monkeypatch.setattr(PredictionService, "reset", counted)

    def begin() -> int:
        resets.clear()
        deadline = time.monotonic() + 120
        while not (bench("begin", policy="sjf", predictor="fast") or {})["ready"]:
            assert time.monotonic() < deadline, "the predictor is not loaded"
            time.sleep(0.01)
        assert scheduler.predictions.ready
        return len(resets)

    assert begin() == 0, "a new one has learned nothing"
    serve(scheduler, [3, 3])
    bench("end")
    assert begin() == 1, "however often the bench asks"
    bench("restore")


def test_an_episode_may_use_a_probe_whose_states_the_worker_reports(model: Path, tmp_path: Path) -> None:
    options = {"bench_token": TOKEN, "layers": [LAYER]}
    host = probed_host(LengthwiseScheduler, model, None, "fcfs", measuring=options, slots=4)
    bench, file = Console(host.scheduler), str(exact_probe(tmp_path))
    refiners = []
    for probe in (file, None, file):
        begun = bench("begin", policy="srpt:c=0.8", **({} if probe is None else {"probe": probe}))
        assert begun is not None
        assert begun["ready"]
        refiners.append(host.scheduler.refiner)
        host.scheduler.add_request(make_request(str(next(NUMBERS)), 8, 100, extra_args={"bench_token": TOKEN}))
        host.drain()
        seen = bench("end")
        assert seen is not None
        assert seen["probe"] is None if probe is None else seen["probe"]["readings"] == 7
    assert refiners[1] is None
    assert refiners[0] is not refiners[2], "an episode does not see the readings of another"
    bench("restore")
    assert host.scheduler.refiner is None


def test_a_probe_without_its_states_is_refused(model: Path, scheduler: Any, tmp_path: Path) -> None:
    file = str(exact_probe(tmp_path))
    answer = Console(scheduler)("begin", policy="srpt", probe=file)
    assert answer is not None
    assert "the worker does not report what the probe reads" in answer["error"]
    forced = probed_host(LengthwiseScheduler, model, None, measuring={"bench_token": TOKEN, "layers": [LAYER]})
    answer = Console(forced.scheduler)("begin", policy="srpt", probe=file, llm="another", scale=0.5)
    assert answer is not None
    assert "forced lengths" in answer["error"]


def test_the_same_prompts_again_hit_the_prefix_cache_unless_an_episode_begins(scheduler: Any) -> None:
    bench = Console(scheduler)
    bench("begin", policy="fcfs")
    serve(scheduler, [3, 3])
    serve(scheduler, [3, 3])
    seen = bench("end")
    assert seen is not None
    assert [row["cached_tokens"] for row in seen["rows"]] == [0, 0, 32, 32]


def test_history_of_the_server_is_untouched_and_that_of_an_episode_starts_empty(scheduler: Any) -> None:
    bench = Console(scheduler)
    own = scheduler.predictions
    drain(scheduler, {0: [make_request("own", 8, 50)]}, {})
    before = own.admit("probe", scheduler.jobs.llm, 100)
    assert isinstance(before, LogT)
    for _ in range(2):
        bench("begin", policy="lengthwise")
        assert scheduler.predictions is not own
        assert scheduler.jobs.rate.per_s == 0.0
        assert scheduler.predictions.admit("probe", scheduler.jobs.llm, 100) is None, (
            "an episode starts without history"
        )
        serve(scheduler, [5, 5])
        scheduler.jobs.rate.per_s = 100.0
    bench("restore")
    assert scheduler.predictions is own
    assert own.admit("probe", scheduler.jobs.llm, 100) == before


def test_a_wrong_token_has_no_effect_and_no_reply(scheduler: Any) -> None:
    bench = Console(scheduler)
    assert bench("begin", token="guess", policy="fcfs") is None  # noqa: S106
    assert scheduler.length_policy.name == "sjf"


def test_without_a_token_there_is_no_switch(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(vllm_bench.TOKEN_VARIABLE, raising=False)
    closed = make_scheduler(LengthwiseScheduler, model, policy="sjf", predictor="none")
    assert closed.bench is None
    assert Console(closed)("begin", policy="fcfs") is None
    assert closed.length_policy.name == "sjf"


def test_requests_of_other_clients_are_counted(scheduler: Any) -> None:
    bench = Console(scheduler)
    bench("begin", policy="fcfs")
    drain(scheduler, {0: [make_request("foreign", 8, 3)]}, {})
    seen = bench("end")
    assert seen is not None
    assert seen["foreign"] == 1
    assert seen["rows"] == []


def test_an_engine_with_requests_is_busy(scheduler: Any) -> None:
    scheduler.add_request(make_request("waits", 8, 3))
    reply = scheduler.bench._executed(json.dumps({"do": "begin", "policy": "fcfs"}))
    assert reply == {"busy": True, "requests": 1}
    assert scheduler.length_policy.name == "sjf"


@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        "[]",
        '{"do": "dance"}',
        '{"do": "begin", "policy": "nonsense"}',
        '{"do": "begin", "colour": 1}',
        '{"do": "begin", "llm": "x", "scale": "wide"}',
        '{"do": "end"}',
    ],
)
def test_a_bad_command_is_answered_with_an_error_and_changes_nothing(scheduler: Any, text: str) -> None:
    reply = scheduler.bench._executed(text)
    assert reply["error"]
    assert scheduler.length_policy.name == "sjf"


def test_the_server_is_restored_after_a_bench_dies(scheduler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Console(scheduler)
    bench("begin", policy="fcfs")
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + vllm_bench.LEASE_S - 1)
    drain(scheduler, {0: [make_request("within the lease", 8, 2)]}, {})
    assert scheduler.length_policy.name == "fcfs"
    monkeypatch.setattr(time, "monotonic", lambda: now + vllm_bench.LEASE_S + 1)
    drain(scheduler, {0: [make_request("after it", 8, 2)]}, {})
    assert scheduler.length_policy.name == "sjf"

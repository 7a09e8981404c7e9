"""The policy `sessions` inside vLLM: `vllm_xargs` or prompts tell sessions and templates apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")


def test_the_order_is_that_of_the_rest_of_sessions_whose_names_count_within_a_tenant(tmp_path: Path) -> None:
    from lengthwise.vllm.scheduler import LengthwiseScheduler
    from tests.vllm.scheduling import Run, make_request, make_scheduler, step, tiny_model

    scheduler = make_scheduler(LengthwiseScheduler, tiny_model(tmp_path), slots=1, blocks=64, policy="sessions(fcfs)")

    def serve(*names: tuple[str, dict[str, str]]) -> list[str]:
        requests = [make_request(name, 8, 2, extra_args={"expected_tokens": 20, **known}) for name, known in names]
        for request in requests:
            scheduler.add_request(request)
        waiting = [request.request_id for request in scheduler.waiting]
        jobs = [scheduler.jobs.of(request) for request in requests]
        assert [job.session for job in jobs] == [f"{known.get('tenant', '')}\0{known['session']}" for _, known in names]
        run = Run()
        while scheduler.has_unfinished_requests():
            step(scheduler, run)
        return waiting

    for number in range(6):
        for turn in range(6):
            serve((f"l{number}.{turn}", {"session": f"l{number}", "template": "long", "tenant": "t"}))
        serve((f"s{number}", {"session": f"s{number}", "template": "short", "tenant": "t"}))
    agent = {"session": "new agent", "template": "long", "tenant": "t"}
    chat = {"session": "new chat", "template": "short", "tenant": "t"}
    assert serve(("agent", agent), ("chat", chat)) == ["chat", "agent"]


def test_without_names_a_session_is_known_by_its_prefix_and_its_kind_by_the_first_block(tmp_path: Path) -> None:
    from lengthwise.vllm.scheduler import LengthwiseScheduler
    from tests.vllm.scheduling import BLOCK_SIZE, Run, make_request, make_scheduler, step, tiny_model

    scheduler = make_scheduler(
        LengthwiseScheduler, tiny_model(tmp_path), slots=1, blocks=64, policy="sessions(fcfs)", prefix_caching=True
    )

    def turn(kind: int, session: int, number: int) -> Any:
        prompt = [kind] * BLOCK_SIZE + [100 + session] * BLOCK_SIZE * (number + 1)
        return make_request(f"{kind} {session} {number}", 0, 2, prompt=prompt, extra_args={"expected_tokens": 20})

    def serve(*requests: Any) -> list[str]:
        for request in requests:
            scheduler.add_request(request)
        waiting = [request.request_id for request in scheduler.waiting]
        run = Run()
        while scheduler.has_unfinished_requests():
            step(scheduler, run)
        return waiting

    long, short = 1, 2
    for session in range(6):
        for number in range(6):
            serve(turn(long, session, number))
        serve(turn(short, session, 0))
    assert serve(turn(long, 7, 0), turn(short, 7, 0)) == ["2 7 0", "1 7 0"]

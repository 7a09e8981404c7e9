"""The policy `sessions` inside vLLM: `vllm_xargs` name sessions and templates, apart for each tenant."""

from __future__ import annotations

from pathlib import Path

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

"""A backlog is asked once, in order, balanced; engines that refuse or are down lose no request."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from lengthwise.client.client import EngineClient
from lengthwise.client.offline import Backlog, Sender, SendLimits
from lengthwise.errors import InputError
from lengthwise.lengths import Point
from lengthwise.policies import Job, make_policy
from tests.gateway.engine import RawEngine, free_port, served

QUICK = SendLimits(retries=3, retry_s=0.001, give_up_s=600.0)


def jobs(lengths: list[int]) -> list[Job]:
    return [Job(str(number), float(number), prediction=Point(tokens)) for number, tokens in enumerate(lengths)]


def backlog(lengths: list[int], policy: str = "lept", *, engines: int = 1, slots: int = 1) -> Backlog:
    made = Backlog(make_policy(policy), engines=engines, slots=slots)
    for job in jobs(lengths):
        made.push(job, 0.0)
    return made


@given(
    st.lists(st.integers(1, 5000), max_size=40), st.integers(1, 4), st.integers(1, 5), st.sampled_from(["lept", "sjf"])
)
def test_every_request_is_given_once_and_no_engine_has_more_than_its_slots(
    lengths: list[int], engines: int, slots: int, policy: str
) -> None:
    waiting, running, order = backlog(lengths, policy, engines=engines, slots=slots), Counter[int](), []
    sent: list[tuple[Job, int]] = []
    while True:
        while (found := waiting.next(0.0)) is not None:
            sent.append(found)
            order.append(int(found[0].expected))
            running[found[1]] += 1
            assert running[found[1]] <= slots
        if not sent:
            break
        job, engine = sent.pop()
        running[engine] -= 1
        waiting.ended(job.id, 1.0, 1)
    assert order == sorted(lengths, reverse=policy == "lept")
    assert (len(waiting), waiting.in_flight) == (0, 0)


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=40), st.integers(1, 4))
def test_as_many_requests_as_slots_are_balanced_to_within_the_longest(lengths: list[int], engines: int) -> None:
    waiting, work = backlog(lengths, engines=engines, slots=len(lengths)), [0.0] * engines
    while (found := waiting.next(0.0)) is not None:
        work[found[1]] += found[0].expected
    assert sum(work) == sum(lengths)
    assert max(work) - min(work) <= max(lengths)


def test_a_closed_engine_gets_nothing_until_it_reopens() -> None:
    waiting = backlog([10, 20, 30], engines=2, slots=2)
    waiting.close(0)
    assert [found[1] for _ in range(3) if (found := waiting.next(0.0)) is not None] == [1, 1]
    waiting.reopen(0)
    last = waiting.next(0.0)
    assert last is not None
    assert last[1] == 0


def test_further_jobs_are_taken_when_none_waits() -> None:
    waiting = Backlog(make_policy("fcfs"), engines=1, slots=2, more=jobs([5, 6, 7]))
    assert [found[0].id for _ in range(3) if (found := waiting.next(0.0)) is not None] == ["0", "1"]
    waiting.ended("0", 1.0)
    last = waiting.next(1.0)
    assert last is not None
    assert last[0].id == "2"


def test_the_time_left_is_exact_for_certain_lengths_one_by_one() -> None:
    waiting = backlog([100] * 10)
    assert waiting.left_s(0.0) is None
    waiting.next(0.0)
    waiting.ended("0", 10.0, 100)
    assert waiting.left_s(10.0) == pytest.approx(90.0)
    waiting.next(10.0)
    assert waiting.left_s(15.0) == pytest.approx(85.0)


def test_the_time_left_is_at_least_that_of_the_longest_answer() -> None:
    waiting = backlog([10, 1000], "fcfs", slots=2)
    waiting.next(0.0)
    waiting.next(0.0)
    waiting.ended("0", 1.0, 10)
    assert waiting.left_s(1.0) == pytest.approx(99.0)


def test_a_changed_prediction_changes_order_and_time_left() -> None:
    waiting = backlog([100, 200, 300])
    waiting.next(0.0)
    waiting.ended("2", 30.0, 300)
    first = next(job for job in waiting if job.id == "0")
    first.update_prediction(Point(1000))
    waiting.update(first, 0.0)
    assert [job.id for job in waiting] == ["0", "1"]
    assert waiting.left_s(30.0) == pytest.approx(120.0)


class Asked(Sender):
    """Asks every job of a backlog and keeps what becomes of it."""

    def __init__(self, clients: list[EngineClient], waiting: Backlog, limits: SendLimits = QUICK) -> None:
        super().__init__(clients, waiting, limits)
        self.answers: list[str] = []
        self.by_engine = Counter[int]()
        self.failures: dict[str, str] = {}
        self.full = False

    def request(self, job: Job) -> tuple[str, bytes]:
        return "/v1/completions", json.dumps({"prompt": job.id}).encode()

    def answered(self, job: Job, engine: int, data: bytes) -> int | str:
        if self.full:
            raise InputError("the disk is full")
        self.answers.append(job.id)
        self.by_engine[engine] += 1
        return 5

    def failed(self, job: Job, kind: str, data: bytes) -> None:
        self.failures[job.id] = kind


def app(fault: Callable[[str, int], Response | None] = lambda _prompt, _number: None) -> Starlette:
    """Return an engine whose `fault` gets the prompt, and how often it has been asked."""
    asked = Counter[str]()

    async def complete(request: Request) -> Response:
        prompt = json.loads(await request.body())["prompt"]
        asked[prompt] += 1
        return fault(prompt, asked[prompt]) or JSONResponse({"ok": True})

    return Starlette(routes=[Route("/v1/completions", complete, methods=["POST"])])


def ask(urls: list[str], count: int = 20, *, slots: int = 3, full: bool = False, give_up_s: float = 600.0) -> Asked:
    async def run() -> Asked:
        clients = [EngineClient(url) for url in urls]
        for client in clients:
            await client.open()
        limits = replace(QUICK, give_up_s=give_up_s)
        sender = Asked(clients, backlog([10] * count, engines=len(urls), slots=slots), limits)
        sender.full = full
        try:
            await sender.run()
        finally:
            for client in clients:
                await client.close()
        return sender

    return asyncio.run(run())


def test_several_engines_answer_every_request_once() -> None:
    with served(app()) as one, served(app()) as two:
        found = ask([one, two])
    assert sorted(map(int, found.answers)) == list(range(20))
    assert min(found.by_engine[0], found.by_engine[1]) > 0


def test_a_failure_is_repeated_within_the_limit_and_then_counted() -> None:
    broken = JSONResponse({}, 500)
    with served(app(lambda prompt, number: broken if prompt == "1" or number < 3 else None)) as url:
        found = ask([url])
    assert found.failures == {"1": "http_500"}
    assert len(found.answers) == 19


def test_what_a_request_gets_wrong_is_not_repeated() -> None:
    asked = Counter[str]()

    def fault(prompt: str, number: int) -> Response | None:
        asked[prompt] = number
        return JSONResponse({}, 400) if prompt == "3" else None

    with served(app(fault)) as url:
        found = ask([url])
    assert found.failures == {"3": "http_400"}
    assert set(asked.values()) == {1}


@pytest.mark.parametrize("status", [429, 503])
def test_a_refusal_is_no_failure_however_often_it_comes(status: int) -> None:
    busy = JSONResponse({}, status, {"retry-after": "0.001"})
    with served(app(lambda _, number: busy if number < 8 else None)) as url:
        found = ask([url], 4)
    assert (len(found.answers), found.failures, found.gave_up) == (4, {}, False)


def test_requests_of_an_engine_that_is_down_go_to_the_others() -> None:
    with served(app()) as url:
        found = ask([f"http://127.0.0.1:{free_port()}", url])
    assert len(found.answers) == 20
    assert set(found.by_engine) == {1}


def test_requests_of_an_engine_that_breaks_off_go_to_the_others() -> None:
    with served(app()) as url, RawEngine(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{") as broken:
        found = ask([broken.url, url], slots=1)
    assert len(found.answers) == 20


def test_it_gives_up_when_no_engine_can_be_reached() -> None:
    found = ask([f"http://127.0.0.1:{free_port()}"], give_up_s=0.05)
    assert (found.gave_up, found.answers, found.failures) == (True, [], {})


def test_it_gives_up_after_many_failures_in_a_row() -> None:
    with served(app(lambda _prompt, _number: JSONResponse({}, 400))) as url:
        found = ask([url], 200)
    assert found.gave_up
    assert 50 <= len(found.failures) < 60


def test_an_error_of_the_user_ends_the_run_as_itself() -> None:
    with served(app()) as url, pytest.raises(InputError, match="disk is full"):
        ask([url], full=True)

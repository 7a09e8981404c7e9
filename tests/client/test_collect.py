"""A collection requests every sample of every prompt, loses none, and marks answers that were cut off."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from lengthwise.client.collect import (
    Answer,
    CollectPlan,
    CollectReport,
    Journal,
    Prompt,
    collect,
    error_message,
    read_answer,
    request_body,
)
from lengthwise.errors import InputError
from lengthwise.workloads import LengthSamples
from tests.gateway.engine import RawEngine, free_port, served

PROMPTS = [Prompt("tea", str(n), f"what is tea {n}?", "train" if n else None) for n in range(4)]


@dataclass
class Llm:
    """An endpoint whose answers are 5 to 24 tokens long by their seed, and cut at max_tokens."""

    fault: Callable[[int], Response | None] = lambda _: None
    bodies: list[dict[str, Any]] = field(default_factory=list)
    running: int = 0
    most_at_once: int = 0

    def app(self) -> Starlette:
        routes = [Route("/v1/models", self._models), Route("/v1/chat/completions", self._chat, methods=["POST"])]
        return Starlette(routes=routes)

    async def _models(self, _: Request) -> Response:
        return JSONResponse({"data": [{"id": "small"}]})

    async def _chat(self, request: Request) -> Response:
        body = json.loads(await request.body())
        self.bodies.append(body)
        number = len(self.bodies)
        self.running += 1
        self.most_at_once = max(self.most_at_once, self.running)
        await asyncio.sleep(0.002)
        self.running -= 1
        if (wrong := self.fault(number)) is not None:
            return wrong
        wanted = 5 + body["seed"] % 20
        tokens = min(wanted, body["max_tokens"])
        usage = {"prompt_tokens": 7, "completion_tokens": tokens}
        choice = {"finish_reason": "stop" if tokens == wanted else "length", "message": {"content": "x"}}
        return JSONResponse({"choices": [choice], "usage": usage})


def gather(url: str, out: Path, prompts: list[Prompt] = PROMPTS, **options: Any) -> CollectReport:
    plan = CollectPlan(url=url, out=out, **{"samples": 3, "at_once": 4, "retry_s": 0.001, **options})
    report = CollectReport(len(prompts), plan.samples)
    asyncio.run(collect(prompts, plan, report, lambda: None))
    return report


def test_every_prompt_is_sent_n_times_with_distinct_seeds(tmp_path: Path) -> None:
    llm, out = Llm(), tmp_path / "lengths.parquet"
    with served(llm.app()) as url:
        report = gather(url, out, temperature=0.7, top_p=0.9)
    rows = LengthSamples.read(out)
    assert (len(rows), rows.llms, rows.corpora) == (4, ("small",), ("tea",))
    assert rows.table["prompt"].to_pylist() == [prompt.text for prompt in PROMPTS]
    assert rows.table["split"].to_pylist() == [None, "train", "train", "train"]
    assert rows.table["temperature"].to_pylist() == [0.7] * 4
    assert rows.lengths_matrix().shape == (4, 3)
    assert not rows.capped_matrix().any()
    assert len({body["seed"] for body in llm.bodies}) == len(llm.bodies) == 12
    assert all((body["temperature"], body["top_p"]) == (0.7, 0.9) for body in llm.bodies)
    assert (report.whole_prompts, dict(report.errors), report.model) == (4, {}, "small")
    assert not out.with_name("lengths.parquet.partial").exists()
    assert 1 < llm.most_at_once <= 4


def test_the_same_seed_collects_the_same_lengths(tmp_path: Path) -> None:
    with served(Llm().app()) as url:
        for name in ("a", "b"):
            gather(url, tmp_path / name)
        gather(url, tmp_path / "c", seed=1)
    a, b, c = (LengthSamples.read(tmp_path / name).lengths_matrix().tolist() for name in "abc")
    assert a == b != c


def test_answers_cut_by_max_tokens_are_marked_as_censored(tmp_path: Path) -> None:
    with served(Llm().app()) as url:
        whole, cut = gather(url, tmp_path / "whole"), gather(url, tmp_path / "cut", max_tokens=10)
    lengths = LengthSamples.read(tmp_path / "whole").lengths_matrix()
    samples = LengthSamples.read(tmp_path / "cut")
    assert samples.lengths_matrix().tolist() == lengths.clip(max=10).tolist()
    assert samples.capped_matrix().tolist() == (lengths > 10).tolist()
    assert (whole.capped, cut.capped) == (0, int((lengths > 10).sum()))


def test_transient_failures_are_retried(tmp_path: Path) -> None:
    llm = Llm(fault=lambda n: JSONResponse({}, 503) if n % 3 == 0 else None)
    with served(llm.app()) as url:
        report = gather(url, tmp_path / "out", retries=6)
    assert (report.whole_prompts, dict(report.errors)) == (4, {})
    assert len(llm.bodies) > 12


def test_errors_are_counted_by_kind_and_the_next_run_requests_only_missing_answers(tmp_path: Path) -> None:
    out = tmp_path / "out"
    bad = {2: JSONResponse({"error": "no"}, 400), 5: PlainTextResponse("oops"), 9: JSONResponse({"choices": []})}
    first, second = Llm(fault=bad.get), Llm()
    with served(first.app()) as url:
        report = gather(url, out, at_once=1)
    assert dict(report.errors) == {"http_400": 1, "malformed": 2}
    assert (report.whole_prompts, len(LengthSamples.read(out))) == (1, 1)
    with served(second.app()) as url:
        again = gather(url, out)
    assert (again.resumed, len(second.bodies), again.whole_prompts) == (9, 3, 4)
    with served(Llm().app()) as url:
        gather(url, tmp_path / "at once")
    assert LengthSamples.read(out).table.equals(LengthSamples.read(tmp_path / "at once").table)


def test_the_endpoints_error_message_is_reported(tmp_path: Path) -> None:
    too_long = JSONResponse({"error": {"message": "the prompt is\n too long", "code": 400}}, 400)
    with served(Llm(fault=lambda n: too_long if n < 3 else None).app()) as url:
        report = gather(url, tmp_path / "out", at_once=1)
    assert (dict(report.errors), report.messages) == ({"http_400": 2}, {"http_400": "the prompt is too long"})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"error": {"message": "too  long"}}', "too long"),
        (b'{"object": "error", "message": "older vLLM"}', "older vLLM"),
        (b'{"error": "a word"}', "a word"),
        (b"Bad\nGateway", "Bad Gateway"),
        (b"\xff" * 999, "\ufffd" * 200),
        (b"{}", ""),
        (b"", ""),
    ],
)
def test_error_messages_are_read_from_every_known_format(data: bytes, message: str) -> None:
    assert error_message(data) == message


def test_a_suffix_is_sent_and_stored_with_the_prompt(tmp_path: Path) -> None:
    llm = Llm()
    with served(llm.app()) as url:
        gather(url, tmp_path / "out", suffix="Think.", repetition_penalty=1.1)
    sent = {body["messages"][0]["content"] for body in llm.bodies}
    assert sent == {f"{prompt.text}\n\nThink." for prompt in PROMPTS}
    assert set(LengthSamples.read(tmp_path / "out").table["prompt"].to_pylist()) == sent
    assert {body["repetition_penalty"] for body in llm.bodies} == {1.1}


def test_a_penalty_is_sent_and_recorded_only_if_given(tmp_path: Path) -> None:
    llm = Llm()
    with served(llm.app()) as url:
        gather(url, tmp_path / "out", frequency_penalty=0.4)
        gather(url, tmp_path / "plain")
    assert [body.get("frequency_penalty") for body in llm.bodies] == [0.4] * (len(llm.bodies) // 2) + [None] * (
        len(llm.bodies) // 2
    )
    assert "frequency_penalty" not in CollectPlan(url="http://h", out=tmp_path / "x").settings("m")
    assert (
        CollectPlan(url="http://h", out=tmp_path / "x", frequency_penalty=0.4).settings("m")["frequency_penalty"] == 0.4
    )


def test_an_interrupted_run_resumes(tmp_path: Path) -> None:
    out = tmp_path / "out"

    async def stopped(url: str) -> CollectReport:
        report = CollectReport(4, 3)
        plan = CollectPlan(url=url, out=out, samples=3, at_once=1)

        def stop() -> None:
            if len(report.answers) == 5:
                task.cancel()

        task = asyncio.create_task(collect(PROMPTS, plan, report, stop))
        await task
        return report

    with served(Llm().app()) as url:
        report = asyncio.run(stopped(url))
    assert (report.interrupted, len(report.answers), report.whole_prompts) == (True, 5, 1)
    with (tmp_path / "out.partial").open("a") as journal:
        journal.write('{"prompt": "tea\\n3", "sam')  # a crash in the middle of a line
    llm = Llm()
    with served(llm.app()) as url:
        assert gather(url, out).resumed == 5
    assert len(llm.bodies) == 7
    assert len(LengthSamples.read(out)) == 4


def test_a_journal_of_other_settings_is_refused(tmp_path: Path) -> None:
    with served(Llm(fault=lambda _: JSONResponse({}, 400)).app()) as url:
        gather(url, tmp_path / "out")
        with pytest.raises(InputError, match=r"other settings \(temperature None, now 1.0\)"):
            gather(url, tmp_path / "out", temperature=1.0)
        with pytest.raises(InputError, match=r"other settings \(suffix '', now 'Think.'\)"):
            gather(url, tmp_path / "out", suffix="Think.")


def test_a_later_run_may_request_more_samples(tmp_path: Path) -> None:
    plan = CollectPlan(url="http://h", out=tmp_path / "out")
    with Journal(plan.journal, plan.settings("small")) as journal:
        journal.add(Answer(PROMPTS[0].key, 0, 11, False, 7))
    llm = Llm()
    with served(llm.app()) as url:
        report = gather(url, tmp_path / "out", PROMPTS[:1], samples=2)
    assert (report.resumed, len(llm.bodies)) == (1, 1)
    assert LengthSamples.read(tmp_path / "out").lengths_matrix()[0, 0] == 11


def test_a_file_that_is_no_journal_is_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "out.partial"
    for content in ("my notes\n", '{"a": 1}\n[2]\n'):
        path.write_text(content)
        with pytest.raises(InputError, match="is not a journal"):
            Journal(path, {}).__enter__()
        assert path.read_text() == content


def test_it_gives_up_after_many_consecutive_failures(tmp_path: Path) -> None:
    many = [Prompt("tea", str(n), "x") for n in range(200)]
    llm = Llm(fault=lambda n: None if n <= 30 else JSONResponse({}, 500))
    with served(llm.app()) as url:
        report = gather(url, tmp_path / "out", many, retries=0)
    assert report.gave_up
    assert len(report.answers) == 30
    assert sum(report.errors.values()) < 70


def test_broken_connections_are_counted(tmp_path: Path) -> None:
    with RawEngine(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{") as engine:
        engine.models = b'{"data": [{"id": "m"}]}'
        report = gather(engine.url, tmp_path / "out", retries=1)
    assert dict(report.errors) == {"broken": 12}
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", "malformed"),
        (b"[]", "malformed"),
        (b'{"choices": [{"finish_reason": "stop"}]}', "no_usage"),
        (b'{"choices": [{"finish_reason": "stop"}], "usage": {"prompt_tokens": 3, "completion_tokens": 0}}', "empty"),
        (b'{"choices": [{"finish_reason": "x"}], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}', "ended_by_x"),
    ],
)
def test_an_answer_without_a_length_is_an_error(data: bytes, kind: str) -> None:
    assert read_answer(data, PROMPTS[0], 0) == kind


def test_settings_that_are_not_given_are_not_sent(tmp_path: Path) -> None:
    body = json.loads(request_body(PROMPTS[0], 0, "m", CollectPlan(url="http://h", out=tmp_path / "x")))
    assert set(body) == {"model", "messages", "max_tokens", "seed"}
    assert 0 <= body["seed"] < 2**31


@pytest.mark.parametrize("what", ["dead", "there", "folder", "twice", "none"])
def test_invalid_input_is_reported_before_any_request(tmp_path: Path, what: str) -> None:
    out, prompts, url, problem = tmp_path / "out", PROMPTS, "http://127.0.0.1:1", ""
    if what == "dead":
        url, problem = f"http://127.0.0.1:{free_port()}", "cannot be reached"
    elif what == "there":
        out.write_text("")
        problem = "exists and is complete"
    elif what == "folder":
        out, problem = tmp_path / "no" / "out", "its folder does not exist"
    elif what == "twice":
        prompts, problem = PROMPTS * 2, "prompt_id 0 of tea occurs twice"
    else:
        prompts, problem = [], "there are no prompts"
    with pytest.raises(InputError, match=problem):
        gather(url, out, prompts)
    assert not (tmp_path / "out.partial").exists()

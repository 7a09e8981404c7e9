"""A batch has one answer to each request, whatever ends it; a wrong file is refused before anything is sent."""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from lengthwise.client.batch import (
    AnswerFile,
    BatchPlan,
    BatchReport,
    failures_file,
    read_requests,
    run_batch,
)
from lengthwise.errors import InputError
from tests.gateway.engine import served


@dataclass
class Llm:
    """An endpoint whose answers have as many tokens as `max_tokens` asks for."""

    fault: Callable[[dict[str, Any]], Response | None] = lambda _: None
    models: tuple[str, ...] = ("small",)
    bodies: list[dict[str, Any]] = field(default_factory=list)

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/models", self._list),
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/v1/embeddings", self._embed, methods=["POST"]),
            ]
        )

    async def _list(self, _: Request) -> Response:
        return JSONResponse({"data": [{"id": model} for model in self.models]})

    async def _embed(self, _: Request) -> Response:
        return JSONResponse({"data": [{"embedding": [0.5]}], "usage": {"prompt_tokens": 3}})

    async def _chat(self, request: Request) -> Response:
        body = json.loads(await request.body())
        self.bodies.append(body)
        await asyncio.sleep(0)
        if (wrong := self.fault(body)) is not None:
            return wrong
        usage = {"prompt_tokens": 7, "completion_tokens": body.get("max_tokens", 9)}
        choice = {"finish_reason": "stop", "message": {"content": body["messages"][0]["content"]}}
        return JSONResponse({"id": "chat-1", "choices": [choice], "usage": usage})

    @property
    def asked(self) -> Counter[str]:
        """How often each prompt was asked."""
        return Counter(body["messages"][0]["content"] for body in self.bodies)


def line(number: int, **changes: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": f"prompt {number}"}], "max_tokens": 10 + number}
    return {"custom_id": f"id {number}", "method": "POST", "url": "/v1/chat/completions", "body": body, **changes}


def written(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in lines))
    return path


def answer(url: str | list[str], requests: Path, out: Path, **options: Any) -> BatchReport:
    plan = BatchPlan(
        engines=[url] if isinstance(url, str) else url, **{"retry_s": 0.001, "predictor": "none", **options}
    )
    report = BatchReport()
    asyncio.run(run_batch(read_requests(requests, plan.model), out, plan, report, lambda _what, _done: None))
    return report


def answers(out: Path) -> dict[str, Any]:
    """Return the answers by `custom_id`; each is there once."""
    rows = [json.loads(each) for each in out.read_text().splitlines()]
    found = {row["custom_id"]: row for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.fixture
def requests(tmp_path: Path) -> Path:
    return written(tmp_path / "requests.jsonl", [line(number) for number in range(12)])


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "answers.jsonl"


def test_every_request_is_answered_in_openais_format(requests: Path, out: Path) -> None:
    llm = Llm()
    with served(llm.app()) as url:
        report = answer(url, requests, out)
    found = answers(out)
    assert set(found) == {f"id {number}" for number in range(12)}
    one = found["id 3"]
    assert set(one) == {"id", "custom_id", "response", "error"}
    assert one["error"] is None
    assert (one["response"]["status_code"], one["response"]["request_id"]) == (200, "chat-1")
    assert one["response"]["body"]["choices"][0]["message"]["content"] == "prompt 3"
    assert (report.answers, report.missing, report.tokens) == (12, 0, sum(range(10, 22)))
    assert {body["model"] for body in llm.bodies} == {"small"}
    assert report.predicted_s is not None
    assert math.isfinite(report.predicted_s)


@pytest.mark.parametrize(("first", "expected"), [(None, [3, 2, 1, 0]), (2, [0, 1])])
def test_the_longest_is_asked_first_and_with_first_the_shortest(
    tmp_path: Path, out: Path, first: int | None, expected: list[int]
) -> None:
    texts = [
        "What is 1 + 1? Answer with one number.",
        "Name a colour.",
        "Explain tides.",
        "Write a novel of war. " * 40,
    ]
    lines = [line(n, body={"messages": [{"role": "user", "content": text}]}) for n, text in enumerate(texts)]
    requests = written(tmp_path / "requests.jsonl", lines)

    class ByPlace:
        def predict(self, inputs: Any) -> Any:
            from lengthwise.predictors import LogTPredictions

            return LogTPredictions.of([3.0 + texts.index(each.text) for each in inputs], 0.5, 8192)

    llm = Llm()
    with served(llm.app()) as url, pytest.MonkeyPatch.context() as patch:
        patch.setattr("lengthwise.client.batch.resolve_predictor", lambda _: ByPlace())
        report = answer(url, requests, out, at_once=1, first=first, predictor="fast")
    assert [texts.index(body["messages"][0]["content"]) for body in llm.bodies[: len(expected)]] == expected
    assert report.answers == len(answers(out)) == len(expected)


def test_with_first_a_later_run_asks_the_rest(requests: Path, out: Path) -> None:
    llm = Llm()
    with served(llm.app()) as url:
        assert answer(url, requests, out, first=5, at_once=1).answers == 5
        assert answer(url, requests, out, first=5).answers == 5
        assert len(llm.bodies) <= 6
        report = answer(url, requests, out)
    assert (report.answers, report.resumed, len(answers(out))) == (12, 5, 12)


def test_what_has_an_answer_is_not_asked_again_after_a_crash_in_a_line(requests: Path, out: Path) -> None:
    with served(Llm().app()) as url:
        answer(url, requests, out)
    kept = out.read_bytes().splitlines(keepends=True)[:5]
    for end in (b"", kept[0][:3], kept[0][:40], kept[0][:-9]):
        out.write_bytes(b"".join(kept[1:]) + end)
        llm = Llm()
        with served(llm.app()) as url:
            report = answer(url, requests, out)
        assert (report.resumed, len(llm.bodies), len(answers(out))) == (4, 8, 12)


def test_an_answer_without_its_line_break_is_kept(requests: Path, out: Path) -> None:
    with served(Llm().app()) as url:
        answer(url, requests, out)
        out.write_bytes(out.read_bytes().splitlines()[0])
        report = answer(url, requests, out)
    assert (report.resumed, len(answers(out))) == (1, 12)


def test_failed_requests_are_reported_with_their_line_and_asked_again(requests: Path, out: Path) -> None:
    wrong = JSONResponse({"error": {"message": "too\nlong"}}, 400)
    first = Llm(fault=lambda body: wrong if body["max_tokens"] in (13, 15) else None)
    with served(first.app()) as url:
        report = answer(url, requests, out)
    assert [tuple(each) for each in report.failures] == [
        (4, "id 3", "http_400", "too long"),
        (6, "id 5", "http_400", "too long"),
    ]
    rows = [json.loads(each) for each in failures_file(out).read_text().splitlines()]
    assert [(row["custom_id"], row["response"], row["error"]["code"], row["error"]["line"]) for row in rows] == [
        ("id 3", None, "http_400", 4),
        ("id 5", None, "http_400", 6),
    ]
    second = Llm()
    with served(second.app()) as url:
        report = answer(url, requests, out)
    assert set(second.asked) == {"prompt 3", "prompt 5"}
    assert (report.answers, report.failures) == (12, [])
    assert not failures_file(out).exists()


def test_an_answer_that_is_not_json_is_a_failure(requests: Path, out: Path) -> None:
    with served(Llm(fault=lambda body: PlainTextResponse("oops") if body["max_tokens"] == 10 else None).app()) as url:
        report = answer(url, requests, out)
    assert [(each.line, each.kind) for each in report.failures] == [(1, "malformed")]


def test_transient_failures_are_retried(requests: Path, out: Path) -> None:
    seen = Counter[int]()

    def fault(body: dict[str, Any]) -> Response | None:
        seen[body["max_tokens"]] += 1
        return JSONResponse({}, 500) if seen[body["max_tokens"]] < 3 else None

    with served(Llm(fault=fault).app()) as url:
        report = answer(url, requests, out)
    assert (report.answers, report.failures) == (12, [])


def test_several_engines_share_a_batch(requests: Path, out: Path) -> None:
    one, two = Llm(), Llm()
    with served(one.app()) as first, served(two.app()) as second:
        report = answer([first, second], requests, out, at_once=2)
    assert one.asked + two.asked == Counter({f"prompt {number}": 1 for number in range(12)})
    assert report.by_engine == {first: len(one.bodies), second: len(two.bodies)}
    assert min(report.by_engine.values()) > 0


def test_other_paths_of_the_api_and_other_models_are_asked_as_they_are(tmp_path: Path, out: Path) -> None:
    lines = [
        line(0, url="/v1/embeddings", body={"input": "x", "model": "b"}),
        line(1, body={**line(1)["body"], "model": "a"}),
    ]
    requests, llm = written(tmp_path / "r.jsonl", lines), Llm(models=("a", "b"))
    with served(llm.app()) as url:
        answer(url, requests, out, predictor="fast")
        assert answers(out)["id 0"]["response"]["body"]["data"] == [{"embedding": [0.5]}]
        assert llm.bodies[0]["model"] == "a"
        out.unlink()
        answer(url, requests, out, model="b")
        assert llm.bodies[1]["model"] == "b"


def test_a_model_that_is_not_served_is_refused_before_anything_is_asked(tmp_path: Path, out: Path) -> None:
    requests = written(tmp_path / "r.jsonl", [line(0), line(1, body={**line(1)["body"], "model": "gpt-4o-mini"})])
    llm = Llm()
    with served(llm.app()) as url, pytest.raises(InputError, match=r"does not serve 'gpt-4o-mini', which line 2 asks"):
        answer(url, requests, out)
    assert (llm.bodies, out.exists()) == ([], False)


def test_a_file_of_other_answers_is_refused_and_not_changed(tmp_path: Path, requests: Path, out: Path) -> None:
    with served(Llm().app()) as url:
        answer(url, requests, out)
        before = out.read_bytes()
        changed = written(tmp_path / "r.jsonl", [line(number, body={"messages": []}) for number in range(12)])
        with pytest.raises(InputError, match="answers another request than 'id "):
            answer(url, changed, out)
        with pytest.raises(InputError, match="answers a request that is not there: 'id "):
            answer(url, written(tmp_path / "s.jsonl", [line(100)]), out)
        assert out.read_bytes() == before
        for notes in (b"my notes", b"my notes\n", b'{"a": 1}\n', requests.read_bytes()):
            out.write_bytes(notes)
            with pytest.raises(InputError, match=r"row 1: is not an answer of a batch"):
                answer(url, requests, out)
            assert out.read_bytes() == notes


def test_two_batches_do_not_write_one_file(requests: Path, out: Path) -> None:
    read = read_requests(requests)
    with AnswerFile(out, read) as file:
        with pytest.raises(InputError, match="is in use"), AnswerFile(out, read):
            pass
        file.add({"id": read[0].id, "custom_id": read[0].custom_id})
    with AnswerFile(out, read) as file:
        assert file.known == {read[0].id}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("{oops", "row 2: is not JSON"),
        ("[1]", "row 2: is not a JSON object"),
        ("[" * 100_000, "row 2: is not JSON"),
        (line(1, custom_id=7), "row 2, field 'custom_id': is missing or not a text"),
        (line(1, method="GET"), "row 2, field 'method': is not POST"),
        (line(1, url="http://elsewhere/v1/x"), "row 2, field 'url': is not a path of the API"),
        (line(1, body="x"), "row 2, field 'body': is missing or not an object"),
        (line(1, body={"stream": True}), r"row 2, field 'body.stream': is true; answers of a batch come in one piece"),
        (line(1, body={"model": 5}), "row 2, field 'body.model': is not a text"),
        (line(0), "row 2, field 'custom_id': 'id 0' is that of line 1, too"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, bad: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read_requests(written(tmp_path / "r.jsonl", [line(0), bad, line(2)]))
    assert "\n" not in str(caught.value)


def test_a_file_without_requests_is_refused_and_blank_lines_are_skipped(tmp_path: Path) -> None:
    for content in ([], ["", "  "]):
        with pytest.raises(InputError, match=r"is empty|has no requests"):
            read_requests(written(tmp_path / "r.jsonl", content))
    assert [each.line for each in read_requests(written(tmp_path / "r.jsonl", ["", line(0), "", line(1)]))] == [2, 4]


def test_waiting_requests_are_predicted_again_from_the_answers(tmp_path: Path, out: Path) -> None:
    class Learns:
        def __init__(self) -> None:
            self.observed: list[tuple[str, int]] = []
            self.predicted: list[int] = []

        def predict(self, inputs: Any) -> Any:
            from lengthwise.predictors import LogTPredictions

            self.predicted.append(len(inputs))
            return LogTPredictions.of([5.0] * len(inputs), 0.5, 8192)

        def observe(self, request: Any, tokens: int, *, censored: bool = False) -> None:
            self.observed.append((request.text, tokens))

        def state(self) -> bytes:
            return b""

        def restore(self, state: bytes) -> None:
            pass

    learns = Learns()
    requests = written(tmp_path / "r.jsonl", [line(number) for number in range(400)])
    with served(Llm().app()) as url, pytest.MonkeyPatch.context() as patch:
        patch.setattr("lengthwise.client.batch.resolve_predictor", lambda _: learns)
        answer(url, requests, out, at_once=4, predictor="fast")
    assert learns.predicted[:2] == [256, 144]
    assert len(learns.predicted) >= 3
    assert len(learns.observed) >= 64
    assert all(tokens == 10 + int(text.split()[1]) for text, tokens in learns.observed)

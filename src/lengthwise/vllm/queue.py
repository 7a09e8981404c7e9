"""vLLM's waiting queues on a `PolicyQueue`, and the `Job` of each vLLM request."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

from lengthwise.client.kind import xargs_prediction
from lengthwise.client.request_classes import ClassConfig, clamped_priority, xargs_limits, xargs_priority
from lengthwise.policies import Job, Policy, PolicyQueue, TokenRate
from lengthwise.predictors import PredictionInput
from lengthwise.predictors.prefix_memory import scopes_of
from lengthwise.predictors.service import PredictionService
from lengthwise.prefixes import Scopes, hash_tokens
from lengthwise.vllm.adapter import Request, RequestQueue, tokenizer_of
from lengthwise.vllm.contract import Feature
from lengthwise.vllm.forced_lengths import ForcedLengths
from lengthwise.vllm.prompts import PromptReader
from lengthwise.vllm.refine import Refiner

_CUT: Final = frozenset({"FINISHED_LENGTH_CAPPED", "FINISHED_ABORTED", "FINISHED_REPETITION"})
"""Names of vLLM's RequestStatus under which an answer is not complete."""


_log = logging.getLogger(__name__)


class HostScheduler(Protocol):
    """What the queue and its jobs use of vLLM's scheduler and of our subclass of it."""

    vllm_config: Any
    requests: dict[str, Request]
    running: list[Request]
    max_model_len: int
    max_num_running_reqs: int
    now: float
    """Time of the step, in seconds since 1970."""
    length_policy: Policy
    warm_predictor: bool
    refiner: Refiner | None
    waiting: PolicyRequestQueue
    kv_holding_waiting: PolicyRequestQueue
    jobs: JobTracker

    @property
    def slots(self) -> int:
        """Requests that run at once."""

    @property
    def by_priority(self) -> bool:
        """Whether vLLM orders by priority."""

    @property
    def served_model_name(self) -> str:
        """The name of the LLM."""

    @property
    def predictions(self) -> PredictionService:
        """The service that predictions come from."""

    @property
    def forced_lengths(self) -> ForcedLengths | None:
        """The LLM whose lengths a measurement forces, if any."""

    def has(self, feature: Feature, /) -> bool:
        """Whether a feature works with this release."""

    def needing(self, feature: Feature, /) -> AbstractContextManager[None, bool | None]:
        """Turn the feature off if a name of vLLM is not as expected in the block."""

    def cached_tokens(self, request: Request, /) -> int:
        """Return the prompt tokens that the prefix cache holds."""

    def memory_may_run_out(self) -> bool:
        """Whether KV memory may run out before running requests end."""

    def count_policy_failure(self, error: Exception, /) -> None:
        """Count a policy that raised."""


class JobTracker:
    """The Job of each vLLM Request, created once and stored on it; asks for predictions and reports final lengths."""

    def __init__(self, scheduler: HostScheduler, classes: Mapping[str, ClassConfig]) -> None:
        self._scheduler = scheduler
        self._classes = classes
        self._by_priority = scheduler.by_priority
        self._latest = 0.0
        self.rate, self._ended_tokens = TokenRate(), 0
        self._served = scheduler.served_model_name
        self._reader: PromptReader | None = None

    @property
    def llm(self) -> str:
        """The LLM that predictions are about."""
        forced = self._scheduler.forced_lengths
        return self._served if forced is None else forced.llm

    def reset(self) -> None:
        """Forget the engine's speed: an episode of `lengthwise bench` knows nothing of the one before it."""
        self.rate, self._ended_tokens = TokenRate(), 0

    def prepare(self) -> None:
        """Load the tokenizer and start the predictor if the policy uses predictions: under fcfs nothing is loaded."""
        if (
            self._reader is None
            and self._scheduler.predictions.predicts
            and self._scheduler.length_policy.uses_predictions
        ):
            # The template is read on this thread: a tokenizer that encodes must not be shared between threads.
            tokenizer = None
            with self._scheduler.needing(Feature.PREDICTOR):
                if self._scheduler.has(Feature.PREDICTOR):
                    tokenizer = tokenizer_of(self._scheduler.vllm_config)
            if tokenizer is not None:
                self._reader = PromptReader.of(tokenizer)
                if self._scheduler.warm_predictor:
                    self._scheduler.predictions.warm()

    def of(self, request: Request) -> Job:
        """Return the request's job with its current progress."""
        job: Job | None = getattr(request, "lengthwise_job", None)
        if job is None:
            cap = self.cap(request)
            given = xargs_prediction(extra_args(request), cap)
            scopes = self._scopes(request)
            request.lengthwise_blocks = () if scopes is None else scopes.blocks
            known = self._scheduler.predictions.admit(request.request_id, self.llm, cap, scopes, tenant_of(request))
            job = Job(
                id=request.request_id,
                arrival=self._arrival(request),
                prompt_tokens=request.num_prompt_tokens,
                prediction=given,
                max_tokens=cap,
                blocks=request.lengthwise_blocks,
                llm=self.llm,
                session=_name_of(request, "session"),
                template=_name_of(request, "template"),
                priority=clamped_priority(request.priority) if self._by_priority else 0,
            )
            self._classify(request, job)
            request.lengthwise_job = job
            request.lengthwise_predicted = given is not None
            if not self.ask(request) and given is None:
                job.update_prediction(known)
        job.generated, job.preemptions = request.num_output_tokens, request.num_preemptions
        return job

    def _classify(self, request: Request, job: Job) -> None:
        """Set the limits and the priority in the request's `vllm_xargs`, or of the class that is named there.

        The request gets the priority too: under `--scheduling-policy priority` vLLM chooses victims by it.
        """
        xargs = extra_args(request)
        priority, known = xargs_priority(xargs, self._classes)
        job.use_limits(**xargs_limits(xargs))
        job.use_limits(**known.limits)
        if priority is not None:
            job.priority = request.priority = priority

    def _scopes(self, request: Request) -> Scopes | None:
        """Return what prefix memory knows the request by: vLLM's block hashes or, without prefix caching, our own."""
        if not self._scheduler.predictions.remembers:
            return None
        if getattr(request, "block_hashes", None):
            return scopes_of(self.llm, [int.from_bytes(block[:8], "little") for block in request.block_hashes])
        return scopes_of(self.llm, hash_tokens(request.prompt_token_ids or ()))

    def _affects_order(self) -> bool:
        """Return whether a decision may depend on the prediction of a request that arrives now, or waits.

        None does where the request runs from the next step on, and no request is preempted for another.
        """
        scheduler = self._scheduler
        return bool(
            scheduler.waiting
            or scheduler.kv_holding_waiting
            or len(scheduler.running) >= scheduler.max_num_running_reqs
            or scheduler.length_policy.preempts
            or scheduler.refiner is not None
            or scheduler.memory_may_run_out()
        )

    def ask(self, request: Request) -> bool:
        """Ask for a prediction, unless one came with the request, the policy uses none, or there is no text.

        The quick predictor is asked where no decision depends on the prediction, but for some, by which the other one
        is calibrated. Return whether a prediction will arrive.
        """
        ids, reader = request.prompt_token_ids, self._reader
        if reader is None or ids is None or request.lengthwise_predicted or not generates(request):
            return False
        if not self._scheduler.length_policy.uses_predictions:
            return False
        cap, predictions, tenant = self.cap(request), self._scheduler.predictions, tenant_of(request)
        blocks = request.lengthwise_blocks
        return predictions.ask(
            request.request_id,
            lambda: self._question(reader, ids, cap, blocks, tenant),
            quick=not self._affects_order() and not predictions.sample_due(),
        )

    def _question(
        self, reader: PromptReader, ids: Sequence[int], cap: int, blocks: Sequence[int], tenant: str | None
    ) -> PredictionInput:
        text, thinking = reader.read_with_switch(ids)
        return PredictionInput(
            text, self.llm, cap, prompt_tokens=len(ids), blocks=blocks, tenant=tenant, thinking=thinking
        )

    def ended(self, request: Request, *, learn: bool = True) -> None:
        """Report a finished request's length: complete, censored, or unknown (without `learn`)."""
        job: Job | None = getattr(request, "lengthwise_job", None)
        refiner = self._scheduler.refiner
        self._measure_rate(request)
        if job is not None:
            job.generated = request.num_output_tokens
            if refiner is not None:
                # A queue learns from the predictions that it ordered by.
                job.update_prediction(refiner.ended(request.request_id, job.prediction))
            for requests in (self._scheduler.waiting, self._scheduler.kv_holding_waiting):
                requests.queue.finished(job)
        tokens = request.num_output_tokens if generates(request) else None
        status = request.status.name
        if not learn:
            self._scheduler.predictions.ended(request.request_id, None)
        elif status == "FINISHED_ABORTED" and tokens and request.sampling_params.stop:
            # Stop strings are matched outside the engine, which then aborts the request: its answer is complete.
            self._scheduler.predictions.ended(request.request_id, tokens)
        elif status == "FINISHED_STOPPED" or status in _CUT:
            # A forced length below the limit that the client declared is complete, not censored.
            capped, declared = status == "FINISHED_LENGTH_CAPPED", declared_cap(request)
            forced = capped and declared is not None and (tokens or 0) < self.cap(request)
            self._scheduler.predictions.ended(request.request_id, tokens, censored=status in _CUT and not forced)
        else:
            self._scheduler.predictions.ended(request.request_id, None)

    def _measure_rate(self, request: Request) -> None:
        """Update the engine's tokens per second; a request that ends is among the scheduler's requests until then."""
        scheduler, now = self._scheduler, self._scheduler.now
        if self.rate.due(now):
            tokens = self._ended_tokens + sum(each.num_output_tokens for each in scheduler.requests.values())
            self.rate.observe(now, tokens, waiting=bool(scheduler.waiting or scheduler.kv_holding_waiting))
        self._ended_tokens += request.num_output_tokens

    def cap(self, request: Request) -> int:
        """Return the most tokens that the answer may have: by the request's limit and the context length."""
        left: int = self._scheduler.max_model_len - request.num_prompt_tokens
        return max(1, min(declared_cap(request) or int(request.max_tokens), left))

    def _arrival(self, request: Request) -> float:
        """Return the arrival time; under vLLM's fcfs, which orders by entry, never before that of the last request."""
        if self._by_priority:
            return float(request.arrival_time)
        self._latest = max(self._latest, request.arrival_time)
        return self._latest


def may_be_preempted(request: Request) -> bool:
    """Whether a running request may be preempted: not one whose last token is in flight."""
    return generates(request) and request.num_output_tokens + request.num_output_placeholders < request.max_tokens


def generates(request: Request) -> bool:
    """Whether it has one prompt and one answer: no embedding, no resumable session."""
    return request.sampling_params is not None and not request.resumable


class PolicyRequestQueue(RequestQueue):
    """One of vLLM's waiting queues, in the order of `queue`; its policy is fcfs once the configured one has failed."""

    def __init__(self, scheduler: HostScheduler) -> None:
        self._jobs = scheduler.jobs
        self._scheduler = scheduler
        self.queue = PolicyQueue(
            scheduler.length_policy, slots=scheduler.slots, on_failure=scheduler.count_policy_failure
        )
        self._requests: dict[str, Request] = {}

    def rekey(self, job: Job) -> bool:
        """Recompute a waiting request's key; False if it does not wait here."""
        if job.id not in self._requests:
            return False
        self.queue.update(job, self._scheduler.now)
        return True

    def add_request(self, request: Request) -> None:
        """Add a request behind those with an equal key."""
        self._enter(request, front=False)

    def prepend_request(self, request: Request) -> None:
        """Return a request that was preempted or skipped, before those with an equal key."""
        self._enter(request, front=True)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        """Return several requests, the last of them first, as vLLM's queue does."""
        for request in requests:
            self._enter(request, front=True)

    def pop_request(self) -> Request:
        """Take the next request to run."""
        request = self.peek_request()
        self.queue.pop(self._scheduler.now)
        self._scheduler.predictions.started(request.request_id)
        return self._requests.pop(request.request_id)

    def peek_request(self) -> Request:
        """Return the next request to run without removing it."""
        self.queue.running = len(self._scheduler.running)
        self.queue.tokens_per_s = self._jobs.rate.per_s
        job = self.queue.peek(self._scheduler.now)
        if job is None:
            raise IndexError("peek from an empty queue")
        return self._requests[job.id]

    def remove_request(self, request: Request) -> None:
        """Remove a request."""
        if request.request_id not in self._requests:
            raise ValueError(f"{request.request_id} is not waiting")
        self.remove_requests([request])

    def remove_requests(self, requests: Iterable[Request]) -> None:
        """Remove those of the requests that wait here."""
        for request in requests:
            if self._requests.pop(request.request_id, None) is not None:
                self.queue.remove(request.request_id)

    def __bool__(self) -> bool:
        return bool(self._requests)

    def __len__(self) -> int:
        return len(self._requests)

    def __getitem__(self, place: int) -> Request:
        """Return the request at a position; vLLM's fcfs queue is a deque."""
        return list(self)[place]

    def __iter__(self) -> Iterator[Request]:
        return (self._requests[job.id] for job in self.queue)

    def _enter(self, request: Request, *, front: bool) -> None:
        now = self._scheduler.now
        job = self._jobs.of(request)
        job.cached_tokens = self._cached_tokens(request)
        self._requests[request.request_id] = request
        self.queue.push(job, now, front=front)

    def _cached_tokens(self, request: Request) -> int:
        """Return the prompt tokens in the prefix cache, for a policy whose order may depend on them; else 0."""
        return self._scheduler.cached_tokens(request) if self.queue.reads_progress else 0


def extra_args(request: Request) -> dict[str, Any]:
    """Return the request's `vllm_xargs`."""
    params = request.sampling_params
    return (params.extra_args if params is not None else None) or {}


def tenant_of(request: Request) -> str | None:
    """Return the tenant that a gateway names in `vllm_xargs`, by at most 64 characters."""
    tenant = extra_args(request).get("tenant")
    return None if tenant is None else str(tenant)[:64]


def _name_of(request: Request, kind: str) -> str | None:
    """Return the session or template that `vllm_xargs` names, apart for each tenant there; None without one."""
    name = extra_args(request).get(kind)
    return None if name is None else f"{tenant_of(request) or ''}\0{str(name)[:256]}"


def declared_cap(request: Request) -> int | None:
    """Return the limit that the client declares, for measurements with forced lengths (`vllm.forced_lengths`)."""
    declared = extra_args(request).get("cap")
    try:
        return None if declared is None else max(1, int(declared))
    except (TypeError, ValueError, OverflowError) as error:
        _log.warning("request %s: no usable cap in vllm_xargs (%s)", request.request_id, error)
        return None

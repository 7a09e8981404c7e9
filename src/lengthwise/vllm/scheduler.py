"""The vLLM plug-in: a scheduler whose waiting queues are ordered by a policy.

    vllm serve MODEL --scheduler-cls lengthwise.vllm.LengthwiseScheduler

vLLM's scheduler is not a public interface: `vllm.adapter` is the contact with it, for the last four minor releases,
and `vllm.contract` states what is relied on.

Options come from `--additional-config '{"lengthwise": {"policy": "sjf", "predictor": "fast"}}'` or the environment
variables LENGTHWISE_POLICY and LENGTHWISE_PREDICTOR; the defaults are lengthwise and fast. The lengths of answers
improve predictions while the engine serves; `"learning": false` or LENGTHWISE_LEARNING=off turns that off. What is
learned is kept in the folder `"state"` or LENGTHWISE_STATE: a path, `cache` (the default, in the user's cache folder)
or `off`. `"classes": {"batch": {"priority": 10}}` are classes of requests, which a request names in `vllm_xargs` as
`request_class` (`client.request_classes`). `"steps": "PATH.parquet"` logs every step of the engine (`vllm.steps`).

A request's prediction arrives in `vllm_xargs`: `expected_tokens` (a length, from a client), or `length_mu` and
`length_sigma` (a log-t, from the gateway). `tenant`, from a gateway with keys, names whose answers it learns from: the
answers of one tenant change the predictions of no other. A request without a prediction is queued at once with the wide
prior and re-keyed at the first step after that of the engine's predictor arrives; if that fails, the history counts.
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lengthwise.client.kind import MARKER
from lengthwise.client.request_classes import ClassConfig
from lengthwise.defaults import DEFAULT_POLICY, DEFAULT_PREDICTOR
from lengthwise.errors import InputError
from lengthwise.lengths import LengthDistribution
from lengthwise.policies import Job, Policy, PolicyQueue, make_policy
from lengthwise.predictors.probe import load_probe
from lengthwise.predictors.service import RETIRED_MEMORY, PredictionService, known_predictor, prediction_service
from lengthwise.predictors.state_file import STATE_CACHE, known_state, state_file
from lengthwise.settings import validated
from lengthwise.vllm.adapter import AdaptedScheduler, AsyncScheduler, Request, Scheduler
from lengthwise.vllm.bench_switch import BenchControl, Setup
from lengthwise.vllm.contract import Feature
from lengthwise.vllm.forced_lengths import ForcedLengths
from lengthwise.vllm.queue import (
    JobTracker,
    PolicyRequestQueue,
    extra_args,
    generates,
    may_be_preempted,
)
from lengthwise.vllm.refine import (
    Due,
    Refiner,
    Wanted,
    attached,
    check_reported,
    generated_by,
    refiner_for,
)
from lengthwise.vllm.steps import StepLog, spans

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput

POLICY_VARIABLE: Final = "LENGTHWISE_POLICY"
PREDICTOR_VARIABLE: Final = "LENGTHWISE_PREDICTOR"
LEARNING_VARIABLE: Final = "LENGTHWISE_LEARNING"
STATE_VARIABLE: Final = "LENGTHWISE_STATE"
_OFF: Final = (False, "off", "false", "0")
_RETIRED_VARIABLE: Final = "LENGTHWISE_MEMORY"

_log = logging.getLogger("lengthwise.vllm.scheduler")


class LengthwiseSyncScheduler(AdaptedScheduler):
    """vLLM's scheduler with its waiting requests in a policy's order, and victims chosen by that policy."""

    waiting: PolicyRequestQueue
    kv_holding_waiting: PolicyRequestQueue
    stock: type[Scheduler] = Scheduler
    """What serves if this release of vLLM lacks what the plug-in needs."""
    steps: StepLog | None = None
    refiner: Refiner | None = None
    """What refines predictions from hidden states, if a probe is in use."""
    policy_failures: int = 0
    """Times that a queue fell back to arrival order because its policy raised."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # passed on to vLLM as they are
        super().__init__(*args, **kwargs)
        self.check_release()
        if not self.has(Feature.ORDER):
            self.serve_as_stock(self.stock)
            return
        options = (self.vllm_config.additional_config or {}).get("lengthwise", {})
        name = options.get("policy") or os.environ.get(POLICY_VARIABLE) or DEFAULT_POLICY
        predictor = options.get("predictor") or os.environ.get(PREDICTOR_VARIABLE) or DEFAULT_PREDICTOR
        self.length_policy: Policy = make_policy(name)
        known = known_predictor(predictor)
        forced = ForcedLengths.of(options.get("forced_lengths"))
        service = self._service(known, options) if forced is None else forced.service(known)
        self.setup = Setup(name, predictor, service, forced, self._refiner(options, predictor))
        self.refiner = self.setup.refiner
        self.bench = BenchControl.of(self, options) if self.has(Feature.BENCH) else None
        self.warm_predictor = bool(options.get("warm_predictor", True))
        self._account: str | None = options.get("account")
        classes = validated(
            dict[str, ClassConfig], options.get("classes") or {}, source="lengthwise", section="classes"
        )
        self.jobs = JobTracker(self, classes)
        self.victims = VictimSearch()
        self.now = time.time()
        self.install_queues(lambda: PolicyRequestQueue(self))
        self.jobs.prepare()
        if options.get("steps") and self.has(Feature.STEPS):
            self.steps = StepLog(Path(options["steps"]), self.facts())
        _log.info("lengthwise orders the waiting requests: policy %s, predictor %s", name, predictor)

    def _refiner(self, options: Mapping[str, Any], predictor: str) -> Refiner | None:
        return refiner_for(options, self.vllm_config, predictor) if self.has(Feature.PROBE) else None

    def _service(self, predictor: str, options: Mapping[str, Any]) -> PredictionService:
        """Return the service of the engine's predictor, which learns unless that is turned off."""
        if "memory" in options or _RETIRED_VARIABLE in os.environ:
            raise InputError(RETIRED_MEMORY, source="memory" if "memory" in options else _RETIRED_VARIABLE)
        learning = options.get("learning", os.environ.get(LEARNING_VARIABLE, "on")) not in _OFF
        setting = known_state(options.get("state", os.environ.get(STATE_VARIABLE) or STATE_CACHE))
        kept = state_file(setting, f"engine-{self.served_model_name}")
        return prediction_service(predictor, learning=learning, tenants_apart=True, state=kept)

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
        _log.info("predictor counts: %s; learning: %s", self.predictions.counts, self.predictions.progress())
        if self.refiner is not None:
            _log.info("probe counts: %s", self.refiner.counts)
        if self.steps is not None:
            self.steps.close()
        super().shutdown()

    def add_request(self, request: Request, *args: Any, **kwargs: Any) -> None:  # more is passed on
        """Add a request to the waiting queue; a command of `lengthwise bench` is executed first."""
        if self.bench is not None:
            self.bench.arrived(request)
        super().add_request(request, *args, **kwargs)

    def schedule(self, throttle_prefills: bool = False, **more: Any) -> SchedulerOutput:  # more is passed on
        """Schedule one step, and log it if steps are logged or an episode of `lengthwise bench` runs."""
        if self.steps is None and self.bench is None:
            return self._schedule(throttle_prefills, **more)
        if self.bench is not None:
            self.bench.expire()
        began, cpu = time.time(), time.thread_time()
        output = self._schedule(throttle_prefills, **more)
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
        due: list[Due] = []
        for name, state in attached(output) or ():
            request = self.requests.get(name)
            generated = None if request is None else generated_by(state.tokens, request.num_prompt_tokens)
            if request is None or generated is None or not refiner.due(name, generated):
                continue
            if generated > request.num_output_tokens or not generates(request):
                continue
            prediction = self.jobs.of(request).prediction
            due.append(Due(name, generated, state, prediction, self.jobs.cap(request)))
        if due:
            for name, refined in refiner.read(due).items():
                self._apply(self.jobs.of(self.requests[name]), refined)

    def _schedule(self, throttle_prefills: bool, **more: Any) -> SchedulerOutput:
        """Schedule one step as vLLM does, with the policy's victims at the end of `running`."""
        # One time for the whole step: vLLM peeks at a request, changes it and then pops, and must get the same one.
        self.now = time.time()
        self.predictions.deliver(self._predict)
        if self.waiting.queue.policy.preempts and not throttle_prefills and self.has(Feature.PREEMPTION):
            self._preempt_for_head()
        if self.by_priority or not self.memory_runs_out():
            return super().schedule(throttle_prefills, **more)
        admission = {request.request_id: place for place, request in enumerate(self.running)}
        self._put_victims_last()
        output = super().schedule(throttle_prefills, **more)
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

    def _preempt_for_head(self) -> None:
        """Preempt running requests for the head of the queue while it cannot be admitted and the policy names a victim.

        Before vLLM's step, so that the slot is taken in the same step. Not where vLLM might skip the head for a
        reason of its own and admit another request: then one victim after the other would be preempted.
        """
        self.victims.count_step()
        while (victim := self._victim_for_head()) is not None:
            self.preempt(victim)

    def _victim_for_head(self) -> Request | None:
        """Return the running request to preempt next; None if the head can be admitted or the policy names none."""
        victim: str | None = None
        with self.needing(Feature.PREEMPTION):
            if self.may_skip_head() or not (self.running and self.waiting) or self.kv_holding_waiting:
                return None
            head = self.waiting.peek_request()
            running = [request.request_id for request in self.running if may_be_preempted(request)]
            if self.victims.refused(self.waiting.queue.policy, head.request_id, running):
                return None
            if self.is_skipped(head) or self.can_admit(head):
                return None
            victim = self.victims.find(
                self.waiting.queue, head.request_id, running, lambda name: self.jobs.of(self.requests[name]), self.now
            )
        return None if victim is None else self.requests[victim]

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

    stock = AsyncScheduler

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

"""Server side of `lengthwise bench`: the policy of a running vLLM is switched between episodes.

The switch is off unless the server is started with a bench token, in the plug-in's option `bench_token` or the
environment variable LENGTHWISE_BENCH_TOKEN. A command is a completion of one token whose `vllm_xargs` hold
`bench_token` and `bench_command` (JSON); the reply is the `lengthwise` entry of `kv_transfer_params` in its response.
So it reaches the scheduler in whatever process that runs, through vLLM's API as it is.

    {"do": "begin", "policy": P, "predictor": Q, "probe": R, "llm": L, "scale": X}
        Needs an idle engine. Switches policy and predictor, and clears prefix cache, history, calibration, the
        policy's state and the measured speed. `llm` and `scale` (optional) are those of `vllm.forced_lengths`;
        `probe` (optional) refines predictions, if the worker reports its states (`vllm.refine`).
    {"do": "end"}      Returns what was observed of the requests of the episode.
    {"do": "restore"}  Returns the server to the policy and predictor that it had before the first `begin`.

Requests of an episode carry `bench_token` and `bench_row`. Once none has been in the engine for LEASE_S seconds, the
server restores itself: a bench that died leaves no trace. The server's own history and calibration are not touched:
episodes have prediction services of their own.
"""

from __future__ import annotations

import hmac
import json
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from lengthwise.errors import InputError
from lengthwise.lengths import LogT
from lengthwise.policies import Policy, make_policy
from lengthwise.predictors.prediction_worker import Counts
from lengthwise.predictors.service import PredictionService, known_predictor, prediction_service
from lengthwise.simulator.step_log import EngineFacts
from lengthwise.vllm.forced_lengths import ForcedLengths
from lengthwise.vllm.refine import Refiner

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

    from lengthwise.vllm.queue import JobTracker

TOKEN_VARIABLE: Final = "LENGTHWISE_BENCH_TOKEN"  # noqa: S105  (the name of a variable)
LEASE_S: Final = 60.0
_HINT: Final = "give an object with `do`: begin, end or restore"

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Setup:
    """What an episode changes and `restore` puts back."""

    policy: str
    predictor: str
    predictions: PredictionService
    forced_lengths: ForcedLengths | None
    refiner: Refiner | None = None


@dataclass(slots=True)
class _Episode:
    """What is observed during an episode."""

    before: Counts
    """The counts of the predictor's service when it began."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    cached: dict[str, int] = field(default_factory=dict)
    """Tokens of each running request that came from the prefix cache."""
    first_cached: int | None = None
    """Those of the first request that started."""
    foreign: int = 0
    """Requests of other clients."""
    schedule_cpu_s: float = 0.0
    steps: int = 0


class SwitchedScheduler(Protocol):
    """What an episode changes of a scheduler, and reads of it."""

    requests: dict[str, Request]
    length_policy: Policy
    refiner: Refiner | None
    jobs: JobTracker
    setup: Setup

    @property
    def predictions(self) -> PredictionService:
        """The service that predictions come from."""

    def use(self, setup: Setup) -> None:
        """Change policy and predictor under the waiting requests."""

    def refiner_of(self, probe: str, predictor: str, forced: ForcedLengths | None) -> Refiner | None:
        """Return a refiner of another probe than the engine's own."""

    def reset_prefix_cache(self) -> bool: ...  # noqa: D102  (vLLM's)

    def cached_blocks(self) -> int:
        """Return the blocks in the prefix cache."""

    def facts(self) -> EngineFacts:
        """Return the engine's identity and limits."""


class BenchControl:
    """Executes the commands of `lengthwise bench` inside a scheduler."""

    def __init__(self, scheduler: SwitchedScheduler, token: str) -> None:
        self._scheduler = scheduler
        self._token = token.encode()
        self._before: Setup | None = None
        self._services: dict[tuple[str, ForcedLengths | None], PredictionService] = {}
        self._unused: PredictionService | None = None
        """The service of the last `begin`, until a request may have taught it something."""
        self._episode: _Episode | None = None
        self._replies: dict[str, dict[str, Any]] = {}
        self._open: set[str] = set()
        self._seen_s = time.monotonic()

    @classmethod
    def of(cls, scheduler: SwitchedScheduler, options: Mapping[str, Any]) -> BenchControl | None:
        """Return the control of a server with a bench token; None without one."""
        token = options.get("bench_token") or os.environ.get(TOKEN_VARIABLE)
        return None if not token else cls(scheduler, str(token))

    def arrived(self, request: Request) -> None:
        """Execute a command, or count a request; called before the request enters a queue."""
        xargs = (request.sampling_params.extra_args if request.sampling_params is not None else None) or {}
        given = xargs.get("bench_token")
        if not isinstance(given, str) or not hmac.compare_digest(given.encode(), self._token):
            if given is not None:
                _log.warning("request %s has a wrong bench token", request.request_id)
            self._unused = None
            if self._episode is not None:
                self._episode.foreign += 1
            return
        self._seen_s = time.monotonic()
        if "bench_command" in xargs:
            self._replies[request.request_id] = self._executed(str(xargs["bench_command"]))
        else:
            self._unused = None
            self._open.add(request.request_id)

    def ended(self, request: Request) -> dict[str, Any] | None:
        """Record a finished request; return the reply if it was a command."""
        name = request.request_id
        if name in self._replies:
            return self._replies.pop(name)
        if name in self._open:
            self._open.discard(name)
            self._seen_s = time.monotonic()
            if self._episode is not None:
                self._record(request, self._episode)
        return None

    def stepped(self, output: SchedulerOutput, cpu_s: float) -> None:
        """Count a step and the CPU time of its schedule()."""
        episode = self._episode
        if episode is not None:
            episode.schedule_cpu_s += cpu_s
            episode.steps += 1
            for new in output.scheduled_new_reqs:
                if new.req_id in self._open:
                    episode.cached.setdefault(new.req_id, new.num_computed_tokens)
                    if episode.first_cached is None:
                        episode.first_cached = new.num_computed_tokens

    def expire(self) -> None:
        """Restore the server once the bench has been silent for LEASE_S seconds."""
        if self._before is not None and not self._open and time.monotonic() - self._seen_s > LEASE_S:
            _log.warning("no request of the bench for %.0f s: the server returns to its policy", LEASE_S)
            self._restore()

    def close(self) -> None:
        """Stop the predictors of episodes."""
        for service in self._services.values():
            service.close()

    def _executed(self, text: str) -> dict[str, Any]:
        """Return the reply to a command; an error is a reply too."""
        try:
            command = json.loads(text)
            if not isinstance(command, dict):
                raise InputError(f"{text!r}", field="bench_command", hint=_HINT)
            do = command.pop("do", None)
            if do == "begin":
                return self._begin(**command)
            if do == "end":
                return self._end()
            if do == "restore":
                self._restore()
                return self._state()
            raise InputError(f"no command {do!r}", field="bench_command", hint=_HINT)
        except (InputError, TypeError, ValueError) as error:
            return {"error": str(error)}

    def _begin(
        self,
        policy: str = "fcfs",
        predictor: str = "none",
        llm: str | None = None,
        scale: float = 1.0,
        probe: str | None = None,
    ) -> dict[str, Any]:
        scheduler = self._scheduler
        make_policy(policy)
        known = known_predictor(predictor)
        forced = None if llm is None else ForcedLengths(llm, scale)
        refiner = None if probe is None else scheduler.refiner_of(probe, predictor, forced)
        if scheduler.requests:
            return {"busy": True, "requests": len(scheduler.requests)}
        if not scheduler.reset_prefix_cache():
            return {"busy": True, "requests": 0}  # blocks of a step in flight are freed with the next
        if self._before is None:
            self._before = scheduler.setup
        service = self._services.get((known, forced))
        if service is None:
            service = prediction_service(known) if forced is None else forced.service(known)
            self._services[known, forced] = service
        elif service is not self._unused:  # a reset loads its predictor again: not each time that a bench asks
            service.reset()
        self._unused = service
        scheduler.jobs.reset()
        self._episode = _Episode(service.counts)
        scheduler.use(Setup(policy, predictor, service, forced, refiner))
        if make_policy(policy).uses_predictions:
            service.warm()
        return {**self._state(), "ready": service.ready, "cached_blocks": scheduler.cached_blocks()}

    def _end(self) -> dict[str, Any]:
        episode, self._episode = self._episode, None
        if episode is None:
            return {"error": "no episode runs"}
        refiner = self._scheduler.refiner
        return {
            "probe": None if refiner is None else asdict(refiner.counts),
            "rows": episode.rows,
            "foreign": episode.foreign,
            "unfinished": len(self._open),
            "first_cached": episode.first_cached or 0,
            "schedule_cpu_s": episode.schedule_cpu_s,
            "steps": episode.steps,
            "predictions": {
                name: value - getattr(episode.before, name)
                for name, value in asdict(self._scheduler.predictions.counts).items()
            },
        }

    def _restore(self) -> None:
        self._episode = None
        if self._before is not None:
            self._scheduler.use(self._before)
            self._before = None

    def _state(self) -> dict[str, Any]:
        setup = self._scheduler.setup
        return {
            "policy": setup.policy,
            "predictor": setup.predictor,
            "facts": asdict(self._scheduler.facts()),
        }

    def _record(self, request: Request, episode: _Episode) -> None:
        row = (request.sampling_params.extra_args or {}).get("bench_row")
        prediction = request.lengthwise_job.prediction
        logt = isinstance(prediction, LogT) and self._scheduler.length_policy.uses_predictions
        episode.rows.append(
            {
                "row": row,
                "mu": prediction.mu if logt else None,
                "sigma": prediction.sigma if logt else None,
                "cached_tokens": episode.cached.pop(request.request_id, None),
                "preemptions": request.num_preemptions,
                "output_tokens": request.num_output_tokens,
            }
        )

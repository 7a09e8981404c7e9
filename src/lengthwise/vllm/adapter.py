"""vLLM's scheduler as the plug-in uses it: every private name of it is reached here, for each tested release.

`vllm.contract` states these names, and how releases differ. A release is recognised by what it has, not by its number.
A name that is missing turns a feature off with one line in the log: of an untested release when the engine starts, of
any release when it is reached. Without the feature `order`, vLLM's own scheduler serves.

Beside this module only `vllm.worker`, which runs in vLLM's workers, imports vLLM.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import Any, Final

import vllm
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from lengthwise.simulator.step_log import EngineFacts
from lengthwise.vllm.contract import TESTED_RELEASES, Feature, is_tested, problems

__all__ = [
    "AdaptedScheduler",
    "AsyncScheduler",
    "Request",
    "RequestQueue",
    "Scheduler",
    "tokenizer_of",
]

_log = logging.getLogger(__name__)

_CHANGED: Final = (AttributeError, TypeError, KeyError, ValueError, ImportError, AssertionError)
"""What another release's names raise when they are used as those of a tested one."""


class AdaptedScheduler(Scheduler):
    """vLLM's scheduler with two waiting queues of ours, and what the plug-in asks of it or does to it."""

    running: list[Request]
    waiting: RequestQueue
    kv_holding_waiting: RequestQueue
    """Requests that hold KV blocks, which vLLM drains first."""
    features_off: dict[Feature, str]
    """The features that this release lacks names for, and why."""

    def check_release(self) -> None:
        """Find the features that do not work with the installed vLLM; a tested release is taken to have all."""
        self.features_off = {}
        if is_tested(vllm.__version__):
            return
        minor = ".".join(vllm.__version__.split(".")[:3])
        _log.warning(
            "vLLM %s is not tested with lengthwise (tested: %s): run `make test-vllm RELEASE=%s` in a checkout of "
            "lengthwise, whose contract test (tests/vllm/test_contract.py) names what differs; `lengthwise doctor` "
            "checks the names only",
            vllm.__version__, ", ".join(TESTED_RELEASES), minor,
        )  # fmt: skip
        for feature, missing in problems(Path(str(vllm.__file__)).parent).items():
            self.turn_off(feature, "; ".join(missing))

    def has(self, feature: Feature) -> bool:
        """Whether a feature works with this release."""
        return feature not in self.features_off

    def turn_off(self, feature: Feature, why: object) -> None:
        """Do without a feature from now on, and log it once."""
        if feature not in self.features_off:
            self.features_off[feature] = str(why)
            _log.error("vLLM %s lacks what `%s` needs, which is off: %s", vllm.__version__, feature, why)

    @contextmanager
    def needing(self, feature: Feature) -> Iterator[None]:
        """Turn the feature off if a name of vLLM is not as expected in the block, which then ends."""
        try:
            yield
        except _CHANGED as error:
            self.turn_off(feature, repr(error))

    def install_queues(self, make: Callable[[], RequestQueue]) -> None:
        """Put queues of ours in place of vLLM's, which are empty."""
        self.waiting = make()
        self.kv_holding_waiting = make()
        if hasattr(self, "skipped_waiting"):  # 0.30
            self.skipped_waiting = SkippedQueue(self.waiting, self.kv_holding_waiting)

    @property
    def slots(self) -> int:
        """Requests that run at once."""
        active = getattr(self, "max_num_active_reqs", None)  # from 0.31 on
        return int(self.max_num_running_reqs if active is None else active)

    @property
    def by_priority(self) -> bool:
        """Whether vLLM runs with `--scheduling-policy priority`, under which it chooses victims itself."""
        return bool(self.policy.value == "priority")

    @property
    def served_model_name(self) -> str:
        """The name of the LLM."""
        return str(self.vllm_config.model_config.served_model_name)

    def facts(self) -> EngineFacts:
        """Return the engine's identity and limits."""
        limits = self.scheduler_config
        return EngineFacts(
            engine=f"vLLM {vllm.__version__}",
            model=self.served_model_name,
            # One block is the null block, which no request gets.
            kv_tokens=(self.kv_cache_config.num_blocks - 1) * self.block_size,
            block_size=self.block_size,
            max_model_len=self.max_model_len,
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            prefix_caching=bool(self.cache_config.enable_prefix_caching),
            chunked_prefill=limits.enable_chunked_prefill,
        )

    def cached_tokens(self, request: Request) -> int:
        """Return the prompt tokens that the prefix cache holds."""
        manager = self.kv_cache_manager
        with self.needing(Feature.PREFIX):
            if self.has(Feature.PREFIX) and manager.prefix_cache_lookup_enabled(request):
                return int(manager.coordinator.find_longest_cache_hit(request.block_hashes, request.num_tokens - 1)[1])
        return 0

    def cached_blocks(self) -> int:
        """Return the blocks in the prefix cache."""
        return len(self.kv_cache_manager.block_pool.cached_block_hash_to_block)

    def memory_may_run_out(self) -> bool:
        """Whether a step could need more blocks than are free: one per request, and those of the token budget."""
        with self.needing(Feature.VICTIMS):
            if self.has(Feature.VICTIMS) and len(self.running) > 1:
                most = len(self.running) + int(self.max_num_scheduled_tokens) // int(self.block_size)
                return self._blocks_left() < most
        return False

    def memory_runs_out(self) -> bool:
        """Whether the running requests may need more blocks in this step than are free; vLLM then preempts.

        A bound from above: vLLM may give a request fewer tokens. Waiting requests count for nothing, since vLLM admits
        them last and only where they fit.
        """
        runs_out = False
        if self.memory_may_run_out():
            with self.needing(Feature.VICTIMS):
                runs_out = self._blocks_needed() > self._blocks_left()
        return runs_out

    def _blocks_needed(self) -> float:
        """Return a bound on the blocks that the running requests need in this step; without one, infinity."""
        managers = self.kv_cache_manager.coordinator.single_type_managers
        full = type(managers[0]).__name__ == "FullAttentionManager"
        if len(managers) > 1 or not full or self.num_lookahead_tokens:
            return math.inf
        held, size = managers[0].req_to_blocks, int(managers[0].block_size)
        needed = 0
        for request in self.running:
            tokens = request.num_tokens_with_spec + request.num_output_placeholders
            needed += max(0, -(-tokens // size) - len(held.get(request.request_id, ())))
        return needed

    def may_skip_head(self) -> bool:
        """Whether vLLM may admit no request, or not the head of the queue, for a reason of its own."""
        return self.connector is not None or self.ec_connector is not None or self.pause_state.name != "UNPAUSED"

    def is_skipped(self, head: Request) -> bool:
        """Whether vLLM would skip the head of the queue: it is not ready, or its LoRA adapter has no slot."""
        if self._is_blocked_waiting_status(head.status) or head.num_stale_output_tokens > 0:
            return True
        if self.lora_config is None or head.lora_request is None:
            return False
        loaded = {request.lora_request.lora_int_id for request in self.running if request.lora_request is not None}
        return len(loaded) >= self.lora_config.max_loras and head.lora_request.lora_int_id not in loaded

    def can_admit(self, head: Request) -> bool:
        """Whether there is a slot for the head and memory for all its tokens, as vLLM computes it."""
        if len(self.running) + self.num_waiting_for_streaming_input >= self.slots:
            return False
        manager = self.kv_cache_manager
        tokens = min(head.num_tokens, self.max_model_len)
        if not self.scheduler_reserve_full_isl:
            tokens = min(tokens, self.max_num_scheduled_tokens)
        blocks, cached, _ = manager.get_computed_blocks(head)
        count = manager.coordinator.get_num_blocks_to_allocate
        end = {"prefill_end": max(head.num_prompt_tokens, head.num_tokens - 1)} if self._takes_prefill_end else {}
        needed = count(
            request_id=head.request_id,
            num_tokens=tokens,
            new_computed_blocks=blocks.blocks,
            num_encoder_tokens=0,
            total_computed_tokens=cached,
            num_local_computed_tokens=cached,
            num_tokens_main_model=tokens,
            apply_admission_cap=True,
            **end,
        )
        return bool(needed + manager.watermark_blocks <= self._blocks_left())

    def preempt(self, request: Request) -> None:
        """Preempt a running request between two steps; it returns to `waiting`."""
        self.running.remove(request)
        self._preempt_request(request, time.monotonic(), drop_stale_output=self.requires_kv_delivery)
        # If it is admitted again in this step, vLLM must send all its tokens again.
        self.prev_step_scheduled_req_ids.discard(request.request_id)

    def serve_as_stock(self, stock: type[Scheduler]) -> None:
        """Become vLLM's own scheduler, which serves without the plug-in."""
        self.__class__ = stock

    @cached_property
    def _takes_prefill_end(self) -> bool:
        """Whether the count of needed blocks depends on where the prompt ends: from 0.31 on."""
        return "prefill_end" in signature(self.kv_cache_manager.coordinator.get_num_blocks_to_allocate).parameters

    def _blocks_left(self) -> int:
        return int(self.kv_cache_manager.block_pool.get_num_free_blocks())


class SkippedQueue(RequestQueue):
    """0.30's queue of requests that were skipped in a step, which vLLM drains before `waiting`: as from 0.31 on.

    Only requests that hold KV blocks are drained first; the others return to `waiting`, in the policy's order.
    """

    def __init__(self, waiting: RequestQueue, holding: RequestQueue) -> None:
        self._waiting, self._holding = waiting, holding

    def _queue_of(self, request: Request) -> RequestQueue:
        loading = request.status.name == "WAITING_FOR_REMOTE_KVS"
        return self._holding if request.num_computed_tokens > 0 or loading else self._waiting

    def add_request(self, request: Request) -> None:
        """Add a request that is not ready."""
        self._queue_of(request).add_request(request)

    def prepend_request(self, request: Request) -> None:
        """Return a request that was skipped."""
        self._queue_of(request).prepend_request(request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        """Return several requests, the last of them first."""
        for request in requests:
            self.prepend_request(request)

    def pop_request(self) -> Request:
        """Take the next request that holds KV blocks."""
        return self._holding.pop_request()

    def peek_request(self) -> Request:
        """Return the next request that holds KV blocks."""
        return self._holding.peek_request()

    def remove_request(self, request: Request) -> None:
        """Remove a request."""
        self.remove_requests([request])

    def remove_requests(self, requests: Iterable[Request]) -> None:
        """Remove those of the requests that wait, in either queue."""
        requests = list(requests)
        for queue in (self._waiting, self._holding):
            queue.remove_requests(requests)

    def __bool__(self) -> bool:
        return bool(self._holding)

    def __len__(self) -> int:
        return len(self._holding)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._holding)


def tokenizer_of(vllm_config: Any) -> Any:
    """Return the engine's tokenizer; None with --skip-tokenizer-init."""
    from vllm.tokenizers import cached_tokenizer_from_config

    return cached_tokenizer_from_config(vllm_config.model_config)

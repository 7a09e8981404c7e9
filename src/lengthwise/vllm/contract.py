"""What the plug-in relies on in vLLM, name by name, and a check of a release's sources against it. Imports no vLLM.

vLLM's scheduler is not a public interface. `CONTRACT` states every private name that `vllm.adapter` and `vllm.worker`
reach, and the feature that needs it; `problems` reads the sources of a release (any release, installed or only
unpacked) and returns what is missing. `lengthwise doctor` prints it. A release that nobody has tested is checked when
the engine starts, and a feature whose names are missing is turned off.

The differences between the tested releases:

| vLLM | |
|---|---|
| 0.30 | waiting requests that were skipped are in `skipped_waiting`; from 0.31 on they return to their queue, and requests that hold KV blocks have a queue of their own, `kv_holding_waiting` |
| 0.30 | all `max_num_running_reqs` requests may be active; from 0.31 on `max_num_active_reqs` limits them |
| 0.30 | `get_num_blocks_to_allocate` has no `prefill_end` |
| 0.31 | a paused engine admits none; from 0.32 on those that hold KV blocks |
| 0.33 | `get_computed_blocks` takes a bound, which is not used; `_update_request_with_output` is the scheduler's own |
"""  # noqa: E501  (a table)

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Final

TESTED_RELEASES: Final = ("0.30", "0.31", "0.32", "0.33")
"""Minor releases of vLLM that the plug-in is tested with: the last four."""


def is_tested(version: str) -> bool:
    """Whether a version of vLLM belongs to a tested release."""
    return ".".join(version.split(".")[:2]) in TESTED_RELEASES


class Feature(StrEnum):
    """A part of the plug-in that works without the others; without `order` vLLM's own scheduler serves."""

    ORDER = "order"
    """Waiting requests run in the policy's order."""
    PREDICTOR = "predictor"
    """Prompts are read by the engine's predictor; without it, predictions come from requests and from history."""
    PREFIX = "prefix"
    """Policies see the prompt tokens that the prefix cache holds."""
    VICTIMS = "victims"
    """The policy chooses which request is preempted when memory runs out."""
    PREEMPTION = "preemption"
    """A running request is preempted for a better waiting one, under policies that do so."""
    PROBE = "probe"
    """Hidden states refine predictions."""
    STEPS = "steps"
    """The log of the engine's steps."""
    BENCH = "bench"
    """`lengthwise bench` switches policies on the running engine."""


@dataclass(frozen=True, slots=True)
class Name:
    """A name of vLLM that is relied on: a function, a class's method or attribute, or an enum's member."""

    feature: Feature
    file: str
    """Under vllm/, without `.py`."""
    names: str
    """`function` or `Class.member`; `a | b` where releases differ and one is enough."""
    parameters: tuple[str, ...] | None = None
    """The arguments that it is called with; one that ends in `?` is given only where it is taken."""
    text: str = ""
    """A line of its body."""


_SCHEDULER, _QUEUE = "v1/core/sched/scheduler", "v1/core/sched/request_queue"
_ASYNC = "v1/core/sched/async_scheduler"
_MANAGER, _POOL, _REQUEST = "v1/core/kv_cache_manager", "v1/core/block_pool", "v1/request"
_COORDINATOR, _OUTPUT = "v1/core/kv_cache_coordinator", "v1/core/sched/output"
_RUNNERS = ("v1/worker/gpu_model_runner", "v1/worker/gpu/model_runner")

QUEUE_METHODS: Final = frozenset(
    {
        "add_request", "pop_request", "peek_request", "prepend_request", "prepend_requests", "remove_request",
        "remove_requests", "__bool__", "__len__", "__iter__",
    }
)  # fmt: skip
"""The abstract methods of vLLM's RequestQueue, which ours implements."""


_OVERRIDDEN: Final = frozenset(
    {
        "__init__", "_free_request", "add_request", "kv_holding_waiting", "running", "schedule", "shutdown",
        "skipped_waiting", "update_from_output", "waiting",
    }
)  # fmt: skip
"""What the plug-in overrides or replaces in vLLM's schedulers; no other name of ours may be one of theirs."""


def _members(feature: Feature, file: str, of: str, names: str) -> Iterator[Name]:
    return (Name(feature, file, f"{of}.{name}") for name in names.split())


CONTRACT: Final = (
    # The queues are used through RequestQueue only; requests that hold KV blocks are drained first.
    *_members(Feature.ORDER, _QUEUE, "RequestQueue", " ".join(sorted(QUEUE_METHODS))),
    *_members(Feature.ORDER, _QUEUE, "SchedulingPolicy", "FCFS PRIORITY"),
    *_members(
        Feature.ORDER, _SCHEDULER, "Scheduler",
        "waiting running requests policy max_model_len max_num_running_reqs vllm_config scheduler_config "
        "kv_cache_config cache_config block_size kv_cache_manager has_unfinished_requests shutdown",
    ),
    Name(Feature.ORDER, _SCHEDULER, "Scheduler.kv_holding_waiting | Scheduler.skipped_waiting"),
    Name(Feature.ORDER, _SCHEDULER, "Scheduler.max_num_active_reqs | Scheduler.max_num_running_reqs"),
    Name(Feature.ORDER, _SCHEDULER, "Scheduler.add_request", ("request",)),
    Name(Feature.ORDER, _SCHEDULER, "Scheduler.schedule", ("throttle_prefills",)),
    Name(Feature.ORDER, _SCHEDULER, "Scheduler.update_from_output", ("scheduler_output", "model_runner_output")),
    # Every finished request passes it once, with its final status: stopped in a step, or aborted between steps.
    Name(Feature.ORDER, _SCHEDULER, "Scheduler._free_request", ("request",)),
    Name(Feature.ORDER, _SCHEDULER, "Scheduler.update_from_output", None, "self._free_request(request)"),
    Name(Feature.ORDER, _SCHEDULER, "Scheduler.finish_requests", None, "self._free_request(request"),
    Name(Feature.ORDER, _SCHEDULER, "Scheduler._preempt_request", None, "self.waiting.prepend_request(request)"),
    *_members(
        Feature.ORDER, _REQUEST, "Request",
        "request_id arrival_time priority max_tokens num_prompt_tokens num_output_tokens num_tokens num_preemptions "
        "num_computed_tokens prompt_token_ids sampling_params status resumable num_output_placeholders",
    ),
    *_members(
        Feature.ORDER, _REQUEST, "RequestStatus",
        "FINISHED_STOPPED FINISHED_LENGTH_CAPPED FINISHED_ABORTED FINISHED_REPETITION",
    ),
    *_members(Feature.ORDER, "sampling_params", "SamplingParams", "extra_args stop"),
    # Block hashes are those of prefix memory; the tokenizer is read once.
    Name(Feature.PREDICTOR, "tokenizers/registry", "cached_tokenizer_from_config", ("model_config",)),
    Name(Feature.PREDICTOR, _REQUEST, "Request.block_hashes"),
    Name(Feature.PREFIX, _MANAGER, "KVCacheManager.prefix_cache_lookup_enabled", ("request",)),
    Name(
        Feature.PREFIX, _COORDINATOR, "KVCacheCoordinator.find_longest_cache_hit",
        ("block_hashes", "max_cache_hit_length"),
    ),
    # Under fcfs vLLM preempts the last of `running`, a list in order of admission.
    Name(Feature.VICTIMS, _SCHEDULER, "Scheduler.schedule", None, "preempted_req = self.running.pop()"),
    *_members(Feature.VICTIMS, _SCHEDULER, "Scheduler", "max_num_scheduled_tokens num_lookahead_tokens"),
    *_members(Feature.VICTIMS, _REQUEST, "Request", "num_tokens_with_spec"),
    *_members(Feature.VICTIMS, _MANAGER, "KVCacheManager", "block_pool coordinator"),
    Name(Feature.VICTIMS, _POOL, "BlockPool.get_num_free_blocks", ()),
    Name(Feature.VICTIMS, _COORDINATOR, "KVCacheCoordinator.single_type_managers"),
    *_members(
        Feature.VICTIMS, "v1/core/single_type_kv_cache_manager", "FullAttentionManager", "req_to_blocks block_size"
    ),
    # Between two steps: frees the blocks and returns the request to `waiting`. Only a preemption inside a step stops
    # its admission; an earlier one is reported to the workers all the same. Output in flight is delivered first.
    Name(Feature.PREEMPTION, _SCHEDULER, "Scheduler._preempt_request", ("request", "timestamp", "drop_stale_output")),
    Name(Feature.PREEMPTION, _SCHEDULER, "Scheduler.schedule", None, "preempted_reqs: list[Request] = []"),
    Name(Feature.PREEMPTION, _SCHEDULER, "Scheduler.schedule", None, "if not preempted_reqs and self._pause_state"),
    Name(Feature.PREEMPTION, _SCHEDULER, "Scheduler.schedule", None, "preempted_req_ids=self.reset_preempted_req_ids"),
    *_members(
        Feature.PREEMPTION, _SCHEDULER, "Scheduler",
        "connector ec_connector pause_state lora_config requires_kv_delivery prev_step_scheduled_req_ids "
        "num_waiting_for_streaming_input scheduler_reserve_full_isl",
    ),
    *_members(Feature.PREEMPTION, _REQUEST, "Request", "num_stale_output_tokens drop_stale_output lora_request"),
    Name(Feature.PREEMPTION, _SCHEDULER, "Scheduler._is_blocked_waiting_status", ("status",)),
    Name(Feature.PREEMPTION, _MANAGER, "KVCacheManager.get_computed_blocks", ("request",)),
    Name(Feature.PREEMPTION, _MANAGER, "KVCacheManager.watermark_blocks"),
    Name(
        Feature.PREEMPTION, _COORDINATOR, "KVCacheCoordinator.get_num_blocks_to_allocate",
        (
            "request_id", "num_tokens", "new_computed_blocks", "num_encoder_tokens", "total_computed_tokens",
            "num_local_computed_tokens", "num_tokens_main_model", "apply_admission_cap", "prefill_end?",
        ),
    ),
    # A step is execute_model, which leaves its states in `execute_model_state`, and then sample_tokens.
    *(Name(Feature.PROBE, file, "ExecuteModelState.aux_hidden_states") for file in _RUNNERS),
    *(Name(Feature.PROBE, file, "ExecuteModelState.hidden_states") for file in _RUNNERS),
    Name(Feature.PROBE, _RUNNERS[0], "ExecuteModelState.logits"),
    Name(Feature.PROBE, _RUNNERS[1], "ExecuteModelState.input_batch"),
    *(Name(Feature.PROBE, file, "GPUModelRunner.use_aux_hidden_state_outputs") for file in _RUNNERS),
    *(Name(Feature.PROBE, file, "GPUModelRunner.execute_model_state") for file in _RUNNERS),
    Name(Feature.PROBE, "utils/torch_utils", "async_tensor_h2d", ("data", "device")),
    Name(Feature.PROBE, "v1/outputs", "AsyncModelRunnerOutput.get_output", ()),
    *_members(Feature.PROBE, "v1/worker/cpu_worker", "CPUWorker", "execute_model sample_tokens load_model"),
    *_members(Feature.PROBE, "v1/worker/gpu_worker", "Worker", "execute_model sample_tokens load_model"),
    Name(Feature.PROBE, "model_executor/models/interfaces", "SupportsEagle3.set_aux_hidden_state_layers", ("layers",)),
    *_members(
        Feature.STEPS, _OUTPUT, "SchedulerOutput", "scheduled_new_reqs scheduled_cached_reqs num_scheduled_tokens"
    ),
    *_members(Feature.STEPS, _OUTPUT, "NewRequestData", "req_id num_computed_tokens"),
    *_members(Feature.STEPS, _OUTPUT, "CachedRequestData", "req_ids num_computed_tokens"),
    Name(Feature.BENCH, _SCHEDULER, "Scheduler.reset_prefix_cache", ()),
    Name(Feature.BENCH, _SCHEDULER, "Scheduler._free_request", None, "kv_xfer_params"),
    Name(Feature.BENCH, _POOL, "BlockPool.cached_block_hash_to_block"),
    *_members(Feature.BENCH, _OUTPUT, "SchedulerOutput", "scheduled_new_reqs"),
)  # fmt: skip


def problems(root: Path) -> dict[Feature, list[str]]:
    """Return what the sources of vLLM in the folder `root` (its package) lack, by feature; {} for nothing."""
    found: dict[Feature, list[str]] = {}
    for name in CONTRACT:
        if (problem := _problem(root, name)) is not None:
            found.setdefault(name.feature, []).append(problem)
    clashes = sorted(_clashes(root) - _OVERRIDDEN)
    if clashes:
        found.setdefault(Feature.ORDER, []).append(f"the scheduler has names of ours: {', '.join(clashes)}")
    added = set(_abstract(root)) - QUEUE_METHODS
    if added:
        found.setdefault(Feature.ORDER, []).append(f"RequestQueue has further methods: {', '.join(sorted(added))}")
    return found


def _problem(root: Path, name: Name) -> str | None:
    said = "no " + name.names.replace(" | ", " or ")
    for each in name.names.split(" | "):
        definition = _find(root, name.file, each)
        if definition is None:
            continue
        if name.text and name.text not in _flat(definition):
            said = f"{each} does not state `{name.text}`"
            continue
        if name.parameters is not None:
            if not isinstance(definition, ast.FunctionDef):
                said = f"{each} is no function"
                continue
            if (wrong := _unlike(definition, name.parameters)) is not None:
                said = f"{each} {wrong}"
                continue
        return None
    return f"{said} (vllm/{name.file}.py)"


def _unlike(function: ast.FunctionDef, given: tuple[str, ...]) -> str | None:
    """Return how a function's parameters do not fit the arguments that it is called with."""
    taken = function.args
    positional = [*taken.posonlyargs, *taken.args]
    names = [each.arg for each in (*positional, *taken.kwonlyargs) if each.arg not in ("self", "cls")]
    required = {each.arg for each in positional[: len(positional) - len(taken.defaults)]} - {"self", "cls"}
    required |= {each.arg for each, value in zip(taken.kwonlyargs, taken.kw_defaults, strict=True) if value is None}
    unknown = [one for one in given if not one.endswith("?") and one not in names]
    if unknown and taken.kwarg is None:
        return f"takes no {', '.join(unknown)}"
    missing = required - {one.rstrip("?") for one in given}
    return f"needs {', '.join(sorted(missing))}" if missing else None


@cache
def _module(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return ast.Module([], [])


@cache
def _flat(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())


def _file(root: Path, module: str) -> Path:
    path = root / f"{module}.py"
    return path if path.exists() else root / module / "__init__.py"


def _find(root: Path, file: str, name: str) -> ast.AST | None:
    """Return where a function, a class's method or attribute, or an enum's member is defined; bases are searched."""
    owner, _, member = name.rpartition(".")
    if not owner:
        return next((node for node in _module(_file(root, file)).body if member in _defined(node)), None)
    return next((index[member] for cls in _classes(root, file, owner) if member in (index := _index(cls))), None)


@cache
def _index(cls: ast.ClassDef) -> dict[str, ast.AST]:
    """Return the members of a class by name: what its body defines, then what its methods set on `self`."""
    members: dict[str, ast.AST] = {name: node for node in cls.body for name in _defined(node)}
    for node in ast.walk(cls):
        for each in _targets(node):
            if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name) and each.value.id == "self":
                members.setdefault(each.attr, node)
    return members


def _classes(root: Path, file: str, name: str) -> Iterator[ast.ClassDef]:
    """Yield a class and its bases, those of other modules of vLLM included."""
    tree = _module(_file(root, file))
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            yield node
            for base in node.bases:
                base = base.value if isinstance(base, ast.Subscript) else base
                if isinstance(base, ast.Name):
                    yield from _classes(root, file, base.id)
            return
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vllm."):
            for alias in node.names:
                if (alias.asname or alias.name) == name and _file(root, _path(node)) != _file(root, file):
                    yield from _classes(root, _path(node), alias.name)
                    return


def _path(node: ast.ImportFrom) -> str:
    return str(node.module).removeprefix("vllm.").replace(".", "/")


def _defined(node: ast.AST) -> list[str]:
    """Return the names that a statement of a module or a class defines."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    return [each.id for each in _targets(node) if isinstance(each, ast.Name)]


def _targets(node: ast.AST) -> list[ast.expr]:
    """Return what an assignment assigns to."""
    targets = [*node.targets] if isinstance(node, ast.Assign) else []
    targets += [node.target] if isinstance(node, ast.AnnAssign) else []
    return [part for each in targets for part in (each.elts if isinstance(each, ast.Tuple) else [each])]


def _clashes(root: Path) -> set[str]:
    """Return the names that both our schedulers and vLLM's have."""
    here = Path(__file__).parent
    ours = [*_classes(here, "adapter", "AdaptedScheduler"), *_classes(here, "scheduler", "LengthwiseSyncScheduler")]
    theirs = [*_classes(root, _SCHEDULER, "Scheduler"), *_classes(root, _ASYNC, "AsyncScheduler")]
    return {name for cls in ours for name in _index(cls)} & {name for cls in theirs for name in _index(cls)}


def _abstract(root: Path) -> Iterator[str]:
    """Yield the abstract methods of vLLM's RequestQueue."""
    for cls in _classes(root, _QUEUE, "RequestQueue"):
        for node in cls.body:
            if isinstance(node, ast.FunctionDef) and any("abstract" in ast.unparse(one) for one in node.decorator_list):
                yield node.name

"""The private interfaces of vLLM that the plug-in uses: a release that changes one fails here, by name."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import ModuleType

import pytest

from tests.vllm.need import need_vllm

need_vllm()
pytestmark = pytest.mark.engine

import torch
import vllm
from vllm.model_executor.models.interfaces import EagleModelMixin
from vllm.model_executor.models.llama import LlamaForCausalLM
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.core.sched import request_queue, scheduler
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
from vllm.v1.request import RequestStatus
from vllm.v1.worker import gpu_model_runner
from vllm.v1.worker.cpu_worker import CPUWorker
from vllm.v1.worker.gpu import model_runner as second_model_runner
from vllm.v1.worker.gpu_worker import Worker

from lengthwise.vllm.adapter import SkippedQueue
from lengthwise.vllm.contract import CONTRACT, QUEUE_METHODS, is_tested, problems
from lengthwise.vllm.queue import PolicyRequestQueue
from lengthwise.vllm.scheduler import LengthwiseScheduler
from tests.vllm.scheduling import make_request, make_scheduler, tiny_model


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Scheduler:
    return make_scheduler(AsyncScheduler, tiny_model(tmp_path_factory.mktemp("model")))


def test_the_installed_release_is_a_tested_one() -> None:
    assert is_tested(vllm.__version__)


def test_our_queue_implements_every_abstract_method_of_vllms() -> None:
    assert RequestQueue.__abstractmethods__ == QUEUE_METHODS
    assert not PolicyRequestQueue.__abstractmethods__ | SkippedQueue.__abstractmethods__


def test_the_scheduler_has_the_two_queues_that_are_replaced(stock: Scheduler) -> None:
    queues = {name for name, value in vars(stock).items() if isinstance(value, RequestQueue)}
    assert queues == {"waiting", "skipped_waiting" if hasattr(stock, "skipped_waiting") else "kv_holding_waiting"}


def members_of(owner: str) -> list[str]:
    """The members of a class that the contract states, where releases differ the last one's."""
    found = [name.names.split(" | ") for name in CONTRACT]
    return sorted({each[0].removeprefix(f"{owner}.") for each in found if each[-1].startswith(f"{owner}.")})


def test_the_sources_of_the_installed_release_fulfil_the_contract() -> None:
    assert problems(Path(str(vllm.__file__)).parent) == {}


@pytest.mark.parametrize("name", members_of("Scheduler"))
def test_the_scheduler_has_what_the_contract_states(stock: Scheduler, name: str) -> None:
    older = {"kv_holding_waiting": "skipped_waiting", "max_num_active_reqs": "max_num_running_reqs"}
    assert hasattr(stock, name) or hasattr(stock, older.get(name, name))


@pytest.mark.parametrize("name", members_of("Request"))
def test_a_request_has_what_the_contract_states(name: str) -> None:
    assert hasattr(make_request("a", 8, 16), name)


def test_the_name_and_the_tokenizer_of_the_llm_are_available(stock: Scheduler) -> None:
    model = stock.vllm_config.model_config
    assert model.served_model_name == "SmolLM2-135M-Instruct"
    assert cached_tokenizer_from_config(model) is None, "skip_tokenizer_init is set"


def test_every_finished_request_is_freed_by_one_method() -> None:
    source = Path(inspect.getsourcefile(scheduler) or "").read_text()
    assert source.count("self._free_request(") == 2  # stopped in a step, or aborted between steps
    assert {"FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED", "FINISHED_ABORTED", "FINISHED_REPETITION"} <= set(
        RequestStatus.__members__
    )


def test_free_blocks_and_those_of_a_request_can_be_counted(stock: Scheduler) -> None:
    assert stock.kv_cache_manager.block_pool.get_num_free_blocks() > 0
    (manager,) = stock.kv_cache_manager.coordinator.single_type_managers
    assert type(manager) is FullAttentionManager
    assert manager.block_size == stock.block_size
    assert not manager.req_to_blocks


def test_schedule_has_the_parameters_of_ours() -> None:
    theirs, ours = (inspect.signature(cls.schedule).parameters for cls in (Scheduler, LengthwiseScheduler))
    named = [(p.name, p.default) for p in ours.values() if p.kind is not p.VAR_KEYWORD]
    assert [(p.name, p.default) for p in theirs.values()] == named


def test_the_blocks_that_a_waiting_request_needs_can_be_counted(stock: Scheduler) -> None:
    assert stock.kv_cache_manager.watermark_blocks >= 0
    assert len(stock.kv_cache_manager.get_computed_blocks(make_request("a", 8, 16))) == 3
    assert not stock._is_blocked_waiting_status(RequestStatus.PREEMPTED)


def test_a_job_can_be_kept_on_a_request() -> None:
    request = make_request("a", 8, 16)
    request.lengthwise_job = "kept"
    assert request.lengthwise_job == "kept"


def test_vllm_has_two_scheduling_policies() -> None:
    assert {policy.value for policy in request_queue.SchedulingPolicy} == {"fcfs", "priority"}


@pytest.mark.parametrize(
    ("where", "line"),
    [
        (gpu_model_runner, "self.input_batch ="),
        (gpu_model_runner, "self.execute_model_state = ExecuteModelState("),
        (gpu_model_runner, "hidden_states, aux_hidden_states = model_output"),
        (second_model_runner, "self.execute_model_state = ExecuteModelState("),
        (second_model_runner, "hidden_states, aux_hidden_states = model_output"),
    ],
)
def test_both_model_runners_keep_hidden_states_between_the_two_calls_of_a_step(where: ModuleType, line: str) -> None:
    source = inspect.getsource(where)
    assert line in source
    assert "if self.use_aux_hidden_state_outputs:" in source


@pytest.mark.parametrize(("where", "own"), [(gpu_model_runner, "logits"), (second_model_runner, "input_batch")])
def test_the_state_of_a_step_has_its_hidden_states(where: ModuleType, own: str) -> None:
    assert {"aux_hidden_states", "hidden_states", own} <= set(where.ExecuteModelState._fields)


@pytest.mark.parametrize("worker", [CPUWorker, Worker])
def test_a_worker_has_the_methods_that_are_overridden(worker: type) -> None:
    assert {"execute_model", "sample_tokens", "load_model"} <= set(dir(worker))


def test_the_hidden_states_of_a_layer_are_returned_in_order_and_after_it() -> None:
    model = EagleModelMixin()
    model._set_aux_hidden_state_layers((2, 1))
    hidden, residual = torch.ones(3, 2), torch.ones(3, 2)
    found: list[torch.Tensor] = []
    for layer in range(4):
        model._maybe_add_hidden_state(found, layer, layer * hidden, residual)
    assert [float(each[0, 0]) for each in found] == [2.0, 3.0]
    assert "set_aux_hidden_state_layers" in dir(LlamaForCausalLM)


def test_the_configuration_has_the_fields_that_a_probe_is_checked_against(stock: Scheduler) -> None:
    config = stock.vllm_config
    assert config.model_config.get_hidden_size() == 16
    assert config.model_config.get_total_num_hidden_layers() == 1
    assert config.parallel_config.worker_cls.startswith("vllm.")
    assert config.parallel_config.pipeline_parallel_size == 1
    assert config.speculative_config is None

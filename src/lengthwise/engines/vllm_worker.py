"""The old path of `lengthwise.vllm.worker.StatesWorker`, for one release."""

from lengthwise.vllm.worker import StatesWorker as StatesWorker

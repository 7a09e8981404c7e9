"""The old path of `lengthwise.vllm.LengthwiseScheduler`, for one release."""

from lengthwise.vllm.scheduler import LengthwiseScheduler as LengthwiseScheduler

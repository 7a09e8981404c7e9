"""Old paths of the vLLM plug-in, for one release; `lengthwise.vllm` is the new one."""

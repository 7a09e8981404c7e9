"""Real engines: the vLLM plug-in, the embedded engine, HTTP clients, load generation and step-time fits."""

"""TRAIL's limited preemption on a simulated engine, ours beside the paper's."""

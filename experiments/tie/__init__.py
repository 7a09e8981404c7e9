"""TIE's experiments, ours beside the paper's: online, the ablation, offline, the heatmap, and why they differ."""

"""Table 1 of length-aware Preble: MiniLM, 20 classes of length, Alpaca-52k."""

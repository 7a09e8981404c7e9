"""CASTILLO and the paper that predicts its lengths: the data's profile, the paper's tables and figures, loss curves."""

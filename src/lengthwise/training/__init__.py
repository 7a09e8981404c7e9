"""Training of predictors; needs torch. What serves them is in `lengthwise.predictors`.

data.py            length samples by prompt and LLM, parts of a training, unlabelled prompts: for every predictor
encoder/           `lengthwise train`: config, pack (token ids and lengths), network, losses, trainer,
                   ensemble (scores, targets of a student), run (seeds, then a student), package (ONNX and card)
fast/              scripts/train_fast.py: word tables, train (one recipe, its calibration, outputs of a teacher)
pairs.py           length samples of several sources as pairs of a prompt and an LLM, scores by group
probe/             `lengthwise probe`: hidden_states collects, states reads, learn trains, errors_by_age scores
small_network.py   the training loop of the fast network and of the probe
"""

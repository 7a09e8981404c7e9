"""What predictors learn from and simulators replay: requests with lengths, and where they come from."""

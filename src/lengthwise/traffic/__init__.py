"""Finished requests: their one record, the log and its reader, and the scores of their predictions."""

"""The simulator beside queueing theory."""

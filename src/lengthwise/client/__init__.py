"""Clients of engines over HTTP: HTTP/1, event streams, what an engine reports, load, answers, simulated engines."""

"""The measurement on a real engine: which cells, the traffic of each, what came of it, and the page that says so."""

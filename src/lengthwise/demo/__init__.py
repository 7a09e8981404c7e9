"""`lengthwise demo`: two simulated fleets in real time behind two gateways, the same traffic to both, one page."""

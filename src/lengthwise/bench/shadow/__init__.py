"""What a log of watched traffic says would have been gained: the traffic, an engine fitted to it, replays, accuracy."""

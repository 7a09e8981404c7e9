"""Real engines: what it takes to run one and to talk to one."""

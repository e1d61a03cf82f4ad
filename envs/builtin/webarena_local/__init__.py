"""WebArena's tasks and evaluators on real web applications of our own seeding, on this machine's loopback."""

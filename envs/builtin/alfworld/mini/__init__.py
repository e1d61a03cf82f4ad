"""`alfworld-mini`: games in ALFWorld's format that are made here, from what the `alfworld` package ships.

Rooms are its floor plans (which types of objects a room has, where its receptacles stand), rules, goals and
sentences are its own; who fills the drawers is `rooms.py`. Each game was solved by ALFWorld's planner, and
its plan is stored in `plans.jsonl` (`planner.py` writes that file, `make.py` the games).
"""

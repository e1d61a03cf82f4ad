"""`alfworld-mini`: games in ALFWorld's format, generated from the files of the `alfworld` package.

Floor plans (the types of objects in a room, the places of its receptacles), rules, goals and sentences are
the package's; `rooms.py` places the objects. ALFWorld's planner has solved each game, and `plans.jsonl`
stores its plans (`plans.py` writes that file, `make.py` the games).
"""

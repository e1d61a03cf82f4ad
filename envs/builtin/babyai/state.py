"""What a level's future depends on, as plain values; moves so far, which count for the reward, left out."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minigrid.core.world_object import WorldObj
    from minigrid.minigrid_env import MiniGridEnv

State = tuple[Any, ...]


def read_state(level: "MiniGridEnv") -> State:
    """The agent, all objects but the walls, which never change, and the progress of the mission."""
    objects = [
        (place, _describe(entity))
        for place, entity in enumerate(level.grid.grid)
        if entity is not None and entity.type != "wall"
    ]
    pose = (*map(int, level.agent_pos), int(level.agent_dir))
    mission: Any = level.unwrapped.instrs  # `RoomGridLevel.instrs`
    return pose, _describe(level.carrying), objects, _progress(mission)


def _describe(entity: "WorldObj | None") -> State:
    if entity is None:
        return ()
    # A mission may mean one of two objects that look the same, "the ball on your left" at the start:
    # where it was then tells them apart.
    start = () if entity.init_pos is None else tuple(map(int, entity.init_pos))
    door = (entity.is_open, entity.is_locked) if entity.type == "door" else ()
    return entity.type, entity.color, start, door, _describe(entity.contains)


def _progress(mission: Any) -> State:
    """Which parts of a mission are done, what each has seen in the agent's hands, and where it believes its
    objects to be: minigrid updates that only when something is dropped."""
    if hasattr(mission, "instr_a"):
        done = (mission.a_done == "success", mission.b_done == "success")
        return done, _progress(mission.instr_a), _progress(mission.instr_b)
    targets = [
        getattr(mission, name) for name in ("desc", "desc_move", "desc_fixed") if hasattr(mission, name)
    ]
    places = [sorted(tuple(map(int, place)) for place in target.obj_poss) for target in targets]
    return _describe(getattr(mission, "preCarrying", None)), places

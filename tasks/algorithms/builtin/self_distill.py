"""On-policy self-distillation with a hint."""

from typing import Literal

from tasks.algorithms.distillation import Distillation, TeacherEndpoint

Hint = Literal["expert", "sibling"]
"""`expert`: the actions by which the environment's expert solves the item; `sibling`: those of the shortest
successful other episode of the group."""


class SelfDistill(Distillation):
    """`Distillation` from the policy that training starts from, frozen, whose prompts contain a hint.

    Zhao et al. 2026 (OPSD, arXiv 2601.18734) for the expert's solution and the frozen teacher; Hübotter et
    al. 2026 (SDPO, arXiv 2601.20802) for the sibling's, with a teacher that follows the policy. prime-rl:
    `opsd`, whose teacher is the policy as it is.
    """

    name: str = "self_distill"
    hint: Hint = "expert"
    teacher: TeacherEndpoint | None = None
    """An endpoint that serves the policy that training starts from; None computes it in this process."""

    @property
    def teacher_source(self) -> TeacherEndpoint | None:
        return self.teacher

"""On-policy distillation from a teacher."""

from pathlib import Path

from tasks.algorithms.distillation import Distillation, TeacherEndpoint, TeacherSource


class Distill(Distillation):
    """`Distillation` from another model, which sees what the policy has seen."""

    name: str = "distill"
    teacher: TeacherSource

    @property
    def teacher_source(self) -> Path | TeacherEndpoint:
        return self.teacher

"""The environment variables with secrets that a pipeline names."""

from tasks.algorithms.distillation import Distillation, TeacherEndpoint
from tasks.config.offline import OfflineSettings
from tasks.config.pipelines import Pipeline


def trainer_variables(pipeline: Pipeline) -> dict[str, str]:
    """The variables that the training process reads, with the setting that names each; empty without such a
    process."""
    if isinstance(pipeline.train, OfflineSettings):
        return {}
    settings = {
        f"agent.judges.{name}.key_from": judge.key_from for name, judge in pipeline.agent.judges.items()
    }
    for env in pipeline.data.envs:
        if env in pipeline.servers:
            settings[f"servers.{env}.token_from"] = pipeline.servers[env].token_from
    algorithm = pipeline.train.algorithm
    if isinstance(algorithm, Distillation) and isinstance(algorithm.teacher_source, TeacherEndpoint):
        settings["train.algorithm.teacher.key_from"] = algorithm.teacher_source.key_from
    return {variable: setting for setting, variable in settings.items() if variable is not None}

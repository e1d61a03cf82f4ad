"""Registers the CPU with verl if `VERL_PLATFORM=cpu`: platform, engine, rollout backend and patches.

verl imports this module (`VERL_USE_EXTERNAL_MODULES`) at the end of `import verl`. All of it depends on verl
0.9.1, and `tests/tasks/test_verl_contract.py` checks it against that version.
"""

import os

from agents.process_memory import no_garbage_collection
from envs.errors import ConfigError

VERL_VERSION = "0.9.1"


def activate() -> None:
    """Make verl run on the CPU in this process.

    Raises `ConfigError` for another version of verl: the patches depend on its internals.
    """
    from importlib.metadata import version

    installed_version = version("verl")
    if installed_version != VERL_VERSION:
        raise ConfigError(
            f"verl {installed_version} is installed, but tasks/verl/cpu is written for {VERL_VERSION}; "
            f"install verl=={VERL_VERSION}"
        )
    with no_garbage_collection():
        from verl.plugin.platform.platform_manager import PlatformRegistry

        import agents.huggingface.models  # noqa: F401  # before verl's modules import transformers' models
        from tasks.verl.cpu.platform import PlatformCpu

        PlatformRegistry.register(platform="cpu")(PlatformCpu)

        # The order matters: verl's modules ask for the platform while they are imported, and those of the
        # engine import what the patches replace.
        from tasks.verl.cpu import patches

        patches.apply()

        from tasks.verl.cpu import engine, rollout

    engine.register()
    rollout.register()


if os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu":
    activate()

"""Registers the CPU with verl, where asked to: the platform, the engine, the rollout backend, patches.

Imported by verl itself (`VERL_USE_EXTERNAL_MODULES`), at the end of `import verl`. Everything here
binds to verl 0.9.1 and is checked against it by `tests/tasks/test_verl_contract.py`.
"""

import os

from envs.errors import ConfigError

VERL_VERSION = "0.9.1"


def activate() -> None:
    """Make verl run on the CPU in this process.

    Raises `ConfigError` for any other version of verl: the patches reach into its internals.
    """
    from importlib.metadata import version

    installed_version = version("verl")
    if installed_version != VERL_VERSION:
        raise ConfigError(
            f"verl {installed_version} is installed, but tasks/verl/cpu is written for {VERL_VERSION}; "
            f"install verl=={VERL_VERSION}"
        )
    from verl.plugin.platform.platform_manager import PlatformRegistry

    from tasks.verl.cpu.platform import PlatformCpu

    PlatformRegistry.register(platform="cpu")(PlatformCpu)

    # In this order: verl's modules ask for the platform while they are imported, and the engine's
    # take what the patches replace.
    from tasks.verl.cpu import patches

    patches.apply()

    from tasks.verl.cpu import engine, rollout

    engine.register()
    rollout.register()


if os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu":
    activate()

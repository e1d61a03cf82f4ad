"""verl 0.9.1 on a CPU: a platform, a training engine and a rollout backend, loaded as a verl plugin.

verl loads `tasks.verl.cpu.plugin` if `VERL_USE_EXTERNAL_MODULES` names it. The plugin does nothing unless
`VERL_PLATFORM=cpu` is set, so that CPU-only processes of a GPU cluster never use it.
"""

PLUGIN_ENV = {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "tasks.verl.network,tasks.verl.cpu.plugin"}
"""Environment variables that a process needs before it imports verl."""

TORCH_ENV = {
    # How often a waiting thread checks for the others before it sleeps: for less than a tenth of a
    # millisecond. By default it spins for milliseconds; on a busy machine, where the other thread is not
    # running, an update then took 16 to 34 times as long. Sleeping at once costs a tenth to a fifth on an
    # idle machine (docs/results.md).
    "GOMP_SPINCOUNT": "10000",
    # How many products oneDNN keeps the code of, and torch the memory that they work in. Each number of rows
    # is another product, and a micro-batch has any number; with the default of 1,024, a training took 3 GB
    # more.
    "LRU_CACHE_CAPACITY": "16",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16",
}
"""Environment variables that a process needs before it computes with torch."""

CPU_MODEL_OPTIONS = {
    "use_remove_padding": True,
    "enable_gradient_checkpointing": False,
    "override_config": {"attn_implementation": "wingspan_packed"},
}
"""verl's options of a model, by the fields of `HFModelConfig`."""

"""verl 0.9.1 on a CPU: a platform, a training engine and a rollout backend, loaded as a verl plugin.

verl loads `tasks.verl_cpu.plugin` where `VERL_USE_EXTERNAL_MODULES` names it. It does nothing unless
`VERL_PLATFORM=cpu` asks for it, so that a GPU cluster's CPU-only processes never pick it up.
"""

PLUGIN_ENV = {
    "VERL_PLATFORM": "cpu",
    "VERL_USE_EXTERNAL_MODULES": "tasks.verl_network,tasks.verl_cpu.plugin",
}
"""Environment variables that a process needs before it imports verl."""

THREADS_ENV = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Threads that wait for each other sleep. By default they spin for milliseconds, and on a busy machine the
thread that they wait for is not running: an update then takes ten times its CPU time, and longer still."""

"""verl 0.9.1 on GPUs: how a model is trained there, and a verl plugin that makes it work.

verl loads `tasks.verl.gpu.plugin` if `VERL_USE_EXTERNAL_MODULES` names it.
"""

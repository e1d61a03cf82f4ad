"""Reinforcement learning algorithms: how rewards become advantages, and advantages a loss.

`train.algorithm` names one. Each is a class of settings with its own parameters, their defaults and their
source, in a file of its own in `builtin/`; `losses.py` has the policy losses that any of them may be combined
with. An estimator sees whole conversations (`conversations.py`), never the segments in which they are trained
on. Reading a configuration imports no torch.
"""

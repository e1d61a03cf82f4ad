"""ALFWorld: household tasks as text (Shridhar et al. 2021, arXiv 2010.03768), on TextWorld and its planner.

`spec.py` has upstream's games, `mini/` games of the same format that are generated here; `env.py` plays both.
"""

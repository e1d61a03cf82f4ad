"""ALFWorld: household tasks as text (Shridhar et al. 2021, arXiv 2010.03768), over TextWorld and its planner.

`real.py` has upstream's games, `mini/` games of the same format that are made here; one environment plays
both.
"""

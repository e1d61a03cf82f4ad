"""Prefect's side of a run.

Not called `prefect`: Prefect and `python flows/train_agent.py` put the folder of a flow first on `sys.path`,
where a package of that name would hide the library.
"""

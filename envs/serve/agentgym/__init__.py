"""AgentGym's protocol on the server's side: what its clients send and read (WooooDyy/AgentGym at 3ef9235).

`bodies.py` has the bodies, `families.py` says which environment uses which,
`handlers.py` answers requests. Errors have error statuses; AgentGym's own servers answer 200 and
`{"error": …}`, on which its clients crash.
"""

"""AgentGym's protocol, served: what its clients send and read (WooooDyy/AgentGym at 3ef9235).

`bodies.py` is what comes in, `families.py` what each environment's clients want to hear, `handlers.py` the
requests. Errors are told by status codes, where AgentGym answers 200 and `{"error": …}`, which its clients
then die of.
"""

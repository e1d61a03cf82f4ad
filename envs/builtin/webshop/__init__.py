"""WebShop: a simulated shop in which a product that an instruction asks for is found, configured and bought.

Yao et al. 2022, arXiv 2207.01206; princeton-nlp/WebShop at 64fa2a5, WooooDyy/AgentGym at 3ef9235. What
upstream does and where this differs: docs/webshop.md.
"""

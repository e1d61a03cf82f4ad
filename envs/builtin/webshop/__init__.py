"""WebShop: a simulated shop. The agent finds, configures and buys the product that an instruction asks for.

Yao et al. 2022, arXiv 2207.01206; princeton-nlp/WebShop at 64fa2a5, WooooDyy/AgentGym at 3ef9235.
docs/webshop.md says what upstream does and where this differs.
"""

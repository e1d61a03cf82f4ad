"""Policy losses: how a token's loss depends on its advantage and on the ratio of new to old probability."""

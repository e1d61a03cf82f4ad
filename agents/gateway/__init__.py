"""An OpenAI-compatible server of one policy that keeps the tokens it sampled, to be trained on."""

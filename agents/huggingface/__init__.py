"""Models in Hugging Face format, by transformers, imported no further than each process needs."""

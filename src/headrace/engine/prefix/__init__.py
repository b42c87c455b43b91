"""The prefix tree: KV blocks of past token sequences, kept for whoever begins the same way."""

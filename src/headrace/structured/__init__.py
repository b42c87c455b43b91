"""Structured output: from a schema, regex, choice or grammar to a mask over the vocabulary."""

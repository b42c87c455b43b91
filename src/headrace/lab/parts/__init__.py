"""What experiments are made of, and some share: traces, memory, models for a purpose, oracles."""

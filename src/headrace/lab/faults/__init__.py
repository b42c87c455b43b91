"""Faults by their looks: situations in which a text is computed, signatures, oddities."""

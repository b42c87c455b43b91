"""Speculation: guess the next tokens cheaply, compute all of them in one step, keep those that
plain decoding would have drawn. A drafter guesses (drafter.py), a controller says how much
(controller.py), rounds judge (rounds.py, rejection.py), the Speculator is what the step loop sees.
"""

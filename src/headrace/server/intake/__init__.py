"""From a JSON object to work for the engine: what a request wants and who will write its answer.

No HTTP here: the routes hand over bodies of requests, `run-batch` lines of a file.
"""

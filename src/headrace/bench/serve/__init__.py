"""A load generator for any OpenAI-compatible server, and what it measures from the client's side.

Knows HTTP and the protocol's JSON, and no engine, model or server of ours (a contract in
pyproject.toml). Standard library only: its CPU time competes with the server's on the same machine.

    dataset, arrivals ─> requests ─> driver ─> client (http1, sse) ─> timeline ─> metrics ─> report
"""

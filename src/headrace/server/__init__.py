"""The HTTP door: OpenAI-compatible routes over one engine.

    uvicorn ─▶ app, routes ─▶ body ─▶ intake (protocol, fields) ─▶ door ─▶ loop (engine's thread)
       ◀── respond (stream, whole) ◀── render (bytes) ◀── flow ◀────────────┘
                              batch (run-batch): lines instead of HTTP

One asyncio thread does everything but the model; one thread owns the engine. They meet in
`loop.py`: commands go in, one batch of results comes out per step.
"""

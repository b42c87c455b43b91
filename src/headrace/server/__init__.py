"""The HTTP door: OpenAI-compatible routes over one engine.

    uvicorn ─▶ app (routes) ─▶ body · protocol · fields ─▶ door ─▶ loop (the engine's thread)
       ◀── respond (stream, whole) ◀── render (bytes) ◀── flow ◀────┘

One asyncio thread does everything but the model; one thread owns the engine. They meet in
`loop.py`: commands go in, one batch of results comes out per step.
"""

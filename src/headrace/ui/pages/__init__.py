"""One file per page: `async def build(frame: Frame) -> None`, listed in `registry.py`."""

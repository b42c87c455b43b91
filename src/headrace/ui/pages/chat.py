"""Chat."""

from __future__ import annotations

from nicegui import ui

from headrace.ui.shell import Frame


async def build(frame: Frame) -> None:
    """Chat."""
    with ui.element("section").classes("hr-card"):
        ui.label("Chat").classes("hr-title")

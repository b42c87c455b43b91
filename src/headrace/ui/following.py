"""Following a server on a live page: its snapshots as news, and its troubles as one line.

Knows the frame of a page, and not what the page shows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from headrace.ui.feed import News, understood
from headrace.ui.shell import Frame


async def follow(
    frame: Frame, show: Callable[[News], None], recovered: Callable[[], object] = lambda: None
) -> None:
    """Shows news until the page is closed. While there is a problem the frame says it; recovered:
    called when it is over. Raises EndpointError for snapshots of a form that is not known."""
    complaining = False
    async with contextlib.aclosing(frame.backend.feed.follow()) as news:
        async for one in news:
            if one.problem is not None:
                frame.say(one.problem)
            elif complaining:
                frame.be_quiet()
                recovered()
            complaining = one.problem is not None
            with understood("snapshots"):
                show(one)

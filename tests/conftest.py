"""What holds for all rooms' tests."""

from __future__ import annotations

import pytest


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tiny models run faster on one thread of torch than on several that wait for each other."""
    if item.get_closest_marker("torch") is not None:
        import torch

        torch.set_num_threads(1)

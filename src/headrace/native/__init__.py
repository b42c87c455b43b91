"""The native core. `core()` is the one way to it; the module itself is `_core`."""

from __future__ import annotations

from types import ModuleType

from headrace.errors import NativeError


def core() -> ModuleType:
    """The compiled module. Raises NativeError where it is not built."""
    try:
        from headrace.native import _core
    except ImportError as error:
        raise NativeError(
            f"the native core does not load ({error}); build it with scripts/build-native."
        ) from error
    module: ModuleType = _core
    return module

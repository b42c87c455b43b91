"""The exception tree: everything a user, a file or a capacity limit can cause.

HeadraceError
├── UsageError        a parameter is unknown, misspelt or out of range      (exit code 2 on the CLI)
├── ModelFileError    a model file is missing, damaged, or of a kind we do not read
├── ModelSourceError  a model could not be found or fetched
├── PromptError       a prompt is empty or holds invalid ids
│   └── ContextLengthError  prompt and requested output do not fit the context
├── CapacityError     a request can never fit the KV cache
│   ├── QueueFullError      it could not be queued now; later it may
│   └── PinsFullError       other pins hold too much now; later it may be pinned
├── EndpointError     a server that is to be measured or used does not answer as it should
└── NativeError       the native core cannot run here (CPU without AVX2, for example)

`assert` is for our own bugs; everything here is one clear sentence that names the thing and,
where there is one, the remedy. The command line prints the sentence and exits with 1 (2 for usage).
"""

from __future__ import annotations


class HeadraceError(Exception):
    """Base of every error that is not a bug of ours."""


class UsageError(HeadraceError, ValueError):
    """A parameter is unknown, misspelt or out of range. Names the parameter and its range."""


class ModelFileError(HeadraceError):
    """A model file is missing, truncated, malformed, or of an unsupported kind."""


class ModelSourceError(HeadraceError):
    """A model name could not be resolved or fetched."""


class PromptError(HeadraceError, ValueError):
    """A prompt is empty or holds out-of-range ids."""


class ContextLengthError(PromptError):
    """Prompt and requested output are longer than the context. Names all three numbers."""


class CapacityError(HeadraceError):
    """A request can never fit the configured KV cache."""


class QueueFullError(CapacityError):
    """As many requests wait as may wait; the same request may be taken later."""


class PinsFullError(CapacityError):
    """Pins of the prefix cache hold as much as they may; when some are released, it may work."""


class EndpointError(HeadraceError):
    """A server that was pointed at cannot be reached, or does not answer as it should."""


class NativeError(HeadraceError):
    """The native core is missing or cannot run on this machine."""

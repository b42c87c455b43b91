"""Job: one engine request of one HTTP request, as it travels between the two threads.

Made on the asyncio side, given to the engine's thread, given back with every result. The engine's
thread writes `request`; the asyncio side reads it only after a result has come.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.engine.constraint import Constraint
from headrace.engine.core import Engine
from headrace.engine.generation import Request
from headrace.engine.params import SamplingParams
from headrace.engine.pooling import PoolingParams
from headrace.engine.request import FinishReason


@dataclass(slots=True, eq=False)
class Job:
    """prompt: the ids to compute. first_index: choice index of its sample 0. streams: results are
    wanted as they come; otherwise only the end is told. arrived_s: time.monotonic() at the door.
    cancelled: why it was ended before its time. name: of the HTTP request, for logs.
    num_truncated: ids that were cut off in front, because the request allowed it. pooling: the
    prompt's vector is wanted, and nothing is drawn. cache_salt, reads_cache: see Engine.add.
    public_id: what others than its client may see of it: random.
    at_end: called on the engine's thread when it has ended well, before anything else happens; the
    job fails with the HeadraceError that it raises.

    token_times_s, prompt_counted: the engine thread's notes for the metrics: when each sample got
    its latest token, 0 = none yet; whether the prompt has been counted.
    """

    prompt: list[int]
    params: SamplingParams
    arrived_s: float
    first_index: int = 0
    streams: bool = False
    priority: int = 0
    constraint: Constraint | None = None
    request: Request | None = None
    cancelled: str | None = None
    name: str = ""
    num_truncated: int = 0
    pooling: PoolingParams | None = None
    cache_salt: str = ""
    reads_cache: bool = True
    at_end: Callable[[Engine], None] | None = None
    public_id: str = field(default_factory=lambda: secrets.token_hex(6))
    token_times_s: list[float] = field(init=False)
    prompt_counted: bool = False

    def __post_init__(self) -> None:
        self.token_times_s = [0.0] * self.params.n

    @property
    def wanted(self) -> SamplingParams | PoolingParams:
        """What the engine is asked for."""
        return self.params if self.pooling is None else self.pooling

    @property
    def ended_well(self) -> bool:
        """Whether all its samples have, by their own end."""
        return self.request is not None and all(
            sample.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
            for sample in self.request.generations
        )

    def add_to(self, engine: Engine) -> Request:
        """Queues it. Raises what Engine.add raises."""
        return engine.add(
            self.prompt,
            self.wanted,
            cache_salt=self.cache_salt,
            reads_cache=self.reads_cache,
            priority=self.priority,
            arrived_s=self.arrived_s,
            constraint=self.constraint,
        )

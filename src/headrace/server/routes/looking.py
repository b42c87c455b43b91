"""For those who watch a server work: GET /events, /kv_map, /prefix_tree, /limits. Numbers only:
nothing of what others ask or are answered."""

from __future__ import annotations

import math

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from headrace.server.context import context_of, open_door
from headrace.server.door import MAX_TREE_NODES, USUAL_TREE_NODES
from headrace.server.errors import invalid
from headrace.server.kv_states import block_states, state_counts, state_map
from headrace.server.listening import EventStream
from headrace.server.roofline import step_point
from headrace.server.snapshots import TICK_S

DEFAULT_INTERVAL_S = 0.5
MAX_INTERVAL_S = 10.0
MAX_CELLS = 16_384


async def events(request: Request) -> Response:
    """A stream of snapshots: requests, steps, KV blocks, hits, latencies; at most four a second."""
    interval = _number(request, "interval", DEFAULT_INTERVAL_S, TICK_S, MAX_INTERVAL_S)
    count = _integer(request, "count", 0, 0, 1 << 31)
    door = open_door(request, to_look=True)
    return EventStream(context_of(request), door, interval, count)


async def kv_map(request: Request) -> Response:
    """What every block of a KV group is used for, one letter each or for several neighbours."""
    door = open_door(request, to_look=True)
    pools = door.kv_pools
    group = _integer(request, "group", 0, 0, len(pools) - 1)
    max_cells = _integer(request, "max", 4096, 1, MAX_CELLS)
    pool, window, block_bytes = pools[group]
    states = block_states(pool)
    letters, cell_blocks = state_map(states, max_cells)
    return JSONResponse(
        {
            "object": "kv_map",
            "group": group,
            "groups": len(pools),
            "window": window,
            "block_size": door.engine_config.block_size,
            "block_bytes": block_bytes,
            "blocks": pool.num_blocks,
            "cell_blocks": cell_blocks,
            "counts": state_counts(states),
            "map": letters,
        }
    )


async def prefix_tree(request: Request) -> Response:
    """The shape of the prefix tree: its most recently used nodes, by length, salt and use."""
    door = open_door(request, to_look=True)
    max_nodes = _integer(request, "max_nodes", USUAL_TREE_NODES, 1, MAX_TREE_NODES)
    tree = await door.tree_shape(max_nodes)
    nodes = [] if tree is None else tree.nodes[:max_nodes]
    return JSONResponse(
        {
            "object": "prefix_tree",
            "enabled": tree is not None,
            "nodes": 0 if tree is None else tree.num_nodes,
            "tokens": 0 if tree is None else tree.num_tokens,
            "salts": 0 if tree is None else tree.num_salts,
            "block_size": door.engine_config.block_size,
            "list": [
                {
                    "id": number,
                    "parent": node.parent,
                    "salt": door.cache_answer.salt_name(node.salt),
                    "start": node.start,
                    "tokens": node.num_tokens,
                    "children": node.num_children,
                    "holders": node.num_holders,
                }
                for number, node in enumerate(nodes)
            ],
            "left_out": 0 if tree is None else tree.num_nodes - len(nodes),
        }
    )


async def limits(request: Request) -> Response:
    """What a decode and a prefill step of the model cost, what the machine can do, and the last
    steps as they were."""
    door = open_door(request, to_look=True)
    longest = door.max_model_len
    batch = _integer(request, "batch", 1, 1, door.max_num_seqs)
    context = _integer(request, "context", min(512, longest), 1, longest)
    prompt = _integer(request, "prompt", min(128, longest), 1, longest)
    roofline = door.roofline
    return JSONResponse(
        {
            "object": "limits",
            "model": roofline.facts,
            "machine": roofline.machine,
            "decode": roofline.decode(batch, context),
            "prefill": roofline.prefill(prompt),
            "recent": [step_point(record) for record in door.loop.meter.recent.copy()],
        }
    )


# ---- what stands behind the question mark -------------------------------------------------------


def _number(request: Request, name: str, default: float, low: float, high: float) -> float:
    """A query parameter. Raises ApiError 400."""
    text = request.query_params.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise invalid(f"{name} must be {low:g} … {high:g}, not {text[:40]!r}.", name)
    return value


def _integer(request: Request, name: str, default: int, low: int, high: int) -> int:
    """The same for a whole number."""
    text = request.query_params.get(name)
    if text is None:
        return default
    value = int(text) if text.isascii() and text.isdigit() and len(text) <= 12 else -1
    if not low <= value <= high:
        raise invalid(f"{name} must be {low} … {high}, not {text[:40]!r}.", name)
    return value

"""GET /events, /kv_map, /prefix_tree, /limits of a real server: what is shown is what happened, and
nothing that belongs to anybody."""

from __future__ import annotations

import contextlib
import itertools
import signal
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from live_server import LiveServer, serving, strict_json
from raw_http import RawClient
from scraping import scrape
from slow_reader import paused_reader
from waiting import until

pytestmark = pytest.mark.models

COMPLETIONS = "/v1/completions"
LOOKS = ("/events?count=1", "/kv_map", "/prefix_tree", "/limits")


def snapshot(server: LiveServer, **query: Any) -> Any:
    """The next one that is taken."""
    time.sleep(0.15)  # a younger one would be shared
    answer = server.get("/events", params={"count": 1, **query})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    return event_of(answer.content)


def event_of(data: bytes) -> Any:
    assert data.startswith(b"data: {")
    assert data.endswith(b"}\n\n")
    return strict_json(data[6:])


@contextlib.contextmanager
def listening(server: LiveServer, **query: Any) -> Iterator[Iterator[Any]]:
    with httpx.stream("GET", f"{server.url}/events", params=query, timeout=30) as stream:
        assert stream.status_code == 200
        yield (strict_json(line[6:]) for line in stream.iter_lines() if line)


def streams(server: LiveServer, count: int, **fields: Any) -> list[RawClient]:
    """Clients that are answered and have not yet read it."""
    body = {"prompt": "Once upon a time", "stream": True, "ignore_eos": True, **fields}
    clients = [RawClient(server.url, timeout_s=60) for _ in range(count)]
    for client in clients:
        client.post(COMPLETIONS, body)
    return clients


# ---- snapshots ----------------------------------------------------------------------------------


def test_totals_are_what_clients_saw(smollm2: LiveServer) -> None:
    before = snapshot(smollm2)
    asked = {"max_tokens": 9, "ignore_eos": True, "temperature": 0}
    usages = [
        smollm2.json(COMPLETIONS, {"prompt": "The windmill at the river", **asked})["usage"],
        smollm2.json(COMPLETIONS, {"prompt": ["One", "Two and more"], "n": 2, **asked})["usage"],
    ]
    assert smollm2.idle()
    after = snapshot(smollm2)
    prompt = sum(usage["prompt_tokens"] for usage in usages)
    cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    output = sum(usage["completion_tokens"] for usage in usages)

    def change(*path: str) -> Any:
        values = [before, after]
        for name in path:
            values = [value[name] for value in values]
        return values[1] - values[0]

    assert (change("tokens", "prompt"), change("tokens", "output")) == (prompt, output)
    assert change("requests", "finished", "length") == 5
    computed = sum(
        change("steps", kind, tokens)
        for kind in ("decode", "prefill")
        for tokens in ("decode_tokens", "prefill_tokens")
    )
    assert computed == prompt - cached + output - 5  # nobody computes with a last token
    assert change("steps", "prefill", "prefill_tokens") > 0
    assert change("steps", "decode", "prefill_tokens") == 0
    for kind in ("decode", "prefill"):
        assert change("steps", kind, "bound_s") > 0
        assert change("steps", kind, "bounded_seconds") == pytest.approx(
            change("steps", kind, "seconds")
        )
    assert change("prefix", "looked_up_tokens") == prompt
    assert change("prefix", "hit_tokens") == cached
    counts = {
        name: sum(after[name]["counts"]) - sum(before[name]["counts"]) for name in ("ttft", "itl")
    }
    assert counts == {"ttft": 3, "itl": output - 5}
    assert after["ttft"]["sum"] > before["ttft"]["sum"]
    assert len(after["itl"]["counts"]) == len(after["itl"]["bounds"]) + 1


def test_a_snapshot_and_metrics_agree(smollm2: LiveServer) -> None:
    smollm2.json(COMPLETIONS, {"prompt": "The sea", "max_tokens": 3})
    assert smollm2.idle()
    shown, told = snapshot(smollm2), scrape(smollm2)
    assert shown["tokens"]["output"] == told["generation_tokens_total", ()]
    assert shown["preemptions"] == told["num_preemptions_total", ()]
    steps = shown["steps"]
    bound = steps["decode"]["bound_s"] + steps["prefill"]["bound_s"]
    assert bound == pytest.approx(told["step_bound_seconds_total", ()])
    [pool] = shown["kv"]
    assert pool["owned"] + pool["shared"] == told["kv_blocks_used", ()]
    assert pool["cached"] == told["kv_blocks_cached", ()]
    parts = [pool[name] for name in ("free", "owned", "shared", "cached")]
    assert sum(parts) == pool["blocks"] == told["kv_blocks", ()]
    tree = smollm2.json("/prefix_tree", None)
    assert (tree["nodes"], tree["tokens"]) == (shown["prefix"]["nodes"], shown["prefix"]["tokens"])


def test_a_request_is_seen_while_it_runs(smollm2: LiveServer) -> None:
    assert smollm2.idle()
    with listening(smollm2, interval=0.25) as shown:
        assert next(shown)["requests"]["list"] == []
        [client] = streams(smollm2, 1, n=2, max_tokens=1000)
        seen: list[Any] = []
        for snapshot in itertools.islice(shown, 200):
            for one in snapshot["requests"]["list"]:
                grown = not seen or seen[-1]["output_tokens"] < one["output_tokens"]
                seen += [one] if one["state"] == "decode" and grown else []
            if len(seen) == 3:
                break
        client.socket.close()
        assert any(not snapshot["requests"]["open"] for snapshot in itertools.islice(shown, 100))
    assert len(seen) == 3
    assert {s["id"] for s in seen} == {seen[0]["id"]}
    first, middle, last = seen
    assert (last["samples"], last["max_tokens"]) == (2, 1000)
    assert first["output_tokens"] < last["output_tokens"] <= 2000
    assert first["age_s"] < last["age_s"]
    assert 0 <= last["queue_s"] <= last["ttft_s"]
    # Its newest token came after the snapshot before, and before this one.
    most, least = (
        (last["output_tokens"] - 2) / (one["age_s"] - last["ttft_s"]) for one in (middle, last)
    )
    assert least * 0.99 < last["tok_per_s"] < most * 1.01


def test_of_many_requests_some_are_listed_and_all_are_counted(smollm2: LiveServer) -> None:
    """Those in the steps come first; the others are counted."""
    clients = streams(smollm2, 90, max_tokens=900)

    def full() -> Any:
        shown = snapshot(smollm2)["requests"]
        return shown if shown["running"] == 64 and shown["open"] == 90 else None

    try:
        shown = until(full, "64 of 90 run")
        listed = shown["list"]
        assert len(listed) == 64
        assert shown["left_out"] == 26
        assert shown["max_running"] == 64
        assert len({request["id"] for request in listed}) == 64
        assert sum(request["state"] != "waiting" for request in listed) > 32
    finally:
        for client in clients:
            client.socket.close()
    assert smollm2.idle()


def test_listeners_share_snapshots_at_their_own_pace(smollm2: LiveServer) -> None:
    with listening(smollm2, interval=0.25) as often, listening(smollm2, interval=1) as seldom:
        slow = [next(seldom) for _ in range(3)]
        fast: list[Any] = []
        while not fast or fast[-1]["number"] < slow[-1]["number"]:
            fast.append(next(often))
    numbers = [s["number"] for s in fast]
    assert numbers == sorted(set(numbers))
    gaps = [b["time"] - a["time"] for a, b in itertools.pairwise(fast)]
    assert min(gaps) > 0.12, "never more than four a second, but for a late one"
    assert len(fast) > len(slow)
    by_number = {s["number"]: s for s in fast}
    shared = [s for s in slow[1:] if s["number"] in by_number]
    assert shared
    assert all(by_number[s["number"]] == s for s in shared)


def test_listeners_are_limited_and_forgotten(smollm2: LiveServer) -> None:
    listeners = [RawClient(smollm2.url) for _ in range(64)]
    for listener in listeners:
        listener.send(b"GET /events HTTP/1.1\r\nHost: a\r\n\r\n")
        assert listener.socket.recv(100).startswith(b"HTTP/1.1 200")
    refused = smollm2.get("/events")
    assert refused.status_code == 429
    assert refused.headers["retry-after"]
    for listener in listeners:
        listener.socket.close()
    until(lambda: smollm2.get("/events?count=1").status_code == 200, "there is room again")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/events?interval=0.1", "interval"),
        ("/events?interval=nan", "interval"),
        ("/events?interval=1e9", "interval"),
        ("/events?count=-1", "count"),
        ("/events?count=x", "count"),
        ("/kv_map?group=1", "group"),
        ("/kv_map?max=0", "max"),
        ("/kv_map?max=99999999999999999999", "max"),
        ("/prefix_tree?max_nodes=1001", "max_nodes"),
        ("/prefix_tree?max_nodes=%D9%A1", "max_nodes"),
        ("/limits?batch=0", "batch"),
        ("/limits?context=1025", "context"),
        ("/limits?prompt=1e3", "prompt"),
    ],
)
def test_what_stands_behind_the_question_mark(smollm2: LiveServer, path: str, name: str) -> None:
    answer = smollm2.get(path)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == name


# ---- nothing that belongs to anybody ------------------------------------------------------------


def test_no_text_no_salt_and_no_name_is_shown(smollm2: LiveServer) -> None:
    secret = "Zanzibar pelican"
    [client] = streams(smollm2, 1, prompt=f"{secret} " * 9, max_tokens=300, cache_salt="tenant-7")
    body = {"prompt": secret, "max_tokens": 2, "cache_salt": "tenant-8"}
    named = smollm2.post(COMPLETIONS, body, headers={"x-request-id": "my-request-9"})
    ids = smollm2.json("/tokenize", {"content": secret, "add_special": False})["tokens"]
    shown = "".join(smollm2.get(path).text for path in LOOKS)
    client.socket.close()
    for word in ("Zanzibar", "pelican", "tenant", "my-request", named.json()["id"]):
        assert word not in shown
    assert str(ids)[1:-1].replace(" ", "") not in shown
    salts = {node["salt"] for node in smollm2.json("/prefix_tree?max_nodes=1000")["list"]}
    assert len(salts - {None}) == 2
    assert all(len(salt) == 16 for salt in salts - {None})
    smollm2.json("/cache/reset", {})


# ---- blocks, tree, limits -----------------------------------------------------------------------


def test_maps_of_two_groups(gemma3: LiveServer) -> None:
    assert gemma3.idle()
    kv = snapshot(gemma3)["kv"]
    assert [pool["window"] for pool in kv] == [None, 512]
    for group, pool in enumerate(kv):
        shown = gemma3.json(f"/kv_map?group={group}&max=16384")
        assert {**shown["counts"], "window": shown["window"], "blocks": shown["blocks"],
                "block_bytes": shown["block_bytes"]} == pool  # fmt: skip
        letters = {name: shown["map"].count(name[0]) for name in shown["counts"]}
        assert letters == shown["counts"]
        small = gemma3.json(f"/kv_map?group={group}&max=10")
        assert len(small["map"]) == -(-shown["blocks"] // small["cell_blocks"]) <= 10
    assert gemma3.get("/kv_map?group=2").status_code == 400


def test_the_tree_shows_what_was_computed(smollm2: LiveServer) -> None:
    smollm2.json("/cache/reset", {"pins": True})
    start = "The mill stood at the end of the headrace, where the water was quiet and deep. " * 3
    asked = {"max_tokens": 1, "temperature": 0}
    counts = [
        smollm2.json(COMPLETIONS, {"prompt": start + end, **asked})["usage"]["prompt_tokens"]
        for end in ("It was old, and nobody lived there any more.", "We went there in the morning.")
    ]
    tree = smollm2.json("/prefix_tree")
    first, *others = tree["list"]
    assert (tree["nodes"], tree["salts"], tree["left_out"]) == (3, 1, 0)
    assert (first["parent"], first["start"], first["children"]) == (None, 0, 2)
    assert first["tokens"] % tree["block_size"] == 0
    assert [node["parent"] for node in others] == [0, 0]
    assert sorted(node["start"] + node["tokens"] for node in others) == sorted(counts)
    assert {node["holders"] for node in tree["list"]} == {0}
    one = smollm2.json("/prefix_tree?max_nodes=1")
    assert (one["list"], one["left_out"]) == ([first], 2)


def test_limits_are_those_of_the_step(smollm2: LiveServer) -> None:
    smollm2.json(COMPLETIONS, {"prompt": "The sea", "max_tokens": 20, "ignore_eos": True})
    shown = smollm2.json("/limits?batch=4&context=100&prompt=64")
    machine, model = shown["machine"], shown["model"]
    assert model["parameters"] == 134_515_008
    assert model["max_model_len"] == 1024
    for step in (shown["decode"], shown["prefill"]):
        assert sum(op["bytes"] for op in step["ops"]) == step["bytes"]
        assert sum(op["operations"] for op in step["ops"]) == step["operations"]
        memory = step["bytes"] / machine["read_gb_per_s"] / 1e9
        compute = sum(
            op["operations"] / machine[f"{op['unit']}_gop_per_s"] / 1e9 for op in step["ops"]
        )
        assert step["bound_s"] == pytest.approx(max(memory, compute))
        assert step["limited_by"] == ("memory" if memory >= compute else "compute")
        assert all(op["limit_s"] <= step["bound_s"] * 1.0001 for op in step["ops"])
    assert shown["decode"]["tok_per_s"] == pytest.approx(4 / shown["decode"]["bound_s"])
    # A matrix of so many parameters: two operations each, for each of 64 tokens.
    linear = sum(o["operations"] for o in shown["prefill"]["ops"] if o["name"].startswith("linear"))
    assert linear == pytest.approx(2 * 64 * 106e6, rel=0.02)
    assert 19 <= len(shown["recent"]) <= 64
    last = shown["recent"][-1]
    assert (last["kind"], last["tokens"]) == ("decode", 1)
    assert last["bytes"] == pytest.approx(
        smollm2.json("/limits?context=22")["decode"]["bytes"], rel=0.01
    )


# ---- the end ------------------------------------------------------------------------------------


def test_listeners_see_the_server_stop_and_do_not_hold_it_up() -> None:
    with serving("smollm2-135m", "--max-model-len", "1024") as server:
        assert server.json("/limits")["machine"] is None
        assert server.json("/limits")["decode"]["bound_s"] is None
        with listening(server, interval=0.25) as shown:
            assert next(shown)["state"] == "serving"
            held = paused_reader(server)  # the stop cannot end before it is read
            server.process.send_signal(signal.SIGTERM)
            until(lambda: next(shown)["state"] == "draining", "the listeners are told")
            assert server.get("/events?count=1").status_code == 200
            assert server.get("/kv_map").status_code == 200
            assert server.get("/health").status_code == 503
            assert held.answer().body.endswith(b"data: [DONE]\n\n")
            *_, last = shown
        assert last["object"] == "end"
        assert server.process.wait(60) == 0
        held.socket.close()

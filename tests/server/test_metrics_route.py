"""GET /metrics of a real server: every name is there, and the counts are what clients saw."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Generator, Mapping
from typing import Any

import httpx
import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families

from live_server import ROOT, LiveServer
from scraping import Change, Samples, scrape

pytestmark = pytest.mark.models

GAUGES = (
    "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "cache_config_info",
    "kv_cache_cached_perc", "prefix_cache_pins",
)  # fmt: skip
COUNTERS = (
    "prefix_cache_queries", "prefix_cache_hits", "num_preemptions", "prompt_tokens",
    "generation_tokens", "request_success", "corrupted_requests", "external_prefix_cache_queries",
    "external_prefix_cache_hits", "spec_decode_num_drafts", "spec_decode_num_draft_tokens",
    "spec_decode_num_accepted_tokens", "spec_decode_num_accepted_tokens_per_pos",
    "spec_decode_num_tested_tokens", "prefix_cache_evicted_tokens",
    "estimated_flops_per_gpu", "estimated_read_bytes_per_gpu", "estimated_write_bytes_per_gpu",
)  # fmt: skip
HISTOGRAMS = (
    "time_to_first_token_seconds", "inter_token_latency_seconds", "time_per_output_token_seconds",
    "request_time_per_output_token_seconds", "e2e_request_latency_seconds",
    "request_queue_time_seconds", "request_prefill_time_seconds", "request_decode_time_seconds",
    "request_inference_time_seconds", "iteration_tokens_total", "request_prompt_tokens",
    "request_generation_tokens", "request_max_num_generation_tokens", "request_params_n",
    "request_params_max_tokens",
)  # fmt: skip


def complete(server: LiveServer, **fields: Any) -> Mapping[str, Any]:
    body = {"prompt": "The sea is", "max_tokens": 5, "temperature": 0, "ignore_eos": True}
    answer: Mapping[str, Any] = server.json("/v1/completions", body | fields)
    return answer


def test_every_name_is_there_with_its_kind(smollm2: LiveServer) -> None:
    complete(smollm2)
    families = {
        family.name.removeprefix("headrace:"): family
        for family in text_string_to_metric_families(smollm2.get("/metrics").text)
    }
    for names, kind in ((GAUGES, "gauge"), (COUNTERS, "counter"), (HISTOGRAMS, "histogram")):
        for name in names:
            assert families[name].type == kind, name
            assert families[name].samples, name
            for sample in families[name].samples:
                assert sample.labels["model_name"] == "smollm2-135m"
                assert sample.labels["engine"] == "0"


def test_histograms_are_monotone_and_end_at_their_count(smollm2: LiveServer) -> None:
    complete(smollm2)
    found = scrape(smollm2)
    for name in HISTOGRAMS:
        buckets = [
            (float(labels[0][1]), value)
            for (sample, labels), value in found.items()
            if sample == f"{name}_bucket"
        ]
        counts = [count for _, count in sorted(buckets)]
        assert counts == sorted(counts), name
        assert counts[-1] == found[f"{name}_count", ()], name


def test_openmetrics_for_who_asks(smollm2: LiveServer) -> None:
    answer = smollm2.get(
        "/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"}
    )
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    names = {family.name for family in parse_openmetrics(answer.text)}
    assert "headrace:generation_tokens" in names


def test_counts_are_what_the_client_saw(smollm2: LiveServer) -> None:
    change = Change(smollm2)
    usages = [complete(smollm2)["usage"], complete(smollm2, n=3, max_tokens=7)["usage"]]
    usages.append(complete(smollm2, prompt=["One", "Two and more"])["usage"])
    prompt = sum(usage["prompt_tokens"] for usage in usages)
    output = sum(usage["completion_tokens"] for usage in usages)
    assert output == 5 + 3 * 7 + 2 * 5

    cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    assert change.of("prompt_tokens_total") == prompt
    assert change.of("prefix_cache_queries_total") == prompt
    assert change.of("prefix_cache_hits_total") == cached > 0
    assert change.of("generation_tokens_total") == output
    assert change.of("streamed_tokens_total") == 0
    assert change.of("request_success_total", finished_reason="length") == 1 + 3 + 2
    assert change.of("time_to_first_token_seconds_count") == 4  # one per prompt
    assert change.of("inter_token_latency_seconds_count") == output - 6
    assert change.of("request_prompt_tokens_sum") == prompt
    assert change.of("request_generation_tokens_sum") == output
    assert change.of("request_max_num_generation_tokens_sum") == 5 + 7 + 2 * 5
    assert change.of("request_params_n_sum") == 1 + 3 + 2
    assert change.of("request_params_max_tokens_sum") == 5 + 7 + 2 * 5
    assert change.of("iteration_tokens_total_sum") == prompt - cached + output - 6
    ok = {"method": "POST", "route": "/v1/completions", "status": "200"}
    assert change.of("http_requests_total", **ok) == 3


def test_embeddings_count_as_prompts_only(smollm2: LiveServer) -> None:
    change = Change(smollm2)
    usage = smollm2.json("/v1/embeddings", {"input": ["One", "Two and more"]})["usage"]
    assert change.of("prompt_tokens_total") == usage["prompt_tokens"]
    assert change.of("prefix_cache_queries_total") == 0
    assert change.of("request_prompt_tokens_sum") == usage["prompt_tokens"]
    assert change.of("generation_tokens_total") == 0
    assert change.of("time_to_first_token_seconds_count") == 0
    assert change.of("request_params_n_count") == 0
    assert change.of("e2e_request_latency_seconds_count") == 2


def test_times_are_those_of_the_answers(smollm2: LiveServer) -> None:
    change = Change(smollm2)
    timings = complete(smollm2, max_tokens=20)["timings"]
    assert change.of("time_to_first_token_seconds_sum") == pytest.approx(
        timings["ttft_ms"] / 1e3, abs=1e-5
    )
    pairs = (("queue", "queue_ms"), ("prefill", "prompt_ms"), ("decode", "predicted_ms"))
    for name, key in pairs:
        seconds = change.of(f"request_{name}_time_seconds_sum")
        assert seconds == pytest.approx(timings[key] / 1e3, abs=1e-5), name
    parts = change.of("request_prefill_time_seconds_sum") + change.of(
        "request_decode_time_seconds_sum"
    )
    assert change.of("request_inference_time_seconds_sum") == pytest.approx(parts)
    assert change.of("step_measured_seconds_total") == pytest.approx(
        timings["step_ms"] / 1e3, abs=1e-5
    )
    assert change.of("step_bound_seconds_total") == pytest.approx(
        timings["bound_ms"] / 1e3, abs=1e-5
    )
    assert timings["bound_fraction"] == pytest.approx(
        timings["bound_ms"] / timings["step_ms"], abs=1e-4
    )


def test_refusals_and_departures_are_counted(smollm2: LiveServer) -> None:
    change = Change(smollm2)
    smollm2.refusal("/v1/completions", {"prompt": "x", "temperature": -1})
    smollm2.get("/no/such/route/of/a/stranger")
    body = {"prompt": "x", "max_tokens": 900, "ignore_eos": True, "stream": True, "n": 2}
    with smollm2.http.stream("POST", "/v1/completions", json=body) as stream:
        next(stream.iter_lines())
    refused = {"method": "POST", "route": "/v1/completions", "status": "400"}
    assert change.of("http_requests_total", **refused) == 1
    assert change.of("http_requests_total", method="GET", route="other", status="404") == 1
    change.settles("request_success_total", 2, finished_reason="abort")
    change.settles("http_requests_total", 1, **(refused | {"status": "499"}))
    assert scrape(smollm2)["kv_blocks_used", ()] == 0


def test_gauges_show_what_goes_on(smollm2: LiveServer) -> None:
    def stream() -> Generator[str]:
        body = {"prompt": "x", "max_tokens": 400, "ignore_eos": True, "stream": True, "n": 2}
        with httpx.stream("POST", smollm2.url + "/v1/completions", json=body, timeout=60) as answer:
            yield from answer.iter_lines()

    change = Change(smollm2)
    lines = stream()
    next(lines)
    found = scrape(smollm2)
    assert found["num_requests_running", ()] == 2
    assert 0 < found["kv_cache_usage_perc", ()] < 1
    assert found["kv_blocks_used", ()] > 0
    load = smollm2.json("/load")
    assert load["running"] == 2
    assert load["server_load"] == 1
    lines.close()
    change.settles("request_success_total", 2, finished_reason="abort")


def test_the_price_of_serving_can_be_read(smollm2: LiveServer) -> None:
    change = Change(smollm2)
    with smollm2.http.stream(
        "POST", "/v1/completions",
        json={"prompt": "x", "max_tokens": 50, "ignore_eos": True, "stream": True},
    ) as answer:  # fmt: skip
        assert answer.read().endswith(b"data: [DONE]\n\n")
    assert change.of("streamed_tokens_total") == 50
    for part in ("asyncio", "engine_outside", "step"):
        assert change.of("server_cpu_seconds_total", part=part) > 0
    assert change.of("server_cpu_seconds_total", part="other") >= 0


def test_looking_while_it_works_never_sees_counts_fall(smollm2: LiveServer) -> None:
    looks: list[Samples] = []
    worker = threading.Thread(target=lambda: complete(smollm2, max_tokens=60, n=4))
    worker.start()
    while worker.is_alive():
        looks.append(scrape(smollm2))
        time.sleep(0.01)
    worker.join()
    looks.append(scrape(smollm2))
    for before, after in itertools.pairwise(looks):
        for key, value in before.items():
            if key[0].endswith(("_total", "_count", "_bucket", "_sum")):
                assert after[key] >= value, key


def test_every_name_is_documented(smollm2: LiveServer) -> None:
    complete(smollm2)
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    for family in text_string_to_metric_families(smollm2.get("/metrics").text):
        if family.name.startswith("headrace:"):
            name = family.name.removeprefix("headrace:")
            stem = "external_prefix_cache_…" if name.startswith("external_") else name
            assert f"`{stem}`" in page or f"`{stem}{{" in page, name

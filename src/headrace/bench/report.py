"""A measurement as data, and as a table for people (plain, Markdown, CSV)."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from headrace.bench.cases import Kind
from headrace.bench.profile import OpTable
from headrace.bench.ratios import Spread, spread
from headrace.bench.rows import Row
from headrace.bench.run import BenchResult, ThreadResult
from headrace.bench.tables import aligned, figures, markdown_table

OUTPUTS = ("table", "md", "csv", "json")
_HEADERS = ("test", "threads", "batch", "depth", "tok/s", "min … max", "bound", "of bound",
            "serial", "of serial", "limit", "TTFT ms", "TPOT ms")  # fmt: skip
_OP_HEADERS = ("op", "count", "ms", "share", "GB/s", "Gop/s", "of its limit")
_CSV_FIELDS = ("test", "threads", "batch", "depth", "num_prompt", "num_output", "tok_per_s_median",
               "tok_per_s_min", "tok_per_s_max", "bound_tok_per_s", "serial_tok_per_s", "of_bound",
               "of_serial", "limited_by", "ttft_ms_median", "tpot_ms_median", "read_gb_per_s",
               "int8_gop_per_s", "bf16_gop_per_s", "f32_gop_per_s", "model", "weights", "kv_format",
               "isa", "cpu", "headrace", "git_commit", "date")  # fmt: skip


def render(result: BenchResult, output: str) -> str:
    """output: one of OUTPUTS."""
    match output:
        case "json":
            return json.dumps(to_dict(result), ensure_ascii=False, indent=1)
        case "csv":
            return _csv(to_dict(result))
        case "md":
            return _markdown(result)
        case _:
            return _plain(result)


# ---- data ---------------------------------------------------------------------------------------


def to_dict(result: BenchResult) -> dict[str, Any]:
    """{"conditions", "checks", "probe", "probes", "rows", "ops"?}. probe: medians for the first
    number of threads; probes: of each number, with their spread."""
    data: dict[str, Any] = {
        "conditions": result.conditions | {"threads": [r.threads for r in result.results]},
        "checks": [{"threads": r.threads} | r.check.to_dict() for r in result.results],
        "probe": _probe(result.results[0]),
        "probes": [_probe(r) for r in result.results],
        "rows": [row.to_dict() | {"threads": r.threads} for r in result.results for row in r.rows],
    }
    ops = [table.to_dict() | {"threads": r.threads} for r in result.results for table in r.ops]
    return data | {"ops": ops} if ops else data


def _probe(result: ThreadResult) -> dict[str, Any]:
    return {
        **result.rates.to_dict(),
        "threads": result.threads,
        "isa": result.rates.isa,
        "llc_bytes": result.rates.llc_bytes,
        "num_probes": len(result.probes),
        "spread": {
            name: spread([p.to_dict()[name] for p in result.probes]).to_dict()
            for name in result.rates.to_dict()
        },
    }


def _csv(data: dict[str, Any]) -> str:
    probes = {probe["threads"]: probe for probe in data["probes"]}
    text = io.StringIO()
    writer = csv.DictWriter(text, _CSV_FIELDS, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    conditions = data["conditions"] | {"weights": " ".join(data["conditions"]["weights"])}
    for row in data["rows"]:
        flat = {f"tok_per_s_{name}": value for name, value in row["tok_per_s"].items()}
        for name in ("ttft_ms", "tpot_ms"):
            flat[f"{name}_median"] = row[name]["median"] if name in row else ""
        writer.writerow(conditions | probes[row["threads"]] | row | flat)
    return text.getvalue().rstrip("\n")


# ---- tables -------------------------------------------------------------------------------------


def _plain(result: BenchResult) -> str:
    lines = [*_notes(result), "", *aligned(_HEADERS, _cells(result))]
    for one in result.results:
        for table in one.ops:
            title = f"ops of {table.step}, {one.threads} threads"
            lines += ["", title, *aligned(_OP_HEADERS, _op_cells(table))]
    return "\n".join(lines)


def _markdown(result: BenchResult) -> str:
    lines = [*markdown_table(_HEADERS, _cells(result)), ""]
    lines += [f"- {note}" for note in _notes(result)]
    for one in result.results:
        for table in one.ops:
            lines += ["", f"Ops of {table.step}, {one.threads} threads:", ""]
            lines += markdown_table(_OP_HEADERS, _op_cells(table))
    return "\n".join(lines)


def _cells(result: BenchResult) -> list[tuple[str, ...]]:
    return [_row_cells(row, one.threads) for one in result.results for row in one.rows]


def _row_cells(row: Row, threads: int) -> tuple[str, ...]:
    rate, case = row.tok_per_s, row.case
    part = case.kind is Kind.BATCH and row.test != case.test
    return (
        f"  {row.test}" if part else row.test,
        str(threads),
        str(case.batch),
        str(case.depth),
        figures(rate.median),
        f"{figures(rate.min)} … {figures(rate.max)}",
        figures(row.limit.tok_per_s),
        f"{100 * row.of_bound:.0f} %",
        figures(row.limit.serial_tok_per_s),
        f"{100 * row.of_serial:.0f} %",
        row.limited_by,
        _median(row.ttft_ms),
        _median(row.tpot_ms),
    )


def _op_cells(table: OpTable) -> list[tuple[str, ...]]:
    cells: list[tuple[str, ...]] = [
        (
            row.name,
            str(row.count),
            f"{1e3 * row.seconds:.3f}",
            f"{100 * row.share:.1f} %",
            f"{row.gb_per_s:.1f}" if row.num_bytes else "",
            f"{row.gop_per_s:.0f}" if row.operations else "",
            f"{100 * row.of_limit:.0f} %" if row.of_limit is not None else "",
        )
        for row in table.rows
    ]
    whole = sum(row.seconds for row in table.rows)
    limit = sum(row.limit_s for row in table.rows)
    cells.append(
        ("all", str(sum(r.count for r in table.rows)), f"{1e3 * whole:.3f}", "100.0 %", "", "",
         f"{100 * limit / whole:.0f} %")
    )  # fmt: skip
    return cells


def _notes(result: BenchResult) -> list[str]:
    """The conditions in some lines."""
    c = result.conditions
    lines = [
        f"{c['model']}: weights {', '.join(c['weights'])}, activations "
        f"{', '.join(c['activations'])}, KV {c['kv_format']}; {c['model_bytes'] / 1e6:,.0f} MB",
        f"{c['cpu']}, {c['cpus']} CPUs, {c['isa']}; headrace {c['headrace']}"
        + (f" ({c['git_commit']})" if c["git_commit"] else "")
        + f", {c['numerics_id']}; {c['date']}; load {c['load_average_1min']} before, "
        f"{c['load_average_after']} after",
        f"median of {c['repetitions']} repetitions; model load and warm-up not included; "
        f"{c['path']}; {c['sampling']}; {c['prompts']}; at most {c['max_num_batched_tokens']} "
        f"tokens a step",
    ]
    for one in result.results:
        seconds = sum(rung.seconds for rung in one.check.rungs)
        lines.append(
            f"checked with {one.threads} threads in {seconds:.1f} s: "
            + ", ".join(rung.name for rung in one.check.rungs)
        )
        read = spread([p.read_bytes_per_s / 1e9 for p in one.probes])
        rates = one.rates.to_dict()
        lines.append(
            f"probe with {one.threads} threads, median of {len(one.probes)}: read "
            f"{read.median:.1f} GB/s ({read.min:.1f} … {read.max:.1f}); int8 "
            f"{rates['int8_gop_per_s']:.0f}, bf16 {rates['bf16_gop_per_s']:.0f}, "
            f"f32 {rates['f32_gop_per_s']:.0f} Gop/s"
        )
    if "probe_note" in c:
        lines.append(c["probe_note"])
    return lines


def _median(times: Spread | None) -> str:
    return "" if times is None else f"{times.median:.2f}"

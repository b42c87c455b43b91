"""`headrace models`: list, show, pull, rm, export-tokenizer."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli import options as o
from headrace.cli.progress import StderrReporter
from headrace.formats.aliases import ALIASES
from headrace.formats.sources import list_local, remove, resolve

models_app = typer.Typer(
    help="Models: what is there, what is known, fetching and removing.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@models_app.command("list")
def list_models(as_json: o.AsJson = False) -> None:
    """List the models of the cache, and the aliases that can be fetched."""
    local = {m.name: m for m in list_local()}
    rows: list[dict[str, Any]] = [
        {
            "name": alias.name,
            "about": alias.about,
            "licence": alias.licence,
            "size_bytes": alias.size_bytes,
            "cached": alias.name in local,
            "path": str(local[alias.name].path) if alias.name in local else None,
        }
        for alias in ALIASES.values()
    ]
    rows += [
        {
            "name": model.name,
            "about": None,
            "licence": None,
            "size_bytes": model.size_bytes,
            "cached": True,
            "path": str(model.path),
        }
        for model in local.values()
        if model.name not in ALIASES
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        state = "cached" if row["cached"] else "      "
        about = row["about"] or row["path"]
        typer.echo(f"{row['name']:<{width}}  {_mb(row['size_bytes']):>10}  {state}  {about}")


@models_app.command()
def pull(model: o.Model, offline: o.Offline = False, as_json: o.AsJson = False) -> None:
    """Fetch a model into the cache (nothing to do when it is there); print its path."""
    path = resolve(model, offline=offline, progress=StderrReporter())
    if as_json:
        typer.echo(json.dumps({"name": model, "path": str(path)}))
    else:
        typer.echo(str(path))


@models_app.command("rm")
def remove_model(model: o.Model, as_json: o.AsJson = False) -> None:
    """Remove an alias or an hf: repository from the cache."""
    freed = remove(model)
    if as_json:
        typer.echo(json.dumps({"name": model, "freed_bytes": freed}))
    else:
        typer.echo(f"removed {model}: {_mb(freed)} freed")


@models_app.command()
def show(
    model: o.Model,
    quantize: o.Quantize = None,
    offline: o.Offline = False,
    as_json: o.AsJson = False,
) -> None:
    """Show architecture, shapes, number formats, size, licence, context and KV bytes per token.
    With --quantize, also what loading with that option would make of the weights."""
    from headrace.cli.model_facts import model_facts
    from headrace.formats.checkpoint import open_checkpoint
    from headrace.models.quantize import parse_format

    wanted = None if quantize is None else parse_format(quantize)
    path = resolve(model, offline=offline, progress=StderrReporter())
    facts = model_facts(open_checkpoint(path), quantize=wanted)
    alias = ALIASES.get(model)
    if alias is not None and facts["licence"] is None:
        facts["licence"] = alias.licence
    typer.echo(json.dumps(facts, indent=2, ensure_ascii=False) if as_json else _page(facts))


@models_app.command()
def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Remove all of them.")] = False,
    weight_cache: o.WeightCache = None,
    as_json: o.AsJson = False,
) -> None:
    """List the packed weights that --weight-cache keeps, the last used first, or remove them."""
    import os

    from headrace.engine.config import WEIGHT_CACHE_VARIABLE
    from headrace.formats.cache_dirs import packed_dir
    from headrace.ops.weight_cache import WeightCache, directory_of

    setting = weight_cache or os.environ.get(WEIGHT_CACHE_VARIABLE)
    directory = directory_of(setting, packed_dir()) or packed_dir()
    kept = WeightCache(directory)
    if clear:
        freed = kept.clear()
        answer = {"directory": str(directory), "freed_bytes": freed}
        typer.echo(json.dumps(answer) if as_json else f"{directory}: {_mb(freed)} freed")
        return
    rows: list[dict[str, Any]] = [
        {
            "path": str(entry.path),
            "size_bytes": entry.num_bytes,
            "used_at": entry.used_at,
            "source": entry.source,
            "formats": list(entry.formats),
        }
        for entry in kept.entries()
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    for row in rows:
        day = time.strftime("%Y-%m-%d %H:%M", time.localtime(row["used_at"]))
        formats = ", ".join(row["formats"])
        typer.echo(f"{_mb(row['size_bytes']):>11}  {day}  {row['source']} ({formats})")
    typer.echo(f"{directory}: {len(rows)} files, {_mb(sum(r['size_bytes'] for r in rows))}")


@models_app.command("export-tokenizer")
def export(
    model: o.Model,
    directory: Annotated[Path, typer.Argument(metavar="DIR", show_default=False)],
    offline: o.Offline = False,
    as_json: o.AsJson = False,
) -> None:
    """Write tokenizer.json and tokenizer_config.json, as transformers loads them."""
    from headrace.errors import ModelFileError
    from headrace.formats.chat_template import load_chat_template
    from headrace.formats.checkpoint import open_checkpoint
    from headrace.formats.tokenizer_export import export_tokenizer
    from headrace.formats.tokenizer_load import load_tokenizer

    checkpoint = open_checkpoint(resolve(model, offline=offline, progress=StderrReporter()))
    tokenizer = load_tokenizer(checkpoint)
    try:
        template = load_chat_template(checkpoint, tokenizer)
    except ModelFileError:
        template = None  # a base model: nothing to export
    paths = export_tokenizer(tokenizer, directory, template=template)
    if as_json:
        typer.echo(json.dumps({"name": model, "files": [str(p) for p in paths]}))
    else:
        for path in paths:
            typer.echo(str(path))


def _page(facts: dict[str, Any]) -> str:
    """The text form of `show`."""
    size = facts["size"]
    lines = [
        ("model", facts["name"] or facts["source"]),
        ("path", facts["source"]),
        ("architecture", f"{facts['architecture']} ({facts['kind']})"),
        ("licence", facts["licence"] or "not stated"),
        ("parameters", f"{facts['parameters']:,}"),
        ("size", f"{_mb(size['naive_bytes'])} codes alone, "
                 f"{_mb(size['tensor_bytes'])} with scales, {_mb(size['file_bytes'])} on disk"),
    ]  # fmt: skip
    if facts["runs"]:
        s = facts["shapes"]
        lines += [
            ("context", f"{facts['context']:,} tokens"),
            ("layers", f"{s['layers']}, hidden {s['hidden']}, intermediate {s['intermediate']}"),
            ("attention", f"{s['query_heads']} query heads, {s['kv_heads']} KV heads "
                          f"of {s['head_dim']}"),
            ("embedding", f"{s['vocabulary_rows']:,} rows"
                          + (", also the output matrix" if s["tied_embeddings"] else "")),
        ]  # fmt: skip
    else:
        lines.append(("can not run", facts["reason"]))
    if "quantize" in facts:
        lines.append(("--quantize", facts["quantize"]["text"]))
    lines += _tokenizer_lines(facts["tokenizer"])
    text = "\n".join(f"{name + ':':<14} {value}" for name, value in lines)
    text += "\n\ntensors         number  parameters   codes alone  with scales  bits  formats"
    for row in facts["tensors"]:
        formats = ", ".join(f"{name} ×{count}" for name, count in row["formats"].items())
        text += (
            f"\n  {row['group']:<12} {row['tensors']:>7} {row['parameters']:>12,} "
            f"{_mb(row['naive_bytes']):>12} {_mb(row['tensor_bytes']):>12} "
            f"{row['bits_per_weight'] or '?':>5}  {formats}"
        )
    if facts["runs"]:
        text += "\n\nKV bytes per token  layers  window" + "".join(
            f"{name:>10}" for name in facts["kv"][0]["bytes_per_token"]
        )
        for group in facts["kv"]:
            text += f"\n  {group['group']:<17} {group['layers']:>6} {group['window'] or '-':>7}"
            text += "".join(f"{count:>10,}" for count in group["bytes_per_token"].values())
    return text


def _tokenizer_lines(tokenizer: dict[str, Any]) -> list[tuple[str, str]]:
    if "error" in tokenizer:
        return [("tokenizer", tokenizer["error"])]
    ends = ", ".join(f"{e['text']} ({e['id']})" for e in tokenizer["eos"])
    begins = "adds BOS" if tokenizer["add_bos"] else "adds no BOS"
    return [
        ("tokenizer", f"{tokenizer['vocabulary']}, {tokenizer['ids']:,} ids, {begins}"),
        ("ends at", ends or "nothing: only at the length limit"),
        ("chat template", tokenizer["chat_template"] or "none"),
    ]


def _mb(count: int | None) -> str:
    return "unknown" if count is None else f"{count / 1e6:,.1f} MB"

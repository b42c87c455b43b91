"""Flags that several commands share: long vLLM spelling first, llama.cpp's short one as alias."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.errors import UsageError

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A GGUF file, a Hugging Face directory, an alias, or hf:repo[:quant].",
        show_default=False,
    ),
]
MaxTokens = Annotated[
    int | None,
    typer.Option("--max-tokens", "-n", show_default=False,
                 help="Tokens to generate (default: at most 128, in a chat 512)."),
]  # fmt: skip
MaxModelLen = Annotated[
    int | None,
    typer.Option(
        "--max-model-len", "-c", help="Context length (prompt + output).", show_default=False
    ),
]
MaxNumSeqs = Annotated[
    int, typer.Option("--max-num-seqs", "-np", help="Sequences that run together.")
]
Threads = Annotated[
    int | None,
    typer.Option("--threads", "-t", help="Threads (default: all usable cores).",
                 show_default=False),
]  # fmt: skip
KVFormat = Annotated[
    str,
    typer.Option("--kv-cache-dtype", "-ctk", help="KV number format: bf16, f16 or f32."),
]
KVMemory = Annotated[
    str | None,
    typer.Option("--kv-cache-memory", help="KV budget, e.g. 512MiB.", show_default=False),
]
PrefixCaching = Annotated[
    bool | None,
    typer.Option(
        "--enable-prefix-caching/--no-enable-prefix-caching",
        help="Keep what was computed for later requests (default: yes).",
        show_default=False,
    ),
]
SchedulePolicy = Annotated[
    str,
    typer.Option(help="Who waits least: fcfs (first come) or lpm (longest cached prefix)."),
]
BlockSize = Annotated[int, typer.Option(help="Positions per KV block (multiple of 16).")]
ChunkTokens = Annotated[
    int | None,
    typer.Option(
        "--max-num-batched-tokens", "-b", help="Token budget of one step.", show_default=False
    ),
]
Temperature = Annotated[
    float, typer.Option("--temperature", "--temp", help="0 = greedy.")
]  # fmt: skip
TopK = Annotated[int, typer.Option(help="Keep the k most likely tokens; 0 = off.")]
TopP = Annotated[float, typer.Option(help="Smallest set of this probability; 1 = off.")]
MinP = Annotated[float, typer.Option(help="Drop tokens below min-p × the best; 0 = off.")]
TypicalP = Annotated[float, typer.Option(help="Locally typical set; 1 = off.")]
RepetitionPenalty = Annotated[
    float, typer.Option("--repetition-penalty", "--repeat-penalty", help="1 = off.")
]
PresencePenalty = Annotated[float, typer.Option(help="Subtracted once per token in the output.")]
FrequencyPenalty = Annotated[float, typer.Option(help="Subtracted per occurrence in the output.")]
Seed = Annotated[
    int | None, typer.Option("--seed", "-s", help="Noise seed; printed when not given.",
                             show_default=False)
]  # fmt: skip
Stop = Annotated[
    list[str] | None,
    typer.Option("--stop", help="Stop string; may be repeated.", show_default=False),
]
ChatTemplate = Annotated[
    Path | None,
    typer.Option(help="Jinja template file instead of the model's.", show_default=False),
]
Quantize = Annotated[
    str | None,
    typer.Option(
        "--quantize",
        help="Quantise the linear layers at load: q8_0, q6_k, q5_1, q5_0, q5_k, q4_1, q4_0, q4_k, "
        "q3_k or q2_k.",
        show_default=False,
    ),
]
WeightCache = Annotated[
    str | None,
    typer.Option(
        "--weight-cache",
        help="Keep packed weights on disk for the next start: on, off or a directory (default: "
        "HEADRACE_WEIGHT_CACHE, else off).",
        show_default=False,
    ),
]
Speculative = Annotated[
    str | None,
    typer.Option(
        help="Who guesses tokens ahead: ngram (earlier text), draft (--draft-model) or off "
        "(default: draft where there is a draft model, else off).",
        show_default=False,
    ),
]
DraftModel = Annotated[
    str | None,
    typer.Option(
        "--draft-model",
        "-md",
        help="A smaller model with the same vocabulary, which guesses tokens ahead.",
        show_default=False,
    ),
]
DraftQuantize = Annotated[
    str | None,
    typer.Option(
        help="Quantise the draft model at load, as --quantize does MODEL; MODEL may then be its "
        "own draft model.",
        show_default=False,
    ),
]
NumDraftTokens = Annotated[
    str, typer.Option(help="Tokens guessed in a round: a number, or auto (as many as pay).")
]
Acceptance = Annotated[
    str,
    typer.Option(
        help="Which guesses stay: coupled (the text is that of plain decoding) or rejection (its "
        "distribution is)."
    ),
]
KVSave = Annotated[
    Path | None,
    typer.Option(
        "--kv-save",
        metavar="DIR",
        help="Restore cached prefixes from DIR at start and save them there at the end.",
        show_default=False,
    ),
]
Offline = Annotated[bool, typer.Option("--offline", help="Use only what is in the local cache.")]
#: How `headrace bench` prints.
OUTPUTS = ("table", "md", "csv", "json")
Output = Annotated[str, typer.Option("--output", "-o", help="table, md, csv or json.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON to stdout.")]
Stats = Annotated[bool, typer.Option("--stats", help="Print a line of statistics to stderr.")]


def check_output(output: str) -> None:
    """Raises UsageError for what is not one of OUTPUTS."""
    if output not in OUTPUTS:
        raise UsageError(f"--output must be one of {', '.join(OUTPUTS)}, not {output!r}.")


def draft_tokens(text: str) -> int | str:
    """--num-draft-tokens as EngineOptions takes it."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else text


def check_guessing(
    speculative: str | None, draft_model: str | None, num_draft_tokens: str, acceptance: str
) -> None:
    """Raises UsageError for how to guess where nobody was told to. A server is told by requests."""
    told = speculative is not None or draft_model is not None
    if not told and (num_draft_tokens != "auto" or acceptance != "coupled"):
        raise UsageError(
            "--num-draft-tokens and --acceptance say how to guess, and nobody guesses: add "
            "--speculative ngram or --draft-model MODEL."
        )


def given(**options: Any) -> dict[str, Any]:
    """Only the options that were given: the rest keep the defaults of EngineConfig."""
    return {name: value for name, value in options.items() if value is not None}


def progress(items: Iterable[int], total: int, label: str) -> Iterator[int]:
    """Passes items through; a progress bar on stderr when it is a terminal."""
    if not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(items, label, total=total, console=Console(stderr=True), transient=True)

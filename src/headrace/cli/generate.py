"""`headrace generate`: one prompt, streamed text."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import options as o
from headrace.cli.progress import StderrReporter
from headrace.cli.text_input import read_text
from headrace.errors import UsageError

if TYPE_CHECKING:
    from headrace.engine.llm import LLM
    from headrace.engine.outputs import RequestOutput
    from headrace.engine.params import SamplingParams
    from headrace.engine.speculation.account import SpeculationAccount


def generate(
    model: o.Model,
    prompt: Annotated[
        str | None, typer.Option("--prompt", "-p", help="The prompt.", show_default=False)
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", help="Read the prompt from a file; - = stdin.",
                     show_default=False),
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Send the prompt as a user message (chat template).")
    ] = False,
    system: Annotated[
        str | None, typer.Option("--system", "-sys", help="With --chat: the system message.",
                                 show_default=False)
    ] = None,
    chat_template: o.ChatTemplate = None,
    max_tokens: o.MaxTokens = None,
    samples: Annotated[int, typer.Option("--samples", help="Samples of the prompt (n).")] = 1,
    max_model_len: o.MaxModelLen = None,
    temperature: o.Temperature = 0.0,
    top_k: o.TopK = 0,
    top_p: o.TopP = 1.0,
    min_p: o.MinP = 0.0,
    typical_p: o.TypicalP = 1.0,
    repetition_penalty: o.RepetitionPenalty = 1.0,
    presence_penalty: o.PresencePenalty = 0.0,
    frequency_penalty: o.FrequencyPenalty = 0.0,
    seed: o.Seed = None,
    stop: o.Stop = None,
    json_schema: Annotated[
        str | None,
        typer.Option("--json-schema", "-j", show_default=False,
                     help="The text is JSON of this schema: a file, or the schema itself."),
    ] = None,
    ignore_eos: Annotated[bool, typer.Option(help="Do not stop at end-of-text ids.")] = False,
    logprobs: Annotated[
        int | None, typer.Option(help="With --json: the k most likely tokens per step.",
                                 show_default=False)
    ] = None,
    prompt_logprobs: Annotated[
        int | None, typer.Option(help="With --json: the same for the prompt.", show_default=False)
    ] = None,
    trace: Annotated[
        int, typer.Option(help="With --json: top N candidates after every sampler stage.")
    ] = 0,
    threads: o.Threads = None,
    quantize: o.Quantize = None,
    weight_cache: o.WeightCache = None,
    kv_save: o.KVSave = None,
    speculative: o.Speculative = None,
    draft_model: o.DraftModel = None,
    draft_quantize: o.DraftQuantize = None,
    num_draft_tokens: o.NumDraftTokens = "auto",
    acceptance: o.Acceptance = "coupled",
    kv_cache_dtype: o.KVFormat = "bf16",
    kv_cache_memory: o.KVMemory = None,
    block_size: o.BlockSize = 16,
    max_num_batched_tokens: o.ChunkTokens = None,
    kv_allocator: Annotated[
        str, typer.Option(help="KV allocation: paged, contiguous, growing or none.")
    ] = "paged",
    offline: o.Offline = False,
    stats: o.Stats = False,
    as_json: o.AsJson = False,
    output: Annotated[str, typer.Option("--output", "-o", help="text or json.")] = "text",
) -> None:  # fmt: skip
    """Generate text from one prompt. Text to stdout, everything else to stderr."""
    if output not in ("text", "json"):
        raise UsageError(f"--output must be text or json, not {output!r}.")
    as_json = as_json or output == "json"
    if not as_json and (logprobs is not None or prompt_logprobs is not None or trace):
        raise UsageError("--logprobs, --prompt-logprobs and --trace are printed with --json only.")
    if not chat and (system is not None or chat_template is not None):
        raise UsageError("--system and --chat-template are used with --chat only.")
    o.check_guessing(speculative, draft_model, num_draft_tokens, acceptance)
    text = _prompt(prompt, file)

    from headrace.engine.llm import LLM
    from headrace.engine.params import DefaultLimit, SamplingParams
    from headrace.structured.spec import StructuredOutputs

    params = SamplingParams(
        n=samples, max_tokens=DefaultLimit(128) if max_tokens is None else max_tokens,
        temperature=temperature, top_k=top_k, top_p=top_p,
        min_p=min_p, typical_p=typical_p, repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty, frequency_penalty=frequency_penalty, seed=seed,
        stop=stop or (), ignore_eos=ignore_eos, logprobs=logprobs,
        prompt_logprobs=prompt_logprobs, trace=trace,
        structured_outputs=None if json_schema is None
        else StructuredOutputs(json=schema_text(json_schema)),
    )  # fmt: skip
    with LLM(
        model,
        kv_cache_dtype=kv_cache_dtype, block_size=block_size, kv_allocator=kv_allocator,
        offline=offline, progress=StderrReporter(), max_num_seqs=samples,
        num_draft_tokens=o.draft_tokens(num_draft_tokens), acceptance=acceptance,
        **o.given(max_model_len=max_model_len, num_threads=threads, quantize=quantize,
                  weight_cache=weight_cache, kv_save=kv_save, speculative=speculative,
                  draft_model=draft_model, draft_quantize=draft_quantize,
                  kv_cache_memory=kv_cache_memory,
                  chat_template=str(chat_template) if chat_template else None,
                  max_num_batched_tokens=max_num_batched_tokens),
    ) as llm:  # fmt: skip
        result = _answer(llm, text, params, chat=chat, system=system, echo=not as_json)
    if as_json:
        typer.echo(json.dumps(to_json(result), ensure_ascii=False))
    if stats:
        print(statistics_line(result), file=sys.stderr)
    for completion in result.outputs:
        if completion.error is not None:
            from headrace.errors import HeadraceError

            raise HeadraceError(completion.error)


def _prompt(prompt: str | None, file: Path | None) -> str:
    if prompt is not None and file is None:
        return prompt
    if prompt is None and file is not None:
        return read_text(file)
    raise UsageError(
        "Give the prompt with either --prompt TEXT or --file FILE (--file - reads standard input)."
    )


def schema_text(value: str) -> str:
    """A schema given as JSON text or as a file (- = standard input) that holds it."""
    return value if value.lstrip().startswith("{") else read_text(Path(value))


def _answer(
    llm: LLM, text: str, params: SamplingParams, *, chat: bool, system: str | None, echo: bool
) -> RequestOutput:
    """Runs the request; with echo, text goes to stdout as it comes (samples one after another)."""
    messages = [{"role": "system", "content": system}] if system is not None else []
    messages.append({"role": "user", "content": text})
    stream = llm.stream_chat(messages, params) if chat else llm.stream(text, params)
    held: dict[int, list[str]] = {i: [] for i in range(params.n)}
    for delta in stream:
        if not echo:
            continue
        if delta.index == 0:
            sys.stdout.write(delta.text)
            sys.stdout.flush()
        else:
            held[delta.index].append(delta.text)
    if echo:
        for index in range(1, params.n):
            sys.stdout.write(f"\n--- sample {index} ---\n" + "".join(held[index]))
        sys.stdout.write("\n")
        sys.stdout.flush()
    return stream.result


def statistics_line(result: RequestOutput) -> str:
    """One line: counts, times and rates of one request."""
    m = result.metrics
    parts = [f"prompt {m.num_prompt_tokens} tokens"]
    if m.num_cached_tokens:
        parts.append(f"{m.num_cached_tokens} cached")
    computed = m.num_prompt_tokens - m.num_cached_tokens
    if m.prefill_s:
        parts.append(f"{computed / m.prefill_s:.0f} tok/s")
    decoded = m.num_output_tokens - len(result.outputs)
    rate = f", {decoded / m.decode_s:.1f} tok/s" if m.decode_s and decoded > 0 else ""
    parts.append(f"output {m.num_output_tokens} tokens{rate}")
    if m.speculation is not None:
        parts.append(speculation_text(m.speculation))
    if m.time_to_first_token_s is not None:
        parts.append(f"first token {m.time_to_first_token_s * 1e3:.0f} ms")
    reasons = ",".join(str(c.finish_reason) for c in result.outputs)
    return "[" + " | ".join([*parts, f"finish {reasons}", f"seed {result.seed}"]) + "]"


def speculation_text(account: SpeculationAccount) -> str:
    """What guessing ahead did for a request."""
    if not account.num_drafted:
        return "drafted 0"
    text = (
        f"drafted {account.num_drafted}, tested {account.num_tested}, "
        f"accepted {account.num_accepted}"
    )
    if account.acceptance_rate is not None:
        text += f", α {account.acceptance_rate:.2f}"
    gains = []
    if account.measured_gain is not None:
        gains.append(f"{account.measured_gain:.2f}× measured")
    if account.predicted_gain is not None:
        gains.append(f"{account.predicted_gain:.2f}× predicted")
    return text + (f", gain {', '.join(gains)}" if gains else "")


def to_json(result: RequestOutput) -> dict[str, Any]:
    """The whole result as plain JSON values; log 0 becomes -9999.0, which strict parsers take."""
    plain: dict[str, Any] = _finite(dataclasses.asdict(result))
    return plain


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if value - value == 0.0 else -9999.0
    if isinstance(value, dict):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value

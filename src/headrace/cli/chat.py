"""`headrace chat`: a conversation in the terminal; each turn extends the history's KV."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import options as o
from headrace.cli.generate import statistics_line
from headrace.cli.progress import StderrReporter
from headrace.errors import PromptError

if TYPE_CHECKING:
    from headrace.engine.llm import LLM
    from headrace.engine.params import SamplingParams

_HELP = "/reset starts over, /quit or Ctrl-D ends, Ctrl-C stops an answer, /help says this."
_ENDS = ("/quit", "/exit", "/bye")


def chat(
    model: o.Model,
    system: Annotated[
        str | None, typer.Option("--system", "-sys", help="System message.", show_default=False)
    ] = None,
    max_tokens: o.MaxTokens = None,
    max_model_len: o.MaxModelLen = None,
    temperature: o.Temperature = 0.7,
    top_k: o.TopK = 0,
    top_p: o.TopP = 0.95,
    min_p: o.MinP = 0.0,
    repetition_penalty: o.RepetitionPenalty = 1.0,
    seed: o.Seed = None,
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
    chat_template: o.ChatTemplate = None,
    offline: o.Offline = False,
    stats: o.Stats = False,
) -> None:
    """Talk to a model over several turns. /reset starts over, /quit or Ctrl-D ends, Ctrl-C stops an
    answer. Each turn reuses the KV of the conversation so far."""
    o.check_guessing(speculative, draft_model, num_draft_tokens, acceptance)

    from headrace.engine.llm import LLM
    from headrace.engine.params import DefaultLimit, SamplingParams

    params = SamplingParams(
        max_tokens=DefaultLimit(512) if max_tokens is None else max_tokens,
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
        repetition_penalty=repetition_penalty, seed=seed,
    )  # fmt: skip
    with LLM(
        model,
        kv_cache_dtype=kv_cache_dtype,
        offline=offline,
        progress=StderrReporter(),
        num_draft_tokens=o.draft_tokens(num_draft_tokens),
        acceptance=acceptance,
        **o.given(
            max_model_len=max_model_len,
            num_threads=threads,
            quantize=quantize,
            weight_cache=weight_cache,
            kv_save=kv_save,
            speculative=speculative,
            draft_model=draft_model,
            draft_quantize=draft_quantize,
            chat_template=str(chat_template) if chat_template else None,
        ),
    ) as llm:
        llm.check_chat_template()
        converse(llm, params, system=system, stats=stats)


def converse(llm: LLM, params: SamplingParams, *, system: str | None, stats: bool) -> None:
    """Reads turns from stdin until end of file; prints answers to stdout, prompts to stderr."""
    interactive = sys.stdin.isatty()
    if interactive:
        print(_HELP, file=sys.stderr)
    start = [{"role": "system", "content": system}] if system else []
    messages = list(start)
    while (line := _read_turn(interactive)) is not None:
        if not line.strip():
            continue
        command = line.strip()
        if command in _ENDS:
            return
        if command == "/reset":
            messages = list(start)
            continue
        if command.startswith("/") and " " not in command:
            print(_HELP, file=sys.stderr)
            continue
        messages.append({"role": "user", "content": line})
        answer = _turn(llm, messages, params, stats=stats)
        if answer is None:
            messages.pop()
        else:
            messages.append({"role": "assistant", "content": answer})


def _read_turn(interactive: bool) -> str | None:
    if interactive:
        import readline  # noqa: F401 - line editing and history for input()

        try:
            return input("> ")
        except EOFError:
            return None
    line = sys.stdin.readline()
    return line.rstrip("\n") if line else None


def _turn(
    llm: LLM, messages: list[dict[str, str]], params: SamplingParams, *, stats: bool
) -> str | None:
    """One answer, streamed; None when the conversation no longer fits the context."""
    parts: list[str] = []
    try:
        stream = llm.stream_chat(messages, params)
    except PromptError as error:
        print(
            f"headrace: the conversation no longer fits the context of {llm.config.max_model_len} "
            f"tokens: /reset, or start with a larger --max-model-len. ({error})",
            file=sys.stderr,
        )
        return None
    try:
        for delta in stream:
            parts.append(delta.text)
            sys.stdout.write(delta.text)
            sys.stdout.flush()
    except KeyboardInterrupt:
        stream.abort()
    sys.stdout.write("\n")
    sys.stdout.flush()
    if stats:
        print(statistics_line(stream.result), file=sys.stderr)
    return "".join(parts)

"""Pre-tokenizers of byte-level BPE vocabularies, by the name GGUF files give them.

A GGUF file names its pre-tokenizer (`tokenizer.ggml.pre`) but does not describe it: how text is cut
into words before merging, whether it is normalised first, whether a word that is itself a token
skips the merges. This table holds what the original tokenizers do. It knows no files; it produces
the `normalizer`, `pre_tokenizer` and `model` parts of a tokenizers JSON.

Traps the table settles: Qwen, Command-R and the NeoX family normalise to NFC, which their GGUF
files do not mention; StarCoder, SmolLM, Refact and Command-R split digits one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: English contractions as the original patterns write them, in either case.
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"

#: Words may start with one non-letter; the tail is common to most vocabularies since 2023.
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TAIL_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _modern(digits: str) -> str:
    return _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|" + digits + "|" + _TAIL


_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _cased(suffix: str, digits: str) -> str:
    """Words cut where lower case turns into upper case (Tekken, o200k)."""
    head = r"[^\r\n\p{L}\p{N}]?"
    return (
        f"{head}{_UPPER}*{_LOWER}+{suffix}|{head}{_UPPER}+{_LOWER}*{suffix}|{digits}|{_TAIL_SLASH}"
    )


_LLAMA3 = _modern(r"\p{N}{1,3}")
_QWEN2 = _modern(r"\p{N}")
_QWEN35 = (
    _CONTRACTIONS
    + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    + r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN = _cased("", r"\p{N}")
_O200K = _cased(_CONTRACTIONS + "?", r"\p{N}{1,3}")

_CJK_DEEPSEEK = "[一-龥\u0800-一가-\ud7ff]+"
#: The cased letters of the Unicode version that DeepSeek's first tokenizers were made with.
_CASED_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293"
    "\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c"
    "\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5"
    "\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59"
    "\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc"
    "\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107"
    "\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee"
    "\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e"
    "\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f"
    "\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_DEEPSEEK3_MAIN = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

Step = dict[str, Any]


def split(pattern: str, *, behavior: str = "Isolated") -> Step:
    """One Split step of a tokenizers JSON: matches of `pattern` become words of their own."""
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": False}


def _byte_level(*, use_regex: bool) -> Step:
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def _digits(*, individual: bool) -> Step:
    return {"type": "Digits", "individual_digits": individual}


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """What happens to text before byte-level BPE merges.

    steps: tokenizers-JSON pre-tokenizer steps, applied in order. nfc: normalise to NFC first.
    ignore_merges: a word that is a token becomes that token at once. add_bos: whether a file that
    does not say so starts prompts with BOS.
    """

    steps: tuple[Step, ...]
    nfc: bool = False
    ignore_merges: bool = False
    add_bos: bool = False


_GPT2 = PreTokenizer((_byte_level(use_regex=True),))
_NEOX = PreTokenizer((_byte_level(use_regex=True),), nfc=True)
_SINGLE_DIGITS = PreTokenizer((_digits(individual=True), _byte_level(use_regex=True)))


def _split_first(
    *patterns: str, nfc: bool = False, ignore_merges: bool = False, add_bos: bool = False
) -> PreTokenizer:
    steps = (*(split(p) for p in patterns), _byte_level(use_regex=False))
    return PreTokenizer(steps, nfc=nfc, ignore_merges=ignore_merges, add_bos=add_bos)


_LLAMA3_PRE = _split_first(_LLAMA3, ignore_merges=True, add_bos=True)
_QWEN2_PRE = _split_first(_QWEN2, nfc=True)

#: `tokenizer.ggml.pre` -> what it means. Names that are missing here are refused by name.
PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    # Checked against golden token ids of the vocabulary.
    "llama-bpe": _LLAMA3_PRE,
    "qwen2": _QWEN2_PRE,
    # Its goldens keep decomposed text apart: no NFC, whatever the transformers class defaults to.
    "qwen35": _split_first(_QWEN35),
    "gpt-2": _GPT2,
    "mpt": _NEOX,
    "starcoder": _SINGLE_DIGITS,
    "refact": _SINGLE_DIGITS,
    "smollm": _SINGLE_DIGITS,
    "command-r": PreTokenizer(_SINGLE_DIGITS.steps, nfc=True),
    "falcon": PreTokenizer(
        (
            {"type": "Punctuation", "behavior": "Contiguous"},
            _byte_level(use_regex=True),
            _digits(individual=False),
            split("[0-9][0-9][0-9]"),
        )
    ),
    "deepseek-llm": PreTokenizer(
        (
            split(r"[\r\n]"),
            split(r"\s?[" + _CASED_LETTERS + "]+"),
            split(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"),
            split(r"\s+$"),
            split(_CJK_DEEPSEEK),
            _digits(individual=True),
            _byte_level(use_regex=False),
        )
    ),
    "deepseek-coder": PreTokenizer(
        (
            split(r"[\r\n]"),
            split(r"\s?\p{L}+"),
            split(r"\s?\p{P}+"),
            split(_CJK_DEEPSEEK),
            _digits(individual=True),
            _byte_level(use_regex=False),
        )
    ),
    # Same definitions under other names, and published patterns without goldens at hand.
    "llama3": _LLAMA3_PRE,
    "llama-v3": _LLAMA3_PRE,
    "falcon3": _LLAMA3_PRE,
    "falcon-h1": _LLAMA3_PRE,
    "pixtral": _LLAMA3_PRE,
    "lfm2": _LLAMA3_PRE,
    "dbrx": _split_first(_LLAMA3),
    "smaug-bpe": _split_first(_LLAMA3),
    "glm4": _split_first(_LLAMA3, ignore_merges=True),
    "chatglm-bpe": _split_first(_LLAMA3),
    "deepseek-r1-qwen": _split_first(_QWEN2),
    "megrez": _QWEN2_PRE,
    "olmo": _NEOX,
    "phi-2": _GPT2,
    "codeshell": _SINGLE_DIGITS,
    "tekken": _split_first(_TEKKEN, ignore_merges=True, add_bos=True),
    "gpt-4o": _split_first(_O200K),
    "llama4": _split_first(_O200K),
    "deepseek-v3": _split_first(r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK3_MAIN),
}

#: Files written before `tokenizer.ggml.pre` existed: the architecture tells, for these alone.
PRE_BY_ARCHITECTURE: dict[str, str] = {
    "gpt2": "gpt-2",
    "gptneox": "mpt",
    "mpt": "mpt",
    "falcon": "falcon",
    "starcoder": "starcoder",
    "starcoder2": "starcoder",
    "refact": "refact",
    "qwen2": "qwen2",
    "command-r": "command-r",
}

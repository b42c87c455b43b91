"""How far llama.cpp lies from the recordings, on the same file and ids.

    python tests/oracles/compare_llama_cpp.py smollm2-135m … [--kv f16|bf16|f32] [--write]

Prints one JSON object per model. --write keeps the f16 figures in recorded/llama_cpp.json, against
which the default suite holds headrace's; the full suite runs llama.cpp itself.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from importlib.metadata import version

from llama_cpp_model import KV_TYPES, LlamaCpp
from recorded_models import BY_NAME, RecordedModel
from recording import DIRECTORY, load

from headrace.verify.statistics import Deviation, deviation, figures

FIGURES = DIRECTORY / "llama_cpp.json"


def llama_cpp_deviations(target: RecordedModel, kv: str = "f16") -> list[Deviation]:
    """Deviation per prompt of llama.cpp from the recording of `target`."""
    recording = load(target.recording)
    model = LlamaCpp(target.path(), kv=kv)
    return [
        deviation(reference, model.logits(sequence.fed, sequence.num_rows))
        for sequence, reference in zip(recording.sequences, recording.references, strict=True)
    ]


def write(name: str, found: dict[str, float]) -> None:
    known = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    known[name] = found | {"llama_cpp_python": version("llama-cpp-python")}
    FIGURES.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", choices=sorted(BY_NAME))
    parser.add_argument("--kv", choices=sorted(KV_TYPES), default="f16")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    for name in arguments.models:
        found = asdict(figures(llama_cpp_deviations(BY_NAME[name], arguments.kv)))
        print(json.dumps({"model": name, "kv": arguments.kv} | found), flush=True)
        if arguments.write and arguments.kv == "f16":
            write(name, found)

"""How far llama.cpp lies from the recordings, on the same file and ids.

    python tests/oracles/compare_llama_cpp.py smollm2-135m … [--kv f16|bf16|f32]

Prints one JSON object per model. The same deviations are what a comparison of headrace with
llama.cpp starts from.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from llama_cpp_model import KV_TYPES, LlamaCpp
from recorded_models import BY_NAME, RecordedModel
from recording import load

from headrace.verify.statistics import Deviation, deviation, figures


def llama_cpp_deviations(target: RecordedModel, kv: str = "f16") -> list[Deviation]:
    """Deviation per prompt of llama.cpp from the recording of `target`."""
    recording = load(target.recording)
    model = LlamaCpp(target.path(), kv=kv)
    return [
        deviation(reference, model.logits(sequence.fed, sequence.num_rows))
        for sequence, reference in zip(recording.sequences, recording.references, strict=True)
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", choices=sorted(BY_NAME))
    parser.add_argument("--kv", choices=sorted(KV_TYPES), default="f16")
    arguments = parser.parse_args()
    for name in arguments.models:
        found = figures(llama_cpp_deviations(BY_NAME[name], arguments.kv))
        print(json.dumps({"model": name, "kv": arguments.kv} | asdict(found)), flush=True)

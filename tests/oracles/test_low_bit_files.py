"""Files in 2 and 3 bits as llama.cpp makes them, against `transformers` on the dequantised weights
and next to llama.cpp's own distance from it; the text is that of the recordings."""

from __future__ import annotations

from collections import Counter

import pytest
from compare_headrace import HeadraceModel
from low_bit import LowBitModel
from recorded_models import BY_NAME
from recording import load, reference_of

from headrace.formats.checkpoint import open_checkpoint
from headrace.verify.statistics import compare, deviation, figures

pytestmark = [pytest.mark.large, pytest.mark.torch]

#: Model → formats that its matrices must hold, so that the test is about them.
MODELS = {
    LowBitModel("smollm2-135m", "Q2_K", pure=True): {"Q2_K": 30},
    LowBitModel("smollm2-135m", "Q3_K_S", pure=True): {"Q3_K": 30},
    LowBitModel("smollm2-135m", "Q3_K_M", pure=False): {"Q4_K": 29, "Q5_K": 1},
    LowBitModel("smollm2-135m", "IQ4_NL", pure=True): {"IQ4_NL": 211},
    LowBitModel("qwen2.5-coder-0.5b", "Q2_K", pure=True): {"Q2_K": 24},
    LowBitModel("qwen2.5-coder-0.5b", "Q2_K", pure=False): {"Q3_K": 24},
    LowBitModel("qwen2.5-coder-0.5b", "Q3_K_M", pure=False): {"Q4_K": 23},
}
NUM_PROMPTS = 12
FACTOR = 1.2


@pytest.mark.parametrize("target", MODELS, ids=lambda t: t.name)
def test_as_near_to_float32_as_llama_cpp(target: LowBitModel) -> None:
    from dequantised import load_model
    from llama_cpp_model import LlamaCpp
    from record_transformers import logits_of

    path = target.path()
    tensors = open_checkpoint(path).tensors
    held = Counter(tensors.describe(name).format_name for name in tensors)
    assert MODELS[target].items() <= held.items(), held
    sequences = load(BY_NAME[target.alias].recording).sequences[:NUM_PROMPTS]
    reference = load_model(path)
    references = [reference_of(logits_of(reference, sequence)) for sequence in sequences]
    del reference
    native, other = HeadraceModel(target, "f16"), LlamaCpp(path, kv="f16")
    ours, theirs = (
        [
            deviation(wanted, model.logits(sequence.fed, sequence.num_rows))
            for sequence, wanted in zip(sequences, references, strict=True)
        ]
        for model in (native, other)
    )
    print(f"{target.name}: llama.cpp {figures(theirs)}")
    print(f"{target.name}: headrace {figures(ours)}")
    result = compare(ours, theirs)
    assert result["p99_abs_delta"].ratio <= FACTOR
    assert result["mean_kl"].ratio <= FACTOR
    assert result["flips"].low <= FACTOR

"""What quantising at load costs: a safetensors model against its own float32 recording, format by
format, next to a file that llama.cpp quantised from the same weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from compare_headrace import HeadraceModel
from low_bit import LowBitModel
from recorded_models import BY_NAME
from recording import load as load_recording

from headrace.formats.checkpoint import open_checkpoint
from headrace.models.load import load
from headrace.models.quantize import quantize
from headrace.quant.formats import FORMATS
from headrace.verify.statistics import Deviation, deviation, figures

pytestmark = [pytest.mark.large, pytest.mark.torch]

#: From the finest on: what the formats become where 576 and 896 columns do not divide by 256.
KINDS = ("Q8_0", "Q6_K", "Q5_1", "Q5_0", "Q5_K", "Q4_1", "Q4_K", "Q4_0", "Q3_K", "Q2_K")
NUM_PROMPTS = 8


@pytest.fixture(scope="module", params=["smollm2-135m", "qwen2.5-coder-0.5b"])
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> object:
    """(alias, a Hugging Face directory with the float32 numbers of the alias's file)."""
    from dequantised import load_model

    directory = tmp_path_factory.mktemp(request.param)
    load_model(BY_NAME[request.param].path()).save_pretrained(directory)
    return request.param, directory


def distances(alias: str, model: HeadraceModel) -> list[Deviation]:
    recording = load_recording(BY_NAME[alias].recording)
    pairs = list(zip(recording.sequences, recording.references, strict=True))[:NUM_PROMPTS]
    return [deviation(want, model.logits(s.fed, s.num_rows)) for s, want in pairs]


def test_kl_by_format(source: tuple[str, Path]) -> None:
    """No format is more than a little worse than llama.cpp's file in the same format, and bits
    help: 8 bits are nearer than 5, 5 nearer than 4, 4 nearer than 2. (SmolLM2's numbers come from a
    Q4_1 file, so Q4_1 finds them again; it is not compared.)"""
    alias, directory = source
    program = load(open_checkpoint(directory))
    plain = figures(distances(alias, HeadraceModel(program, "f16")))
    print(f"{alias}: float32 weights, KL {plain.mean_kl:.3g}")
    kl = {}
    for kind in KINDS:
        done = quantize(program, FORMATS[kind])
        ours = figures(distances(alias, HeadraceModel(done.model, "f16")))
        kl[kind] = ours.mean_kl
        line = f"{alias}: {kind} {done.result_bytes / 1e6:.0f} MB, KL {ours.mean_kl:.3g}, "
        line += f"flips {ours.flips} of {ours.num_positions}"
        if kind in ("Q4_0", "Q4_K", "Q3_K", "Q2_K"):
            name = {"Q4_K": "Q4_K_S", "Q3_K": "Q3_K_S"}.get(kind, kind)
            copy = LowBitModel(alias, name, pure=True)
            theirs = figures(distances(alias, HeadraceModel(copy, "f16")))
            line += f"; llama.cpp's {kind} {theirs.mean_kl:.3g}"
            assert ours.mean_kl <= 1.1 * theirs.mean_kl
        print(line)
    assert np.isfinite(list(kl.values())).all()
    assert plain.mean_kl <= kl["Q8_0"] < min(kl["Q5_0"], kl["Q5_1"])
    assert max(kl["Q5_0"], kl["Q5_1"]) < kl["Q4_0"]
    assert kl["Q4_K"] < kl["Q2_K"]

"""Trainee: a model of ours with torch parameters under logical names.

The program is the family's own (models/llama.py, …), described by the words of a Hugging Face
config.json; so what was trained can be saved, opened by name, served and costed like any model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from headrace.errors import UsageError
from headrace.formats.cache_dirs import atomic_write
from headrace.lab.training.ops import Tables, TrainingOps
from headrace.models.load import LoadedModel
from headrace.models.outline import ModelOutline, outline_from_hf, uniform
from headrace.models.weights import Axis, Transform, WeightSpec
from headrace.ops.reference.ops import StepRows, Taps
from headrace.ops.reference.weights import WeightStore
from headrace.quant.formats import F32
from headrace.quant.tensor import HostTensor

#: Standard deviation of embedding rows at the start.
_EMBED_STD = 0.02


class Trainee:
    """description: what config.json would hold. parameters: logical name → float tensor, leaves
    that require gradients; the optimizer changes them in place.

    Letters: B sequences, T tokens of each, V vocabulary, E hidden.
    """

    def __init__(
        self,
        description: Mapping[str, object],
        *,
        seed: int = 0,
        parameters: Mapping[str, Tensor] | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """parameters: to start from instead of random ones of `seed`; copied. Raises ModelFileError
        for a description that no family understands, UsageError for parameters that do not fit."""
        self.description = dict(description)
        self.outline: ModelOutline = outline_from_hf(self.description, format_of=uniform(F32))
        specs = self.outline.family.weight_specs(self.outline.config)
        self.specs: Mapping[str, WeightSpec] = {spec.name: spec for spec in specs}
        start = _random(self.outline, self.specs, seed) if parameters is None else parameters
        _check(start, self.specs)
        self.parameters: Mapping[str, Tensor] = {
            name: start[name].detach().clone().to(dtype).requires_grad_() for name in self.specs
        }
        self._dtype = dtype
        self._tables = Tables()

    @property
    def num_parameters(self) -> int:
        """Numbers in all weights, a tied matrix once."""
        return sum(p.numel() for p in self.parameters.values())

    def logits(self, tokens: Tensor) -> Tensor:
        """int64 [B, T] → [B · T, V], differentiable in the parameters."""
        return self.run(tokens).outputs["logits"]

    def run(self, tokens: Tensor, taps: Taps | None = None) -> TrainingOps:
        """One pass over int64 [B, T]. Its `outputs` hold "logits" [B · T, V] and "hidden"
        [B · T, E] (before the final norm); taps: what else to keep of it."""
        count, length = tokens.shape
        flat = tokens.reshape(-1)
        everything = torch.arange(len(flat))
        rows = StepRows(
            tokens=flat,
            positions=everything % length,
            spans=tuple(range(0, len(flat) + 1, length)),
            logit_rows=everything,
            prompt_rows=everything[:0],
        )
        weights = WeightStore({}, self._dtype, overrides=self.parameters)
        ops = TrainingOps(weights, rows, self._tables, taps)
        self.outline.step(ops)
        assert len(rows.spans) == count + 1
        return ops

    def loaded(self) -> LoadedModel:
        """The model with its present weights as float32, for every other interpreter; a copy."""
        weights = {name: _host(p) for name, p in self.parameters.items()}
        config, family = self.outline.config, self.outline.family
        return LoadedModel(config, family, weights, "a model in training")

    def save(self, directory: Path, tokenizer_json: str, *, eos: str) -> Path:
        """Writes model.safetensors, config.json, tokenizer.json and tokenizer_config.json, each as
        a whole; `headrace generate DIRECTORY` runs it. eos: the token that ends a text. Raises
        UsageError where the directory cannot be written, or the family's files hold its weights in
        another form than training does."""
        for spec in self.specs.values():
            if spec.hf_transform is not Transform.NONE:
                raise UsageError(f"Trained {self.outline.family.name} models cannot be saved yet.")
        tensors = {
            self.specs[name].hf: p.detach().float().contiguous()
            for name, p in self.parameters.items()
        }
        words = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": eos}
        files = {
            "model.safetensors": save(tensors, {"format": "pt"}),
            "config.json": json.dumps(self.description, indent=1).encode(),
            "tokenizer.json": tokenizer_json.encode(),
            "tokenizer_config.json": json.dumps(words | {"add_bos_token": False}).encode(),
        }
        try:
            for name, data in files.items():
                with atomic_write(directory / name) as file:
                    file.write(data)
        except OSError as error:
            raise UsageError(f"{directory} cannot be written: {error.strerror}.") from error
        return directory


def _random(
    outline: ModelOutline, specs: Mapping[str, WeightSpec], seed: int
) -> Mapping[str, Tensor]:
    """Matrices with standard deviation 1/√inputs, those that write into the residual stream divided
    by √(2L) (Radford et al. 2019, 2.3); embeddings small; norm weights 1; biases 0."""
    generator = torch.Generator().manual_seed(seed)
    found: dict[str, Tensor] = {}
    for name, spec in specs.items():
        if len(spec.shape) == 1:
            start = torch.zeros if name.endswith(".bias") else torch.ones
            found[name] = start(spec.shape)
            continue
        std = _EMBED_STD if spec.axes[0] in (Axis.VOCAB, Axis.POSITION) else spec.shape[1] ** -0.5
        if spec.axes[0] is Axis.HIDDEN:
            std /= (2 * outline.num_layers) ** 0.5
        found[name] = torch.randn(spec.shape, generator=generator) * std
    return found


def _check(parameters: Mapping[str, Tensor], specs: Mapping[str, WeightSpec]) -> None:
    wrong = parameters.keys() ^ specs.keys()
    wrong |= {n for n, s in specs.items() if n in parameters and parameters[n].shape != s.shape}
    if wrong:
        raise UsageError(f"The weights do not fit the model: {', '.join(sorted(wrong)[:5])}.")


def _host(parameter: Tensor) -> HostTensor:
    values = parameter.detach().to(torch.float32).contiguous().numpy().copy()
    rows = 1 if values.ndim == 1 else values.shape[0]
    return HostTensor(F32, values.shape, values.view(np.uint8).reshape(rows, -1))

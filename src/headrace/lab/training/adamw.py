"""AdamW (Loshchilov & Hutter, arXiv:1711.05101), weight decay on matrices only.

m ← β₁ m + (1 − β₁) g          v ← β₂ v + (1 − β₂) g²
p ← p − η λ p                  matrices only; norm weights and biases do not decay
p ← p − η (m / (1 − β₁ᵗ)) / (√(v / (1 − β₂ᵗ)) + ε)
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class AdamW:
    """parameters: changed in place by `update`, which reads their gradients. first, second: the
    moments by name. num_updates: how many updates they hold."""

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        *,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        decay: float = 0.1,
    ) -> None:
        self.first = {name: torch.zeros_like(p) for name, p in parameters.items()}
        self.second = {name: torch.zeros_like(p) for name, p in parameters.items()}
        self.num_updates = 0
        self._parameters = dict(parameters)
        self._betas, self._eps, self._decay = betas, eps, decay

    @torch.no_grad()
    def update(self, rate: float) -> None:
        """One step with learning rate `rate`; every parameter has a gradient."""
        self.num_updates += 1
        beta1, beta2 = self._betas
        correction1 = 1 - beta1**self.num_updates
        correction2 = 1 - beta2**self.num_updates
        for name, p in self._parameters.items():
            assert p.grad is not None, f"{name} has no gradient"
            m, v = self.first[name], self.second[name]
            m.lerp_(p.grad, 1 - beta1)
            v.mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
            if p.ndim > 1:
                p.mul_(1 - rate * self._decay)
            p.addcdiv_(m, (v / correction2).sqrt_().add_(self._eps), value=-rate / correction1)

    def clear(self) -> None:
        """Drops the gradients."""
        for p in self._parameters.values():
            p.grad = None

"""Number formats of weights: names, block geometry, sizes.

A format stores a row of K numbers as K / block_size blocks of block_bytes each (GGML's layouts; the
type ids are those of GGUF files). This file knows nothing of files, models or kernels.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """One weight format. `block_size` in numbers, `block_bytes` in bytes; bits include scales."""

    name: str
    ggml_type: int
    block_size: int
    block_bytes: int

    @property
    def bits_per_weight(self) -> float:
        """Real bits per number, scales and minima included."""
        return 8.0 * self.block_bytes / self.block_size

    @property
    def naive_bits(self) -> int:
        """Bits of the codes alone (4 for Q4_K), as marketing counts them."""
        digits = "".join(c for c in self.name.split("_")[0] if c.isdigit())
        return int(digits)

    def row_bytes(self, columns: int) -> int:
        """Bytes of one row of `columns` numbers. Columns must be a multiple of block_size."""
        assert columns % self.block_size == 0
        return columns // self.block_size * self.block_bytes


F32 = NumberFormat("F32", 0, 1, 4)
F16 = NumberFormat("F16", 1, 1, 2)
BF16 = NumberFormat("BF16", 30, 1, 2)
Q4_0 = NumberFormat("Q4_0", 2, 32, 18)
Q4_1 = NumberFormat("Q4_1", 3, 32, 20)
Q5_0 = NumberFormat("Q5_0", 6, 32, 22)
Q5_1 = NumberFormat("Q5_1", 7, 32, 24)
Q8_0 = NumberFormat("Q8_0", 8, 32, 34)
Q4_K = NumberFormat("Q4_K", 12, 256, 144)
Q5_K = NumberFormat("Q5_K", 13, 256, 176)
Q6_K = NumberFormat("Q6_K", 14, 256, 210)
Q2_K = NumberFormat("Q2_K", 10, 256, 84)
Q3_K = NumberFormat("Q3_K", 11, 256, 110)
IQ4_NL = NumberFormat("IQ4_NL", 20, 32, 18)

#: Every weight format that Headrace computes with, by name.
FORMATS: dict[str, NumberFormat] = {
    f.name: f
    for f in (
        *(F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K),
        *(Q2_K, Q3_K, IQ4_NL),
    )
}
FORMATS_BY_GGML_TYPE: dict[int, NumberFormat] = {f.ggml_type: f for f in FORMATS.values()}

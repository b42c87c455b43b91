"""Native quantisers: legacy formats against the `gguf` package, K-quants against their error."""

from __future__ import annotations

import ctypes
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from linear_oracle import FORMATS, dequantised, random_weights

from headrace.native import _core
from headrace.quant.formats import FORMATS as GEOMETRY

F32 = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
ISAS: list[str] = _core.available_isas()
LEGACY = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
K_QUANTS = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
#: RMS error on normal numbers, relative to their spread, that each format's quantiser may have:
#: llama.cpp's own on the same numbers, rounded up (test_no_worse_than_llama_cpp runs it).
K_ERROR = {"Q2_K": 0.298, "Q3_K": 0.152, "Q4_K": 0.072, "Q5_K": 0.037, "Q6_K": 0.018}


def quantised(name: str, values: F32, source: str = "F32", **options: object) -> Bytes:
    data = np.ascontiguousarray(values).view(np.uint8)
    numbers = (FORMATS.index(source), data, values.shape[1], FORMATS.index(name))
    result: Bytes = _core.quantize(*numbers, **options)
    return result


def awkward_values(seed: int, columns: int = 512) -> F32:
    """Many magnitudes, ties, zeros, constant and one-sided rows, a lone peak."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((64, columns)) * 10.0 ** rng.integers(-2, 4, (64, 1))
    values[3] = 0
    values[4] = 1.5
    values[5] = np.abs(values[5])
    values[6] = -np.abs(values[6])
    values[7] = rng.integers(-8, 8, columns)
    values[8] = -2.5
    values[9] = 0
    values[9, 100] = -3
    values[10] = rng.integers(-127, 128, columns) * 0.5
    values[11, 32:64] = 0
    return values.astype(np.float32)


def relative_error(name: str, values: F32, data: Bytes) -> float:
    error = (dequantised(name, data) - values).astype(np.float64)
    return float(np.sqrt((error**2).mean()) / values.std())


@pytest.mark.parametrize("name", LEGACY)
@pytest.mark.parametrize("columns", [32, 480, 544])
def test_legacy_bytes_are_those_of_the_gguf_package(name: str, columns: int) -> None:
    values = awkward_values(1, 544)[:, :columns]
    expected = gguf.quants.quantize(values, gguf.GGMLQuantizationType[name])
    np.testing.assert_array_equal(quantised(name, values), expected.view(np.uint8))


@pytest.mark.parametrize("name", LEGACY + K_QUANTS)
def test_levels_threads_and_neighbours_do_not_change_bytes(name: str) -> None:
    """Odd numbers of blocks and of super-blocks; 1500 rows, so that threads are used."""
    values = np.random.default_rng(2).standard_normal((1500, 768), dtype=np.float32)
    data = quantised(name, values)
    for isa in ISAS:
        np.testing.assert_array_equal(quantised(name, values[:40], isa=isa), data[:40])
    np.testing.assert_array_equal(quantised(name, values, threads=3), data)
    np.testing.assert_array_equal(quantised(name, values[:7, :256]), data[:7, : data.shape[1] // 3])


@pytest.mark.parametrize("name", K_QUANTS)
def test_k_quant_error_on_normal_numbers(name: str) -> None:
    values = np.random.default_rng(3).standard_normal((200, 1024), dtype=np.float32)
    assert relative_error(name, values, quantised(name, values)) <= K_ERROR[name]


@pytest.mark.parametrize("name", K_QUANTS)
def test_awkward_rows_stay_within_a_step(name: str) -> None:
    """No error exceeds one step of codes over ± the row's largest magnitude, with a tenth of room
    for rounded scales; zeros stay zero, constants are met."""
    values = awkward_values(4)
    back = dequantised(name, quantised(name, values))
    step = 2 * np.abs(values).max(1) / (2 ** GEOMETRY[name].naive_bits - 1)
    assert (np.abs(back - values).max(1) <= 1.1 * step + 1e-9).all()
    np.testing.assert_array_equal(back[3], 0)
    np.testing.assert_array_equal(back[11, 32:64], 0)
    for row in (4, 8):
        np.testing.assert_allclose(back[row], values[row], rtol=0.13 if name == "Q3_K" else 0.04)


@pytest.mark.parametrize("name", LEGACY + K_QUANTS)
def test_denormals_and_huge_numbers_end_in_finite_codes(name: str) -> None:
    values = np.full((2, 256), 1e-42, np.float32)
    values[1] = np.linspace(-60000, 60000, 256)
    back = dequantised(name, quantised(name, values))
    assert np.abs(back[0]).max() <= 1e-7
    assert np.isfinite(back[1]).all()


@pytest.mark.parametrize("source", FORMATS)
def test_every_source_is_read_as_its_dequantised_numbers(source: str) -> None:
    data = random_weights(source, 20, 512, seed=5)
    values = dequantised(source, data) if source != "F16" else data.view(np.float16)
    exact = np.ascontiguousarray(values, np.float32)
    from_source = _core.quantize(FORMATS.index(source), data, 512, FORMATS.index("Q4_K"))
    np.testing.assert_array_equal(from_source, quantised("Q4_K", exact))


def test_refusals_name_the_thing() -> None:
    values = np.zeros((2, 96), np.float32)
    with pytest.raises(ValueError, match="not a multiple of 256 as Q4_K needs"):
        quantised("Q4_K", values)
    with pytest.raises(ValueError, match="F16 has no quantiser"):
        quantised("F16", values)
    with pytest.raises(ValueError, match="bytes of a row of data is 384, expected 256"):
        _core.quantize(0, values.view(np.uint8), 64, 7)
    with pytest.raises(ValueError, match=r"format is 99, expected 0 … \d+"):
        _core.quantize(0, values.view(np.uint8), 96, 99)
    for bad in (np.nan, np.inf, -np.inf):
        values[1, 95] = bad
        with pytest.raises(ValueError, match="not finite"):
            quantised("Q8_0", values)


@pytest.mark.parametrize("name", LEGACY + K_QUANTS)
def test_finite_weights_never_become_infinite(name: str) -> None:
    """Bfloat16 holds 3e38, the float16 scale of a block far less: stored or refused."""
    refused = []
    for exponent in np.linspace(3, 38, 71):
        values = np.full((2, 256), 10.0**exponent, np.float32)
        values[:, ::3] *= -0.5
        try:
            stored = quantised(name, values)
        except ValueError as error:
            refused.append(str(error))
        else:
            assert not refused
            assert np.isfinite(dequantised(name, stored)).all()
    why = "quantize: a value is too large for the float16 scale of its block"
    assert set(refused) == {why}
    assert len(refused) <= 71 - 4  # 10^4.5 is stored


@pytest.mark.large
@pytest.mark.parametrize("name", LEGACY + K_QUANTS)
def test_no_worse_than_llama_cpp(name: str) -> None:
    """RMS error next to llama.cpp's quantiser on numbers of three shapes; legacy: equal bytes."""
    import llama_cpp

    found = sorted(Path(llama_cpp.__file__).parent.rglob("*ggml-base*"))
    chunk = ctypes.CDLL(str(found[0])).ggml_quantize_chunk
    chunk.restype = ctypes.c_size_t
    pointer, size = ctypes.c_void_p, ctypes.c_int64
    chunk.argtypes = [ctypes.c_int, pointer, pointer, size, size, size, pointer]
    rng = np.random.default_rng(6)
    shape = (128, 1024)
    for draw in (rng.standard_normal(shape), rng.laplace(size=shape), rng.standard_t(3, shape)):
        values = draw.astype(np.float32)
        theirs = np.zeros((128, GEOMETRY[name].row_bytes(1024)), np.uint8)
        kind = GEOMETRY[name].ggml_type
        chunk(kind, values.ctypes.data, theirs.ctypes.data, 0, *shape, None)
        ours = quantised(name, values)
        if name in LEGACY:
            np.testing.assert_array_equal(ours, theirs)
        ratio = relative_error(name, values, ours) / relative_error(name, values, theirs)
        print(f"{name}: {ratio:.4f} of llama.cpp's error")
        assert ratio <= 1.0 + 1e-9

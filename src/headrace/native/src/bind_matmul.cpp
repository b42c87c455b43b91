// Packed weights for Python, and one matmul on numpy arrays (tests, tools).
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "bind.h"
#include "checksum.h"
#include "dispatch.h"
#include "matmul.h"
#include "pack.h"
#include "pool.h"
#include "quantize.h"
#include "row_wise.h"

namespace headrace {

namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using RowOrder = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Vector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Result = nb::ndarray<nb::numpy, float, nb::ndim<2>>;

// "pack: K (columns) is 100, not a multiple of 32, as Q4_0 needs"
[[noreturn]] void refuse(const std::string& op, const std::string& why) {
  throw std::invalid_argument(op + ": " + why);
}
void expect(const std::string& op, const std::string& what, int64_t is, int64_t wanted) {
  if (is != wanted)
    refuse(op, what + " is " + std::to_string(is) + ", expected " + std::to_string(wanted));
}

const char* name(Format format) {
  constexpr const char* kNames[] = {"F32",  "F16",  "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1",
                                    "Q8_0", "Q4_K", "Q5_K", "Q6_K", "Q2_K", "Q3_K", "IQ4_NL"};
  return kNames[static_cast<int>(format)];
}

void expect_columns(const std::string& op, Format format, int64_t k) {
  const int64_t block = geometry(format).k;
  if (k % block != 0)
    refuse(op, "K (columns) is " + std::to_string(k) + ", not a multiple of " +
                   std::to_string(block) + " as " + name(format) + " needs");
}

nb::ndarray<nb::numpy, uint8_t, nb::ndim<2>> quantize_array(int from, const Bytes& data, int64_t k,
                                                            int to,
                                                            const std::optional<std::string>& isa,
                                                            int threads) {
  constexpr int kLast = static_cast<int>(kLastFormat);
  for (const int format : {from, to})
    if (format < 0 || format > kLast)
      refuse("quantize",
             "format is " + std::to_string(format) + ", expected 0 … " + std::to_string(kLast));
  const auto source = static_cast<Format>(from), target = static_cast<Format>(to);
  if (k < 1 || k > std::numeric_limits<int32_t>::max())
    refuse("quantize", "K (columns) is " + std::to_string(k));
  expect_columns("quantize", source, k);
  expect_columns("quantize", target, k);
  if (threads < 1) refuse("quantize", "threads must be at least 1");
  expect("quantize", "bytes of a row of data", static_cast<int64_t>(data.shape(1)),
         file_row_bytes(source, k));
  const KernelTable& kernels = choose_kernels(isa);
  const size_t rows = data.shape(0), row_bytes = static_cast<size_t>(file_row_bytes(target, k));
  auto out = std::make_unique_for_overwrite<uint8_t[]>(rows * row_bytes);
  Quantized result;
  {
    nb::gil_scoped_release release;
    result = quantize(source, data.data(), static_cast<int64_t>(rows), k, target, out.get(),
                      kernels, threads);
  }
  if (result == Quantized::NoQuantiser)
    refuse("quantize", std::string(name(target)) + " has no quantiser");
  if (result == Quantized::TooLarge)
    refuse("quantize", "a value is too large for the float16 scale of its block");
  if (result == Quantized::NotFinite)
    refuse("quantize", "a value is not finite and cannot be quantised");
  uint8_t* p = out.release();
  nb::capsule owner(p, [](void* q) noexcept { delete[] static_cast<uint8_t*>(q); });
  return {p, {rows, row_bytes}, owner};
}

PackedWeights* pack_array(int format, const Bytes& data, int64_t n, int64_t k,
                          const std::optional<RowOrder>& row_order, int threads) {
  constexpr int kLast = static_cast<int>(kLastFormat);
  if (format < 0 || format > kLast)
    refuse("pack",
           "format is " + std::to_string(format) + ", expected 0 … " + std::to_string(kLast));
  const auto f = static_cast<Format>(format);
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();  // no product below overflows
  if (n < 1 || k < 1 || n > kMost || k > kMost)
    refuse("pack", "N (rows) is " + std::to_string(n) + ", K (columns) is " + std::to_string(k) +
                       ", expected 1 … " + std::to_string(kMost));
  expect_columns("pack", f, k);
  if (threads < 1) refuse("pack", "threads must be at least 1");
  expect("pack", "rows of data", static_cast<int64_t>(data.shape(0)), n);
  expect("pack", "bytes of a row of data", static_cast<int64_t>(data.shape(1)),
         file_row_bytes(f, k));
  if (row_order) {
    expect("pack", "length of row_order", static_cast<int64_t>(row_order->shape(0)), n);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t row = row_order->data()[i];
      if (row < 0 || row >= n)
        refuse("pack", "row_order[" + std::to_string(i) + "] is " + std::to_string(row) +
                           ", expected 0 … " + std::to_string(n - 1));
    }
  }
  nb::gil_scoped_release release;
  return new PackedWeights(
      pack(f, data.data(), n, k, row_order ? row_order->data() : nullptr, threads));
}

using Flat = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

int64_t packed_bytes(const PackedMatrix& matrix) {
  return matrix.panel_bytes * num_panels(matrix.n);
}

PackedWeights* map_packed(int format, const Flat& data, int64_t n, int64_t k) {
  if (format < 0 || format > static_cast<int>(kLastFormat))
    refuse("map_packed", "format is " + std::to_string(format));
  const auto f = static_cast<Format>(format);
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (n < 1 || k < 1 || n > kMost || k > kMost)
    refuse("map_packed", "N is " + std::to_string(n) + ", K is " + std::to_string(k));
  expect_columns("map_packed", f, k);
  const PackedMatrix view{f, n, k, panel_bytes(f, k), data.data()};
  expect("map_packed", "number of bytes", static_cast<int64_t>(data.shape(0)), packed_bytes(view));
  if (reinterpret_cast<uintptr_t>(view.data) % 64 != 0)
    refuse("map_packed", "data is not aligned to 64 bytes");
  return new PackedWeights{Mapping(), view};
}

nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>> packed_data(const PackedWeights& packed) {
  return {packed.view.data, {static_cast<size_t>(packed_bytes(packed.view))}, nb::handle()};
}

uint64_t checksum_array(const Flat& data, int threads) {
  if (threads < 1) refuse("checksum", "threads must be at least 1");
  nb::gil_scoped_release release;
  return checksum(data.data(), static_cast<int64_t>(data.shape(0)), threads);
}

Result matmul_array(const PackedWeights& packed, const Floats& x, const std::optional<Vector>& bias,
                    const std::optional<std::string>& isa, int threads) {
  const PackedMatrix& weight = packed.view;
  const auto rows = static_cast<int64_t>(x.shape(0));
  expect("matmul", "K (columns of x)", static_cast<int64_t>(x.shape(1)), weight.k);
  if (bias) expect("matmul", "N (length of bias)", static_cast<int64_t>(bias->shape(0)), weight.n);
  const KernelTable& kernels = choose_kernels(isa);
  const ActivationKind kind = activation_kind(weight.format);
  const int64_t area = kernels.activation_row_bytes(kind, weight.k);
  auto out = std::make_unique<float[]>(static_cast<size_t>(rows * weight.n));
  {
    nb::gil_scoped_release release;
    Pool pool(threads);
    Mapping areas(rows * area);
    std::byte* const activations = areas.data();
    Step step{};
    step.num_tokens = step.num_rows[0] = rows;
    const Matrix in{const_cast<float*>(x.data()), weight.k, weight.k, RowKind::Tokens};
    const PrepareArgs prepare{in, kind, activations, area};
    const MatmulArgs args{weight, activations, area, bias ? bias->data() : nullptr,
                          Matrix{out.get(), weight.n, weight.n, RowKind::Tokens}};
    const RowPart part = RowPart::make(kernels.prepare, prepare);
    const RowWiseArgs record{&part, 1, RowKind::Tokens, rows, 0, 0, OneToken::Row};
    run_op(pool, row_wise, record, step);
    const Limits limits{rows, 1, 1, threads};
    run_op(pool, kernels.matmul, args, step, kernels.matmul_workspace(args, limits));
  }
  float* p = out.release();
  nb::capsule owner(p, [](void* q) noexcept { delete[] static_cast<float*>(q); });
  return Result(p, {static_cast<size_t>(rows), static_cast<size_t>(weight.n)}, owner);
}

}  // namespace

void register_matmul(nb::module_& m) {
  nb::class_<PackedWeights>(m, "PackedMatrix",
                            "Weights [n, k] in panels of 16 output rows; owns its memory.")
      .def_prop_ro("format", [](const PackedWeights& w) { return static_cast<int>(w.view.format); })
      .def_prop_ro("n", [](const PackedWeights& w) { return w.view.n; })
      .def_prop_ro("k", [](const PackedWeights& w) { return w.view.k; })
      .def_prop_ro("nbytes", [](const PackedWeights& w) { return packed_bytes(w.view); })
      .def_prop_ro(
          "mapped", [](const PackedWeights& w) { return w.memory.size() == 0; },
          "Whether the bytes lie in an array that is not its own.")
      .def_prop_ro("data", &packed_data, nb::rv_policy::reference_internal,
                   "The panels: uint8 [nbytes], read-only, valid as long as this object.");
  m.def("map_packed", &map_packed, nb::arg("format"), nb::arg("data"), nb::arg("n"), nb::arg("k"),
        nb::rv_policy::take_ownership, nb::keep_alive<0, 2>(),
        "Panels that lie in `data`: uint8, 64-byte aligned, never written; as PackedMatrix.data of "
        "the same shape was. Any bytes are safe to compute with.");
  m.def("checksum", &checksum_array, nb::arg("data"), nb::arg("threads") = 1,
        "64 bits of data: uint8, against damage. The same for any number of threads.");
  m.def("pack", &pack_array, nb::arg("format"), nb::arg("data"), nb::arg("n"), nb::arg("k"),
        nb::arg("row_order").none() = nb::none(), nb::arg("threads") = 1,
        nb::rv_policy::take_ownership,
        "Packs file rows data: uint8 [n, row_bytes]; row i of the result is stored row "
        "row_order[i]. `format` counts as the Format enum of step.h.");
  m.def("quantize", &quantize_array, nb::arg("from_format"), nb::arg("data"), nb::arg("k"),
        nb::arg("to_format"), nb::arg("isa").none() = nb::none(), nb::arg("threads") = 1,
        "Rows data: uint8 [n, row_bytes] of one format → rows of another; equal bytes on every "
        "level. Formats count as the Format enum of step.h.");
  m.def("matmul", &matmul_array, nb::arg("packed"), nb::arg("x"),
        nb::arg("bias").none() = nb::none(), nb::arg("isa").none() = nb::none(),
        nb::arg("threads") = 1,
        "x: float32 [T, k] → float32 [T, n] = x · Wᵀ + bias, as a step program computes it.");
}

}  // namespace headrace

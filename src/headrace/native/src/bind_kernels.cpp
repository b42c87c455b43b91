// Single ops on numpy arrays, at any level and thread count: for tests and measurements. Programs
// do not come this way (bind_program.cpp).
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>

#include "bind.h"
#include "dispatch.h"
#include "matmul.h"
#include "pool.h"
#include "row_wise.h"

namespace headrace {

namespace {

template <class T, int dims>
using In = nb::ndarray<const T, nb::ndim<dims>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Out = nb::ndarray<nb::numpy, float, nb::ndim<2>>;
using Isa = std::optional<std::string>;

void require(bool ok, const char* message) {
  if (!ok) throw std::invalid_argument(message);
}

// A new float32 matrix and its numpy array.
struct NewMatrix {
  NewMatrix(size_t rows, size_t columns)
      : data(new float[rows * columns]()),
        owner(data, [](void* p) noexcept { delete[] static_cast<float*>(p); }),
        array(data, {rows, columns}, owner),
        matrix{data, static_cast<int64_t>(columns), static_cast<int64_t>(columns),
               RowKind::Tokens} {
    require(columns > 0, "a matrix has no columns");
  }
  float* data;
  nb::capsule owner;
  Out array;
  Matrix matrix;
};

Matrix matrix_of(const In<float, 2>& x) {
  const auto columns = static_cast<int64_t>(x.shape(1));
  // Kernels do not write their inputs.
  return {const_cast<float*>(x.data()), columns, columns, RowKind::Tokens};
}

Step step_of(size_t rows) {
  Step step{};
  step.num_tokens = static_cast<int64_t>(rows);
  step.num_rows[0] = step.num_tokens;
  return step;
}

template <class Args>
void run(OpFn<Args> KernelTable::* op, const Args& args, const Step& step, const Isa& isa,
         int threads, Workspace workspace = {}) {
  const KernelTable& kernels = choose_kernels(isa);
  Pool pool(threads);
  nb::gil_scoped_release release;
  run_op(pool, kernels.*op, args, step, workspace);
}

// A row-wise op: whole rows shared by the workers.
template <class Args>
void run(RowFn<Args> KernelTable::* op, const Args& args, const Step& step, RowKind rows,
         const Isa& isa, int threads) {
  const RowPart part = RowPart::make(choose_kernels(isa).*op, args);
  Pool pool(threads);
  nb::gil_scoped_release release;
  const RowWiseArgs record{&part, 1, rows, step.count(rows), 0, 0, OneToken::Row};
  run_op(pool, row_wise, record, step);
}

// ---- element by element -----------------------------------------------------------------------

Out unary(RowFn<UnaryArgs> KernelTable::* op, const In<float, 2>& x, float value, const Isa& isa,
          int threads) {
  NewMatrix out(x.shape(0), x.shape(1));
  run(op, UnaryArgs{matrix_of(x), out.matrix, value}, step_of(x.shape(0)), RowKind::Tokens, isa,
      threads);
  return out.array;
}

Out add(const In<float, 2>& a, const In<float, 2>& b, const Isa& isa, int threads) {
  require(a.shape(0) == b.shape(0) && a.shape(1) == b.shape(1), "a and b differ in shape");
  NewMatrix out(a.shape(0), a.shape(1));
  run(&KernelTable::add, BinaryArgs{matrix_of(a), matrix_of(b), out.matrix}, step_of(a.shape(0)),
      RowKind::Tokens, isa, threads);
  return out.array;
}

Out gated(const In<float, 2>& gate, const In<float, 2>& up, int kind, const Isa& isa, int threads) {
  require(gate.shape(0) == up.shape(0) && gate.shape(1) == up.shape(1),
          "gate and up differ in shape");
  require(kind == 0 || kind == 1, "kind is 0 (silu) or 1 (gelu_tanh)");
  NewMatrix out(gate.shape(0), gate.shape(1));
  run(&KernelTable::gated,
      GatedArgs{matrix_of(gate), matrix_of(up), out.matrix, static_cast<GateKind>(kind)},
      step_of(gate.shape(0)), RowKind::Tokens, isa, threads);
  return out.array;
}

Out rows(const In<float, 2>& x, const In<int32_t, 1>& index, const Isa& isa, int threads) {
  for (size_t i = 0; i < index.shape(0); ++i)
    require(index(i) >= 0 && static_cast<size_t>(index(i)) < x.shape(0), "index is out of range");
  NewMatrix out(index.shape(0), x.shape(1));
  out.matrix.rows = RowKind::LogitRows;
  Step step = step_of(x.shape(0));
  step.rows[1] = index.data();
  step.num_rows[1] = static_cast<int64_t>(index.shape(0));
  run(&KernelTable::rows, RowsArgs{matrix_of(x), out.matrix}, step, RowKind::LogitRows, isa,
      threads);
  return out.array;
}

Out embed(const In<uint8_t, 2>& table, int format, int64_t columns, const In<int32_t, 1>& index,
          bool by_position, const Isa& isa, int threads) {
  require(format >= 0 && format <= static_cast<int>(kLastFormat), "format is unknown");
  constexpr int64_t kMostColumns = int64_t{1} << 31;
  const auto stored = static_cast<Format>(format);
  require(columns > 0 && columns < kMostColumns && columns % geometry(stored).k == 0,
          "columns must be positive, below 2^31 and whole blocks of the format");
  require(static_cast<int64_t>(table.shape(1)) >= file_row_bytes(stored, columns),
          "a row of the table has fewer bytes than its columns take");
  NewMatrix out(index.shape(0), static_cast<size_t>(columns));
  Step step = step_of(index.shape(0));
  (by_position ? step.positions : step.tokens) = index.data();
  const EmbedArgs args{RawMatrix{stored, static_cast<int64_t>(table.shape(0)), columns,
                                 static_cast<int64_t>(table.shape(1)), table.data()},
                       by_position, out.matrix};
  run(&KernelTable::embed, args, step, RowKind::Tokens, isa, threads);
  return out.array;
}

// ---- norms, rope ------------------------------------------------------------------------------

Out rms_norm(const In<float, 2>& x, const In<float, 1>& weight, float eps, int64_t groups,
             const Isa& isa, int threads) {
  require(groups > 0 && weight.shape(0) * static_cast<size_t>(groups) == x.shape(1),
          "weight does not have columns / groups elements");
  NewMatrix out(x.shape(0), x.shape(1));
  run(&KernelTable::rms_norm, RmsNormArgs{matrix_of(x), out.matrix, weight.data(), eps, groups},
      step_of(x.shape(0)), RowKind::Tokens, isa, threads);
  return out.array;
}

Out layer_norm(const In<float, 2>& x, const In<float, 1>& weight, const In<float, 1>& bias,
               float eps, const Isa& isa, int threads) {
  require(weight.shape(0) == x.shape(1) && bias.shape(0) == x.shape(1),
          "weight or bias does not have one element per column");
  NewMatrix out(x.shape(0), x.shape(1));
  run(&KernelTable::layer_norm,
      LayerNormArgs{matrix_of(x), out.matrix, weight.data(), bias.data(), eps}, step_of(x.shape(0)),
      RowKind::Tokens, isa, threads);
  return out.array;
}

Out rope(const In<float, 2>& x, const In<int32_t, 1>& positions, int64_t heads,
         const In<float, 2>& cos, const In<float, 2>& sin, bool interleaved, const Isa& isa,
         int threads) {
  const auto half = static_cast<int64_t>(cos.shape(1));
  require(heads > 0 && static_cast<int64_t>(x.shape(1)) % heads == 0 &&
              2 * half * heads <= static_cast<int64_t>(x.shape(1)),
          "heads or rotary_dim do not fit the columns");
  require(sin.shape(0) == cos.shape(0) && sin.shape(1) == cos.shape(1), "sin and cos differ");
  require(positions.shape(0) == x.shape(0), "positions must have one element per row");
  for (size_t i = 0; i < positions.shape(0); ++i)
    require(positions(i) >= 0 && static_cast<size_t>(positions(i)) < cos.shape(0),
            "a position is outside the tables");
  NewMatrix out(x.shape(0), x.shape(1));
  Step step = step_of(x.shape(0));
  step.positions = positions.data();
  run(&KernelTable::rope,
      RopeArgs{matrix_of(x), out.matrix, heads, 2 * half, interleaved, cos.data(), sin.data()},
      step, RowKind::Tokens, isa, threads);
  return out.array;
}

// ---- attention --------------------------------------------------------------------------------

// KV memory in a caller's byte array, in the plain order [layer][block][side][head].
struct KV {
  KV(Bytes bytes, int format, int64_t layers, int64_t num_blocks, int64_t block_size,
     int64_t kv_heads, int64_t k_dim, int64_t v_dim)
      : owner(bytes) {
    require(format >= 0 && format <= 2, "format is 0 (f32), 1 (bf16) or 2 (f16)");
    require(block_size > 0 && block_size % 16 == 0, "block_size must be a multiple of 16");
    require(k_dim > 0 && k_dim % 2 == 0 && v_dim > 0 && v_dim % 2 == 0,
            "k_dim and v_dim must be even");
    require(kv_heads > 0 && layers > 0 && num_blocks > 0, "a count is not positive");
    // In floating point first: the product of absurd sizes would overflow.
    const double total = (format == 0 ? 4.0 : 2.0) * static_cast<double>(layers) *
                         static_cast<double>(num_blocks) * static_cast<double>(block_size) *
                         static_cast<double>(kv_heads) *
                         (static_cast<double>(k_dim) + static_cast<double>(v_dim));
    require(total == static_cast<double>(bytes.shape(0)),
            "memory does not have layers · num_blocks · block bytes");
    const int64_t element = format == 0 ? 4 : 2, keys = kv_heads * block_size * k_dim * element,
                  values = kv_heads * block_size * v_dim * element;
    memory = KVMemory{static_cast<KVFormat>(format),
                      num_blocks,
                      block_size,
                      kv_heads,
                      k_dim,
                      v_dim,
                      num_blocks * (keys + values),
                      keys + values,
                      keys,
                      reinterpret_cast<std::byte*>(bytes.data())};
    num_layers = layers;
  }
  Bytes owner;
  KVMemory memory;
  int64_t num_layers;
};

void kv_write(const KV& kv, int64_t layer, const In<float, 2>& k, const In<float, 2>& v,
              const In<int32_t, 1>& slots, const Isa& isa, int threads) {
  const KVMemory& m = kv.memory;
  require(layer >= 0 && layer < kv.num_layers, "layer is out of range");
  require(static_cast<int64_t>(k.shape(1)) == m.kv_heads * m.k_dim &&
              static_cast<int64_t>(v.shape(1)) == m.kv_heads * m.v_dim,
          "k or v does not have kv_heads · dim columns");
  require(k.shape(0) == slots.shape(0) && v.shape(0) == slots.shape(0),
          "k, v and slots differ in rows");
  const GroupStep group{slots.data(), nullptr, nullptr, 0};
  Step step = step_of(slots.shape(0));
  step.groups = &group;
  run(&KernelTable::kv_write, KVWriteArgs{matrix_of(k), matrix_of(v), &m, 0, layer}, step,
      RowKind::Tokens, isa, threads);
}

Out attend(const KV& kv, int64_t layer, const In<float, 2>& q, const In<int32_t, 1>& positions,
           const In<int32_t, 1>& spans, const In<int32_t, 2>& block_tables, int64_t heads,
           float scale, int64_t window, float soft_cap, const Isa& isa, int threads) {
  const KVMemory& m = kv.memory;
  require(layer >= 0 && layer < kv.num_layers, "layer is out of range");
  require(heads > 0 && heads % m.kv_heads == 0, "heads is not a multiple of kv_heads");
  require(static_cast<int64_t>(q.shape(1)) == heads * m.k_dim,
          "q does not have heads · dim columns");
  require(positions.shape(0) == q.shape(0), "positions must have one element per row");
  const size_t requests = block_tables.shape(0);
  require(spans.shape(0) == requests + 1 && spans(0) == 0 &&
              static_cast<size_t>(spans(requests)) == q.shape(0),
          "spans do not cover the rows");
  for (size_t r = 0; r < requests; ++r) require(spans(r) <= spans(r + 1), "spans must ascend");
  int64_t max_context = 0;
  for (size_t t = 0; t < q.shape(0); ++t) {
    require(positions(t) >= 0, "a position is negative");
    max_context = std::max<int64_t>(max_context, positions(t) + int64_t{1});
  }
  require(window >= 0, "window is negative");
  NewMatrix out(q.shape(0), static_cast<size_t>(heads * m.v_dim));
  const GroupStep group{nullptr, block_tables.data(), nullptr,
                        static_cast<int64_t>(block_tables.shape(1))};
  Step step = step_of(q.shape(0));
  step.num_requests = static_cast<int64_t>(requests);
  step.positions = positions.data();
  step.spans = spans.data();
  step.groups = &group;
  const AttendArgs args{matrix_of(q), out.matrix, &m, 0, layer, heads, scale, window, soft_cap};
  const Workspace workspace = choose_kernels(isa).attend_workspace(
      args, Limits{step.num_tokens, step.num_requests, max_context, threads});
  run(&KernelTable::attend, args, step, isa, threads, workspace);
  return out.array;
}

void register_unary(nb::module_& m, const char* name, RowFn<UnaryArgs> KernelTable::* op) {
  m.def(
      name,
      [op](const In<float, 2>& x, float value, const Isa& isa, int threads) {
        return unary(op, x, value, isa, threads);
      },
      nb::arg("x"), nb::arg("value") = 0.0f, nb::arg("isa") = nb::none(), nb::arg("threads") = 1);
}

}  // namespace

void register_kernels(nb::module_& m) {
  nb::module_ ops = m.def_submodule("ops", "Single ops on numpy arrays, for tests.");
#define HR_RUN nb::arg("isa") = nb::none(), nb::arg("threads") = 1
  register_unary(ops, "gelu", &KernelTable::gelu);
  register_unary(ops, "scale", &KernelTable::scale);
  register_unary(ops, "soft_cap", &KernelTable::soft_cap);
  register_unary(ops, "copy", &KernelTable::copy);
  register_unary(ops, "exp", &KernelTable::exp);
  register_unary(ops, "exp_nonpositive", &KernelTable::exp_nonpositive);
  ops.def("add", &add, nb::arg("a"), nb::arg("b"), HR_RUN);
  ops.def("gated", &gated, nb::arg("gate"), nb::arg("up"), nb::arg("kind"), HR_RUN);
  ops.def("rows", &rows, nb::arg("x"), nb::arg("index"), HR_RUN);
  ops.def("embed", &embed, nb::arg("table"), nb::arg("format"), nb::arg("columns"),
          nb::arg("index"), nb::arg("by_position") = false, HR_RUN);
  ops.def("rms_norm", &rms_norm, nb::arg("x"), nb::arg("weight"), nb::arg("eps"),
          nb::arg("groups") = 1, HR_RUN);
  ops.def("layer_norm", &layer_norm, nb::arg("x"), nb::arg("weight"), nb::arg("bias"),
          nb::arg("eps"), HR_RUN);
  ops.def("rope", &rope, nb::arg("x"), nb::arg("positions"), nb::arg("heads"), nb::arg("cos"),
          nb::arg("sin"), nb::arg("interleaved") = false, HR_RUN);
  nb::class_<KV>(ops, "KV").def(
      nb::init<Bytes, int, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t>(),
      nb::arg("memory"), nb::arg("format"), nb::arg("layers"), nb::arg("num_blocks"),
      nb::arg("block_size"), nb::arg("kv_heads"), nb::arg("k_dim"), nb::arg("v_dim"));
  ops.def("kv_write", &kv_write, nb::arg("kv"), nb::arg("layer"), nb::arg("k"), nb::arg("v"),
          nb::arg("slots"), HR_RUN);
  ops.def("attend", &attend, nb::arg("kv"), nb::arg("layer"), nb::arg("q"), nb::arg("positions"),
          nb::arg("spans"), nb::arg("block_tables"), nb::arg("heads"), nb::arg("scale"),
          nb::arg("window") = 0, nb::arg("soft_cap") = 0.0f, HR_RUN);
#undef HR_RUN
}

}  // namespace headrace

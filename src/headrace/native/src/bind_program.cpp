// Python's view of pools and step programs. Every size is checked here; kernels trust it.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "arrays.h"
#include "bind.h"
#include "dispatch.h"
#include "matmul.h"
#include "pack.h"
#include "program.h"

namespace headrace {

namespace {

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument(what); }

void expect(const char* op, const char* dimension, int64_t got, int64_t want) {
  if (got != want)
    refuse(std::string(op) + ": " + dimension + " is " + std::to_string(got) + ", not " +
           std::to_string(want));
}

template <class Enum>
Enum enumerator(const char* name, int value, Enum last) {
  if (value < 0 || value > static_cast<int>(last))
    refuse(std::string("there is no ") + name + " " + std::to_string(value));
  return static_cast<Enum>(value);
}

void expect_rows(const char* op, const Matrix& a, const Matrix& b) {
  expect(op, "kind of rows", static_cast<int64_t>(a.rows), static_cast<int64_t>(b.rows));
}

void expect_same(const char* op, const Matrix& a, const Matrix& b) {
  expect_rows(op, a, b);
  expect(op, "columns", a.columns, b.columns);
}

void expect_shared(const char* op, const Matrix& m) {
  if (m.data == nullptr) refuse(std::string(op) + ": a matrix is local to a row-wise record");
}

const float* vector(const char* name, const AnyArray& array, int64_t n) {
  return elements<float>(array, name, {n});
}

// ---- recording ----------------------------------------------------------------------------------

void add_embed(Program& p, const AnyArray& data, int format, int64_t k, bool by_position,
               Matrix out) {
  const Format f = enumerator("weight format", format, kLastFormat);
  const uint8_t* bytes = elements<uint8_t>(data, "embed table", {kAnySize, kAnySize});
  const int64_t n = static_cast<int64_t>(data.shape(0));
  const int64_t row_bytes = static_cast<int64_t>(data.shape(1));
  expect("embed", "out columns", out.columns, k);
  expect("embed", "kind of rows", static_cast<int64_t>(out.rows), 0);
  expect("embed", "columns beyond whole blocks", k % geometry(f).k, 0);
  expect("embed", "table bytes per row", row_bytes, file_row_bytes(f, k));
  if (by_position)
    p.limit_positions(n);
  else
    p.limit_tokens(n);
  p.add_part(p.kernels().embed, EmbedArgs{{f, n, k, row_bytes, bytes}, by_position, out}, out.rows,
             out.columns);
}

void add_rms_norm(Program& p, Matrix x, Matrix out, const AnyArray& weight, float eps,
                  int64_t groups) {
  expect_same("rms_norm", x, out);
  if (groups < 1 || x.columns % groups != 0)
    refuse("rms_norm: " + std::to_string(x.columns) + " columns in " + std::to_string(groups) +
           " groups");
  p.add_part(
      p.kernels().rms_norm,
      RmsNormArgs{x, out, vector("rms_norm weight", weight, x.columns / groups), eps, groups},
      out.rows, out.columns);
}

void add_layer_norm(Program& p, Matrix x, Matrix out, const AnyArray& weight, const AnyArray& bias,
                    float eps) {
  expect_same("layer_norm", x, out);
  p.add_part(p.kernels().layer_norm,
             LayerNormArgs{x, out, vector("layer_norm weight", weight, x.columns),
                           vector("layer_norm bias", bias, x.columns), eps},
             out.rows, out.columns);
}

std::byte* prepared(Program& p, int buffer, RowKind rows, int64_t row_bytes) {
  return p.buffer(buffer, row_bytes * p.prepared_rows(rows));
}

void add_prepare(Program& p, Matrix x, int kind, int buffer) {
  const ActivationKind k = enumerator("activation kind", kind, ActivationKind::Int8);
  const int64_t row_bytes = p.kernels().activation_row_bytes(k, x.columns);
  std::byte* out = prepared(p, buffer, x.rows, row_bytes);
  p.add_part(p.kernels().prepare, PrepareArgs{x, k, out, row_bytes}, x.rows, x.columns);
}

void add_matmul(Program& p, const PackedWeights& weight, int buffer,
                const std::optional<AnyArray>& bias, Matrix out, int meet, bool copies) {
  const ActivationKind k = activation_kind(weight.view.format);
  const int64_t row_bytes = p.kernels().activation_row_bytes(k, weight.view.k);
  const std::byte* activations = prepared(p, buffer, out.rows, row_bytes);
  expect_shared("matmul", out);
  expect("matmul", "out columns", out.columns, weight.view.n);
  const float* b = bias ? vector("matmul bias", *bias, weight.view.n) : nullptr;
  const MatmulArgs args{weight.view, activations, row_bytes, b, out, copies};
  p.add(p.kernels().matmul, args, out.rows, meet, p.kernels().matmul_workspace(args, p.limits()));
}

void add_rope(Program& p, Matrix x, Matrix out, int64_t heads, RopeTable* table, bool interleaved,
              int64_t decode_offset) {
  expect_same("rope", x, out);
  expect("rope", "kind of rows", static_cast<int64_t>(x.rows), 0);
  const int64_t rotary = 2 * table->columns();
  if (heads < 1 || x.columns % heads != 0 || rotary > x.columns / heads)
    refuse("rope: " + std::to_string(x.columns) + " columns in " + std::to_string(heads) +
           " heads, of which " + std::to_string(rotary) + " turn");
  if (decode_offset < -1 || decode_offset > 0)
    refuse("rope: decode_offset " + std::to_string(decode_offset));
  p.limit_positions(table->max_positions());
  p.add_part(
      p.kernels().rope,
      RopeArgs{x, out, heads, rotary, interleaved, table->cos(), table->sin(), decode_offset},
      out.rows, out.columns);
}

void check_layer(const char* op, const KVGroup& group, int64_t layer) {
  if (layer < 0 || layer >= group.layers)
    refuse(std::string(op) + ": layer " + std::to_string(layer) + " of a KV group of " +
           std::to_string(group.layers));
}

void add_kv_write(Program& p, Matrix k, Matrix v, int64_t group, int64_t layer) {
  const KVGroup& g = p.group(group);
  check_layer("kv_write", g, layer);
  expect_rows("kv_write", k, v);
  expect("kv_write", "kind of rows", static_cast<int64_t>(k.rows), 0);
  expect("kv_write", "key columns", k.columns, g.memory.kv_heads * g.memory.k_dim);
  expect("kv_write", "value columns", v.columns, g.memory.kv_heads * g.memory.v_dim);
  p.add_part(p.kernels().kv_write, KVWriteArgs{k, v, &g.memory, group, layer}, k.rows,
             std::max(k.columns, v.columns));
}

void add_attend(Program& p, Matrix q, Matrix out, int64_t group, int64_t layer, int64_t heads,
                float scale, int64_t window, float soft_cap, int meet, int64_t last_offset,
                int64_t head_shift) {
  KVGroup& g = p.group(group);
  check_layer("attend", g, layer);
  expect_rows("attend", q, out);
  expect_shared("attend", q);
  expect_shared("attend", out);
  expect("attend", "kind of rows", static_cast<int64_t>(q.rows), 0);
  if (heads < 1 || heads % g.memory.kv_heads != 0)
    refuse("attend: " + std::to_string(heads) + " heads on " + std::to_string(g.memory.kv_heads) +
           " KV heads");
  expect("attend", "query columns", q.columns, heads * g.memory.k_dim);
  expect("attend", "out columns", out.columns, heads * g.memory.v_dim);
  if (window < 0) refuse("attend: window " + std::to_string(window));
  if (last_offset < 0 || last_offset > 1)
    refuse("attend: last_offset " + std::to_string(last_offset));
  if (head_shift < 0 || head_shift >= g.memory.kv_heads)
    refuse("attend: head_shift " + std::to_string(head_shift) + " of " +
           std::to_string(g.memory.kv_heads) + " KV heads");
  const bool full = window == 0 || g.window == 0;
  g.window = full ? 0 : std::max(g.window, window);
  const AttendArgs args{q,     out,    &g.memory, group,       layer,     heads,
                        scale, window, soft_cap,  last_offset, head_shift};
  p.add(p.kernels().attend, args, out.rows, meet, p.kernels().attend_workspace(args, p.limits()));
}

void add_gated(Program& p, Matrix gate, Matrix up, Matrix out, int kind) {
  expect_same("gated", gate, up);
  expect_same("gated", gate, out);
  p.add_part(p.kernels().gated,
             GatedArgs{gate, up, out, enumerator("gate", kind, GateKind::GeluTanh)}, out.rows,
             out.columns);
}

void add_unary(Program& p, const std::string& kind, Matrix x, Matrix out, float value) {
  expect_same(kind.c_str(), x, out);
  const KernelTable& t = p.kernels();
  const RowFn<UnaryArgs> kernel = kind == "gelu"       ? t.gelu
                                  : kind == "scale"    ? t.scale
                                  : kind == "soft_cap" ? t.soft_cap
                                  : kind == "copy"     ? t.copy
                                                       : nullptr;
  if (kernel == nullptr) refuse("there is no unary op '" + kind + "'");
  p.add_part(kernel, UnaryArgs{x, out, value}, out.rows, out.columns);
}

void add_add(Program& p, Matrix a, Matrix b, Matrix out) {
  expect_same("add", a, b);
  expect_same("add", a, out);
  p.add_part(p.kernels().add, BinaryArgs{a, b, out}, out.rows, out.columns);
}

void add_rows(Program& p, Matrix x, Matrix out) {
  expect("rows", "columns", out.columns, x.columns);
  expect("rows", "kind of rows of x", static_cast<int64_t>(x.rows), 0);
  if (out.rows == RowKind::Tokens) refuse("rows: out has all tokens' rows");
  expect_shared("rows", x);
  p.add_part(p.kernels().rows, RowsArgs{x, out}, out.rows, out.columns);
}

// ---- running ------------------------------------------------------------------------------------

using GroupArrays = std::vector<std::tuple<AnyArray, AnyArray, AnyArray>>;

GroupStep group_step(size_t g, const AnyArray& slots, const AnyArray& tables, const AnyArray& first,
                     const Step& step) {
  const std::string where = "groups[" + std::to_string(g) + "].";
  GroupStep out;
  out.slots = elements<int32_t>(slots, (where + "slots").c_str(), {step.num_tokens});
  out.block_tables =
      elements<int32_t>(tables, (where + "block_tables").c_str(), {step.num_requests, kAnySize});
  out.first_pos = elements<int32_t>(first, (where + "first_pos").c_str(), {step.num_requests});
  out.table_columns = static_cast<int64_t>(tables.shape(1));
  return out;
}

void run_step(Program& p, const AnyArray& tokens, const AnyArray& positions, const AnyArray& spans,
              const AnyArray& context_lens, const AnyArray& logit_rows, const AnyArray& prompt_rows,
              nb::tuple groups) {
  Step step{};
  step.tokens = elements<int32_t>(tokens, "tokens", {kAnySize});
  step.num_tokens = static_cast<int64_t>(tokens.shape(0));
  step.positions = elements<int32_t>(positions, "positions", {1, step.num_tokens});
  step.context_lens = elements<int32_t>(context_lens, "context_lens", {kAnySize});
  step.num_requests = static_cast<int64_t>(context_lens.shape(0));
  step.spans = elements<int32_t>(spans, "spans", {step.num_requests + 1});
  step.rows[1] = elements<int32_t>(logit_rows, "logit_rows", {kAnySize});
  step.rows[2] = elements<int32_t>(prompt_rows, "prompt_rows", {kAnySize});
  step.num_rows[0] = step.num_tokens;
  step.num_rows[1] = static_cast<int64_t>(logit_rows.shape(0));
  step.num_rows[2] = static_cast<int64_t>(prompt_rows.shape(0));
  expect("run", "number of groups", static_cast<int64_t>(groups.size()), p.num_groups());
  std::vector<GroupStep> group_steps;
  for (size_t g = 0; g < groups.size(); ++g) {
    std::tuple<AnyArray, AnyArray, AnyArray> arrays;
    if (!nb::try_cast(groups[g], arrays))
      refuse("groups[" + std::to_string(g) + "] is not arrays (slots, block_tables, first_pos)");
    const auto& [slots, tables, first] = arrays;
    group_steps.push_back(group_step(g, slots, tables, first, step));
  }
  step.groups = group_steps.data();
  p.check(step);
  nb::gil_scoped_release unlocked;
  p.run(0, step);
}

void run_rows(Program& p, const AnyArray& rows, int segment) {
  if (segment < 1 || segment >= p.num_segments())
    refuse("there is no segment " + std::to_string(segment) + " behind the step");
  Step step{};
  step.rows[2] = elements<int32_t>(rows, "prompt_rows", {kAnySize});
  step.num_rows[2] = static_cast<int64_t>(rows.shape(0));
  p.check_prompt_rows(step);
  nb::gil_scoped_release unlocked;
  p.run(segment, step);
}

nb::ndarray<nb::numpy, float> matrix_array(nb::handle self, const Matrix& matrix) {
  const Program& p = nb::cast<const Program&>(self);
  const size_t shape[2] = {static_cast<size_t>(p.capacity(matrix.rows)),
                           static_cast<size_t>(matrix.columns)};
  const int64_t strides[2] = {matrix.stride, 1};
  return nb::ndarray<nb::numpy, float>(matrix.data, 2, shape, self, strides);
}

// Pages of a group as [layers, blocks, bytes per block]; layout in step.h.
nb::ndarray<nb::numpy, uint8_t> kv_bytes(nb::handle self, int64_t group) {
  const KVGroup& g = nb::cast<const Program&>(self).group(group);
  if (g.memory.base == nullptr) refuse("KV memory is not allocated");
  const size_t shape[3] = {static_cast<size_t>(g.layers), static_cast<size_t>(g.memory.num_blocks),
                           static_cast<size_t>(g.memory.layer_stride)};
  const int64_t strides[3] = {g.memory.layer_stride, g.memory.block_stride, 1};
  return nb::ndarray<nb::numpy, uint8_t>(g.memory.base, 3, shape, self, strides);
}

void register_recording(nb::class_<Program>& c) {
  c.def("add_buffer", &Program::add_buffer, nb::arg("bytes"),
        "Address space of `bytes`; returns its number.")
      .def("add_group", &Program::add_group, nb::arg("layers"), nb::arg("kv_heads"),
           nb::arg("k_dim"), nb::arg("v_dim"))
      .def(
          "matrix",
          [](Program& p, int buffer, int rows, int64_t columns, int64_t stride, int64_t offset) {
            return p.matrix(buffer, enumerator("kind of rows", rows, RowKind::PromptRows), columns,
                            stride, offset);
          },
          nb::arg("buffer"), nb::arg("rows"), nb::arg("columns"), nb::arg("stride"),
          nb::arg("offset"), "A float32 matrix [rows, columns] in a buffer, in floats.")
      .def(
          "begin_rows",
          [](Program& p, int rows, int64_t tile_rows, int64_t tile_columns, int one_token,
             int64_t local_floats) {
            p.begin_rows(enumerator("kind of rows", rows, RowKind::PromptRows), tile_rows,
                         tile_columns, enumerator("way to share", one_token, OneToken::Copies),
                         local_floats);
          },
          nb::arg("rows"), nb::arg("tile_rows"), nb::arg("tile_columns"), nb::arg("one_token"),
          nb::arg("local_floats"), "Opens a record of row-wise ops (row_wise.h).")
      .def("end_rows", &Program::end_rows, nb::arg("meet"))
      .def(
          "local_matrix",
          [](Program& p, int rows, int64_t columns, int64_t stride, int64_t local) {
            return p.local_matrix(enumerator("kind of rows", rows, RowKind::PromptRows), columns,
                                  stride, local);
          },
          nb::arg("rows"), nb::arg("columns"), nb::arg("stride"), nb::arg("local"),
          "A matrix that only the parts of the open record see.")
      .def("with_spare", &Program::with_spare, nb::arg("matrix"), nb::arg("local"))
      .def(
          "rope_table",
          [](Program& p, const std::vector<double>& frequencies, int64_t max_positions) {
            return p.keep(std::make_unique<RopeTable>(frequencies, max_positions));
          },
          nb::rv_policy::reference_internal, nb::arg("frequencies"), nb::arg("max_positions"))
      .def("capacity",
           [](Program& p, int rows) {
             return p.capacity(enumerator("kind of rows", rows, RowKind::PromptRows));
           })
      .def("prepared_bytes",
           [](Program& p, int rows, int kind, int64_t k) {
             return p.prepared_rows(enumerator("kind of rows", rows, RowKind::PromptRows)) *
                    p.kernels().activation_row_bytes(
                        enumerator("activation kind", kind, ActivationKind::Int8), k);
           })
      .def("end_segment", &Program::end_segment)
      .def("finish", &Program::finish);
}

void register_ops(nb::class_<Program>& c) {
  const nb::arg meet("meet");
  c.def("embed", &add_embed, nb::keep_alive<1, 2>(), nb::arg("table"), nb::arg("format"),
        nb::arg("k"), nb::arg("by_position"), nb::arg("out"))
      .def("rms_norm", &add_rms_norm, nb::keep_alive<1, 4>(), nb::arg("x"), nb::arg("out"),
           nb::arg("weight"), nb::arg("eps"), nb::arg("groups"))
      .def("layer_norm", &add_layer_norm, nb::keep_alive<1, 4>(), nb::keep_alive<1, 5>(),
           nb::arg("x"), nb::arg("out"), nb::arg("weight"), nb::arg("bias"), nb::arg("eps"))
      .def("prepare", &add_prepare, nb::arg("x"), nb::arg("kind"), nb::arg("buffer"))
      .def("matmul", &add_matmul, nb::keep_alive<1, 2>(), nb::keep_alive<1, 4>(), nb::arg("weight"),
           nb::arg("buffer"), nb::arg("bias").none(), nb::arg("out"), meet,
           nb::arg("copies") = false)
      .def("rope", &add_rope, nb::arg("x"), nb::arg("out"), nb::arg("heads"), nb::arg("table"),
           nb::arg("interleaved"), nb::arg("decode_offset") = 0)
      .def("kv_write", &add_kv_write, nb::arg("k"), nb::arg("v"), nb::arg("group"),
           nb::arg("layer"))
      .def("attend", &add_attend, nb::arg("q"), nb::arg("out"), nb::arg("group"), nb::arg("layer"),
           nb::arg("heads"), nb::arg("scale"), nb::arg("window"), nb::arg("soft_cap"), meet,
           nb::arg("last_offset") = 0, nb::arg("head_shift") = 0)
      .def("gated", &add_gated, nb::arg("gate"), nb::arg("up"), nb::arg("out"), nb::arg("kind"))
      .def("unary", &add_unary, nb::arg("kind"), nb::arg("x"), nb::arg("out"), nb::arg("value"))
      .def("add", &add_add, nb::arg("a"), nb::arg("b"), nb::arg("out"))
      .def("rows", &add_rows, nb::arg("x"), nb::arg("out"));
}

void register_running(nb::class_<Program>& c) {
  c.def(
       "allocate_kv",
       [](Program& p, const std::vector<int64_t>& num_blocks, int64_t block_size, int format) {
         p.allocate_kv(num_blocks, block_size, enumerator("KV format", format, KVFormat::F16));
       },
       nb::arg("num_blocks"), nb::arg("block_size"), nb::arg("format"))
      .def("copy_block", &Program::copy_block, nb::arg("group"), nb::arg("source"),
           nb::arg("destination"))
      .def(
          "run", &run_step, nb::arg("tokens"), nb::arg("positions"), nb::arg("spans"),
          nb::arg("context_lens"), nb::arg("logit_rows"), nb::arg("prompt_rows"), nb::arg("groups"),
          "Runs segment 0 on int32 arrays (ops/batch.py); groups: a tuple of (slots, block_tables, "
          "first_pos) per KV group. ValueError names what does not fit.")
      .def("run_rows", &run_rows, nb::arg("rows"), nb::arg("segment") = 1,
           "Runs a segment behind the step for at most 64 rows of the step just run.")
      .def("array", &matrix_array, nb::arg("matrix"),
           "A matrix as a numpy view [capacity, columns] of its buffer.")
      .def("kv_bytes", &kv_bytes, nb::arg("group"),
           "uint8 view [layers, blocks, bytes of a block].")
      .def("profile", &Program::profile, nb::arg("on"))
      .def_prop_ro("op_seconds", &Program::op_seconds)
      .def_prop_ro("num_ops", &Program::num_ops)
      .def_prop_ro("pool", &Program::pool)
      .def_prop_ro("isa", [](Program& p) { return std::string(p.kernels().isa); });
}

}  // namespace

void register_program(nb::module_& m) {
  nb::class_<Pool>(m, "Pool", "Worker threads that run step programs.")
      .def(
          "__init__",
          [](Pool* self, int num_threads, int64_t patience_us) {
            if (patience_us < 0 || patience_us > 1000000)
              refuse("patience_us=" + std::to_string(patience_us) + " is not in 0 … 1000000");
            new (self) Pool(num_threads, std::chrono::microseconds(patience_us));
          },
          nb::arg("num_threads"), nb::arg("patience_us") = Pool::kPatience.count(),
          "patience_us: how long workers wait for each other before they sleep.")
      .def_prop_ro("num_threads", &Pool::count)
      .def("meet", &Pool::meet, nb::arg("rounds"), nb::arg("max_pauses"),
           nb::call_guard<nb::gil_scoped_release>(),
           "All workers meet at a barrier, after random pauses; how often, summed over workers.");
  nb::class_<Matrix>(m, "Matrix").def_ro("columns", &Matrix::columns);
  nb::class_<RopeTable>(m, "RopeTable")
      .def(
          "rows",
          [](RopeTable& table, int64_t positions) {
            table.ensure(positions);
            const size_t n = static_cast<size_t>(positions * table.columns());
            return nb::make_tuple(std::vector<float>(table.cos(), table.cos() + n),
                                  std::vector<float>(table.sin(), table.sin() + n));
          },
          nb::arg("positions"), "Cosines and sines of positions 0 …, flat.");
  nb::class_<Program> program(m, "Program", "A recorded model: ops over fixed buffers.");
  program.def(
      "__init__",
      [](Program* self, std::shared_ptr<Pool> pool, std::optional<std::string> isa,
         int64_t max_tokens, int64_t max_requests, int64_t max_context) {
        const Limits limits{max_tokens, max_requests, max_context, pool->count()};
        new (self) Program(pool, choose_kernels(isa), limits);
      },
      nb::arg("pool"), nb::arg("isa").none(), nb::arg("max_tokens"), nb::arg("max_requests"),
      nb::arg("max_context"));
  register_recording(program);
  register_ops(program);
  register_running(program);
}

}  // namespace headrace

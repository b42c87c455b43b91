// The step program: what every kernel file and the runner share.
//
// A program is a flat array of op records. All workers of the pool walk it together: each op is one
// call `fn(args, step, worker)` made by every worker, which takes its own share of the output
// (never a share of a reduction). Row-wise ops are called on tiles of rows, and several of them can
// be one record (row_wise.h). Buffers are sized once for the largest step; a row count is symbolic
// (RowKind) and read from the Step. Nothing here depends on the instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace {

// Values are stable: Python passes them as integers.
enum class Format : int32_t {
  F32,
  F16,
  BF16,
  Q4_0,
  Q4_1,
  Q5_0,
  Q5_1,
  Q8_0,
  Q4_K,
  Q5_K,
  Q6_K,
  Q2_K,
  Q3_K,
  IQ4_NL
};
constexpr Format kLastFormat = Format::IQ4_NL;
// What the 16 codes of IQ4_NL stand for.
alignas(16) constexpr int8_t kIQ4NLValues[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                 1,    13,   25,  38,  53,  69,  89,  113};
enum class KVFormat : int32_t { F32, BF16, F16 };
enum class RowKind : int32_t { Tokens, LogitRows, PromptRows };
enum class GateKind : int32_t { Silu, GeluTanh };

// ---- one step ---------------------------------------------------------------------------------

struct GroupStep {
  const int32_t* slots;         // [T], −1 = row not stored
  const int32_t* block_tables;  // [R, table_columns], −1 = freed
  const int32_t* first_pos;     // [R]
  int64_t table_columns;
};

struct Step {
  int64_t num_tokens;           // T
  int64_t num_requests;         // R
  const int32_t* tokens;        // [T]
  const int32_t* positions;     // [T]
  const int32_t* spans;         // [R + 1]
  const int32_t* context_lens;  // [R]
  const int32_t* rows[3];       // by RowKind: nullptr, logit_rows, prompt_rows
  int64_t num_rows[3];          // T, number of logit rows, number of prompt rows
  const GroupStep* groups;

  [[gnu::always_inline]] int64_t count(RowKind kind) const {
    return num_rows[static_cast<int>(kind)];
  }
  // A step of one token: every op has one row at most, and workers share that row (row_wise.h).
  [[gnu::always_inline]] bool one_token() const { return num_tokens == 1; }
};

class Barrier;  // pool.h

struct Worker {
  int index;  // 0 … count-1
  int count;
  Barrier* barrier;    // for ops of two phases (attention: partials, then fold)
  std::byte* scratch;  // this worker's own, scratch_bytes, 64-byte aligned
  std::byte* shared;   // one for all workers, shared_bytes, 64-byte aligned; zeros at first
};

// This worker's share [begin, end) of n items, contiguous, in units of `grain`. A single unit is
// worker 0's, which is the caller and never has to wake up.
struct Share {
  int64_t begin, end;
};
[[gnu::always_inline]] static inline Share share(int64_t n, const Worker& w, int64_t grain = 1) {
  const int64_t units = (n + grain - 1) / grain, up = w.count - 1;
  const int64_t b = (units * w.index + up) / w.count * grain,
                e = (units * (w.index + 1) + up) / w.count * grain;
  return {b < n ? b : n, e < n ? e : n};
}

// Row by row: a row-wise op (RowFn) reads and writes only row r of its matrices for row r, except
// that `rows` reads anywhere. It is called on tiles: some rows of this worker and, for ops that go
// element by element or by blocks of 32, some columns.
struct RowTile {
  int64_t row, end_row;
  int64_t column, end_column;  // 0 and beyond every column for ops that need whole rows
  std::byte* scratch;          // this worker's own, for local matrices
  int64_t copy;                // which copy of a prepared row to write: row + copy
  bool spare;                  // shared values are another worker's to write; ours go to scratch
};

// ---- memory -----------------------------------------------------------------------------------

// A float32 matrix [rows, columns] inside a buffer; row r starts at data + r·stride. A local one
// (data == nullptr) exists only between the parts of one row-wise record: the rows of a tile, at
// float `local` of the worker's scratch. A matrix with both is local where RowTile::spare is set.
struct Matrix {
  float* data;
  int64_t columns;
  int64_t stride;
  RowKind rows;
  int64_t local = -1;

  // Element (row, column), inside the tile.
  [[gnu::always_inline]] float* at(int64_t row, int64_t column, const RowTile& tile) const {
    if (local < 0 || (data != nullptr && !tile.spare)) return data + row * stride + column;
    return reinterpret_cast<float*>(tile.scratch) + local + (row - tile.row) * stride + column -
           tile.column;
  }
};

// Weights [N, K] repacked into panels of 16 output rows (matmul.h says how, per format).
struct PackedMatrix {
  Format format;
  int64_t n, k;
  int64_t panel_bytes;  // bytes from one panel of 16 rows to the next
  const uint8_t* data;  // 64-byte aligned, ceil(n / 16) panels, missing rows are zero
};

// Weights as the file has them, for gathers: row r at data + r·row_bytes.
struct RawMatrix {
  Format format;
  int64_t n, k;
  int64_t row_bytes;
  const uint8_t* data;
};

// KV memory of one group. Element (layer, block, side, head) is an area of block_size·dim elements:
//   K (side 0): [block_size/16] × [D/2][16 positions][2]
//   V (side 1): [block_size/16] × [8 position pairs][Dv][2]
// at base + layer·layer_stride + block·block_stride + side·v_offset +
// head·(block_size·dim)·element. Saved blocks have this layout: who changes it also changes
// KV_LAYOUT (ops/numerics.py).
struct KVMemory {
  KVFormat format;
  int64_t num_blocks, block_size, kv_heads, k_dim, v_dim;
  int64_t layer_stride, block_stride, v_offset;  // bytes
  std::byte* base;
};

// ---- op arguments -----------------------------------------------------------------------------

struct EmbedArgs {  // out[t] = table[index[t]]
  RawMatrix table;
  bool by_position;  // index = positions instead of tokens
  Matrix out;
};
struct RmsNormArgs {
  Matrix x, out;
  const float* weight;  // [columns / groups]
  float eps;
  int64_t groups;
};
struct LayerNormArgs {
  Matrix x, out;
  const float *weight, *bias;
  float eps;
};
// Activations as a matmul wants them, one area per row (matmul.h: activation_bytes, layout).
// Which form is decided by the weight's format: f32 for F32/F16, bf16 for BF16, int8 otherwise.
enum class ActivationKind : int32_t { F32, BF16, Int8 };
struct PrepareArgs {
  Matrix x;
  ActivationKind kind;
  std::byte* out;
  int64_t row_bytes;
};
struct MatmulArgs {
  PackedMatrix weight;
  const std::byte* activations;
  int64_t activation_row_bytes;
  const float* bias;  // [N] or nullptr
  Matrix out;
  bool copies = false;  // in a step of one token each worker has prepared a row of its own

  // Where this worker's activations start.
  [[gnu::always_inline]] const std::byte* rows_of(const Step& step, const Worker& worker) const {
    return activations + (copies && step.one_token() ? worker.index * activation_row_bytes : 0);
  }
};
struct RopeArgs {
  Matrix x, out;  // out may be x
  int64_t heads, rotary_dim;
  bool interleaved;
  const float *cos, *sin;     // [max position, rotary_dim / 2]
  int64_t decode_offset = 0;  // −1 plants a fault: steps of single tokens turn too early
};
struct KVWriteArgs {
  Matrix k, v;
  const KVMemory* memory;  // set by allocate_kv; the pointer is stable
  int64_t group, layer;
};
struct AttendArgs {
  Matrix q, out;
  const KVMemory* memory;
  int64_t group, layer, heads;
  float scale;
  int64_t window;  // 0 = none
  float soft_cap;  // 0 = none
  // Faults to plant (0 in every real program): positions seen beyond the query's own, and how far
  // the map from query heads to KV heads is shifted.
  int64_t last_offset = 0, head_shift = 0;
};
struct GatedArgs {
  Matrix gate, up, out;
  GateKind kind;
};
struct UnaryArgs {  // gelu, scale (value), soft_cap (value), copy, exp
  Matrix x, out;
  float value;
};
struct BinaryArgs {  // add
  Matrix a, b, out;
};
struct RowsArgs {  // out[i] = x[rows[i]]
  Matrix x, out;
};

// ---- the kernels of one instruction set -------------------------------------------------------

// What the largest step can be; buffers and workspaces are sized for it once.
struct Limits {
  int64_t max_tokens, max_requests, max_context;
  int workers;
};
// Bytes of Worker::scratch (each worker) and Worker::shared (one) that an op needs.
struct Workspace {
  int64_t scratch, shared;
};

template <class Args>
using OpFn = void (*)(const Args&, const Step&, Worker&);
template <class Args>
using RowFn = void (*)(const Args&, const Step&, const RowTile&);

struct KernelTable {
  const char* isa;
  OpFn<MatmulArgs> matmul;
  OpFn<AttendArgs> attend;
  RowFn<EmbedArgs> embed;
  RowFn<RmsNormArgs> rms_norm;
  RowFn<LayerNormArgs> layer_norm;
  RowFn<PrepareArgs> prepare;
  RowFn<RopeArgs> rope;
  RowFn<KVWriteArgs> kv_write;
  RowFn<GatedArgs> gated;
  RowFn<UnaryArgs> gelu, scale, soft_cap, copy;
  RowFn<UnaryArgs> exp, exp_nonpositive;  // elementary.h's, for tests
  RowFn<BinaryArgs> add;
  RowFn<RowsArgs> rows;
  // x: f32 [k], finite → one row of blocks of format `to`; k in whole blocks. False: no quantiser.
  bool (*quantize_row)(Format to, const float* x, int64_t k, uint8_t* out);
  // Bytes of one prepared activation row of k columns; a multiple of 64.
  int64_t (*activation_row_bytes)(ActivationKind kind, int64_t k);
  Workspace (*matmul_workspace)(const MatmulArgs& args, const Limits& limits);
  Workspace (*attend_workspace)(const AttendArgs& args, const Limits& limits);
};

}  // namespace headrace

// Each kernel file defines its functions in namespace HR_ISA; kernels/table.cpp gathers them.
// dispatch.cpp picks a table from CPUID and HEADRACE_ISA.
namespace avx2 {
const headrace::KernelTable& kernels();
}
namespace avx512 {
const headrace::KernelTable& kernels();
}
namespace avx512bf16 {
const headrace::KernelTable& kernels();
}

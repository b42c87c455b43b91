// A recorded model as the core runs it: a flat array of op records over fixed buffers.
//
//   ops      0 1 2 3 …            | … n
//   segments 0: the whole step    | 1: logits of prompt rows, from values segment 0 left behind
//
// All workers walk a segment together. A record may be preceded by a barrier (the recorder says
// where: before an op that touches what an op since the last barrier wrote, in steps of several
// tokens and in steps of one). Buffers are address space for the largest step; a page costs memory
// once a step reaches it.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "memory.h"
#include "pool.h"
#include "rope_table.h"
#include "row_wise.h"
#include "step.h"

namespace headrace {

// Where everyone meets before a record, as bits.
enum Meet : int { kNever = 0, kSeveralTokens = 1, kOneToken = 2, kAlways = 3 };

// One op: a kernel and its arguments, ready to call.
struct OpRecord {
  void (*invoke)(const OpRecord& record, const Step& step, Worker& worker);
  void (*kernel)();
  RowKind rows;  // skipped by everyone when the step has no such rows
  int meet;      // before it (Meet)
  alignas(8) std::byte args[192];

  template <class Args>
  static OpRecord make(OpFn<Args> kernel, const Args& args, RowKind rows, int meet) {
    static_assert(std::is_trivially_copyable_v<Args> && sizeof(Args) <= sizeof(OpRecord::args));
    OpRecord record;
    record.kernel = reinterpret_cast<void (*)()>(kernel);
    record.invoke = [](const OpRecord& r, const Step& step, Worker& worker) {
      reinterpret_cast<OpFn<Args>>(r.kernel)(*reinterpret_cast<const Args*>(r.args), step, worker);
    };
    record.rows = rows;
    record.meet = meet;
    new (record.args) Args(args);
    return record;
  }
};

// What a KV group is and needs checked, and its memory.
struct KVGroup {
  int64_t layers;
  int64_t window;  // of its attend ops, the widest; 0 = full; −1 = none recorded yet
  KVMemory memory{};
  Mapping pages;
};

class Program {
 public:
  Program(std::shared_ptr<Pool> pool, const KernelTable& kernels, Limits limits);

  const KernelTable& kernels() const { return kernels_; }
  const Limits& limits() const { return limits_; }
  const std::shared_ptr<Pool>& pool() const { return pool_; }
  // Most rows of a kind: max_tokens, and for prompt rows kMaxPromptRows.
  int64_t capacity(RowKind rows) const;
  static constexpr int64_t kMaxPromptRows = 64;
  // The same of prepared activations, of which each worker may have one in a step of one token.
  int64_t prepared_rows(RowKind rows) const {
    return std::max<int64_t>(capacity(rows), limits_.workers);
  }

  // ---- recording -------------------------------------------------------------------------------
  // Every misfit throws std::invalid_argument and names the dimension.
  int add_buffer(int64_t bytes);
  int add_group(int64_t layers, int64_t kv_heads, int64_t k_dim, int64_t v_dim);
  Matrix matrix(int buffer, RowKind rows, int64_t columns, int64_t stride, int64_t offset) const;
  std::byte* buffer(int index, int64_t bytes) const;  // checked to hold `bytes`
  KVGroup& group(int64_t index) const;
  RopeTable* keep(std::unique_ptr<RopeTable> table);
  void limit_tokens(int64_t vocab);         // tokens must be below the smallest table seen
  void limit_positions(int64_t positions);  // the same for positions

  template <class Args>
  void add(OpFn<Args> kernel, const Args& args, RowKind rows, int meet, Workspace need = {}) {
    if (finished_) throw_finished();
    if (parts_ != nullptr) throw_in_rows();
    if (need.shared > 0) {  // one shared workspace: its users never overlap
      meet |= shared_in_use_;
      shared_in_use_ = kAlways;
    } else {
      shared_in_use_ &= ~meet;
    }
    scratch_bytes_ = std::max(scratch_bytes_, need.scratch);
    shared_bytes_ = std::max(shared_bytes_, need.shared);
    records_.push_back(OpRecord::make(kernel, args, rows, meet));
  }
  // A record of row-wise ops (row_wise.h): begin, its parts in order, end. local_floats: of the
  // worker's scratch, for local matrices.
  void begin_rows(RowKind rows, int64_t tile_rows, int64_t tile_columns, OneToken one_token,
                  int64_t local_floats);
  template <class Args>
  void add_part(RowFn<Args> kernel, const Args& args, RowKind rows, int64_t columns) {
    check_part(rows);
    row_wise_.columns = std::max(row_wise_.columns, columns);
    parts_->push_back(RowPart::make(kernel, args));
  }
  void end_rows(int meet);
  // A matrix that the parts of the record being built keep local: columns `columns` of rows
  // `stride` floats apart, from float `local` on.
  Matrix local_matrix(RowKind rows, int64_t columns, int64_t stride, int64_t local) const;
  // The same matrix, with a place of its own in scratch where it is not this worker's to write.
  Matrix with_spare(Matrix matrix, int64_t local) const;
  // Ends a segment; the next op starts another.
  void end_segment();
  // No more ops: workspaces are allocated.
  void finish();

  // ---- KV memory -------------------------------------------------------------------------------
  // num_blocks per group; block_size a multiple of 16. Drops what was held.
  void allocate_kv(const std::vector<int64_t>& num_blocks, int64_t block_size, KVFormat format);
  void copy_block(int64_t group, int64_t source, int64_t destination);

  // ---- running ---------------------------------------------------------------------------------
  // Throws std::invalid_argument naming what does not fit.
  void check(const Step& step) const;
  // The same for prompt rows alone, against the step that ran last.
  void check_prompt_rows(const Step& step) const;
  // Runs a segment. `step` must have passed check() (segment 0) or check_prompt_rows().
  void run(int segment, const Step& step);
  int num_segments() const { return static_cast<int>(segment_ends_.size()); }
  int64_t num_groups() const { return static_cast<int64_t>(groups_.size()); }
  int64_t num_ops() const { return static_cast<int64_t>(records_.size()); }

  // Seconds per op of the last run of each segment; empty until profile(true). Costs a barrier and
  // a clock per op.
  void profile(bool on);
  const std::vector<double>& op_seconds() const { return op_seconds_; }

 private:
  [[noreturn]] static void throw_finished();
  [[noreturn]] static void throw_in_rows();
  void check_part(RowKind rows) const;
  void check_local(int64_t columns, int64_t stride, int64_t local) const;
  void check_group(const Step& step, size_t index) const;

  std::shared_ptr<Pool> pool_;
  const KernelTable& kernels_;
  const Limits limits_;
  std::vector<Mapping> buffers_;
  std::vector<std::unique_ptr<KVGroup>> groups_;
  std::vector<std::unique_ptr<RopeTable>> ropes_;
  std::vector<OpRecord> records_;
  std::vector<int64_t> segment_ends_;
  int64_t vocab_, positions_;
  int64_t last_tokens_ = 0;  // rows of the step whose values the buffers hold
  int64_t scratch_bytes_ = 0, shared_bytes_ = 0;
  int shared_in_use_ = kNever;  // since the last meeting, by kind of step (Meet)
  bool finished_ = false;
  std::vector<std::unique_ptr<std::vector<RowPart>>> rows_;  // parts of the row-wise records
  std::vector<RowPart>* parts_ = nullptr;                    // of the one being built
  RowWiseArgs row_wise_{};
  int64_t local_floats_ = 0;
  Mapping workspace_;
  std::vector<double> op_seconds_;
  std::atomic<bool> running_{false};
};

}  // namespace headrace

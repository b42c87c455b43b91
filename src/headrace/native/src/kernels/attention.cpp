// attend: causal attention through the block table, for any mix of prompts and single tokens.
//
// Shapes: q [T, H·Dk] → out [T, H·Dv]; keys and values of KV head h / (H / K) of the row's request.
// Plan: a task is (request, KV head, a few consecutive tokens) with all query heads of that KV head
// as its rows, so keys and values are read once for them. Many tasks: a worker takes whole tasks
// and folds tile after tile. Few tasks (decode): workers share (task, tile) items, write their
// partials to shared memory, meet, and fold rows. Both fold in the same order, so the bits are
// equal:
//
//   positions  |tile|tile|tile|tile|tile|…       tile 128, segment 512, both at absolute positions
//   segments   |------- 0 ---------|-- 1 …
//   result     = ((t0 ∘ t1) ∘ t2) ∘ t3  ∘  (t4 ∘ …)  ∘  …
//
// Bytes: the visible keys and values once per task; decode is bandwidth-bound, prefill
// compute-bound. Arithmetic: docs/numerics.md, "Attention".
#include <cstring>

#include "attention_tile.h"
#include "kernels/ops.h"
#include "pool.h"

namespace HR_ISA {

static constexpr int64_t kSharedBytes = int64_t{32} << 20;  // partials of split tasks
static constexpr int kTasksPerWorker = 4;  // fewer than that: split tasks into tiles

// ---- one worker's state -----------------------------------------------------------------------

static constexpr int kMaxBlock = 6;

// Workspaces carved out of Worker::scratch. With a null base only the size is of use.
struct Scratch {
  std::byte *q, *p;               // operands: [max_rows][q_stride], [kMaxBlock][kTile]
  float* s;                       // [kMaxBlock][kTile]
  Partials tile, segment, total;  // of max_rows rows
  std::byte* poison;              // a run of NaN, for positions without a block
  int64_t poison_bytes;
  Range* ranges;  // [max_rows]
  int64_t bytes;

  Scratch(const Shape& shape, std::byte* base) : bytes(0) {
    const auto take = [&](int64_t size) {
      std::byte* start = base == nullptr ? nullptr : base + bytes;
      bytes += (size + 63) / 64 * 64;
      return start;
    };
    const auto take_partials = [&] {
      auto* memory =
          reinterpret_cast<float*>(take(partials_floats(shape.max_rows, shape.padded_dim) * 4));
      return memory == nullptr ? Partials{} : partials_in(memory, shape.max_rows, shape.padded_dim);
    };
    q = take(shape.max_rows * shape.q_stride * 4);
    p = take(kMaxBlock * kTile * 4);
    s = reinterpret_cast<float*>(take(kMaxBlock * kTile * 4));
    tile = take_partials();
    segment = take_partials();
    total = take_partials();
    poison_bytes = kRun * 4 * (shape.k_dim > shape.v_dim ? shape.k_dim : shape.v_dim);
    poison = take(poison_bytes);
    ranges = reinterpret_cast<Range*>(take(shape.max_rows * static_cast<int64_t>(sizeof(Range))));
  }
};

template <class E>
class Attention {
 public:
  using Operand = typename E::Operand;

  Attention(const AttendArgs& args, const Step& step, const Shape& shape, Worker& worker)
      : args_(args), step_(step), shape_(shape), scratch_(shape, worker.scratch) {
    std::memset(scratch_.poison, 0xff, static_cast<size_t>(scratch_.poison_bytes));
  }

  // The whole task: fold as the tiles come, then write the rows.
  void run(const Task& task) {
    start(task);
    for (int64_t tile = task.first_tile; tile < task.end_tile; ++tile) {
      const int64_t segment_start = tile / kTilesPerSegment * kTilesPerSegment;
      // Rows that saw an earlier tile of the segment come first; for the others this is the first.
      const Rows rows = rows_of_tile(tile);
      const int64_t middle = tile == segment_start ? rows.begin : first_row_from(tile, rows);
      const bool direct = middle == rows.begin;
      const Partials& out = direct ? scratch_.segment : scratch_.tile;
      tile_partials(tile, rows, out);
      if (!direct) {
        fold(scratch_.segment.from(rows.begin), out.from(rows.begin), middle - rows.begin);
        copy_partials(scratch_.segment.from(middle), out.from(middle), rows.end - middle);
      }
      if (tile + 1 == task.end_tile || tile + 1 == segment_start + kTilesPerSegment)
        finish_segment(segment_start, tile);
    }
    for (int64_t r = 0; r < num_rows_; ++r)
      write_result(scratch_.total.from(r), shape_.v_dim, result(r));
  }

  void start(const Task& task) {
    if (task_.token == task.token && task_.head == task.head) return;
    task_ = task;
    num_rows_ = task.num_tokens * shape_.group;
    prepare_queries();
  }

  // One tile of the task started last: partials of the rows that see it.
  void run_tile(int64_t tile, const Partials& out) { tile_partials(tile, rows_of_tile(tile), out); }

  // The fold of row r of `task` over its tiles' partials, each of `floats` floats, and its result.
  void fold_row(const Task& task, int64_t r, float* partials, int64_t floats) {
    task_ = task;
    num_rows_ = task.num_tokens * shape_.group;
    const int64_t last = position(r) / kTile, lowest = first_visible(args_, position(r)) / kTile;
    const Partials &segment = scratch_.segment, &total = scratch_.total;
    for (int64_t tile = lowest; tile <= last; ++tile) {
      const Partials partial =
          partials_in(partials + (tile - task.first_tile) * floats, num_rows_, shape_.padded_dim)
              .from(r);
      if (tile == lowest || tile % kTilesPerSegment == 0)
        copy_partials(segment, partial, 1);
      else
        fold(segment, partial, 1);
      if (tile != last && (tile + 1) % kTilesPerSegment != 0) continue;
      if (lowest / kTilesPerSegment == tile / kTilesPerSegment)
        copy_partials(total, segment, 1);
      else
        fold(total, segment, 1);
    }
    write_result(total, shape_.v_dim, result(r));
  }

 private:
  struct Rows {
    int64_t begin, end;
  };

  int64_t position(int64_t row) const { return step_.positions[task_.token + row / shape_.group]; }
  float* result(int64_t row) const {
    return args_.out.data + (task_.token + row / shape_.group) * args_.out.stride +
           (task_.head * shape_.group + row % shape_.group) * shape_.v_dim;
  }

  // q · scale, rounded to bf16 with bf16 KV; rows are (token, query head of the group).
  void prepare_queries() {
    const f32x16 scale = splat(args_.scale);
    for (int64_t r = 0; r < num_rows_; ++r) {
      const float* q = args_.q.data + (task_.token + r / shape_.group) * args_.q.stride +
                       (task_.head * shape_.group + r % shape_.group) * shape_.k_dim;
      for (int64_t d = 0; d < shape_.k_dim; d += 16) {
        const int n = shape_.k_dim - d < 16 ? static_cast<int>(shape_.k_dim - d) : 16;
        E::store_operand(reinterpret_cast<Operand*>(scratch_.q) + r * shape_.q_stride + d,
                         load_first(q + d, n) * scale);
      }
    }
  }

  // Which rows see the tile, and what of it (scratch_.ranges). First and end of the ranges ascend
  // with the row, so the rows are neighbours.
  Rows rows_of_tile(int64_t tile) {
    Rows rows{num_rows_, 0};
    for (int64_t r = 0; r < num_rows_; ++r) {
      const Range range = scratch_.ranges[r] = range_in(args_, position(r), tile);
      if (range.first >= range.end) continue;
      if (rows.begin == num_rows_) rows.begin = r;
      rows.end = r + 1;
    }
    if (rows.begin > rows.end) rows.begin = rows.end;
    return rows;
  }

  // The first of `rows` whose lowest visible position lies in `tile` or later.
  int64_t first_row_from(int64_t tile, const Rows& rows) const {
    int64_t r = rows.begin;
    while (r < rows.end && first_visible(args_, position(r)) < tile * kTile) ++r;
    return r;
  }

  // Folds the segment's partials into the totals of the rows that saw it, up to `last_tile`.
  void finish_segment(int64_t segment_start, int64_t last_tile) {
    Rows rows{0, num_rows_};
    while (rows.begin < rows.end && position(rows.begin) < segment_start * kTile) ++rows.begin;
    while (rows.begin < rows.end &&
           first_visible(args_, position(rows.end - 1)) >= (last_tile + 1) * kTile)
      --rows.end;
    const int64_t middle = first_row_from(segment_start, rows);
    if (middle == 0 && rows.begin == 0 && rows.end == num_rows_) {  // the first one of every row
      const Partials segment = scratch_.segment;
      scratch_.segment = scratch_.total;
      scratch_.total = segment;
      return;
    }
    fold(scratch_.total.from(rows.begin), scratch_.segment.from(rows.begin), middle - rows.begin);
    copy_partials(scratch_.total.from(middle), scratch_.segment.from(middle), rows.end - middle);
  }

  // Pointers to the runs of `tile` from position `first` to `end`. A position whose block is
  // missing is a bug of the caller; it reads NaN, never stray memory.
  void find_runs(int64_t tile, int first, int end, const std::byte** keys,
                 const std::byte** values) const {
    const headrace::KVMemory& m = *args_.memory;
    const headrace::GroupStep& group = step_.groups[args_.group];
    const int32_t* table = group.block_tables + task_.request * group.table_columns;
    const int64_t head = (task_.head + args_.head_shift) % m.kv_heads;
    for (int i = first / kRun; i <= (end - 1) / kRun; ++i) {
      const int64_t at = tile * kTile + i * kRun, column = at / m.block_size;
      const int64_t block = column < group.table_columns ? table[column] : -1;
      if (block < 0 || block >= m.num_blocks) {
        keys[i] = values[i] = scratch_.poison;
        continue;
      }
      const int64_t offset = at % m.block_size;
      keys[i] = key_run(m, args_.layer, block, head, offset, E::bytes);
      values[i] = value_run(m, args_.layer, block, head, offset, E::bytes);
    }
  }

  void tile_partials(int64_t tile, const Rows& rows, const Partials& out) {
    if (rows.begin >= rows.end) return;
    const int first = scratch_.ranges[rows.begin].first, end = scratch_.ranges[rows.end - 1].end;
    TileMemory memory;
    find_runs(tile, first, end, memory.keys, memory.values);
    std::memcpy(memory.next_keys, memory.keys, sizeof memory.keys);
    std::memcpy(memory.next_values, memory.values, sizeof memory.values);
    const int64_t ahead = position(num_rows_ - 1) - (tile + 1) * kTile;  // last one to be seen
    if (ahead >= 0)
      find_runs(tile + 1, 0, ahead < kTile ? static_cast<int>(ahead) + 1 : kTile, memory.next_keys,
                memory.next_values);
    // Blocks of about equal size: 7 rows as 4 + 3.
    int64_t blocks = (rows.end - rows.begin + E::max_rows - 1) / E::max_rows;
    for (int64_t r = rows.begin; r < rows.end; --blocks) {
      r += block(memory, r, (rows.end - r + blocks - 1) / blocks, out.from(r));
      std::memcpy(memory.next_keys, memory.keys, sizeof memory.keys);  // once is enough
      std::memcpy(memory.next_values, memory.values, sizeof memory.values);
    }
  }

  int64_t block(const TileMemory& memory, int64_t r, int64_t rows, const Partials& out) {
    switch (rows) {
      case 1:
        return block_of<1>(memory, r, out);
      case 2:
        return block_of<2>(memory, r, out);
      case 3:
        return block_of<3>(memory, r, out);
      case 4:
        return block_of<4>(memory, r, out);
      case 5:
        return block_of<5>(memory, r, out);
      default:
        return block_of<6>(memory, r, out);
    }
  }
  template <int rows>
  int64_t block_of(const TileMemory& memory, int64_t r, const Partials& out) {
    if constexpr (rows <= E::max_rows)
      tile_block<E, rows>(reinterpret_cast<Operand*>(scratch_.q) + r * shape_.q_stride,
                          shape_.q_stride, memory, shape_.k_dim, shape_.v_dim, args_.soft_cap,
                          scratch_.ranges + r, scratch_.s, reinterpret_cast<Operand*>(scratch_.p),
                          out);
    return rows;
  }

  const AttendArgs& args_;
  const Step& step_;
  const Shape& shape_;
  Scratch scratch_;
  Task task_{-1, -1, -1, 0, 0, 0, 0};
  int64_t num_rows_ = 0;
};

// ---- the op -----------------------------------------------------------------------------------

// Whole tasks, contiguous by cost.
template <class E>
static void attend_whole(const AttendArgs& args, const Step& step, const Shape& shape,
                         Worker& worker, int64_t total_cost) {
  Attention<E> attention(args, step, shape, worker);
  int64_t before = 0;
  for_tasks(args, step, shape, [&](const Task& task) {
    if ((before + task.cost / 2) * worker.count / total_cost == worker.index) attention.run(task);
    before += task.cost;
  });
}

// Tiles of tasks, then rows.
template <class E>
static void attend_split(const AttendArgs& args, const Step& step, const Shape& shape,
                         Worker& worker, int64_t num_tiles, int64_t num_rows) {
  Attention<E> attention(args, step, shape, worker);
  float* partials = reinterpret_cast<float*>(worker.shared);
  const headrace::Share tiles = headrace::share(num_tiles, worker);
  int64_t item = 0, offset = 0;  // offset in partials of the task's first one
  for_tasks(args, step, shape, [&](const Task& task) {
    const int64_t rows = task.num_tokens * shape.group;
    const int64_t floats = partials_floats(rows, shape.padded_dim);
    for (int64_t tile = task.first_tile; tile < task.end_tile; ++tile, ++item, offset += floats)
      if (item >= tiles.begin && item < tiles.end) {
        attention.start(task);
        attention.run_tile(tile, partials_in(partials + offset, rows, shape.padded_dim));
      }
  });
  worker.barrier->wait();
  const headrace::Share mine = headrace::share(num_rows, worker);
  item = offset = 0;
  for_tasks(args, step, shape, [&](const Task& task) {
    const int64_t rows = task.num_tokens * shape.group;
    const int64_t floats = partials_floats(rows, shape.padded_dim);
    for (int64_t r = 0; r < rows; ++r, ++item)
      if (item >= mine.begin && item < mine.end)
        attention.fold_row(task, r, partials + offset, floats);
    offset += (task.end_tile - task.first_tile) * floats;
  });
}

template <class E>
static void attend_format(const AttendArgs& args, const Step& step, Worker& worker) {
  const Shape shape(args);
  int64_t tasks = 0, tiles = 0, rows = 0, floats = 0, cost = 0;
  for_tasks(args, step, shape, [&](const Task& task) {
    const int64_t task_rows = task.num_tokens * shape.group;
    tasks += 1;
    tiles += task.end_tile - task.first_tile;
    rows += task_rows;
    floats += (task.end_tile - task.first_tile) * partials_floats(task_rows, shape.padded_dim);
    cost += task.cost;
  });
  // Every worker comes to the same decision.
  const bool split = worker.count > 1 && tasks < kTasksPerWorker * worker.count && tiles > tasks &&
                     floats * 4 <= kSharedBytes;
  if (split)
    attend_split<E>(args, step, shape, worker, tiles, rows);
  else if (cost > 0)
    attend_whole<E>(args, step, shape, worker, cost);
}

void attend(const AttendArgs& args, const Step& step, Worker& worker) {
  switch (args.memory->format) {
    case KVFormat::F32:
      return attend_format<Elements<KVFormat::F32>>(args, step, worker);
    case KVFormat::BF16:
      return attend_format<Elements<KVFormat::BF16>>(args, step, worker);
    case KVFormat::F16:
      return attend_format<Elements<KVFormat::F16>>(args, step, worker);
  }
}

headrace::Workspace attend_workspace(const AttendArgs& args, const headrace::Limits& limits) {
  const Shape shape(args);
  const int64_t scratch = Scratch(shape, nullptr).bytes;
  if (limits.workers < 2) return {scratch, 0};
  const int64_t tiles = kTasksPerWorker * limits.workers * (limits.max_context / kTile + 1);
  const int64_t bytes = tiles * partials_floats(shape.max_rows, shape.padded_dim) * 4;
  return {scratch, bytes < kSharedBytes ? bytes : kSharedBytes};
}

}  // namespace HR_ISA

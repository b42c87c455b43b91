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

using headrace::AttendArgs;

static constexpr int kTilesPerSegment = 4;
static constexpr int kRows = 48;                            // rows of a task, about
static constexpr int64_t kSharedBytes = int64_t{32} << 20;  // partials of split tasks
static constexpr int kTasksPerWorker = 4;  // fewer than that: split tasks into tiles

// ---- work -------------------------------------------------------------------------------------

struct Task {
  int64_t request, head;      // KV head
  int64_t token, num_tokens;  // rows of the step
  int64_t first_tile, end_tile;
  int64_t cost;  // visible positions, about
};

struct Shape {
  int64_t group, k_dim, v_dim;  // query heads per KV head
  int64_t q_stride;             // operands of one prepared query row
  int64_t tokens_per_task, max_rows;
  PartialShape partial;

  explicit Shape(const AttendArgs& args)
      : group(args.heads / args.memory->kv_heads),
        k_dim(args.memory->k_dim),
        v_dim(args.memory->v_dim),
        q_stride((k_dim + 15) / 16 * 16),
        tokens_per_task(group < kRows ? kRows / group : 1),
        max_rows(tokens_per_task * group),
        partial(partial_shape(v_dim)) {}
};

static inline int64_t first_visible(const AttendArgs& args, int64_t position) {
  const int64_t first = args.window > 0 ? position - args.window + 1 : 0;
  return first > 0 ? first : 0;
}

// The visible part of `tile` for a query at `position`; first ≥ end where there is none.
static inline Range range_in(const AttendArgs& args, int64_t position, int64_t tile) {
  const int64_t start = tile * kTile, first = first_visible(args, position) - start,
                end = position + 1 - start;
  return {static_cast<int>(first > 0 ? first : 0), static_cast<int>(end < kTile ? end : kTile)};
}

// body(task) for every task of the step, in one order.
template <class Body>
static inline void for_tasks(const AttendArgs& args, const Step& step, const Shape& shape,
                             Body body) {
  for (int64_t r = 0; r < step.num_requests; ++r)
    for (int64_t head = 0; head < args.memory->kv_heads; ++head)
      for (int64_t t = step.spans[r]; t < step.spans[r + 1]; t += shape.tokens_per_task) {
        Task task{r, head, t, step.spans[r + 1] - t, 0, 0, 0};
        if (task.num_tokens > shape.tokens_per_task) task.num_tokens = shape.tokens_per_task;
        const int64_t low = first_visible(args, step.positions[t]),
                      high = step.positions[t + task.num_tokens - 1];
        task.first_tile = low / kTile;
        task.end_tile = high / kTile + 1;
        task.cost = (high - low + kTile) * task.num_tokens;
        body(task);
      }
}

// ---- partials ---------------------------------------------------------------------------------

static void copy_partial(float* to, const float* from, const PartialShape& shape) {
  std::memcpy(to, from, static_cast<size_t>(shape.stride) * sizeof(float));
}

// left ← left ∘ right, in place.
static void fold(float* left, const float* right, const PartialShape& shape) {
  float *m = left + shape.padded_dim, *l = m + 1;
  const float m2 = right[shape.padded_dim], l2 = right[shape.padded_dim + 1];
  const float top = *m > m2 ? *m : m2;
  const f32x16 a = exp_nonpositive(splat(*m) - splat(top)),
               b = exp_nonpositive(splat(m2) - splat(top));
  for (int64_t d = 0; d < shape.padded_dim; d += 16)
    store(left + d, fma(load(right + d), b, load(left + d) * a));
  alignas(64) float sum[16];
  store(sum, fma(splat(l2), b, splat(*l) * a));
  *l = sum[0];
  *m = top;
}

static void write_result(const float* partial, const Shape& shape, float* out) {
  const f32x16 inverse = splat(1.0f) / splat(partial[shape.partial.padded_dim + 1]);
  for (int64_t d = 0; d < shape.v_dim; d += 16) {
    const int n = shape.v_dim - d < 16 ? static_cast<int>(shape.v_dim - d) : 16;
    store_first(out + d, load(partial + d) * inverse, n);
  }
}

// ---- one worker's state -----------------------------------------------------------------------

// Workspaces carved out of Worker::scratch; the sizes are attend_workspace's.
template <class E>
struct Scratch {
  typename E::Operand *q, *p;         // [max_rows][q_stride], [max block][kTile]
  float *s, *tile, *segment, *total;  // [max block][kTile], [max_rows] partials × 3
  std::byte* poison;                  // a run of NaN, for positions without a block
  Range* ranges;                      // [max_rows]
};

static constexpr int kMaxBlock = 6;

static inline int64_t scratch_bytes(const Shape& shape, std::byte* base, std::byte** parts) {
  const int64_t dim = shape.k_dim > shape.v_dim ? shape.k_dim : shape.v_dim;
  const int64_t sizes[] = {shape.max_rows * shape.q_stride * 4,
                           kMaxBlock * kTile * 4,
                           kMaxBlock * kTile * 4,
                           shape.max_rows * shape.partial.stride * 4,
                           shape.max_rows * shape.partial.stride * 4,
                           shape.max_rows * shape.partial.stride * 4,
                           kRun * dim * 4,
                           shape.max_rows * static_cast<int64_t>(sizeof(Range))};
  int64_t used = 0;
  for (int i = 0; i < 8; ++i) {
    if (parts != nullptr) parts[i] = base + used;
    used += (sizes[i] + 63) / 64 * 64;
  }
  return used;
}

template <class E>
class Attention {
 public:
  Attention(const AttendArgs& args, const Step& step, const Shape& shape, Worker& worker)
      : args_(args), step_(step), shape_(shape), worker_(worker) {
    std::byte* part[8];
    const int64_t bytes = scratch_bytes(shape, worker.scratch, part);
    (void)bytes;
    using Operand = typename E::Operand;
    scratch_ = {reinterpret_cast<Operand*>(part[0]),
                reinterpret_cast<Operand*>(part[1]),
                reinterpret_cast<float*>(part[2]),
                reinterpret_cast<float*>(part[3]),
                reinterpret_cast<float*>(part[4]),
                reinterpret_cast<float*>(part[5]),
                part[6],
                reinterpret_cast<Range*>(part[7])};
    std::memset(
        scratch_.poison, 0xff,
        static_cast<size_t>(kRun * 4 * (shape.k_dim > shape.v_dim ? shape.k_dim : shape.v_dim)));
  }

  // The whole task: fold as the tiles come, then write the rows.
  void run(const Task& task) {
    prepare_queries(task);
    const int64_t rows = task.num_tokens * shape_.group;
    for (int64_t tile = task.first_tile; tile < task.end_tile; ++tile) {
      const int64_t segment_start = tile / kTilesPerSegment * kTilesPerSegment;
      int64_t begin, end;
      tile_partials(task, tile, scratch_.tile, begin, end);
      for (int64_t r = begin; r < end; ++r) {
        const int64_t lowest = first_visible(args_, position(task, r)) / kTile;
        const int64_t first = lowest > segment_start ? lowest : segment_start;
        join(scratch_.segment, scratch_.tile, r, tile == first);
      }
      if (tile + 1 != task.end_tile && tile + 1 != segment_start + kTilesPerSegment) continue;
      for (int64_t r = 0; r < rows; ++r) {  // the segment is complete
        const int64_t lowest = first_visible(args_, position(task, r)) / kTile;
        if (position(task, r) / kTile < segment_start || lowest > tile) continue;
        join(scratch_.total, scratch_.segment, r, lowest >= segment_start);
      }
    }
    for (int64_t r = 0; r < rows; ++r)
      write_result(scratch_.total + r * shape_.partial.stride, shape_, result(task, r));
  }

  // One tile of a task: partials[row] for the rows that see it.
  void run_tile(const Task& task, int64_t tile, float* partials) {
    prepare_queries(task);
    int64_t begin, end;
    tile_partials(task, tile, partials, begin, end);
  }

  // The fold of row r over the tile partials of its task: partials[tile − first_tile][row].
  void fold_row(const Task& task, int64_t r, const float* partials) {
    const int64_t rows = task.num_tokens * shape_.group, stride = shape_.partial.stride;
    const int64_t last = position(task, r) / kTile;
    const int64_t lowest = first_visible(args_, position(task, r)) / kTile;
    float *segment = scratch_.segment, *total = scratch_.total;
    for (int64_t tile = lowest; tile <= last; ++tile) {
      const float* partial = partials + ((tile - task.first_tile) * rows + r) * stride;
      if (tile == lowest || tile % kTilesPerSegment == 0)
        copy_partial(segment, partial, shape_.partial);
      else
        fold(segment, partial, shape_.partial);
      if (tile != last && (tile + 1) % kTilesPerSegment != 0) continue;
      if (lowest / kTilesPerSegment == tile / kTilesPerSegment)
        copy_partial(total, segment, shape_.partial);
      else
        fold(total, segment, shape_.partial);
    }
    write_result(total, shape_, result(task, r));
  }

 private:
  int64_t position(const Task& task, int64_t row) const {
    return step_.positions[task.token + row / shape_.group];
  }
  float* result(const Task& task, int64_t row) const {
    return args_.out.data + (task.token + row / shape_.group) * args_.out.stride +
           (task.head * shape_.group + row % shape_.group) * shape_.v_dim;
  }
  void join(float* left, const float* right, int64_t row, bool first) const {
    const int64_t at = row * shape_.partial.stride;
    if (first)
      copy_partial(left + at, right + at, shape_.partial);
    else
      fold(left + at, right + at, shape_.partial);
  }

  // q · scale, rounded to bf16 with bf16 KV; rows are (token, query head of the group).
  void prepare_queries(const Task& task) {
    const f32x16 scale = splat(args_.scale);
    for (int64_t r = 0; r < task.num_tokens * shape_.group; ++r) {
      const float* q = args_.q.data + (task.token + r / shape_.group) * args_.q.stride +
                       (task.head * shape_.group + r % shape_.group) * shape_.k_dim;
      for (int64_t d = 0; d < shape_.k_dim; d += 16) {
        const int n = shape_.k_dim - d < 16 ? static_cast<int>(shape_.k_dim - d) : 16;
        E::store_operand(scratch_.q + r * shape_.q_stride + d, load_first(q + d, n) * scale);
      }
    }
  }

  // Pointers to the runs of `tile` from position `first` to `end`. A position whose block is
  // missing is a bug of the caller; it reads NaN, never stray memory.
  TileMemory find_tile(const Task& task, int64_t tile, int first, int end) const {
    const headrace::KVMemory& m = *args_.memory;
    const headrace::GroupStep& group = step_.groups[args_.group];
    const int32_t* table = group.block_tables + task.request * group.table_columns;
    TileMemory found;
    for (int i = first / kRun; i <= (end - 1) / kRun; ++i) {
      const int64_t at = tile * kTile + i * kRun, column = at / m.block_size;
      const int64_t block = column < group.table_columns ? table[column] : -1;
      if (block < 0 || block >= m.num_blocks) {
        found.keys[i] = found.values[i] = scratch_.poison;
        continue;
      }
      const int64_t offset = at % m.block_size;
      found.keys[i] = key_run(m, args_.layer, block, task.head, offset, E::bytes);
      found.values[i] = value_run(m, args_.layer, block, task.head, offset, E::bytes);
    }
    return found;
  }

  // Partials of the rows [begin, end) that see the tile; others are left alone.
  void tile_partials(const Task& task, int64_t tile, float* partials, int64_t& begin,
                     int64_t& end) {
    const int64_t rows = task.num_tokens * shape_.group;
    begin = rows;
    end = 0;
    for (int64_t r = 0; r < rows; ++r) {  // first and end ascend with r, so these are neighbours
      scratch_.ranges[r] = range_in(args_, position(task, r), tile);
      if (scratch_.ranges[r].first >= scratch_.ranges[r].end) continue;
      if (begin == rows) begin = r;
      end = r + 1;
    }
    if (begin >= end) return;
    const TileMemory memory =
        find_tile(task, tile, scratch_.ranges[begin].first, scratch_.ranges[end - 1].end);
    for (int64_t r = begin; r < end;) r += block(memory, r, end - r, partials);
  }

  // Up to E::max_rows rows from `r` on; returns how many.
  int64_t block(const TileMemory& memory, int64_t r, int64_t left, float* partials) {
    switch (left < E::max_rows ? left : E::max_rows) {
      case 1:
        return block_of<1>(memory, r, partials);
      case 2:
        return block_of<2>(memory, r, partials);
      case 3:
        return block_of<3>(memory, r, partials);
      case 4:
        return block_of<4>(memory, r, partials);
      case 5:
        return block_of<5>(memory, r, partials);
      default:
        return block_of<6>(memory, r, partials);
    }
  }
  template <int rows>
  int64_t block_of(const TileMemory& memory, int64_t r, float* partials) {
    if constexpr (rows <= E::max_rows)
      tile_block<E, rows>(scratch_.q + r * shape_.q_stride, shape_.q_stride, memory, shape_.k_dim,
                          shape_.v_dim, args_.soft_cap, scratch_.ranges + r, scratch_.s, scratch_.p,
                          partials + r * shape_.partial.stride);
    return rows;
  }

  const AttendArgs& args_;
  const Step& step_;
  const Shape& shape_;
  Worker& worker_;
  Scratch<E> scratch_;
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
  const int64_t stride = shape.partial.stride;
  const headrace::Share tiles = headrace::share(num_tiles, worker);
  int64_t item = 0, offset = 0;  // offset in partials of the task's first one
  for_tasks(args, step, shape, [&](const Task& task) {
    const int64_t rows = task.num_tokens * shape.group;
    for (int64_t tile = task.first_tile; tile < task.end_tile; ++tile, ++item)
      if (item >= tiles.begin && item < tiles.end)
        attention.run_tile(task, tile,
                           partials + (offset + (tile - task.first_tile) * rows) * stride);
    offset += (task.end_tile - task.first_tile) * rows;
  });
  worker.barrier->wait();
  const headrace::Share mine = headrace::share(num_rows, worker);
  item = offset = 0;
  for_tasks(args, step, shape, [&](const Task& task) {
    const int64_t rows = task.num_tokens * shape.group;
    for (int64_t r = 0; r < rows; ++r, ++item)
      if (item >= mine.begin && item < mine.end)
        attention.fold_row(task, r, partials + offset * stride);
    offset += (task.end_tile - task.first_tile) * rows;
  });
}

template <class E>
static void attend_format(const AttendArgs& args, const Step& step, Worker& worker) {
  const Shape shape(args);
  int64_t tasks = 0, tiles = 0, rows = 0, partials = 0, cost = 0;
  for_tasks(args, step, shape, [&](const Task& task) {
    const int64_t task_rows = task.num_tokens * shape.group;
    tasks += 1;
    tiles += task.end_tile - task.first_tile;
    rows += task_rows;
    partials += (task.end_tile - task.first_tile) * task_rows;
    cost += task.cost;
  });
  // Every worker comes to the same decision.
  const bool split = worker.count > 1 && tasks < kTasksPerWorker * worker.count && tiles > tasks &&
                     partials * shape.partial.stride * 4 <= kSharedBytes;
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
  if (limits.workers < 2) return {scratch_bytes(shape, nullptr, nullptr), 0};
  const int64_t partials =
      kTasksPerWorker * limits.workers * shape.max_rows * (limits.max_context / kTile + 1);
  const int64_t bytes = partials * shape.partial.stride * 4;
  return {scratch_bytes(shape, nullptr, nullptr), bytes < kSharedBytes ? bytes : kSharedBytes};
}

}  // namespace HR_ISA

// attend: causal attention through the block table, for any mix of prompts and single tokens.
//
// Shapes: q [T, H·Dk] → out [T, H·Dv]; keys and values of KV head h / (H / K) of the row's request.
// Plan: a task is (request, KV head, a few consecutive tokens) with all query heads of that KV head
// as its rows, so keys and values are read once for them. Many tasks: a worker takes one whole task
// after the other and folds tile after tile. Few tasks (decode): workers share (task, tile) items,
// write their partials to shared memory, meet, and fold rows. Both fold in the same order, so the
// bits are equal:
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
static constexpr int kTasksPerWorker = 4;  // fewer than that: perhaps split tasks into tiles

// ---- one worker's state -----------------------------------------------------------------------

static constexpr int kMaxBlock = 6;

// Workspaces carved out of Worker::scratch. With a null base only the size is of use.
struct Scratch {
  std::byte *q, *p;               // operands: [max_rows][q_stride], [kMaxBlock][kTile]
  float* s;                       // [kMaxBlock][kTile]
  Partials tile, segment, total;  // of max_rows rows
  std::byte* poison;              // a run of NaN, for positions without a block
  int64_t poison_bytes;
  Range* ranges;       // [max_rows]
  int32_t* positions;  // [max_rows]
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
    positions = reinterpret_cast<int32_t*>(take(shape.max_rows * 4));
  }
};

template <class E>
class Attention {
 public:
  using Operand = typename E::Operand;

  Attention(const AttendArgs& args, const Step& step, const Shape& shape, Worker& worker)
      : args_(args), step_(step), shape_(shape), scratch_(shape, worker.scratch) {}

  // The whole task: fold as the tiles come, then write the rows. next: the worker's next task, or
  // nullptr; its first tile is asked for during the last one of this.
  void run(const Task& task, const Task* next) {
    start(task);
    for (int64_t tile = task.first_tile; tile < task.end_tile; ++tile) {
      const int64_t segment_start = tile / kTilesPerSegment * kTilesPerSegment;
      // Rows that saw an earlier tile of the segment come first; for the others this is the first.
      const Rows rows = rows_of_tile(tile);
      const int64_t middle = tile == segment_start ? rows.begin : first_row_from(tile, rows);
      const bool direct = middle == rows.begin;
      const Partials& out = direct ? scratch_.segment : scratch_.tile;
      const bool last = tile + 1 == task.end_tile;
      tile_partials(tile, rows, out, last ? next : &task,
                    last && next ? next->first_tile : tile + 1);
      if (!direct) {
        fold(scratch_.segment.from(rows.begin), out.from(rows.begin), middle - rows.begin);
        copy_partials(scratch_.segment.from(middle), out.from(middle), rows.end - middle);
      }
      if (last || tile + 1 == segment_start + kTilesPerSegment) finish_segment(segment_start, tile);
    }
    write_rows(scratch_.total, 0, num_rows_);
  }

  // One tile of a task: partials of the rows that see it. Then comes next_tile of next_task, or
  // nothing (nullptr).
  void run_tile(const Task& task, int64_t tile, const Partials& out, const Task* next_task,
                int64_t next_tile) {
    if (task_.token != task.token || task_.head != task.head) start(task);
    tile_partials(tile, rows_of_tile(tile), out, next_task, next_tile);
  }

  // The fold of rows begin … end-1 of `task`, all of one token, over its tiles' partials, each of
  // `floats` floats, and their results.
  void fold_rows(const Task& task, int64_t begin, int64_t end, float* partials, int64_t floats) {
    task_ = task;
    const int64_t position = step_.positions[task.token + begin / shape_.group], rows = end - begin,
                  last = position / kTile, lowest = first_visible(args_, position) / kTile;
    const Partials &segment = scratch_.segment, &total = scratch_.total;
    for (int64_t tile = lowest; tile <= last; ++tile) {
      const Partials partial = partials_in(partials + (tile - task.first_tile) * floats,
                                           task.num_tokens * shape_.group, shape_.padded_dim)
                                   .from(begin);
      if (tile == lowest || tile % kTilesPerSegment == 0)
        copy_partials(segment, partial, rows);
      else
        fold(segment, partial, rows);
      if (tile != last && (tile + 1) % kTilesPerSegment != 0) continue;
      if (lowest / kTilesPerSegment == tile / kTilesPerSegment)
        copy_partials(total, segment, rows);
      else
        fold(total, segment, rows);
    }
    write_rows(total, begin, end);
  }

 private:
  struct Rows {
    int64_t begin, end;
  };

  void start(const Task& task) {
    task_ = task;
    num_rows_ = task.num_tokens * shape_.group;
    all_whole_ = false;
    for (int64_t t = 0, r = 0; t < task.num_tokens; ++t)
      for (int64_t i = 0; i < shape_.group; ++i, ++r)
        scratch_.positions[r] = step_.positions[task.token + t];
    prepare_queries();
  }

  int64_t position(int64_t row) const { return scratch_.positions[row]; }

  // Rows begin … end-1 of the task, of which partials.from(0) is the first: O / l → out.
  void write_rows(const Partials& partials, int64_t begin, int64_t end) {
    int64_t token = task_.token + begin / shape_.group, head = begin % shape_.group;
    for (int64_t r = begin; r < end; ++r) {
      write_result(partials.from(r - begin), shape_.v_dim,
                   args_.out.data + token * args_.out.stride +
                       (task_.head * shape_.group + head) * shape_.v_dim);
      if (++head == shape_.group) {
        head = 0;
        ++token;
      }
    }
  }

  // q · scale, rounded to bf16 with bf16 KV; rows are (token, query head of the group).
  void prepare_queries() {
    const f32x16 scale = splat(args_.scale);
    const int64_t dim = shape_.k_dim;
    Operand* out = reinterpret_cast<Operand*>(scratch_.q);
    for (int64_t t = 0; t < task_.num_tokens; ++t) {
      const float* q =
          args_.q.data + (task_.token + t) * args_.q.stride + task_.head * shape_.group * dim;
      for (int64_t i = 0; i < shape_.group; ++i, q += dim, out += shape_.q_stride) {
        int64_t d = 0;
        for (; d + 32 <= dim; d += 32)
          E::store_operands(out + d, load(q + d) * scale, load(q + d + 16) * scale);
        for (; d < dim; d += 16) {
          const int n = dim - d < 16 ? static_cast<int>(dim - d) : 16;
          E::store_operand(out + d, load_first(q + d, n) * scale);
        }
      }
    }
  }

  // Which rows see the tile, and what of it (scratch_.ranges). First and end of the ranges ascend
  // with the row, so the rows are neighbours.
  Rows rows_of_tile(int64_t tile) {
    const int64_t start = tile * kTile;
    const bool whole = first_visible(args_, position(num_rows_ - 1)) <= start &&
                       position(0) + args_.last_offset + 1 >= start + kTile;
    if (whole && all_whole_) return {0, num_rows_};
    all_whole_ = whole;
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
    if (rows.begin == rows.end || first_visible(args_, position(rows.end - 1)) < tile * kTile)
      return rows.end;
    int64_t r = rows.begin;
    while (first_visible(args_, position(r)) < tile * kTile) ++r;
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

  const std::byte* poison() const {
    std::memset(scratch_.poison, 0xff, static_cast<size_t>(scratch_.poison_bytes));
    return scratch_.poison;
  }

  // Pointers to the runs of a task's `tile`, from position `first` to `end`. A position whose block
  // is missing is a bug of the caller; it reads NaN, never stray memory.
  void find_runs(const Task& task, int64_t tile, int first, int end, TileRuns& runs) const {
    const headrace::KVMemory& m = *args_.memory;
    const headrace::GroupStep& group = step_.groups[args_.group];
    const int32_t* table = group.block_tables + task.request * group.table_columns;
    const int64_t head = (task.head + args_.head_shift) % m.kv_heads,
                  start = tile * kTile + first / kRun * kRun;
    int64_t column = start / m.block_size, offset = start % m.block_size;
    for (int i = first / kRun; i * kRun < end; ++i) {
      const int64_t block = column < group.table_columns ? table[column] : -1;
      if (block < 0 || block >= m.num_blocks) {
        runs.keys[i] = runs.values[i] = poison();
      } else {
        runs.keys[i] = key_run(m, args_.layer, block, head, offset, E::bytes);
        runs.values[i] = value_run(m, args_.layer, block, head, offset, E::bytes);
      }
      if ((offset += kRun) == m.block_size) {
        offset = 0;
        ++column;
      }
    }
  }

  void tile_partials(int64_t tile, const Rows& rows, const Partials& out, const Task* next_task,
                     int64_t next_tile) {
    if (rows.begin >= rows.end) return;
    const int first = scratch_.ranges[rows.begin].first, end = scratch_.ranges[rows.end - 1].end;
    TileMemory memory;
    find_runs(task_, tile, first, end, memory);
    memory.next = memory;
    if (next_task != nullptr) {
      const int64_t high = step_.positions[next_task->token + next_task->num_tokens - 1],
                    seen = high + 1 - next_tile * kTile;
      find_runs(*next_task, next_tile, 0, seen < kTile ? static_cast<int>(seen) : kTile,
                memory.next);
    }
    if (task_.num_tokens == 1) {  // bound by memory
      for (int i = first / kRun; i * kRun < end; ++i)
        touch(memory.keys[i], kRun * shape_.k_dim * E::bytes);
      for (int i = first / kRun; i * kRun < end; ++i)
        touch(memory.values[i], kRun * shape_.v_dim * E::bytes);
    }
    // Blocks of about equal size: 7 rows as 4 + 3. Each asks for its share of the tile to come, or
    // the first would wait for memory and the others leave it idle.
    const TileRuns next = memory.next;
    const int64_t blocks = (rows.end - rows.begin + E::max_rows - 1) / E::max_rows;
    int64_t r = rows.begin;
    for (int64_t i = 0; i < blocks; ++i) {
      for (int run = 0; run < kRuns; ++run) {
        const bool mine = run * blocks / kRuns == i;
        memory.next.keys[run] = mine ? next.keys[run] : memory.keys[run];
        memory.next.values[run] = mine ? next.values[run] : memory.values[run];
      }
      r += block(memory, r, (rows.end - r + blocks - i - 1) / (blocks - i), out.from(r));
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
  Task task_{-1, -1, -1, 0, 0, 0};
  int64_t num_rows_ = 0;
  bool all_whole_ = false;  // ranges say that every row sees the whole tile
};

// ---- the op -----------------------------------------------------------------------------------

// Numbers 0, 1, 2, … handed out to whoever asks next. Lives in shared memory as two zeros, and
// leaves them behind when every worker has been refused once.
class Tickets {
 public:
  explicit Tickets(Worker& worker)
      : counters_(reinterpret_cast<int64_t*>(worker.shared)), workers_(worker.count) {}
  static constexpr int64_t bytes = 64;

  int64_t take() {
    return workers_ == 1 ? own_++ : __atomic_fetch_add(counters_, 1, __ATOMIC_RELAXED);
  }
  void refused() {
    if (workers_ == 1 || __atomic_add_fetch(counters_ + 1, 1, __ATOMIC_ACQ_REL) < workers_) return;
    counters_[0] = counters_[1] = 0;
  }

 private:
  int64_t* counters_;
  int workers_;
  int64_t own_ = 0;
};

// Whole tasks of several tokens: each worker takes the next one, and, where there are many, knows
// the one after it.
template <class E>
static void attend_prompts(const AttendArgs& args, const Step& step, const Shape& shape,
                           Worker& worker, bool look_ahead) {
  Attention<E> attention(args, step, shape, worker);
  Tasks tasks(args, step, shape);
  Tickets tickets(worker);
  int64_t at = 0;
  const auto take = [&](Task& task) {
    for (const int64_t ticket = tickets.take(); at <= ticket; ++at)
      if (!tasks.next(task)) return false;
    return true;
  };
  Task now, next;
  for (bool more = take(now); more; now = next) {
    if (look_ahead) {
      more = take(next);
      attention.run(now, more ? &next : nullptr);
    } else {
      attention.run(now, nullptr);
      more = take(next);
    }
  }
  tickets.refused();
}

// Whole tasks of single tokens: bound by memory, so neighbours stay together.
template <class E>
static void attend_tokens(const AttendArgs& args, const Step& step, const Shape& shape,
                          Worker& worker) {
  const auto cost = [](const Task& task) { return task.num_tiles() * kTile + kTile; };
  int64_t total = 0, before = 0;
  Task task, last;
  for (Tasks tasks(args, step, shape); tasks.next(task);) total += cost(task);
  Attention<E> attention(args, step, shape, worker);
  bool any = false;
  for (Tasks tasks(args, step, shape); tasks.next(task);) {
    const bool mine = (before + cost(task) / 2) * worker.count / total == worker.index;
    before += cost(task);
    if (!mine) continue;
    if (any) attention.run(last, &task);
    last = task;
    any = true;
  }
  if (any) attention.run(last, nullptr);
}

// Tiles of tasks, then rows.
template <class E>
static void attend_split(const AttendArgs& args, const Step& step, const Shape& shape,
                         Worker& worker, int64_t num_tiles, int64_t num_rows) {
  Attention<E> attention(args, step, shape, worker);
  float* partials = reinterpret_cast<float*>(worker.shared + Tickets::bytes);
  const headrace::Share tiles = headrace::share(num_tiles, worker);
  int64_t item = 0, offset = 0;  // offset in partials of the task's first one
  Task task;
  for (Tasks tasks(args, step, shape); tasks.next(task);) {
    const int64_t rows = task.num_tokens * shape.group;
    const int64_t floats = partials_floats(rows, shape.padded_dim);
    for (int64_t tile = task.first_tile; tile < task.end_tile; ++tile, ++item, offset += floats)
      if (item >= tiles.begin && item < tiles.end)
        attention.run_tile(task, tile, partials_in(partials + offset, rows, shape.padded_dim),
                           tile + 1 < task.end_tile ? &task : nullptr, tile + 1);
  }
  worker.barrier->wait();
  const headrace::Share mine = headrace::share(num_rows, worker);
  item = offset = 0;
  for (Tasks tasks(args, step, shape); tasks.next(task);) {
    const int64_t rows = task.num_tokens * shape.group;
    const int64_t floats = partials_floats(rows, shape.padded_dim);
    for (int64_t r = 0; r < rows; r += shape.group, item += shape.group) {
      const int64_t begin = item < mine.begin ? mine.begin : item,
                    end = item + shape.group < mine.end ? item + shape.group : mine.end;
      if (begin < end)
        attention.fold_rows(task, r + begin - item, r + end - item, partials + offset, floats);
    }
    offset += task.num_tiles() * floats;
  }
}

template <class E>
static void attend_format(const AttendArgs& args, const Step& step, Worker& worker) {
  const Shape shape(args);
  int64_t tasks = 0, tiles = 0, most_tiles = 0, rows = 0, floats = 0;
  Task task;
  const int64_t few = kTasksPerWorker * worker.count;
  for (Tasks all(args, step, shape); tasks < 2 * few && all.next(task);) {
    const int64_t task_rows = task.num_tokens * shape.group;
    tasks += 1;
    tiles += task.num_tiles();
    if (task.num_tiles() > most_tiles) most_tiles = task.num_tiles();
    rows += task_rows;
    floats += task.num_tiles() * partials_floats(task_rows, shape.padded_dim);
  }
  // Every worker comes to the same decision. Tiles are shared where that makes the longest share
  // shorter.
  const auto per_worker = [&](int64_t n) { return (n + worker.count - 1) / worker.count; };
  if (worker.count > 1 && tasks < few && floats * 4 <= kSharedBytes &&
      per_worker(tasks) * most_tiles > per_worker(tiles))
    attend_split<E>(args, step, shape, worker, tiles, rows);
  else if (step.num_tokens == step.num_requests)
    attend_tokens<E>(args, step, shape, worker);
  else
    attend_prompts<E>(args, step, shape, worker, tasks == 2 * few);
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
  return {scratch, Tickets::bytes + (bytes < kSharedBytes ? bytes : kSharedBytes)};
}

}  // namespace HR_ISA

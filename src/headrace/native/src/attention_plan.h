// How attention is cut into work: tiles of positions, tasks of rows. Knows no arithmetic.
//
// A task is (request, KV head, a few consecutive tokens); its rows are the pairs (token, query head
// of the KV head), token by token. Positions are cut at absolute multiples, whatever the block
// size.
#pragma once

#include <cstdint>

#include "step.h"

namespace HR_ISA {

using headrace::AttendArgs;
using headrace::Step;

inline constexpr int kTile = 128, kRun = 16, kRuns = kTile / kRun;
inline constexpr int kTilesPerSegment = 4;
inline constexpr int kRows = 48;  // rows of a task, about

struct Range {
  int first, end;  // positions of a tile; none where first ≥ end
};

struct Task {
  int64_t request, head;      // KV head
  int64_t token, num_tokens;  // rows of the step
  int64_t first_tile, end_tile;
  int64_t cost;  // visible positions, about
};

struct Shape {
  int64_t group, k_dim, v_dim;  // query heads per KV head
  int64_t q_stride;             // operands of one prepared query row
  int64_t padded_dim;           // floats of one O
  int64_t tokens_per_task, max_rows;

  explicit Shape(const AttendArgs& args)
      : group(args.heads / args.memory->kv_heads),
        k_dim(args.memory->k_dim),
        v_dim(args.memory->v_dim),
        q_stride((k_dim + 15) / 16 * 16),
        padded_dim((v_dim + 15) / 16 * 16),
        tokens_per_task(group < kRows ? kRows / group : 1),
        max_rows(tokens_per_task * group) {}
};

static inline int64_t first_visible(const AttendArgs& args, int64_t position) {
  const int64_t first = args.window > 0 ? position - args.window + 1 : 0;
  return first > 0 ? first : 0;
}

// The visible part of `tile` for a query at `position`; first ≥ end where there is none.
static inline Range range_in(const AttendArgs& args, int64_t position, int64_t tile) {
  const int64_t start = tile * kTile, first = first_visible(args, position) - start,
                end = position + 1 + args.last_offset - start;
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

}  // namespace HR_ISA

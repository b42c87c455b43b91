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

  int64_t num_tiles() const { return end_tile - first_tile; }
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

// The tasks of a step, one after the other, always in the same order. Within a request and head the
// last tokens come first: they see most, and small tasks at the end let workers finish together.
class Tasks {
 public:
  Tasks(const AttendArgs& args, const Step& step, const Shape& shape)
      : args_(args), step_(step), shape_(shape) {
    enter_request();
  }

  bool next(Task& task) {
    while (left_ == 0) {
      if (request_ >= step_.num_requests) return false;
      if (++head_ == args_.memory->kv_heads) {
        head_ = 0;
        ++request_;
      }
      enter_request();
    }
    // As few tasks as can be, of sizes that differ by one at most: those that see most are the
    // larger ones.
    const int64_t tasks = (left_ + shape_.tokens_per_task - 1) / shape_.tokens_per_task,
                  count = (left_ + tasks - 1) / tasks, first = left_ - count,
                  token = step_.spans[request_] + first;
    left_ = first;
    const int64_t low = first_visible(args_, step_.positions[token]),
                  high = step_.positions[token + count - 1];
    task = {request_, head_, token, count, low / kTile, high / kTile + 1};
    return true;
  }

 private:
  void enter_request() {
    left_ = request_ < step_.num_requests ? step_.spans[request_ + 1] - step_.spans[request_] : 0;
  }

  const AttendArgs& args_;
  const Step& step_;
  const Shape& shape_;
  int64_t request_ = 0, head_ = 0, left_ = 0;  // tokens of the request and head not yet given out
};

}  // namespace HR_ISA

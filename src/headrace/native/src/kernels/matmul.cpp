// out[t, n] = Σ_k w[n, k] · x[t, k] (+ bias[n]): the op, its work split and its cache blocking.
//
// Weights: packed panels of 16 output rows; activations: one prepared area per token (matmul.h).
// Tokens are cut into groups whose activations fit in half of a level-2 cache; the items (group,
// panel) are dealt to the workers in order, so a panel stays in cache over all tiles of its group.
// The reduction is never split. Traffic: all panels once per group, the group's areas once per
// panel (from cache).
#include "kernels/ops.h"
#include "kernels/tile.h"

namespace HR_ISA {

using headrace::Format;

namespace {

constexpr int64_t kGroupBytes = 384 * 1024;  // of activations
constexpr int64_t kTileTokens = 8;

// One token: the worker's panels as a few contiguous streams, read side by side to have enough
// loads and additions in flight.
template <class W>
void one_token(const Problem& problem, int64_t begin, int64_t end, int64_t token) {
  constexpr int kStreams = W::kDot == Dot::Bytes ? 2 : 4;
  const int64_t length = (end - begin) / kStreams;
  for (int64_t i = 0; i < length; ++i) tile<W, 1, kStreams>(problem, begin + i, length, token);
  for (int64_t p = begin + kStreams * length; p < end; ++p) tile<W, 1, 1>(problem, p, 0, token);
}

template <class W>
void many_tokens(const Problem& problem, int64_t begin, int64_t end, int64_t token, int64_t last) {
  for (int64_t p = begin; p < end; ++p) {
    int64_t t = token;
    for (; t + 8 <= last; t += 8) tile<W, 8, 1>(problem, p, 0, t);
    if (t + 4 <= last) {
      tile<W, 4, 1>(problem, p, 0, t);
      t += 4;
    }
    if (t + 2 <= last) {
      tile<W, 2, 1>(problem, p, 0, t);
      t += 2;
    }
    if (t < last) tile<W, 1, 1>(problem, p, 0, t);
  }
}

template <class W>
void run(const headrace::MatmulArgs& args, const Step& step, const Worker& worker) {
  const headrace::PackedMatrix& weight = args.weight;
  const Problem problem = {
      weight.data,      weight.panel_bytes,        weight.n,  headrace::num_blocks(weight.k),
      args.activations, args.activation_row_bytes, args.bias, args.out.data,
      args.out.stride};
  const int64_t tokens = step.count(args.out.rows), panels = headrace::num_panels(weight.n);
  int64_t group = kGroupBytes / args.activation_row_bytes / kTileTokens * kTileTokens;
  if (group < kTileTokens) group = kTileTokens;
  const int64_t groups = (tokens + group - 1) / group;
  const headrace::Share mine = share(groups * panels, worker);
  for (int64_t item = mine.begin; item < mine.end;) {
    const int64_t g = item / panels, begin = item % panels;
    const int64_t count = mine.end - item < panels - begin ? mine.end - item : panels - begin;
    const int64_t token = g * group, last = token + group < tokens ? token + group : tokens;
    if (last - token == 1)
      one_token<W>(problem, begin, begin + count, token);
    else
      many_tokens<W>(problem, begin, begin + count, token, last);
    item += count;
  }
}

}  // namespace

void matmul(const headrace::MatmulArgs& args, const Step& step, Worker& worker) {
  switch (args.weight.format) {
    case Format::F32:
      return run<WeightF32>(args, step, worker);
    case Format::F16:
      return run<WeightF16>(args, step, worker);
    case Format::BF16:
      return run<WeightBF16>(args, step, worker);
    case Format::Q4_0:
      return run<WeightQ4_0>(args, step, worker);
    case Format::Q4_1:
      return run<WeightQ4_1>(args, step, worker);
    case Format::Q5_0:
      return run<WeightQ5_0>(args, step, worker);
    case Format::Q5_1:
      return run<WeightQ5_1>(args, step, worker);
    case Format::Q8_0:
      return run<WeightQ8_0>(args, step, worker);
    case Format::Q4_K:
      return run<WeightQ4_K>(args, step, worker);
    case Format::Q5_K:
      return run<WeightQ5_K>(args, step, worker);
    case Format::Q6_K:
      return run<WeightQ6_K>(args, step, worker);
  }
}

headrace::Workspace matmul_workspace(const headrace::MatmulArgs&, const headrace::Limits&) {
  return {0, 0};
}

}  // namespace HR_ISA

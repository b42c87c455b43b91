// out[t, n] = Σ_k w[n, k] · x[t, k] (+ bias[n]): the op, its work split and its cache blocking.
//
// Weights: packed panels of 16 output rows; activations: one prepared area per token (matmul.h).
// Few tokens: tiles unpack weights in registers (tile.h). Tokens are cut into groups whose
// activations fit in half of a level-2 cache; the items (group, panel) are dealt to the workers in
// order, so a panel stays in cache over all tiles of its group, which meanwhile fetch the next one.
// Many tokens, AVX-512: chunk.h.
// The reduction is never split. Traffic: all panels once per group, the group's areas once per
// panel (from cache).
#include <limits>

#include "kernels/chunk.h"
#include "kernels/ops.h"

namespace HR_ISA {

using headrace::Format;

namespace {

constexpr int64_t kGroupBytes = 384 * 1024;  // of activations
// Tiles whose accumulators fill the registers; with one token, enough panels to hide latency.
#ifdef HR_AVX512
constexpr int kMaxTile = 8, kPanels = 2, kOneTokenPanels = 4;
// How far ahead a tile asks for memory, per panel. Eight bits a code: the bus is busy with less.
template <class W, int P>
constexpr int64_t kDistance = P == 2 && W::kBlockBytes < 512 ? 4096 : 2048;
#else
constexpr int kMaxTile = 4, kPanels = 1, kOneTokenPanels = 2;
template <class W, int P>
constexpr int64_t kDistance = 2048;
#endif

// `count` tokens (1 … M) from `token` on.
template <class W, int P, int M>
void tile_of(const Problem& problem, int64_t first, int64_t step, int64_t token, int64_t count,
             const Ahead& ahead) {
  if constexpr (M > 1) {
    if (count < M) return tile_of<W, P, M - 1>(problem, first, step, token, count, ahead);
  }
  tile<W, M, P>(problem, first, step, token, ahead);
}

// Panels begin … end − 1 × tokens token … last − 1. The panels are walked as P contiguous streams
// side by side; those left over one at a time (as P equal ones: a few of a whole matmul, and one
// kernel). Tokens are cut into tiles of sizes that differ by one at most. Several tiles share the
// asking for the next panels, or only the first would wait for memory.
template <class W, int P, int M>
void walk(const Problem& problem, int64_t begin, int64_t end, int64_t token, int64_t last) {
  const int64_t tokens = last - token, tiles = (tokens + M - 1) / M;
  const int64_t length = (end - begin) / P;
  auto all_tiles = [&](int64_t first, int64_t step) {
    Ahead ahead{kDistance<W, P>, W::kBlockBytes};
    if (tiles > 1) ahead.step = W::kBlockBytes / tiles;
    for (int64_t i = 0; i < tiles; ++i) {
      const int64_t from = token + tokens * i / tiles, to = token + tokens * (i + 1) / tiles;
      if (tiles > 1) ahead.distance = problem.panel_bytes + problem.panel_bytes * i / tiles;
      tile_of<W, P, M>(problem, first, step, from, to - from, ahead);
    }
  };
  for (int64_t i = 0; i < length; ++i) all_tiles(begin + i, length);
  for (int64_t p = begin + P * length; p < end; ++p) all_tiles(p, 0);
}

#ifdef HR_AVX512
// From how many tokens on it pays to unpack once and store (measured: docs/matmul.md): the sooner,
// the dearer unpacking is. Never where it is a shift, a mask, a look-up or nothing: SmolLM2's 210
// Q4_1 matmuls at 512 tokens take 76 ms in registers and 83 in chunks.
template <class W>
constexpr int64_t chunk_tokens() {
  if (W::kGrain == 1) return W::kBits == 5 ? 17 : std::numeric_limits<int64_t>::max();
  if (W::kBits == 3) return 10;
  return W::kBits >= 5 ? 13 : 25;
}

template <class W>
void run_chunks(const Problem& problem, int64_t tokens, int64_t panels, const Worker& worker) {
  const int64_t groups = (tokens + kGroupTokens - 1) / kGroupTokens;
  const headrace::Share mine = share(groups * panels, worker);
  for (int64_t item = mine.begin; item < mine.end;) {
    const int64_t g = item / panels, begin = item % panels;
    const int64_t count = mine.end - item < panels - begin ? mine.end - item : panels - begin;
    walk_chunks<W>(problem, worker.scratch, begin, begin + count, tokens * g / groups,
                   tokens * (g + 1) / groups);
    item += count;
  }
}
#endif

template <class W>
void run(const headrace::MatmulArgs& args, const Step& step, const Worker& worker) {
  const headrace::PackedMatrix& weight = args.weight;
  const Problem problem = {weight.data,
                           weight.panel_bytes,
                           weight.n,
                           headrace::num_blocks(weight.k),
                           args.rows_of(step, worker),
                           args.activation_row_bytes,
                           args.bias,
                           args.out.data,
                           args.out.stride};
  const int64_t tokens = step.count(args.out.rows), panels = headrace::num_panels(weight.n);
#ifdef HR_AVX512
  if constexpr (W::kDot == Dot::Bytes) {
    if (tokens >= chunk_tokens<W>()) return run_chunks<W>(problem, tokens, panels, worker);
  }
#endif
  int64_t group = kGroupBytes / args.activation_row_bytes / kMaxTile * kMaxTile;
  if (group < kMaxTile) group = kMaxTile;
  const int64_t groups = (tokens + group - 1) / group;
  const headrace::Share mine = share(groups * panels, worker);
  for (int64_t item = mine.begin; item < mine.end;) {
    const int64_t g = item / panels, begin = item % panels;
    const int64_t count = mine.end - item < panels - begin ? mine.end - item : panels - begin;
    const int64_t token = tokens * g / groups, last = tokens * (g + 1) / groups;
    if (last - token == 1)
      walk<W, kOneTokenPanels, 1>(problem, begin, begin + count, token, last);
    else
      walk<W, kPanels, kMaxTile>(problem, begin, begin + count, token, last);
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
    case Format::Q2_K:
      return run<WeightQ2_K>(args, step, worker);
    case Format::Q3_K:
      return run<WeightQ3_K>(args, step, worker);
    case Format::IQ4_NL:
      return run<WeightIQ4_NL>(args, step, worker);
  }
}

headrace::Workspace matmul_workspace(const headrace::MatmulArgs&, const headrace::Limits&) {
#ifdef HR_AVX512
  return {kChunkScratch, 0};
#else
  return {0, 0};
#endif
}

}  // namespace HR_ISA

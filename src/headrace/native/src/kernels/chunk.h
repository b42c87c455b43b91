// Many tokens: weights unpacked once per chunk of K and multiplied with every token of a group.
//
//     for a run of panels            accumulators [panels][tokens] ×16 f32    (level-2 cache)
//       for a chunk of K             activations of the group's tokens        (level-2 cache)
//         for a pair of panels       unpack the chunk: one byte a code        (level-1 cache)
//           for a tile of tokens     acc = what the chunk before left; blocks in order; keep or end
//
// So formats differ only in unpack(): the inner loop knows codes, scales, minima. The arithmetic of
// one (output row, token) is that of tile.h: acc goes on where the chunk before stopped.
#pragma once

#include "kernels/tile.h"

#ifdef HR_AVX512

namespace HR_ISA {

// Where an int32 sum starts: at 0, at a field of the ActivationBlock, at an eighth of it.
enum class Start { Zero, Field, Eighth };

// An unpacked block of 32 k of one panel, by byte offsets.
template <bool HasMin, bool TwoScales, bool TwoMinima, Start From>
struct Plain {
  static constexpr bool kHasMin = HasMin, kTwoScales = TwoScales, kTwoMinima = TwoMinima;
  static constexpr Start kStart = From;
  static constexpr int64_t kScale = 512;    // f32 ×16, after 8 code vectors
  static constexpr int64_t kMinimum = 576;  // f32 ×16, where there are minima
  static constexpr int64_t kHalfScale = kMinimum + (HasMin || TwoMinima ? 64 : 0);  // 2 × int32 ×16
  static constexpr int64_t kMinima = kHalfScale + (TwoScales ? 128 : 0);  // int16 pairs ×16
  static constexpr int64_t kBytes = kMinima + (TwoMinima ? 64 : 0);
};
template <class W>
using PlainOf = Plain<W::kHasMin, W::kTwoScales, W::kTwoMinima,
                      W::kOffset == 0   ? Start::Zero
                      : W::kOffset == 4 ? Start::Eighth
                                        : Start::Field>;

// Which field of an ActivationBlock (two scales: the first of two).
template <class W>
constexpr int64_t start_field() {
  if constexpr (W::kTwoScales) return offsetof(ActivationBlock, minus32);
  if constexpr (W::kOffset == 8) return offsetof(ActivationBlock, minus8);
  if constexpr (W::kOffset == 16) return offsetof(ActivationBlock, minus16);
  return offsetof(ActivationBlock, minus128);
}

template <class W, int J = 0>
[[gnu::always_inline]] static inline void store_codes(const typename W::Reader& reader,
                                                      uint8_t* out) {
  storei(out + J * 64, reader.template codes<J>());
  if constexpr (J < 7) store_codes<W, J + 1>(reader, out);
}

// Blocks of a panel from `packed` on (a multiple of 8 blocks into it) → out.
template <class W>
static void unpack(const uint8_t* packed, int64_t blocks, uint8_t* out) {
  using B = PlainOf<W>;
  typename W::Reader reader;
  reader.open(packed);
  for (int64_t b = 0; b < blocks; ++b, out += B::kBytes) {
    reader.next(b);
    store_codes<W>(reader, out);
    store(reinterpret_cast<float*>(out + B::kScale), reader.scale());
    if constexpr (B::kHasMin || B::kTwoMinima)
      store(reinterpret_cast<float*>(out + B::kMinimum), reader.minimum());
    if constexpr (B::kTwoScales) {
      storei(out + B::kHalfScale, reader.template half_scale<0>());
      storei(out + B::kHalfScale + 64, reader.template half_scale<1>());
    }
    if constexpr (B::kTwoMinima) storei(out + B::kMinima, reader.minima());
  }
}

// sum[p][t] = start + Σ over code vectors First … First + Count − 1.
template <class B, int First, int Count, int M, int P>
[[gnu::always_inline]] static inline void dot_plain(const uint8_t* w, int64_t panel_step,
                                                    const uint8_t* a, int64_t area_bytes,
                                                    int64_t start, i32x16 (&sum)[P][M]) {
#pragma GCC unroll 16
  for (int t = 0; t < M; ++t) {
    i32x16 from = zeroi();
    if constexpr (B::kStart != Start::Zero) from = splat_word(a + t * area_bytes + start);
    if constexpr (B::kStart == Start::Eighth) from = shr_signed<3>(from);
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) sum[p][t] = from;
  }
#pragma GCC unroll 8
  for (int j = First; j < First + Count; ++j) {
    i32x16 codes[P];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) codes[p] = loadi(w + p * panel_step + j * 64);
#pragma GCC unroll 16
    for (int t = 0; t < M; ++t) {
      const i32x16 x = splat_word(a + t * area_bytes + 4 * j);
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) sum[p][t] = dot4(sum[p][t], codes[p], x);
    }
  }
}

// Packed weights wanted soon, fetched some lines at a time: a burst of them would fill the queue of
// outstanding misses and hold up everything else.
struct Fetch {
  const uint8_t *at, *end;    // of the first panel
  int64_t panel_step, lines;  // to the next one; fetched per call
};
template <int P>
[[gnu::always_inline]] static inline void fetch_lines(Fetch& fetch) {
  for (int64_t i = 0; i < fetch.lines && fetch.at < fetch.end; ++i, fetch.at += 64) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p)
      _mm_prefetch(reinterpret_cast<const char*>(fetch.at + p * fetch.panel_step), _MM_HINT_T0);
  }
}

// acc goes on over `blocks` blocks. a: the first token's first block.
template <class B, int M, int P>
[[gnu::always_inline]] static inline void chunk_blocks(const uint8_t* w, int64_t panel_step,
                                                       const uint8_t* a, int64_t area_bytes,
                                                       int64_t start, int64_t blocks, Fetch& fetch,
                                                       f32x16 (&acc)[P][M]) {
  for (int64_t b = 0; b < blocks; ++b, w += B::kBytes, a += sizeof(ActivationBlock)) {
    if (b % 4 == 0) fetch_lines<P>(fetch);
    i32x16 sum[P][M];
    if constexpr (B::kTwoScales) {
      i32x16 first[P][M];
      dot_plain<B, 0, 4, M, P>(w, panel_step, a, area_bytes, start, first);
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        const i32x16 scale = loadi(w + p * panel_step + B::kHalfScale);
#pragma GCC unroll 16
        for (int t = 0; t < M; ++t) first[p][t] = muli(first[p][t], scale);
      }
      dot_plain<B, 4, 4, M, P>(w, panel_step, a, area_bytes, start + 4, sum);
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        const i32x16 scale = loadi(w + p * panel_step + B::kHalfScale + 64);
#pragma GCC unroll 16
        for (int t = 0; t < M; ++t) sum[p][t] = first[p][t] + muli(sum[p][t], scale);
      }
    } else {
      dot_plain<B, 0, 8, M, P>(w, panel_step, a, area_bytes, start, sum);
    }
#pragma GCC unroll 16
    for (int t = 0; t < M; ++t) {
      const auto& activation = *reinterpret_cast<const ActivationBlock*>(a + t * area_bytes);
      const f32x16 da = splat(activation.scale);
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        const f32x16 dw = load(reinterpret_cast<const float*>(w + p * panel_step + B::kScale));
        acc[p][t] = fma(to_float(sum[p][t]), dw * da, acc[p][t]);
      }
      if constexpr (B::kHasMin) {
        const f32x16 sa = splat(activation.sum);
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) {
          const f32x16 m = load(reinterpret_cast<const float*>(w + p * panel_step + B::kMinimum));
          acc[p][t] = fma(m, sa, acc[p][t]);
        }
      }
      if constexpr (B::kTwoMinima) {
        const i32x16 sums = splat_word(activation.sums);
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) {
          const i32x16 j = dot2_words(zeroi(), loadi(w + p * panel_step + B::kMinima), sums);
          const f32x16 m = load(reinterpret_cast<const float*>(w + p * panel_step + B::kMinimum));
          acc[p][t] = fma(to_float(j), m * da, acc[p][t]);
        }
      }
    }
  }
}

struct Chunk {             // what the tiles of one chunk and pair of panels share
  const uint8_t* weights;  // unpacked; the second panel at panel_step
  int64_t panel_step, blocks, first_block, start;
  bool first, last;  // of the chunks
  float* acc;        // [P][acc_tokens][16]
  int64_t acc_tokens;
};

// Panels row_panel, row_panel + 1, … (P of them) × tokens token … token + M − 1; `local`: the
// tile's place in the group.
template <class B, int M, int P>
static void chunk_tile(const Problem& problem, const Chunk& chunk, int64_t panel, int64_t token,
                       int64_t local, Fetch& fetch) {
  f32x16 acc[P][M];
  float* kept = chunk.acc + local * 16;
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) {
#pragma GCC unroll 16
    for (int t = 0; t < M; ++t)
      acc[p][t] = chunk.first ? zero() : load(kept + (p * chunk.acc_tokens + t) * 16);
  }
  const auto* a = reinterpret_cast<const uint8_t*>(problem.activations) +
                  token * problem.area_bytes + chunk.first_block * 64;
  chunk_blocks<B, M, P>(chunk.weights, chunk.panel_step, a, problem.area_bytes, chunk.start,
                        chunk.blocks, fetch, acc);
  if (chunk.last) return finish<M, P>(problem, panel, 1, token, acc);
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) {
#pragma GCC unroll 16
    for (int t = 0; t < M; ++t) store(kept + (p * chunk.acc_tokens + t) * 16, acc[p][t]);
  }
}

template <class B, int P, int M>
[[gnu::always_inline]] static inline void chunk_tile_of(const Problem& problem, const Chunk& chunk,
                                                        int64_t panel, int64_t token, int64_t local,
                                                        int64_t count, Fetch& fetch) {
  if constexpr (M > 1) {
    if (count < M)
      return chunk_tile_of<B, P, M - 1>(problem, chunk, panel, token, local, count, fetch);
  }
  chunk_tile<B, M, P>(problem, chunk, panel, token, local, fetch);
}

// One chunk of P panels × tokens token … last − 1. Not a template of the number format.
template <class B, int P, int M>
static void chunk_tiles(const Problem& problem, const Chunk& chunk, int64_t panel, int64_t token,
                        int64_t last, Fetch fetch) {
  const int64_t tokens = last - token, tiles = (tokens + M - 1) / M;
  const int64_t steps = tiles * ((chunk.blocks + 3) / 4);
  fetch.lines = ((fetch.end - fetch.at) / 64 + steps) / steps;
  for (int64_t i = 0; i < tiles; ++i) {
    const int64_t from = tokens * i / tiles, to = tokens * (i + 1) / tiles;
    chunk_tile_of<B, P, M>(problem, chunk, panel, token + from, from, to - from, fetch);
  }
}

constexpr int64_t kChunkBlocks = 16;   // unpacked: 30 KiB of three panels
constexpr int64_t kGroupTokens = 256;  // of one group, at most
constexpr int64_t kRunPanels = 12;     // whose accumulators are kept between chunks
constexpr int64_t kPlainBytes = 3 * kChunkBlocks * Plain<false, true, true, Start::Zero>::kBytes;
constexpr int64_t kChunkScratch = kPlainBytes + kRunPanels * kGroupTokens * 64;

// Panels × tokens of a tile that keeps both multipliers busiest: sums, accumulators and operands
// just fill the registers (measured: docs/matmul.md).
template <class B>
struct TileShape {
  static constexpr int kPanels = B::kTwoScales ? 2 : 3, kTokens = B::kTwoScales ? 5 : 4;
};

// Panels begin … end − 1 × tokens token … last − 1 (kGroupTokens at most).
template <class W>
static void walk_chunks(const Problem& problem, std::byte* scratch, int64_t begin, int64_t end,
                        int64_t token, int64_t last) {
  using B = PlainOf<W>;
  constexpr int64_t kP = TileShape<B>::kPanels;
  constexpr int kM = TileShape<B>::kTokens;
  auto* const plain = reinterpret_cast<uint8_t*>(scratch);
  auto* const kept = reinterpret_cast<float*>(scratch + kPlainBytes);
  const int64_t chunks = (problem.blocks + kChunkBlocks - 1) / kChunkBlocks;
  int64_t length = (problem.blocks + chunks - 1) / chunks;
  if constexpr (W::kGrain > 1) length = (length + W::kGrain - 1) / W::kGrain * W::kGrain;
  const int64_t tokens = last - token;
  const int64_t run = chunks == 1 ? end - begin : kRunPanels;
  for (int64_t from = begin; from < end; from += run) {
    const int64_t to = from + run < end ? from + run : end;
    for (int64_t first = 0; first < problem.blocks; first += length) {
      Chunk chunk;
      chunk.weights = plain;
      chunk.panel_step = length * B::kBytes;
      chunk.first_block = first;
      chunk.blocks = problem.blocks - first < length ? problem.blocks - first : length;
      chunk.start = start_field<W>();
      chunk.first = first == 0;
      chunk.last = first + length >= problem.blocks;
      chunk.acc_tokens = tokens;
      for (int64_t p = from; p < to;) {
        // A single panel left over would leave the multipliers waiting: 2 + 2 rather than 3 + 1.
        const int64_t left = to - p, together = left == kP + 1 ? (kP + 1) / 2
                                                : left < kP    ? left
                                                               : kP;
        chunk.acc = kept + (p - from) * tokens * 16;
        const uint8_t* packed = problem.weights + p * problem.panel_bytes + first * W::kBlockBytes;
        for (int64_t i = 0; i < together; ++i)
          unpack<W>(packed + i * problem.panel_bytes, chunk.blocks, plain + i * chunk.panel_step);
        const uint8_t* next = packed + together * problem.panel_bytes;  // the panels that follow
        if (together == left)
          next = problem.weights +
                 (chunk.last ? to * problem.panel_bytes
                             : from * problem.panel_bytes + (first + length) * W::kBlockBytes);
        const Fetch fetch{next, next + chunk.blocks * W::kBlockBytes, problem.panel_bytes, 0};
        if (together == 3)
          chunk_tiles<B, kP, kM>(problem, chunk, p, token, last, fetch);
        else if (together == 2)
          chunk_tiles<B, 2, kM>(problem, chunk, p, token, last, fetch);
        else
          chunk_tiles<B, 1, kM>(problem, chunk, p, token, last, fetch);
        p += together;
      }
    }
  }
}

}  // namespace HR_ISA

#endif

// What the packer, the activation kernel and the matmul kernels share: memory layouts.
//
// Everything is cut into blocks of 32 consecutive k (the reduction axis). K is filled up to whole
// blocks with zeros on both sides.
//
// ---- activations, one area per token ---------------------------------------------------------
//   F32   float [blocks · 32]
//   BF16  uint16 [blocks · 32]; a pair (even k low, odd k high) is one 32-bit word
//   Int8  ActivationBlock [blocks]: one cache line holds the 32 codes of a block and every number
//         that a kernel broadcasts with them
//
// ---- packed weights --------------------------------------------------------------------------
// A panel is 16 output rows; its rows are the 16 lanes. Panels follow each other at panel_bytes, a
// multiple of 64. A "code vector" j of a block is 64 bytes: lane r holds the bytes of
// k = 4j … 4j+3 of row r, in order. "×16" means: side by side for the 16 rows.
//
//   F32   per k: f32 ×16
//   F16   per k: f16 ×16
//   BF16  per pair of k: (even, odd) bf16 ×16
//   Q8_0  per block: d f16 ×16, then code vectors 0 … 7, each code + 128 (unsigned)
//   Q4_0  per block: d f16 ×16, then NIBBLES
//   Q4_1  per block: d f16 ×16, m f16 ×16, NIBBLES
//   Q5_0  per block: d f16 ×16, FIFTH, NIBBLES
//   Q5_1  per block: d f16 ×16, m f16 ×16, FIFTH, NIBBLES
//   Q4_K  per 8 blocks: d f16 ×16, dmin f16 ×16, SUBSCALES, then 8 × NIBBLES
//   Q5_K  per 8 blocks: d f16 ×16, dmin f16 ×16, SUBSCALES, then 8 × (FIFTH, NIBBLES)
//   Q6_K  per 8 blocks: d f16 ×16, then 8 × (scales int8 ×16 of the first 16 k, then of the second,
//         UPPER, NIBBLES)
//   Q2_K  per 8 blocks: d f16 ×16, dmin f16 ×16, then 8 × (the first 16 k's scale (low 4 bits) and
//         minimum (high) ×16, the second's, TWOBITS)
//   Q3_K  per 8 blocks: d f16 ×16, SUBSCALES3, then 8 × (THIRD, TWOBITS)
//   IQ4_NL as Q4_0; a nibble is an index into a table of 16 int8 values
//
//   NIBBLES    4 vectors q: low nibbles are code vector 2q, high nibbles code vector 2q + 1
//   FIFTH      1 vector: bit j of byte c in lane r is bit 4 of the code at k = 4j + c
//   THIRD      the same with bit 2 of the code
//   UPPER      2 vectors h: bits 2f, 2f+1 of each byte are bits 4, 5 of code vector 4h + f
//   TWOBITS    the same with bits 0, 1
//   SUBSCALES  3 vectors w0 w1 w2: the file's 12 scale bytes as 3 words per row. Byte i (0 … 3) of
//              scale(i) = w0 & 63,  scale(4+i) = w2 & 15 | (w0 >> 6) << 4,
//              min(i)   = w1 & 63,  min(4+i)   = w2 >> 4 | (w1 >> 6) << 4
//   SUBSCALES3 3 vectors w0 w1 w2, as before. Byte i (0 … 3) of
//              scale(i)   = w0 & 15 | (w2 & 3) << 4,       scale(4+i)  = w1 & 15 | (w2 >> 2 & 3) <<
//              4, scale(8+i) = w0 >> 4 | (w2 >> 4 & 3) << 4,  scale(12+i) = w1 >> 4 | (w2 >> 6) <<
//              4, each 32 too much. Scale 2b is of the first 16 k of block b, 2b + 1 of the second
//
// The packed size is the file's size up to filling N to 16 and panels to 64 bytes.
//
// Functions here are static: each instruction-set level must keep its own copy.
#pragma once

#include <cstddef>
#include <cstdint>

#include "step.h"

namespace headrace {

constexpr int64_t kPanelRows = 16;
constexpr int64_t kBlock = 32;

struct alignas(64) ActivationBlock {
  int8_t codes[32];
  float scale;         // da
  float sum;           // sa = da · Σ codes
  int32_t minus8;      // −8 · Σ codes: Q4_0's offset, ready to start an int32 accumulator
  int32_t minus16;     // −16 · Σ codes: Q5_0
  int32_t minus128;    // −128 · Σ codes: Q8_0, IQ4_NL
  int32_t minus32[2];  // −32 · Σ codes of the first 16, of the second 16: Q6_K; an eighth: Q3_K
  int16_t sums[2];     // Σ codes of the first 16, of the second 16, as one word: Q2_K
};
static_assert(sizeof(ActivationBlock) == 64);

static inline int64_t num_blocks(int64_t k) { return (k + kBlock - 1) / kBlock; }

static inline ActivationKind activation_kind(Format format) {
  switch (format) {
    case Format::F32:
    case Format::F16:
      return ActivationKind::F32;
    case Format::BF16:
      return ActivationKind::BF16;
    default:
      return ActivationKind::Int8;
  }
}

// Bytes of one token's area; a multiple of 64.
static inline int64_t activation_area_bytes(ActivationKind kind, int64_t k) {
  int64_t bytes = num_blocks(k) * (kind == ActivationKind::F32 ? 128 : 64);
  // Rows 4096 bytes apart would all fall on the same few cache sets.
  return bytes % 4096 == 0 ? bytes + 64 : bytes;
}

// One format's unit of repetition: `k` numbers of a row, in the file and in a panel of 16 rows.
struct FormatGeometry {
  int64_t k;            // K must be a multiple of it (1: any K)
  int64_t file_bytes;   // per row
  int64_t block_bytes;  // of a panel, averaged over the blocks: panel bytes per 32 k
};

static inline FormatGeometry geometry(Format format) {
  switch (format) {
    case Format::F32:
      return {1, 4, 2048};
    case Format::F16:
      return {1, 2, 1024};
    case Format::BF16:
      return {1, 2, 1024};
    case Format::Q4_0:
      return {32, 18, 288};
    case Format::Q4_1:
      return {32, 20, 320};
    case Format::Q5_0:
      return {32, 22, 352};
    case Format::Q5_1:
      return {32, 24, 384};
    case Format::Q8_0:
      return {32, 34, 544};
    case Format::Q4_K:
      return {256, 144, 288};
    case Format::Q5_K:
      return {256, 176, 352};
    case Format::Q6_K:
      return {256, 210, 420};
    case Format::Q2_K:
      return {256, 84, 168};
    case Format::Q3_K:
      return {256, 110, 220};
    case Format::IQ4_NL:
      return {32, 18, 288};
  }
  return {0, 0, 0};
}

static inline int64_t file_row_bytes(Format format, int64_t k) {
  FormatGeometry g = geometry(format);
  return k / g.k * g.file_bytes;
}

static inline int64_t panel_bytes(Format format, int64_t k) {
  return (num_blocks(k) * geometry(format).block_bytes + 63) / 64 * 64;
}

static inline int64_t num_panels(int64_t n) { return (n + kPanelRows - 1) / kPanelRows; }

}  // namespace headrace

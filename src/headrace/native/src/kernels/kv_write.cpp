// kv_write: stores new keys and values, rounded to the KV format, where the slots say.
//
// Shapes: k [T, K·Dk], v [T, K·Dv] float32 → KV memory (layout in step.h). Plan: row by row;
// two tokens never share an element. Neighbours that lie in one run of 16 positions, as in a
// prompt, are turned in registers: a key's pairs lie 64 bytes apart, a value's elements 2 elements
// apart, so single tokens write scattered words. Bytes: k and v read once, written once.
#include <cstring>

#include "kernels/ops.h"
#include "kv_elements.h"

namespace HR_ISA {

using headrace::KVMemory;

// 16 floats → 16 stored elements of 2 bytes.
template <KVFormat format>
static inline void round_to(uint16_t* out, f32x16 x) {
  if constexpr (format == KVFormat::BF16)
    store_low16(out, to_bf16(x));
  else
    store_f16(out, x);
}

// The same, each in the low half of a lane.
template <KVFormat format>
static inline i32x16 rounded(f32x16 x) {
  if constexpr (format == KVFormat::BF16) return to_bf16(x);
  alignas(32) uint16_t stored[16];
  store_f16(stored, x);
  return load_u16(stored);
}

// Element i of the row goes to out + (i / 2)·pair_step + (i % 2)·odd_step (in elements).
template <KVFormat format, class Element>
static void scatter(const float* x, int64_t n, Element* out, int64_t pair_step, int64_t odd_step) {
  for (int64_t i = 0; i < n; i += 16) {
    const int count = n - i < 16 ? static_cast<int>(n - i) : 16;
    alignas(64) Element rounded[16];
    if constexpr (format == KVFormat::F32)
      std::memcpy(rounded, x + i, static_cast<size_t>(count) * sizeof(float));
    else
      round_to<format>(rounded, load_first(x + i, count));
    for (int j = 0; j < count; ++j) out[(i + j) / 2 * pair_step + j % 2 * odd_step] = rounded[j];
  }
}

// x: 8 rows of 8 words; row i is written as column i: word j of it to out + j·step + i.
static inline void store_turned(const __m256i (&x)[8], uint32_t* out, int64_t step) {
  __m256i y[8], z[8];
  for (int i = 0; i < 4; ++i) {
    y[2 * i] = _mm256_unpacklo_epi32(x[2 * i], x[2 * i + 1]);
    y[2 * i + 1] = _mm256_unpackhi_epi32(x[2 * i], x[2 * i + 1]);
  }
  for (int i = 0; i < 2; ++i) {
    z[4 * i] = _mm256_unpacklo_epi64(y[4 * i], y[4 * i + 2]);
    z[4 * i + 1] = _mm256_unpackhi_epi64(y[4 * i], y[4 * i + 2]);
    z[4 * i + 2] = _mm256_unpacklo_epi64(y[4 * i + 1], y[4 * i + 3]);
    z[4 * i + 3] = _mm256_unpackhi_epi64(y[4 * i + 1], y[4 * i + 3]);
  }
  for (int j = 0; j < 4; ++j) {
    const auto store = [&](int64_t word, __m256i column) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + word * step), column);
    };
    store(j, _mm256_permute2x128_si256(z[j], z[j + 4], 0x20));
    store(j + 4, _mm256_permute2x128_si256(z[j], z[j + 4], 0x31));
  }
}

// Eight tokens' keys of one head, dim a multiple of 16; x(i): the key of token i. out: the run, at
// the first token's pair.
template <KVFormat format, class Row>
static void write_keys(Row x, int64_t dim, uint32_t* out) {
  for (int64_t d = 0; d < dim; d += 16) {
    __m256i rows[8];
    for (int i = 0; i < 8; ++i) {
      alignas(32) uint16_t pairs[16];
      round_to<format>(pairs, load(x(i) + d));
      rows[i] = _mm256_load_si256(reinterpret_cast<const __m256i*>(pairs));
    }
    store_turned(rows, out + d / 2 * 16, 16);
  }
}

// Two tokens' values of one head, dim a multiple of 16: those of an even position and the next.
template <KVFormat format>
static void write_values(const float* even, const float* odd, int64_t dim, uint32_t* out) {
  for (int64_t d = 0; d < dim; d += 16)
    storei(out + d, rounded<format>(load(even + d)) | shl<16>(rounded<format>(load(odd + d))));
}

// Tokens t … t + count - 1, which lie side by side from in_run on in one run of 16 positions.
template <KVFormat format, class Element>
static void write_neighbours(const headrace::KVWriteArgs& args, const RowTile& tile, int64_t t,
                             int64_t count, int64_t in_run, int64_t head, std::byte* k,
                             std::byte* v) {
  const KVMemory& m = *args.memory;
  const auto key = [&](int64_t i) { return args.k.at(t + i, head * m.k_dim, tile); };
  const auto value = [&](int64_t i) { return args.v.at(t + i, head * m.v_dim, tile); };
  int64_t i = 0;
  // K element d at [d/2][in_run][d%2].
  if constexpr (sizeof(Element) == 2)
    for (; i + 8 <= count && m.k_dim % 16 == 0; i += 8)
      write_keys<format>([&](int j) { return key(i + j); }, m.k_dim,
                         reinterpret_cast<uint32_t*>(k) + in_run + i);
  for (; i < count; ++i)
    scatter<format>(key(i), m.k_dim, reinterpret_cast<Element*>(k) + (in_run + i) * 2, 32, 1);
  // V element d at [in_run/2][d][in_run%2].
  for (i = 0; i < count; ++i) {
    const int64_t at = in_run + i;
    Element* out = reinterpret_cast<Element*>(v) + at / 2 * m.v_dim * 2 + at % 2;
    if constexpr (sizeof(Element) == 2)
      if (at % 2 == 0 && i + 1 < count && m.v_dim % 16 == 0) {
        write_values<format>(value(i), value(i + 1), m.v_dim, reinterpret_cast<uint32_t*>(out));
        ++i;
        continue;
      }
    scatter<format>(value(i), m.v_dim, out, 4, 2);
  }
}

template <KVFormat format, class Element>
static void write(const headrace::KVWriteArgs& args, const Step& step, const RowTile& tile) {
  const KVMemory& m = *args.memory;
  const int32_t* slots = step.groups[args.group].slots;
  for (int64_t t = tile.row, count; t < tile.end_row; t += count) {
    const int64_t slot = slots[t];
    count = 1;
    if (slot < 0 || slot >= m.num_blocks * m.block_size) continue;
    const int64_t block = slot / m.block_size, offset = slot % m.block_size, in_run = offset % 16;
    while (in_run + count < 16 && t + count < tile.end_row && slots[t + count] == slot + count)
      ++count;
    for (int64_t head = 0; head < m.kv_heads; ++head)
      write_neighbours<format, Element>(
          args, tile, t, count, in_run, head,
          key_run(m, args.layer, block, head, offset - in_run, sizeof(Element)),
          value_run(m, args.layer, block, head, offset - in_run, sizeof(Element)));
  }
}

void kv_write(const headrace::KVWriteArgs& args, const Step& step, const RowTile& tile) {
  switch (args.memory->format) {
    case KVFormat::F32:
      return write<KVFormat::F32, uint32_t>(args, step, tile);
    case KVFormat::BF16:
      return write<KVFormat::BF16, uint16_t>(args, step, tile);
    case KVFormat::F16:
      return write<KVFormat::F16, uint16_t>(args, step, tile);
  }
}

}  // namespace HR_ISA

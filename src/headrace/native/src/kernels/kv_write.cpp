// kv_write: stores new keys and values, rounded to the KV format, where the slots say.
//
// Shapes: k [T, K·Dk], v [T, K·Dv] float32 → KV memory (layout in step.h). Plan: row by row;
// two tokens never share an element. Bytes: k and v read once, written once
// in pairs 64 bytes (keys) or elements 2 elements apart (values).
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

template <KVFormat format, class Element>
static void write(const headrace::KVWriteArgs& args, const Step& step, const RowTile& tile) {
  const KVMemory& m = *args.memory;
  const int32_t* slots = step.groups[args.group].slots;
  for (int64_t t = tile.row; t < tile.end_row; ++t) {
    const int64_t slot = slots[t];
    if (slot < 0 || slot >= m.num_blocks * m.block_size) continue;
    const int64_t block = slot / m.block_size, offset = slot % m.block_size, in_run = offset % 16;
    for (int64_t head = 0; head < m.kv_heads; ++head) {
      std::byte* k = key_run(m, args.layer, block, head, offset - in_run, sizeof(Element));
      std::byte* v = value_run(m, args.layer, block, head, offset - in_run, sizeof(Element));
      // K element d at [d/2][in_run][d%2]; V element d at [in_run/2][d][in_run%2].
      scatter<format>(args.k.at(t, head * m.k_dim, tile), m.k_dim,
                      reinterpret_cast<Element*>(k) + in_run * 2, 32, 1);
      scatter<format>(args.v.at(t, head * m.v_dim, tile), m.v_dim,
                      reinterpret_cast<Element*>(v) + in_run / 2 * m.v_dim * 2 + in_run % 2, 4, 2);
    }
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

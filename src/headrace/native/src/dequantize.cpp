#include "dequantize.h"

#include <cstring>

namespace headrace {

namespace {

float from_bits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

uint16_t read_u16(const uint8_t* p) { return static_cast<uint16_t>(p[0] | p[1] << 8); }

uint32_t read_u32(const uint8_t* p) {
  return read_u16(p) | static_cast<uint32_t>(read_u16(p + 2)) << 16;
}

// IEEE half → float, exactly, also where denormals are flushed (2^-24 is a normal float).
float read_f16(const uint8_t* p) {
  const uint32_t h = read_u16(p), exponent = h >> 10 & 31, mantissa = h & 1023;
  float x;
  if (exponent == 0)
    x = static_cast<float>(mantissa) * 0x1p-24f;
  else if (exponent == 31)
    x = from_bits(0x7f800000u | mantissa << 13);
  else
    x = from_bits((exponent + 112) << 23 | mantissa << 13);
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return from_bits(bits | (h & 0x8000u) << 16);
}

// Blocks of 32 with an f16 scale (and minimum): Q4_0, Q4_1, Q5_0, Q5_1.
//   [d f16] [m f16]? [high bits u32]? [16 bytes: low nibbles are elements 0-15, high ones 16-31]
template <bool minimum, bool fifth_bit>
void legacy_block(const uint8_t* p, float* out) {
  const float d = read_f16(p);
  p += 2;
  float m = 0;
  if constexpr (minimum) {
    m = read_f16(p);
    p += 2;
  }
  uint32_t high = 0;
  if constexpr (fifth_bit) {
    high = read_u32(p);
    p += 4;
  }
  constexpr int offset = minimum ? 0 : (fifth_bit ? 16 : 8);
  for (int i = 0; i < 32; ++i) {
    int code = i < 16 ? p[i] & 15 : p[i - 16] >> 4;
    code |= static_cast<int>(high >> i & 1) << 4;
    const float product = d * static_cast<float>(code - offset);
    out[i] = minimum ? product + m : product;
  }
}

// The eight 6-bit scales and minima of a K-quant super-block, in 12 bytes.
void k_scale(const uint8_t* s, int i, float& scale, float& minimum) {
  int sc, mn;
  if (i < 4) {
    sc = s[i] & 63;
    mn = s[i + 4] & 63;
  } else {
    sc = (s[i + 4] & 15) | (s[i - 4] >> 6) << 4;
    mn = s[i + 4] >> 4 | (s[i] >> 6) << 4;
  }
  scale = static_cast<float>(sc);
  minimum = static_cast<float>(mn);
}

// Q4_K: [d f16] [dmin f16] [scales 12] [codes 128]; Q5_K has 32 bytes of fifth bits before the
// codes. Sub-blocks 2j, 2j+1 of 32 are the low and high nibbles of code bytes 32j … 32j+31.
template <bool fifth_bit>
void k_block(const uint8_t* p, float* out) {
  const float d = read_f16(p), dmin = read_f16(p + 2);
  const uint8_t *scales = p + 4, *high = p + 16, *codes = p + (fifth_bit ? 48 : 16);
  for (int sub = 0; sub < 8; ++sub) {
    float scale, minimum;
    k_scale(scales, sub, scale, minimum);
    const float ds = d * scale, dm = dmin * minimum;
    for (int i = 0; i < 32; ++i) {
      int code = codes[sub / 2 * 32 + i] >> (sub % 2 * 4) & 15;
      if constexpr (fifth_bit) code |= (high[i] >> sub & 1) << 4;
      out[sub * 32 + i] = ds * static_cast<float>(code) - dm;
    }
  }
}

// Q6_K: [low nibbles 128] [high pairs 64] [scales int8 × 16] [d f16], in two halves of 128
// elements.
void q6k_block(const uint8_t* p, float* out) {
  const float d = read_f16(p + 208);
  for (int e = 0; e < 256; ++e) {
    const int half = e / 128, quarter = e % 128 / 32, i = e % 32;
    const int low = p[half * 64 + quarter % 2 * 32 + i] >> (quarter / 2 * 4) & 15;
    const int high = p[128 + half * 32 + i] >> (quarter * 2) & 3;
    const auto scale = static_cast<float>(static_cast<int8_t>(p[192 + e / 16]));
    out[e] = d * scale * static_cast<float>((low | high << 4) - 32);
  }
}

// The two-bit code of element e: [64 bytes], in two halves of 128 elements.
int two_bits(const uint8_t* p, int e) { return p[e / 128 * 32 + e % 32] >> (e % 128 / 32 * 2) & 3; }

// Q2_K: [16 × (scale low, minimum high)] [codes 64] [d f16] [dmin f16].
void q2k_block(const uint8_t* p, float* out) {
  const float d = read_f16(p + 80), dmin = read_f16(p + 82);
  for (int e = 0; e < 256; ++e) {
    const int both = p[e / 16];
    const float scaled =
        d * static_cast<float>(both & 15) * static_cast<float>(two_bits(p + 16, e));
    out[e] = scaled - dmin * static_cast<float>(both >> 4);
  }
}

// Q3_K: [third bits 32] [codes 64] [16 scales of 6 bits in 12 bytes] [d f16].
void q3k_block(const uint8_t* p, float* out) {
  const float d = read_f16(p + 108);
  const uint8_t* s = p + 96;
  for (int e = 0; e < 256; ++e) {
    const int i = e / 16, low = s[i % 8] >> (i / 8 * 4) & 15,
              high = s[8 + i % 4] >> (i / 4 * 2) & 3;
    const int code = two_bits(p + 32, e) | (p[e % 32] >> (e / 32) & 1) << 2;
    out[e] = d * static_cast<float>((low | high << 4) - 32) * static_cast<float>(code - 4);
  }
}

void iq4nl_block(const uint8_t* p, float* out) {
  const float d = read_f16(p);
  for (int i = 0; i < 32; ++i) {
    const int code = i < 16 ? p[2 + i] & 15 : p[2 + i - 16] >> 4;
    out[i] = d * static_cast<float>(kIQ4NLValues[code]);
  }
}

void q8_block(const uint8_t* p, float* out) {
  const float d = read_f16(p);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(static_cast<int8_t>(p[2 + i]));
}

template <int block_size, int block_bytes, class Block>
bool blocks(const uint8_t* row, int64_t k, float* out, Block block) {
  for (int64_t i = 0; i + block_size <= k; i += block_size, row += block_bytes) block(row, out + i);
  return true;
}

}  // namespace

bool dequantize_row(Format format, const uint8_t* row, int64_t k, float* out) {
  switch (format) {
    case Format::F32:
      std::memcpy(out, row, static_cast<size_t>(k) * 4);
      return true;
    case Format::F16:
      return blocks<1, 2>(row, k, out, [](const uint8_t* p, float* y) { *y = read_f16(p); });
    case Format::BF16:
      for (int64_t i = 0; i < k; ++i) {
        const uint32_t bits = static_cast<uint32_t>(read_u16(row + 2 * i)) << 16;
        std::memcpy(out + i, &bits, 4);
      }
      return true;
    case Format::Q4_0:
      return blocks<32, 18>(row, k, out, legacy_block<false, false>);
    case Format::Q4_1:
      return blocks<32, 20>(row, k, out, legacy_block<true, false>);
    case Format::Q5_0:
      return blocks<32, 22>(row, k, out, legacy_block<false, true>);
    case Format::Q5_1:
      return blocks<32, 24>(row, k, out, legacy_block<true, true>);
    case Format::Q8_0:
      return blocks<32, 34>(row, k, out, q8_block);
    case Format::Q4_K:
      return blocks<256, 144>(row, k, out, k_block<false>);
    case Format::Q5_K:
      return blocks<256, 176>(row, k, out, k_block<true>);
    case Format::Q6_K:
      return blocks<256, 210>(row, k, out, q6k_block);
    case Format::Q2_K:
      return blocks<256, 84>(row, k, out, q2k_block);
    case Format::Q3_K:
      return blocks<256, 110>(row, k, out, q3k_block);
    case Format::IQ4_NL:
      return blocks<32, 18>(row, k, out, iq4nl_block);
  }
  return false;
}

}  // namespace headrace

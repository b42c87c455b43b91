#include "pack.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "matmul.h"

namespace headrace {

namespace {

// The same unit (block of 32 or 256 numbers) of 16 file rows.
using Rows = const uint8_t* const (&)[kPanelRows];

inline uint32_t word(const uint8_t* p) {
  uint32_t w;
  std::memcpy(&w, p, 4);
  return w;
}
inline void put_word(uint8_t* out, int64_t lane, uint32_t w) { std::memcpy(out + lane * 4, &w, 4); }
inline void put_half(uint8_t* out, int64_t lane, const uint8_t* half) {
  std::memcpy(out + lane * 2, half, 2);
}

// Two code words with values below 16 → one word of NIBBLES.
inline uint32_t nibbles(uint32_t low, uint32_t high) { return low | high << 4; }
constexpr uint32_t kLow = 0x0f0f0f0f;

// NIBBLES of one row, from its code words j = 0 … 7 (only the low nibble of each byte counts).
inline void put_nibbles(uint8_t* out, int64_t lane, const uint32_t (&code)[8]) {
  for (int q = 0; q < 4; ++q)
    put_word(out + q * 64, lane, nibbles(code[2 * q] & kLow, code[2 * q + 1] & kLow));
}

// Legacy 4-bit codes in the file: byte i holds k = i (low) and k = i + 16 (high).
inline void legacy_nibbles(uint8_t* out, int64_t lane, const uint8_t* qs) {
  uint32_t code[8];
  for (int j = 0; j < 4; ++j) {
    code[j] = word(qs + 4 * j);
    code[4 + j] = code[j] >> 4;
  }
  put_nibbles(out, lane, code);
}

// Bit k = 4j + c of `in` → bit j of byte c: an 8 × 4 bit matrix transposed.
inline uint32_t fifth_word(uint32_t in) {
  uint32_t out = 0;
  for (int c = 0; c < 4; ++c) {
    uint32_t x = in >> c & 0x11111111u;  // bit 4j → bit j
    x = (x | x >> 3) & 0x03030303u;
    x = (x | x >> 6) & 0x000f000fu;
    x = (x | x >> 12) & 0xffu;
    out |= x << (8 * c);
  }
  return out;
}

// 8 bytes as an 8 × 8 bit matrix, transposed: bit b of byte j → bit j of byte b.
inline uint64_t transpose8(uint64_t x) {
  uint64_t t = (x ^ (x >> 7)) & 0x00aa00aa00aa00aaull;
  x ^= t ^ (t << 7);
  t = (x ^ (x >> 14)) & 0x0000cccc0000ccccull;
  x ^= t ^ (t << 14);
  t = (x ^ (x >> 28)) & 0x00000000f0f0f0f0ull;
  return x ^ t ^ (t << 28);
}

// One bit per number, bit b of byte i being that of k = 32b + i → one vector (FIFTH, THIRD) for
// each of the 8 blocks, `step` bytes apart.
inline void put_bit_planes(uint8_t* out, int64_t lane, const uint8_t* planes, int64_t step) {
  for (int c = 0; c < 4; ++c) {
    uint64_t bits = 0;  // byte j: the file's byte for k = 4j + c
    for (int j = 0; j < 8; ++j) bits |= static_cast<uint64_t>(planes[4 * j + c]) << (8 * j);
    bits = transpose8(bits);
    for (int b = 0; b < 8; ++b)
      out[b * step + lane * 4 + c] = static_cast<uint8_t>(bits >> (8 * b));
  }
}

// ---- one function per format: 16 rows' unit → panel -------------------------------------------

void pack_q8_0(Rows rows, uint8_t* out) {
  for (int64_t r = 0; r < kPanelRows; ++r) {
    put_half(out, r, rows[r]);
    for (int j = 0; j < 8; ++j)
      put_word(out + 32 + j * 64, r, word(rows[r] + 2 + 4 * j) ^ 0x80808080u);  // code + 128
  }
}

template <bool HasMin, bool HasFifth>
void pack_legacy(Rows rows, uint8_t* out) {
  constexpr int kFileFifth = HasMin ? 4 : 2, kFileCodes = kFileFifth + (HasFifth ? 4 : 0);
  constexpr int kFifth = HasMin ? 64 : 32, kCodes = kFifth + (HasFifth ? 64 : 0);
  for (int64_t r = 0; r < kPanelRows; ++r) {
    put_half(out, r, rows[r]);
    if (HasMin) put_half(out + 32, r, rows[r] + 2);
    if (HasFifth) put_word(out + kFifth, r, fifth_word(word(rows[r] + kFileFifth)));
    legacy_nibbles(out + kCodes, r, rows[r] + kFileCodes);
  }
}

// File: d, dmin, 12 scale bytes, [32 bytes: bit b of byte i is bit 4 of k = 32b + i,] 128 bytes:
// byte 32g + i holds k = 64g + i (low nibble) and k = 64g + 32 + i (high).
template <bool HasFifth>
void pack_k(Rows rows, uint8_t* out) {
  constexpr int kFileCodes = HasFifth ? 48 : 16, kBody = HasFifth ? 320 : 256;
  for (int64_t r = 0; r < kPanelRows; ++r) {
    const uint8_t* row = rows[r];
    put_half(out, r, row);
    put_half(out + 32, r, row + 2);
    for (int i = 0; i < 3; ++i) put_word(out + 64 + i * 64, r, word(row + 4 + 4 * i));
    uint8_t* body = out + 256;
    for (int b = 0; b < 8; ++b) {
      uint32_t code[8];
      for (int j = 0; j < 8; ++j)
        code[j] = word(row + kFileCodes + b / 2 * 32 + 4 * j) >> (b % 2 * 4);
      put_nibbles(body + b * kBody + (HasFifth ? 64 : 0), r, code);
    }
    if (HasFifth) put_bit_planes(body, r, row + 16, kBody);
  }
}

// File: ql 128, qh 64, 16 scales, d. Half h (128 k), i in 0 … 31: ql byte 64h + i holds the low 4
// bits of k = i (low nibble) and i + 64 (high), byte 64h + 32 + i those of i + 32 and i + 96; qh
// byte 32h + i their bits 4-5, two bits each, in the order i, i + 32, i + 64, i + 96.
void pack_q6_k(Rows rows, uint8_t* out) {
  constexpr int kBody = 416;
  for (int64_t r = 0; r < kPanelRows; ++r) {
    const uint8_t* row = rows[r];
    put_half(out, r, row + 208);
    for (int b = 0; b < 8; ++b) {
      const int half = b / 4, quarter = b % 4;
      uint8_t* body = out + 32 + b * kBody;
      body[r] = row[192 + 2 * b];
      body[16 + r] = row[192 + 2 * b + 1];
      uint32_t low[8], upper[2] = {0, 0};
      for (int j = 0; j < 8; ++j) {
        low[j] = word(row + 64 * half + 32 * (quarter % 2) + 4 * j) >> (quarter / 2 * 4);
        const uint32_t two = word(row + 128 + 32 * half + 4 * j) >> (2 * quarter) & 0x03030303u;
        upper[j / 4] |= two << (2 * (j % 4));
      }
      put_word(body + 32, r, upper[0]);
      put_word(body + 96, r, upper[1]);
      put_nibbles(body + 160, r, low);
    }
  }
}

// Two-bit codes of block b (files of Q2_K, Q3_K) → TWOBITS. Half h (128 k), i in 0 … 31: byte
// 32h + i holds k = i, i + 32, i + 64, i + 96, two bits each.
inline void put_two_bits(uint8_t* out, int64_t lane, const uint8_t* qs, int b) {
  uint32_t packed[2] = {0, 0};
  for (int j = 0; j < 8; ++j) {
    const uint32_t two = word(qs + b / 4 * 32 + 4 * j) >> (b % 4 * 2) & 0x03030303u;
    packed[j / 4] |= two << (2 * (j % 4));
  }
  put_word(out, lane, packed[0]);
  put_word(out + 64, lane, packed[1]);
}

// File: 16 bytes of a scale and a minimum, 64 bytes of codes, d, dmin.
void pack_q2_k(Rows rows, uint8_t* out) {
  constexpr int kBody = 160;
  for (int64_t r = 0; r < kPanelRows; ++r) {
    const uint8_t* row = rows[r];
    put_half(out, r, row + 80);
    put_half(out + 32, r, row + 82);
    for (int b = 0; b < 8; ++b) {
      uint8_t* body = out + 64 + b * kBody;
      body[r] = row[2 * b];
      body[16 + r] = row[2 * b + 1];
      put_two_bits(body + 32, r, row + 16, b);
    }
  }
}

// File: 32 bytes of third bits, 64 bytes of codes, 12 scale bytes, d.
void pack_q3_k(Rows rows, uint8_t* out) {
  constexpr int kHead = 224, kBody = 192;
  for (int64_t r = 0; r < kPanelRows; ++r) {
    const uint8_t* row = rows[r];
    put_half(out, r, row + 108);
    for (int i = 0; i < 3; ++i) put_word(out + 32 + i * 64, r, word(row + 96 + 4 * i));
    put_bit_planes(out + kHead, r, row, kBody);
    for (int b = 0; b < 8; ++b) put_two_bits(out + kHead + b * kBody + 64, r, row + 32, b);
  }
}

// F32, F16: `Bytes` per number, one k of 16 rows after the other.
template <int Bytes>
void pack_float(Rows rows, uint8_t* out) {
  for (int64_t r = 0; r < kPanelRows; ++r) std::memcpy(out + r * Bytes, rows[r], Bytes);
}
// BF16 pairs. The last pair of an odd K has an element of its own (see pack_panel).
void pack_pair(Rows rows, uint8_t* out) {
  for (int64_t r = 0; r < kPanelRows; ++r) put_word(out, r, word(rows[r]));
}

struct Unit {
  int64_t file_bytes, panel_bytes;
  void (*pack)(Rows rows, uint8_t* out);
};

Unit unit(Format format) {
  switch (format) {
    case Format::F32:
      return {4, 64, pack_float<4>};
    case Format::F16:
      return {2, 32, pack_float<2>};
    case Format::BF16:
      return {4, 64, pack_pair};
    case Format::Q4_0:
      return {18, 288, pack_legacy<false, false>};
    case Format::Q4_1:
      return {20, 320, pack_legacy<true, false>};
    case Format::Q5_0:
      return {22, 352, pack_legacy<false, true>};
    case Format::Q5_1:
      return {24, 384, pack_legacy<true, true>};
    case Format::Q8_0:
      return {34, 544, pack_q8_0};
    case Format::Q4_K:
      return {144, 2304, pack_k<false>};
    case Format::Q5_K:
      return {176, 2816, pack_k<true>};
    case Format::Q6_K:
      return {210, 3360, pack_q6_k};
    case Format::Q2_K:
      return {84, 1344, pack_q2_k};
    case Format::Q3_K:
      return {110, 1760, pack_q3_k};
    case Format::IQ4_NL:
      return {18, 288, pack_legacy<false, false>};
  }
  return {0, 0, nullptr};
}

// rows: the 16 file rows; a missing one (beyond N) is nullptr and packs as zero bytes.
void pack_panel(const Unit& unit, const uint8_t* (&rows)[kPanelRows], int64_t row_bytes,
                uint8_t* out, int64_t out_bytes) {
  static constexpr uint8_t kZeros[256] = {};
  int64_t step[kPanelRows];
  for (int64_t r = 0; r < kPanelRows; ++r) {
    step[r] = rows[r] == nullptr ? 0 : unit.file_bytes;
    if (rows[r] == nullptr) rows[r] = kZeros;
  }
  uint8_t* const end = out + out_bytes;
  int64_t left = row_bytes;
  for (; left >= unit.file_bytes; left -= unit.file_bytes, out += unit.panel_bytes) {
    unit.pack(rows, out);
    for (int64_t r = 0; r < kPanelRows; ++r) rows[r] += step[r];
  }
  std::memset(out, 0, static_cast<size_t>(end - out));  // K filled to whole blocks, and padding
  if (left == 2)                                        // BF16, odd K: the even element alone
    for (int64_t r = 0; r < kPanelRows; ++r) std::memcpy(out + r * 4, rows[r], 2);
}

}  // namespace

PackedWeights pack(Format format, const uint8_t* data, int64_t n, int64_t k,
                   const int32_t* row_order, int threads) {
  const int64_t bytes = panel_bytes(format, k), panels = num_panels(n);
  const int64_t row_bytes = file_row_bytes(format, k);
  PackedWeights packed{Mapping(bytes * panels), PackedMatrix{format, n, k, bytes, nullptr}};
  auto* const out = reinterpret_cast<uint8_t*>(packed.memory.data());
#ifdef MADV_HUGEPAGE
  madvise(out, static_cast<size_t>(bytes * panels), MADV_HUGEPAGE);  // a wish; refusal is harmless
#endif
  packed.view.data = out;
  const Unit of_format = unit(format);
  auto work = [&](int64_t first, int64_t last) {
    for (int64_t p = first; p < last; ++p) {
      const uint8_t* rows[kPanelRows];
      for (int64_t r = 0; r < kPanelRows; ++r) {
        const int64_t i = p * kPanelRows + r;
        rows[r] = i >= n ? nullptr : data + (row_order == nullptr ? i : row_order[i]) * row_bytes;
      }
      pack_panel(of_format, rows, row_bytes, out + p * bytes, bytes);
    }
  };
  // A thread costs some tens of microseconds: only for a megabyte or more each.
  const int64_t useful = std::min<int64_t>(threads, bytes * panels >> 20);
  std::vector<std::thread> others;
  for (int64_t t = 1; t < useful; ++t)
    others.emplace_back(work, panels * t / useful, panels * (t + 1) / useful);
  work(0, useful > 1 ? panels / useful : panels);
  for (std::thread& thread : others) thread.join();
  return packed;
}

}  // namespace headrace

// Packed weights, block by block (layouts: matmul.h): how each number format unpacks in registers.
//
// A format is a struct with
//   kDot      what multiplies: Float (f32), Pair (bf16 pairs), Bytes (codes, int32 sums)
//   weight()  Float, Pair: the k-th vector (of one k, of one pair) of a block, as bits
//   Reader    walks one panel. Bytes: next() enters the following block; then scale(), minimum()
//             give f32 ×16 and codes<J>() code vector J (unsigned bytes), each at most once per
//             use.
//   kOffset   what the codes carry too much (subtracted in int32), kHasMin, kTwoScales (per 16 k),
//   kTwoMinima (per 16 k; then minima() gives both as int16 pairs, minimum() what multiplies their
//   sum), kBits of a code; kGrain: a panel may be entered at multiples of so many blocks
#pragma once

#include "matmul.h"
#include "simd.h"

namespace HR_ISA {

enum class Dot { Float, Pair, Bytes };

static inline i32x16 nibbles_low(i32x16 v) { return v & splati(0x0f0f0f0f); }
static inline i32x16 nibbles_high(i32x16 v) { return shr<4>(v) & splati(0x0f0f0f0f); }

// Code vector J of 4 NIBBLES vectors.
template <int J>
static inline i32x16 nibble_codes(const uint8_t* nibbles) {
  i32x16 v = loadi(nibbles + J / 2 * 64);
  return J % 2 == 0 ? nibbles_low(v) : nibbles_high(v);
}
// Bit J of every byte, moved to bit 4.
template <int J>
static inline i32x16 fifth_bits(i32x16 fifth) {
  if constexpr (J < 4)
    return shl<4 - J>(fifth) & splati(0x10101010);
  else if constexpr (J == 4)
    return fifth & splati(0x10101010);
  else
    return shr<J - 4>(fifth) & splati(0x10101010);
}
// Bits 2F and 2F+1 of every byte, moved to bits 4 and 5.
template <int F>
static inline i32x16 upper_bits(i32x16 upper) {
  if constexpr (F < 2)
    return shl<4 - 2 * F>(upper) & splati(0x30303030);
  else if constexpr (F == 2)
    return upper & splati(0x30303030);
  else
    return shr<2>(upper) & splati(0x30303030);
}

// ---- floats -----------------------------------------------------------------------------------

struct WeightF32 {
  static constexpr Dot kDot = Dot::Float;
  static constexpr int64_t kBlockBytes = 2048;
  static i32x16 weight(const uint8_t* block, int k) { return loadi(block + k * 64); }
};
struct WeightF16 {
  static constexpr Dot kDot = Dot::Float;
  static constexpr int64_t kBlockBytes = 1024;
  static i32x16 weight(const uint8_t* block, int k) { return bits(load_f16(block + k * 32)); }
};
struct WeightBF16 {
  static constexpr Dot kDot = Dot::Pair;
  static constexpr int64_t kBlockBytes = 1024;
  static i32x16 weight(const uint8_t* block, int k) { return loadi(block + k * 64); }
};

// ---- one scale (and minimum) per block --------------------------------------------------------

struct WeightQ8_0 {
  static constexpr Dot kDot = Dot::Bytes;
  static constexpr int kOffset = 128;
  static constexpr int kBits = 8;
  static constexpr bool kHasMin = false, kTwoScales = false, kTwoMinima = false;
  static constexpr int64_t kBlockBytes = 544, kGrain = 1;
  struct Reader {
    const uint8_t* at;
    void open(const uint8_t* panel) { at = panel - kBlockBytes; }
    void next(int64_t) { at += kBlockBytes; }
    f32x16 scale() const { return load_f16(at); }
    template <int J>
    i32x16 codes() const {
      return loadi(at + 32 + J * 64);
    }
  };
};

template <int Offset, bool HasMin, bool HasFifth>
struct WeightLegacy {
  static constexpr Dot kDot = Dot::Bytes;
  static constexpr int kOffset = Offset;
  static constexpr int kBits = HasFifth ? 5 : 4;
  static constexpr bool kHasMin = HasMin, kTwoScales = false, kTwoMinima = false;
  static constexpr int64_t kHead = HasMin ? 64 : 32;
  static constexpr int64_t kNibbles = kHead + (HasFifth ? 64 : 0);
  static constexpr int64_t kBlockBytes = kNibbles + 256, kGrain = 1;
  struct Reader {
    const uint8_t* at;
    i32x16 fifth;
    void open(const uint8_t* panel) { at = panel - kBlockBytes; }
    void next(int64_t) {
      at += kBlockBytes;
      if constexpr (HasFifth) fifth = loadi(at + kHead);
    }
    f32x16 scale() const { return load_f16(at); }
    f32x16 minimum() const { return load_f16(at + 32); }
    template <int J>
    i32x16 codes() const {
      i32x16 low = nibble_codes<J>(at + kNibbles);
      if constexpr (HasFifth)
        return low | fifth_bits<J>(fifth);
      else
        return low;
    }
  };
};
// The values of the codes plus 128, so that they are unsigned.
struct WeightIQ4_NL : WeightLegacy<128, false, false> {
  static constexpr int kBits = 8;
  alignas(16) static constexpr uint8_t kTable[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                                     129, 141, 153, 166, 181, 197, 217, 241};
  struct Reader : WeightLegacy<128, false, false>::Reader {
    template <int J>
    i32x16 codes() const {
      return look_up(kTable, nibble_codes<J>(this->at + kNibbles));
    }
  };
};
using WeightQ4_0 = WeightLegacy<8, false, false>;
using WeightQ4_1 = WeightLegacy<0, true, false>;
using WeightQ5_0 = WeightLegacy<16, false, true>;
using WeightQ5_1 = WeightLegacy<0, true, true>;

// ---- 8 blocks under one head ------------------------------------------------------------------

// Walks a panel of K-quants: a head of Head bytes for eight blocks, then their bodies.
template <int64_t Head, int64_t Body>
struct EightBlocks {
  static constexpr int64_t kBytes = Head + 8 * Body;
  const uint8_t* head;  // of the current 8 blocks
  const uint8_t* at;    // body of the current block
  void open(const uint8_t* panel) { head = panel - kBytes; }
  void next(int64_t block) {
    if (block % 8 == 0) {
      head += kBytes;
      at = head + Head;
    } else {
      at += Body;
    }
  }
};

// ---- 8 blocks with 6-bit sub-scales -----------------------------------------------------------

template <bool HasFifth>
struct WeightK {
  static constexpr Dot kDot = Dot::Bytes;
  static constexpr int kOffset = 0;
  static constexpr int kBits = HasFifth ? 5 : 4;
  static constexpr bool kHasMin = true, kTwoScales = false, kTwoMinima = false;
  static constexpr int64_t kHead = 64 + 3 * 64;
  static constexpr int64_t kBody = 256 + (HasFifth ? 64 : 0);
  static constexpr int64_t kBlockBytes = (kHead + 8 * kBody) / 8, kGrain = 8;  // on average
  struct Reader : EightBlocks<kHead, kBody> {
    using Walk = EightBlocks<kHead, kBody>;
    using Walk::at, Walk::head;
    i32x16 scales, minima;  // four 6-bit numbers a lane, one a byte, the current one in byte 0
    i32x16 fifth;
    void next(int64_t block) {
      Walk::next(block);
      if (block % 8 == 0) {
        scales = loadi(head + 64) & splati(0x3f3f3f3f);
        minima = loadi(head + 128) & splati(0x3f3f3f3f);
      } else if (block % 8 == 4) {
        i32x16 both = loadi(head + 192);
        scales = nibbles_low(both) | (shr<2>(loadi(head + 64)) & splati(0x30303030));
        minima = nibbles_high(both) | (shr<2>(loadi(head + 128)) & splati(0x30303030));
      } else {
        scales = shr<8>(scales);
        minima = shr<8>(minima);
      }
      if constexpr (HasFifth) fifth = loadi(at);
    }
    f32x16 scale() const { return load_f16(head) * to_float(scales & splati(0xff)); }
    f32x16 minimum() const {  // negated: weights are d·sc·code − dmin·mn
      return (zero() - load_f16(head + 32)) * to_float(minima & splati(0xff));
    }
    template <int J>
    i32x16 codes() const {
      i32x16 low = nibble_codes<J>(at + (HasFifth ? 64 : 0));
      if constexpr (HasFifth)
        return low | fifth_bits<J>(fifth);
      else
        return low;
    }
  };
};
using WeightQ4_K = WeightK<false>;
using WeightQ5_K = WeightK<true>;

// ---- 8 blocks, an 8-bit scale per 16 k --------------------------------------------------------

struct WeightQ6_K {
  static constexpr Dot kDot = Dot::Bytes;
  static constexpr int kOffset = 32;
  static constexpr int kBits = 6;
  static constexpr bool kHasMin = false, kTwoScales = true, kTwoMinima = false;
  static constexpr int64_t kHead = 32, kBody = 32 + 128 + 256;
  static constexpr int64_t kBlockBytes = (kHead + 8 * kBody) / 8, kGrain = 8;  // on average
  struct Reader : EightBlocks<kHead, kBody> {
    f32x16 scale() const { return load_f16(head); }
    template <int Half>
    i32x16 half_scale() const {
      return load_s8(at + Half * 16);
    }
    template <int J>
    i32x16 codes() const {
      return nibble_codes<J>(at + 160) | upper_bits<J % 4>(loadi(at + 32 + J / 4 * 64));
    }
  };
};

// ---- 8 blocks of 2- and 3-bit codes, a scale per 16 k -----------------------------------------

// Code vector J of 2 TWOBITS vectors.
template <int J>
static inline i32x16 two_bit_codes(const uint8_t* packed) {
  return shr<J % 4 * 2>(loadi(packed + J / 4 * 64)) & splati(0x03030303);
}

struct WeightQ2_K {
  static constexpr Dot kDot = Dot::Bytes;
  static constexpr int kOffset = 0;
  static constexpr int kBits = 2;
  static constexpr bool kHasMin = false, kTwoScales = true, kTwoMinima = true;
  static constexpr int64_t kHead = 64, kBody = 32 + 128;
  static constexpr int64_t kBlockBytes = (kHead + 8 * kBody) / 8, kGrain = 8;  // on average
  struct Reader : EightBlocks<kHead, kBody> {
    f32x16 scale() const { return load_f16(head); }
    f32x16 minimum() const { return zero() - load_f16(head + 32); }
    template <int Half>
    i32x16 half_scale() const {
      return load_u8(at + Half * 16) & splati(15);
    }
    i32x16 minima() const {
      return shr<4>(load_u8(at)) | (shl<12>(load_u8(at + 16)) & splati(0xf0000));
    }
    template <int J>
    i32x16 codes() const {
      return two_bit_codes<J>(at + 32);
    }
  };
};

struct WeightQ3_K {
  static constexpr Dot kDot = Dot::Bytes;
  static constexpr int kOffset = 4;
  static constexpr int kBits = 3;
  static constexpr bool kHasMin = false, kTwoScales = true, kTwoMinima = false;
  static constexpr int64_t kHead = 32 + 3 * 64, kBody = 64 + 128;
  static constexpr int64_t kBlockBytes = (kHead + 8 * kBody) / 8, kGrain = 8;  // on average
  struct Reader : EightBlocks<kHead, kBody> {
    using Walk = EightBlocks<kHead, kBody>;
    i32x16 scales;  // four 6-bit numbers a lane, those of the current block in bytes 0 and 1
    i32x16 third;
    void next(int64_t block) {
      Walk::next(block);
      const i32x16 high = splati(0x30303030);
      switch (block % 8) {
        case 0:
          scales = nibbles_low(loadi(head + 32)) | (shl<4>(loadi(head + 160)) & high);
          break;
        case 2:
          scales = nibbles_low(loadi(head + 96)) | (shl<2>(loadi(head + 160)) & high);
          break;
        case 4:
          scales = nibbles_high(loadi(head + 32)) | (loadi(head + 160) & high);
          break;
        case 6:
          scales = nibbles_high(loadi(head + 96)) | (shr<2>(loadi(head + 160)) & high);
          break;
        default:
          scales = shr<16>(scales);
      }
      third = loadi(at);
    }
    f32x16 scale() const { return load_f16(head); }
    template <int Half>
    i32x16 half_scale() const {
      return (shr<8 * Half>(scales) & splati(0xff)) - splati(32);
    }
    template <int J>
    i32x16 codes() const {
      if constexpr (J < 3)
        return two_bit_codes<J>(at + 64) | (shl<2 - J>(third) & splati(0x04040404));
      else
        return two_bit_codes<J>(at + 64) | (shr<J - 2>(third) & splati(0x04040404));
    }
  };
};

}  // namespace HR_ISA

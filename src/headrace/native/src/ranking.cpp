#include "ranking.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace headrace::sampling {

namespace {

constexpr size_t kShort = 512;  // below, comparisons are faster
constexpr int kDigitBits = 11, kDigits = 3;

// Depth below the top as float32 bits: rounding keeps the order, so larger keys are never earlier.
// Adding 0 makes a depth of −0 (two zeros of different sign) one of +0.
uint32_t key_of(double depth) {
  const float f = static_cast<float>(depth) + 0.0f;
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  return bits;
}

// Stable least-significant-digit radix sort of (key, index in the list) by key.
void sort_keys(std::vector<uint64_t>& keys, std::vector<uint64_t>& other) {
  constexpr uint32_t kSize = 1u << kDigitBits;
  std::vector<uint32_t> starts(kDigits * kSize, 0);
  for (uint64_t key : keys)
    for (int d = 0; d < kDigits; ++d)
      ++starts[d * kSize + ((key >> (32 + d * kDigitBits)) & (kSize - 1))];
  other.resize(keys.size());
  for (int d = 0; d < kDigits; ++d) {
    uint32_t* start = starts.data() + d * kSize;
    uint32_t sum = 0;
    for (uint32_t i = 0; i < kSize; ++i) {
      const uint32_t count = start[i];
      start[i] = sum;
      sum += count;
    }
    for (uint64_t key : keys) other[start[(key >> (32 + d * kDigitBits)) & (kSize - 1)]++] = key;
    keys.swap(other);
  }
}

}  // namespace

void rank(std::vector<Candidate>& list, double top, RankScratch& scratch) {
  if (list.size() < kShort) {
    std::sort(list.begin(), list.end(), before);
    return;
  }
  std::vector<uint64_t>& keys = scratch.keys;
  keys.resize(list.size());
  for (size_t i = 0; i < list.size(); ++i)
    keys[i] = uint64_t{key_of(top - list[i].logit)} << 32 | i;
  sort_keys(keys, scratch.other_keys);
  scratch.other_list.resize(list.size());
  for (size_t i = 0; i < list.size(); ++i)
    scratch.other_list[i] = list[static_cast<uint32_t>(keys[i])];
  list.swap(scratch.other_list);
  // Equal keys: different logits that round alike, or ties whose ids are mostly in order already.
  for (size_t begin = 0; begin < list.size();) {
    size_t end = begin + 1;
    while (end < list.size() && keys[end] >> 32 == keys[begin] >> 32) ++end;
    const auto first = list.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto last = list.begin() + static_cast<std::ptrdiff_t>(end);
    if (end - begin > 1 && !std::is_sorted(first, last, before)) std::sort(first, last, before);
    begin = end;
  }
}

void keep_first(std::vector<Candidate>& list, size_t k, double top, RankScratch& scratch) {
  if (k < list.size()) {
    std::nth_element(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(k), list.end(),
                     before);
    list.resize(k);
  }
  rank(list, top, scratch);
}

}  // namespace headrace::sampling

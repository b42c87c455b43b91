#include "checksum.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

namespace headrace {

namespace {

constexpr uint64_t kPrime = 0x9e3779b97f4a7c15ull;  // odd, so that a factor loses nothing
constexpr int64_t kPiece = 1 << 20;
constexpr int kLanes = 8;

inline uint64_t rotate(uint64_t x) { return x << 29 | x >> 35; }
inline uint64_t mix(uint64_t state, uint64_t word) { return rotate(state ^ word) * kPrime; }

// Words go to eight states in turn: multiplications of a line do not wait for each other.
uint64_t piece(const uint8_t* data, int64_t size) {
  uint64_t state[kLanes];
  for (int l = 0; l < kLanes; ++l) state[l] = kPrime * static_cast<uint64_t>(l + 1);
  int64_t at = 0;
  for (; at + 8 * kLanes <= size; at += 8 * kLanes) {
    uint64_t words[kLanes];
    std::memcpy(words, data + at, sizeof(words));
    for (int l = 0; l < kLanes; ++l) state[l] = mix(state[l], words[l]);
  }
  for (int l = 0; at < size; at += 8, ++l) {
    uint64_t word = 0;
    std::memcpy(&word, data + at, static_cast<size_t>(std::min<int64_t>(8, size - at)));
    state[l] = mix(state[l], word);
  }
  uint64_t all = static_cast<uint64_t>(size);
  for (const uint64_t s : state) all = mix(all, s);
  return all ^ all >> 32;
}

}  // namespace

uint64_t checksum(const uint8_t* data, int64_t size, int threads) {
  const int64_t pieces = (size + kPiece - 1) / kPiece;
  std::vector<uint64_t> sums(static_cast<size_t>(pieces));
  auto work = [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i)
      sums[static_cast<size_t>(i)] = piece(data + i * kPiece, std::min(kPiece, size - i * kPiece));
  };
  const int64_t useful = std::max<int64_t>(1, std::min<int64_t>(threads, pieces));
  std::vector<std::thread> others;
  for (int64_t t = 1; t < useful; ++t)
    others.emplace_back(work, pieces * t / useful, pieces * (t + 1) / useful);
  work(0, pieces / useful);
  for (std::thread& thread : others) thread.join();
  uint64_t all = static_cast<uint64_t>(size);
  for (const uint64_t sum : sums) all = mix(all, sum);
  return all ^ all >> 32;
}

}  // namespace headrace

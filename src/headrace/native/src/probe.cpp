#include "probe.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>

#include "dispatch.h"

namespace headrace {

namespace {

using Clock = std::chrono::steady_clock;

// Rounds between two looks at the clock: some ten microseconds.
constexpr int64_t kRounds = 4096;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// What one worker did, on a cache line of its own.
struct alignas(64) Part {
  double amount = 0.0;
  double begin = 0.0, end = 0.0;  // seconds since a common start
  alignas(64) uint32_t sums[16] = {};
};

const ProbeKernels& kernels_of(const std::string& isa) {
  if (isa == "avx512bf16") return avx512bf16::probe_kernels();
  if (isa == "avx512") return avx512::probe_kernels();
  return avx2::probe_kernels();
}

}  // namespace

Probe::Probe(int threads, const std::optional<std::string>& isa, int64_t buffer_bytes)
    : isa_(choose_kernels(isa).isa), kernels_(&kernels_of(isa_)), pool_(threads) {
  if (buffer_bytes < kChunkBytes || buffer_bytes % kChunkBytes != 0)
    throw std::invalid_argument("buffer_bytes=" + std::to_string(buffer_bytes) +
                                " is not a positive multiple of " + std::to_string(kChunkBytes));
  buffer_ = Mapping(buffer_bytes);
  madvise(buffer_.data(), static_cast<size_t>(buffer_bytes), MADV_HUGEPAGE);  // or not
  // Written, because pages that were never written all read the same zero page.
  auto* const words = reinterpret_cast<uint32_t*>(buffer_.data());
  const int64_t num_words = buffer_bytes / 4;
  pool_.run([&](int index, Barrier&) {
    const int64_t begin = num_words * index / pool_.count(),
                  end = num_words * (index + 1) / pool_.count();
    for (int64_t i = begin; i < end; ++i) words[i] = static_cast<uint32_t>(i) * 2654435761u;
  });
}

void Probe::check_workers(int workers) const {
  if (workers < 1 || workers > pool_.count())
    throw std::invalid_argument("workers=" + std::to_string(workers) + " is not in 1 … " +
                                std::to_string(pool_.count()));
}

ProbeBurst Probe::compute(ProbeKernels::Compute ProbeKernels::* kernel,
                          const ProbeOperands& operands, int workers, double seconds,
                          int64_t rounds) {
  check_workers(workers);
  std::vector<Part> parts(static_cast<size_t>(workers));
  const ProbeKernels::Compute run = kernels_->*kernel;
  pool_.run([&](int index, Barrier& barrier) {
    barrier.wait();
    if (index >= workers) return;
    Part& part = parts[static_cast<size_t>(index)];
    int64_t done = 0;
    const auto start = Clock::now();
    do {
      done += run(rounds > 0 ? rounds : kRounds, operands, part.sums);
      part.end = seconds_since(start);
    } while (rounds == 0 && part.end < seconds);
    part.amount = 2.0 * static_cast<double>(done);
  });
  ProbeBurst burst{};
  for (const Part& part : parts) {
    burst.amount += part.amount;
    burst.seconds += part.end / static_cast<double>(parts.size());
  }
  std::memcpy(burst.sums, parts[0].sums, sizeof burst.sums);
  return burst;
}

ProbeBurst Probe::read(int workers, double seconds) {
  check_workers(workers);
  const bool once = seconds == 0.0;
  const int64_t num_chunks = buffer_.size() / kChunkBytes;
  std::vector<Part> parts(static_cast<size_t>(workers));
  std::atomic<int64_t> next{once ? 0 : next_chunk_};
  const auto start = Clock::now();
  pool_.run([&](int index, Barrier& barrier) {
    barrier.wait();
    if (index >= workers) return;
    Part& part = parts[static_cast<size_t>(index)];
    part.begin = seconds_since(start);
    do {
      const int64_t chunk = next.fetch_add(1, std::memory_order_relaxed);
      if (once && chunk >= num_chunks) break;
      kernels_->read(buffer_.data() + chunk % num_chunks * kChunkBytes, kChunkBytes, part.sums);
      part.amount += kChunkBytes;
      part.end = seconds_since(start);
    } while (once || part.end - part.begin < seconds);
  });
  if (!once) next_chunk_ = next.load() % num_chunks;
  ProbeBurst burst{};
  double begin = parts[0].begin, end = 0.0;
  for (const Part& part : parts) {
    burst.amount += part.amount;
    begin = std::min(begin, part.begin);
    end = std::max(end, part.end);
    for (int lane = 0; lane < 16; ++lane) burst.sums[lane] += part.sums[lane];
  }
  burst.seconds = end - begin;
  return burst;
}

}  // namespace headrace

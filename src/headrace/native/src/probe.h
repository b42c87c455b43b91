// How fast this machine calculates and reads memory: what every figure of speed is held against.
//
// Calculation: loops that keep everything in registers, per number format. Reading: all workers
// stream through one buffer that is much larger than the last-level cache.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "memory.h"
#include "pool.h"

namespace headrace {

// One 512-bit operand pair: 64 bytes, 32 bf16 or 16 floats each.
struct ProbeOperands {
  alignas(64) unsigned char x[64], y[64];
};

// The loops of one level. compute: `rounds` times every accumulator += x·y, for int8 (unsigned ·
// signed bytes, x ≤ 15, four to an int32 lane), bf16 (two to a float lane) or f32; then the sum of
// all accumulators goes to out, 16 lanes of 4 bytes. Returns the multiply-adds made, in all lanes.
// read: adds the int32 lanes of `bytes` bytes (a multiple of 512) to out, modulo 2^32.
struct ProbeKernels {
  using Compute = int64_t (*)(int64_t rounds, const ProbeOperands& operands, void* out);
  Compute int8, bf16, f32;
  void (*read)(const std::byte* data, int64_t bytes, uint32_t* out);
};

// What one burst did. seconds: from the first worker's start to the last one's end for reading, the
// mean over workers for calculating (they do not wait for each other).
struct ProbeBurst {
  double amount;  // operations (a multiply-add is two) or bytes
  double seconds;
  uint32_t sums[16];  // of all workers, as the kernels define it (float bits for bf16 and f32)
};

// A pool, a level and a buffer of `buffer_bytes` (a multiple of the chunk, filled with words
// i · 2654435761 mod 2^32). One caller at a time.
class Probe {
 public:
  static constexpr int64_t kChunkBytes = int64_t{1} << 20;

  // Throws std::invalid_argument (threads, isa, buffer_bytes), std::bad_alloc.
  Probe(int threads, const std::optional<std::string>& isa, int64_t buffer_bytes);

  const char* isa() const { return isa_; }
  int threads() const { return pool_.count(); }
  int64_t buffer_bytes() const { return buffer_.size(); }

  // The first `workers` workers (1 … threads) run `kernel` for about `seconds`, at least once; with
  // rounds > 0 exactly that many rounds instead.
  ProbeBurst compute(ProbeKernels::Compute ProbeKernels::* kernel, const ProbeOperands& operands,
                     int workers, double seconds, int64_t rounds);
  // They read on through the buffer, round and round from where the last burst ended, for about
  // `seconds`; with seconds = 0 every byte once, from the start.
  ProbeBurst read(int workers, double seconds);

 private:
  void check_workers(int workers) const;

  const char* isa_;
  const ProbeKernels* kernels_;
  Pool pool_;
  Mapping buffer_;
  int64_t next_chunk_ = 0;
};

}  // namespace headrace

// kernels/probe.cpp, once per level.
namespace avx2 {
const headrace::ProbeKernels& probe_kernels();
}
namespace avx512 {
const headrace::ProbeKernels& probe_kernels();
}
namespace avx512bf16 {
const headrace::ProbeKernels& probe_kernels();
}

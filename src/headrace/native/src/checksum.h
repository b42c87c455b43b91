// A checksum of long buffers at the speed of memory, against damage (not against an adversary).
#pragma once

#include <cstdint>

namespace headrace {

// 64 bits of `size` bytes, the same for any number of threads (≥ 1) and on every machine.
uint64_t checksum(const uint8_t* data, int64_t size, int threads);

}  // namespace headrace

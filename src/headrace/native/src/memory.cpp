#include "memory.h"

#include <sys/mman.h>

#include <new>
#include <utility>

namespace headrace {

Mapping::Mapping(int64_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  if (bytes < 0) throw std::bad_alloc();
  void* p = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  data_ = static_cast<std::byte*>(p);
}

Mapping::~Mapping() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(size_));
}

void Mapping::prefer_large_pages() {
  if (data_ != nullptr) madvise(data_, static_cast<size_t>(size_), MADV_HUGEPAGE);
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace headrace

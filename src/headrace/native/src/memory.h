// Anonymous memory that costs nothing until it is touched.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace {

// Zero-filled pages, reserved and not committed (MAP_NORESERVE); page-aligned. Move-only.
class Mapping {
 public:
  Mapping() = default;
  // bytes ≥ 0. Throws std::bad_alloc when the address space is refused.
  explicit Mapping(int64_t bytes);
  ~Mapping();
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  // Asks for pages of 2 MiB where the system has them: fewer walks through page tables, and memory
  // that comes in larger pieces. Only a wish.
  void prefer_large_pages();

  std::byte* data() const { return data_; }
  int64_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace headrace

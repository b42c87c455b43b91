// Reading numpy arrays at the binding: type, contiguity and every dimension checked, by name.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <stdexcept>
#include <string>

namespace headrace {

namespace nb = nanobind;

using AnyArray = nb::ndarray<nb::ro, nb::device::cpu>;

constexpr int64_t kAnySize = -1;

template <class T>
const char* type_name() {
  if constexpr (std::is_same_v<T, int32_t>) return "int32";
  if constexpr (std::is_same_v<T, uint8_t>) return "uint8";
  if constexpr (std::is_same_v<T, float>) return "float32";
  return "double";
}

// The elements of a C-contiguous array [sizes…]; kAnySize leaves a dimension free. Throws
// std::invalid_argument.
template <class T>
const T* elements(const AnyArray& array, const char* name, std::initializer_list<int64_t> sizes) {
  const std::string what(name);
  if (array.dtype() != nb::dtype<T>())
    throw std::invalid_argument(what + " is not an array of " + type_name<T>());
  if (array.ndim() != sizes.size())
    throw std::invalid_argument(what + " has " + std::to_string(array.ndim()) +
                                " dimensions, not " + std::to_string(sizes.size()));
  size_t i = 0;
  int64_t step = 1;
  for (int64_t size : sizes) {
    if (size != kAnySize && static_cast<int64_t>(array.shape(i)) != size)
      throw std::invalid_argument(what + ": dimension " + std::to_string(i) + " is " +
                                  std::to_string(array.shape(i)) + ", not " + std::to_string(size));
    ++i;
  }
  for (size_t d = array.ndim(); d-- > 0;) {
    if (array.shape(d) > 1 && array.stride(d) != step)
      throw std::invalid_argument(what + " is not C-contiguous");
    step *= static_cast<int64_t>(array.shape(d));
  }
  if (reinterpret_cast<uintptr_t>(array.data()) % alignof(T) != 0)
    throw std::invalid_argument(what + " is not aligned");
  return static_cast<const T*>(array.data());
}

}  // namespace headrace

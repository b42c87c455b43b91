// The machine probe for Python (limits/machine.py).
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <stdexcept>

#include "bind.h"
#include "probe.h"

namespace headrace {

namespace {

using Operand = nb::ndarray<const uint8_t, nb::shape<64>, nb::c_contig, nb::device::cpu>;
using Sums = nb::ndarray<nb::numpy, uint32_t, nb::shape<16>>;

nb::tuple result(const ProbeBurst& burst) {
  auto sums = std::make_unique<uint32_t[]>(16);
  std::memcpy(sums.get(), burst.sums, sizeof burst.sums);
  uint32_t* const data = sums.release();
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<uint32_t*>(p); });
  return nb::make_tuple(burst.amount, burst.seconds, Sums(data, {16}, owner));
}

void check_seconds(double seconds) {
  if (!(seconds >= 0.0 && seconds <= 60.0))
    throw std::invalid_argument("seconds=" + std::to_string(seconds) + " is not in 0 … 60");
}

nb::tuple compute(Probe& probe, const std::string& format, const Operand& x, const Operand& y,
                  std::optional<int> workers, double seconds, int64_t rounds) {
  ProbeKernels::Compute ProbeKernels::* kernel = nullptr;
  if (format == "int8") kernel = &ProbeKernels::int8;
  if (format == "bf16") kernel = &ProbeKernels::bf16;
  if (format == "f32") kernel = &ProbeKernels::f32;
  if (kernel == nullptr)
    throw std::invalid_argument("format='" + format + "' is not int8, bf16 or f32");
  check_seconds(seconds);
  if (rounds < 0 || rounds > (int64_t{1} << 32))
    throw std::invalid_argument("rounds=" + std::to_string(rounds) + " is not in 0 … 2^32");
  ProbeOperands operands;
  std::memcpy(operands.x, x.data(), sizeof operands.x);
  std::memcpy(operands.y, y.data(), sizeof operands.y);
  ProbeBurst burst;
  {
    nb::gil_scoped_release release;
    burst = probe.compute(kernel, operands, workers.value_or(probe.threads()), seconds, rounds);
  }
  return result(burst);
}

nb::tuple read(Probe& probe, std::optional<int> workers, double seconds) {
  check_seconds(seconds);
  ProbeBurst burst;
  {
    nb::gil_scoped_release release;
    burst = probe.read(workers.value_or(probe.threads()), seconds);
  }
  return result(burst);
}

}  // namespace

void register_probe(nb::module_& m) {
  nb::class_<Probe>(m, "Probe", "How fast this machine calculates and reads; one caller at a time.")
      .def(nb::init<int, std::optional<std::string>, int64_t>(), nb::arg("threads"),
           nb::arg("isa").none() = nb::none(), nb::arg("buffer_bytes") = Probe::kChunkBytes,
           nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("isa", &Probe::isa)
      .def_prop_ro("threads", &Probe::threads)
      .def_prop_ro("buffer_bytes", &Probe::buffer_bytes)
      .def("compute", &compute, nb::arg("format"), nb::arg("x"), nb::arg("y"),
           nb::arg("workers").none() = nb::none(), nb::arg("seconds") = 0.0, nb::arg("rounds") = 0,
           "(operations, seconds, worker 0's last sums as bits) of one burst on some workers "
           "(default: all); x, y: "
           "operand bytes [64].")
      .def("read", &read, nb::arg("workers").none() = nb::none(), nb::arg("seconds") = 0.0,
           "(bytes, seconds, sums of the 16 word lanes) of one burst; seconds=0: every byte once.");
}

}  // namespace headrace

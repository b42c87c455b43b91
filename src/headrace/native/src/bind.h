// What the binding files share: one registration function per file, called by core.cpp.
#pragma once

#include <nanobind/nanobind.h>

namespace headrace {

namespace nb = nanobind;

void register_matmul(nb::module_& m);   // bind_matmul.cpp: packing, single matmuls
void register_kernels(nb::module_& m);  // bind_kernels.cpp: single ops on numpy arrays
void register_program(nb::module_& m);  // bind_program.cpp: pool, KV memory, step programs
void register_sampler(nb::module_& m);  // bind_sampler.cpp: the sampler
void register_probe(nb::module_& m);    // bind_probe.cpp: how fast this machine is

}  // namespace headrace

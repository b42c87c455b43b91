// kernels/gumbel.cpp: the draw, argmax of logit + noise. See sampler_passes.h.
#pragma once

#include "sampler_passes.h"

namespace HR_ISA {

headrace::sampling::Drawn draw_row(const float* x, int64_t n, const float* block_max, double t,
                                   const headrace::sampling::Noise& noise,
                                   headrace::sampling::Drawn best);
headrace::sampling::Drawn draw_list(const headrace::sampling::Candidate* list, int64_t n,
                                    const headrace::sampling::Noise& noise,
                                    headrace::sampling::Drawn best);

}  // namespace HR_ISA

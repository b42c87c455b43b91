// Speculative decoding's rejection rule on one row (Leviathan et al., arXiv:2211.17192; Chen et
// al., arXiv:2302.01318). q is the target's distribution after all stages, p the one that the draft
// x was drawn from:
//
//     keep x with probability min(1, q(x) / p(x)); else draw from max(q − p, 0), normalised
//
// gives q whatever p is. The functions that decide are the ones that the proofs enumerate.
#pragma once

#include "distribution.h"

namespace headrace::sampling {

// min(1, q / p); 0 where q is 0, so that a token the target cannot draw is never kept.
double acceptance(double q, double p);

// p of one id; 0 if the distribution does not list it.
double probability_of(const Draft& draft, int32_t token);

// probability[i] of ascending ids[i] becomes max(q − p, 0), not normalised; returns the sum, added
// up in order. Where rounding leaves nothing, q stays: q and p are then equal but for rounding.
double subtract(const Draft& draft, const std::vector<int32_t>& ids,
                std::vector<double>& probability);

// The first entry at which the sum in order exceeds u · total; 0 < u < 1, total the sum of all.
size_t pick(const std::vector<double>& weights, double total, double u);

// The draft's token if it is kept, else a token of the residual, where the draft's has no weight.
// The uniform numbers are those of noise.on(Stream::Acceptance) and noise.on(Stream::Residual).
int32_t decide(Distribution& d, const Draft& draft, const Noise& noise);

}  // namespace headrace::sampling

// Candidate lists in candidate order: exact, and in linear time for long lists.
#pragma once

#include <cstdint>
#include <vector>

#include "sampler_passes.h"

namespace headrace::sampling {

// Memory that ranking keeps between calls.
struct RankScratch {
  std::vector<uint64_t> keys, other_keys;
  std::vector<Candidate> other_list;
};

// Sorts by `before`. top: at or above every logit.
void rank(std::vector<Candidate>& list, double top, RankScratch& scratch);

// Keeps the k first in candidate order, ranked.
void keep_first(std::vector<Candidate>& list, size_t k, double top, RankScratch& scratch);

}  // namespace headrace::sampling

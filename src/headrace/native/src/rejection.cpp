#include "rejection.h"

#include <algorithm>

namespace headrace::sampling {

double acceptance(double q, double p) {
  if (q <= 0) return 0;
  return q >= p ? 1 : q / p;
}

double probability_of(const Draft& draft, int32_t token) {
  if (draft.size == 0) return token == draft.token ? 1 : 0;
  const int32_t* end = draft.ids + draft.size;
  const int32_t* at = std::lower_bound(draft.ids, end, token);
  return at != end && *at == token ? draft.probabilities[at - draft.ids] : 0;
}

double subtract(const Draft& draft, const std::vector<int32_t>& ids,
                std::vector<double>& probability) {
  const double one = 1;
  const Draft p = draft.size > 0 ? draft : Draft{draft.token, 1, &draft.token, &one};
  const auto each = [&](auto&& visit) {
    int64_t at = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      while (at < p.size && p.ids[at] < ids[i]) ++at;
      const double drafted = at < p.size && p.ids[at] == ids[i] ? p.probabilities[at] : 0;
      visit(i, probability[i] > drafted ? probability[i] - drafted : 0.0);
    }
  };
  double left = 0, all = 0;
  each([&](size_t i, double rest) {
    left = left + rest;
    all = all + probability[i];
  });
  if (left <= 0) return all;
  each([&](size_t i, double rest) { probability[i] = rest; });
  return left;
}

size_t pick(const std::vector<double>& weights, double total, double u) {
  const double bar = u * total;
  double reached = 0;
  size_t last = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] <= 0) continue;
    reached = reached + weights[i];
    last = i;
    if (reached > bar) break;
  }
  return last;  // the last with any weight, should u · total have been rounded up to total
}

int32_t decide(Distribution& d, const Draft& draft, const Noise& noise) {
  const double q = d.probability(draft.token), p = probability_of(draft, draft.token);
  if (uniform_at(noise.on(Stream::Acceptance)) < acceptance(q, p)) return draft.token;
  std::vector<int32_t> ids;
  std::vector<double> rest;
  d.probabilities(ids, rest);
  const double total = subtract(draft, ids, rest);
  return ids[pick(rest, total, uniform_at(noise.on(Stream::Residual)))];
}

}  // namespace headrace::sampling

// The candidates of one draw while the stages thin them out.
//
// Two forms with one meaning. Dense: a logit per id of the vocabulary, −infinity = not a candidate,
// in id order. Sorted: the survivors only, logit descending, id ascending. It starts dense; the
// first stage that removes by rank or probability makes it sorted. Normalisers: over sixteen lanes
// when dense, sequential in sorted order when sorted.
#pragma once

#include "sampler.h"

namespace headrace::sampling {

class Distribution {
 public:
  // Logits of ids 0 … n−1, at least one finite, none NaN or +infinity.
  Distribution(const float* row, int64_t n, const Passes& passes, Scratch& scratch);

  // Editing stages; dense form only. Ids outside 0 … n−1 are passed over.
  void allow_only(const std::vector<int32_t>& ids);
  void ban(const std::vector<int32_t>& ids);
  void add_bias(const std::vector<std::pair<int32_t, double>>& bias);
  void penalise(const SamplerState& state);

  // Thinning stages. Each keeps at least one candidate; each returns whether it was on.
  bool temperature(double t);
  bool top_k(int64_t k);
  bool typical(double mass);
  bool top_p(double mass);
  bool min_p(double fraction);
  void keep_highest();

  bool empty();  // no candidate is left (only editing can do that)
  int32_t draw(const Noise& noise);
  // Log-probability, rank and the top_n highest under this distribution; the token is a candidate.
  void score(int32_t token, int64_t top_n, RowResult& result);
  Snapshot snapshot(int64_t top_n);

 private:
  double highest();
  // Weights e^(z − highest) into scratch.weights (dense) and their sum.
  double weigh();
  double entropy(double sum);
  void sort_all();
  void select(int64_t k, std::vector<Candidate>& out) const;
  void collect_above(double lowest, std::vector<Candidate>& out) const;

  const Passes& passes_;
  Scratch& scratch_;
  double* z_;  // [n_]
  int64_t n_;
  bool dense_ = true;
};

// score_row (sampler.h) inside an environment that is already the standard one.
RowResult score_model(const float* row, int64_t num_ids, int32_t token, int64_t top_n,
                      const Passes& passes, Scratch& scratch);

}  // namespace headrace::sampling

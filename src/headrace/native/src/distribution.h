// The candidates of one draw while the stages thin them out.
//
// Two forms with one meaning. Row: the model's float32 row (or a copy in which edited ids are
// −infinity), a divisor, and the edited ids with logits of their own; nothing is computed for ids
// that cannot matter. List: the survivors, by id, or ranked (logit descending, id ascending) once a
// stage has ranked them. Normalisers: over sixteen lanes by id until ranked, then sequential.
#pragma once

#include "sampler.h"

namespace headrace::sampling {

class Distribution {
 public:
  // row: logits of ids 0 … n−1, at least one finite, none NaN or +infinity. seen: its scan, with
  // scratch.block_max.
  Distribution(const float* row, int64_t n, const RowScan& seen, const Passes& passes,
               Scratch& scratch);

  // Editing stages; row form only, before the others. Ids outside 0 … n−1 are passed over.
  void allow_only(const std::vector<int32_t>& ids);
  void allow_masked(const uint32_t* words);  // those whose bit is set
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
  // Of one id: weight ÷ normaliser; 0 if it is no candidate.
  double probability(int32_t token);
  // Of all ids where it is above 0, ascending; the same numbers.
  void probabilities(std::vector<int32_t>& ids, std::vector<double>& probability);
  // Log-probability, rank and the top_n highest under this distribution; the token is a candidate.
  void score(int32_t token, int64_t top_n, RowResult& result);
  Snapshot snapshot(int64_t top_n);
  // Row form, before the temperature stage: what that stage would give at t.
  GridPoint at_temperature(double t);

 private:
  Candidate first();  // in candidate order; logit −infinity if there is none
  Moments moments(double top);
  float* own_row();             // the copy that editing writes to
  void scan_edited();           // after editing
  double logit_of(int32_t id);  // −infinity if it is no candidate
  double dense_logit(int64_t id) const { return static_cast<double>(x_[id]) / t_; }
  const double* dense();  // logits by id, edited ones in their places
  // The list becomes all candidates with low ≤ z ≤ high, and possibly some just outside.
  void gather(double low, double high);
  void gather_first(int64_t k);  // the list becomes the k first, ranked
  void become_ranked(double top);
  bool cut(double target, double top);
  bool cut_typical(double target, double top, double log_sum, double mean, double radius);
  // The k first, ranked, leaving the candidates as they are.
  std::vector<Candidate> select(int64_t k);

  const Passes& passes_;
  Scratch& scratch_;
  const float* x_;  // [n_]
  const float* block_max_;
  const int64_t n_;
  RowScan seen_;                         // of x_
  double t_ = 1;                         // divides x_
  bool edited_ = false, stale_ = false;  // x_ is a copy; it has changed since seen_
  bool listed_ = false, ranked_ = false;
};

// score_row (sampler.h) inside an environment that is already the standard one, for a row that is
// already scanned.
RowResult score_model(const float* row, int64_t num_ids, const RowScan& seen, int32_t token,
                      int64_t top_n, const Passes& passes, Scratch& scratch);

}  // namespace headrace::sampling

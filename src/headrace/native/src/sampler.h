// One token per row of logits: the stages of docs/sampling.md, then a keyed Gumbel-max draw or, for
// a drafted token, the rejection rule.
//
// A draw depends on the row, the request's own parameters, seed, sample index and token counts, and
// the absolute position of the token drawn; never on other rows. Float64 throughout; a row that
// cannot be sampled gets a status, never a crash. No Python and no threads in here.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ranking.h"
#include "sampler_passes.h"

namespace headrace::sampling {

enum class Stage : int32_t { Bias, Penalties, Temperature, TopK, Typical, TopP, MinP };
constexpr int kNumStages = 7;

// Checked by engine/params.py; ids outside the row's vocabulary are passed over here.
struct Params {
  double temperature = 1, top_p = 1, min_p = 0, typical_p = 1;
  double repetition_penalty = 1, presence_penalty = 0, frequency_penalty = 0;
  int64_t top_k = 0;  // ≤ 0 = off
  std::vector<std::pair<int32_t, double>> bias;
  bool has_allowed = false;
  std::vector<int32_t> allowed, banned;
  int64_t min_tokens = 0;
  std::vector<int32_t> stop_ids;  // banned while fewer than min_tokens are out
  std::array<Stage, kNumStages> order{};
  int64_t num_logprobs = -1;  // −1 = none, k = the drawn token's and the k highest
  bool processed_logprobs = false;
  int64_t trace = 0;  // candidates named per stage; 0 = no trace

  bool greedy() const { return temperature == 0 || top_p == 0; }
  bool penalised() const {
    return repetition_penalty != 1 || presence_penalty != 0 || frequency_penalty != 0;
  }
};

// One sample of one request: what a draw depends on besides the logits.
class SamplerState {
 public:
  SamplerState(std::shared_ptr<const Params> params, uint64_t seed, uint32_t sample_index,
               const int32_t* prompt, int64_t prompt_length);

  // Counts one output token. Call it once per token that stays in the output.
  void accept(int32_t token);
  // The same request and history under another sample index.
  SamplerState fork(uint32_t sample_index) const;

  struct Seen {
    int32_t id;
    bool in_prompt;
    int64_t num_output;
  };
  const Params& params() const { return *params_; }
  uint64_t seed() const { return seed_; }
  uint32_t sample_index() const { return sample_index_; }
  int64_t num_output() const { return num_output_; }
  const std::vector<Seen>& seen() const { return seen_; }  // empty without penalties

 private:
  Seen& entry(int32_t token);

  std::shared_ptr<const Params> params_;
  uint64_t seed_;
  uint32_t sample_index_;
  int64_t num_output_ = 0;
  std::vector<Seen> seen_;
  std::unordered_map<int32_t, size_t> where_;
};

// A distribution as a trace shows it. probability = e^(logit − log_normaliser).
struct Snapshot {
  int64_t num_candidates;
  double entropy;                               // nats
  double tail_mass;                             // probability of the candidates not named
  double log_normaliser;                        // ln Σ e^logit over all candidates
  std::vector<std::pair<int32_t, double>> top;  // id, probability
  std::vector<double> logits;                   // of top
};
// The same at the temperatures of a trace's grid, of the logits after bias and penalties.
constexpr std::array<double, 24> kTraceTemperatures{0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6,
                                                    0.7, 0.8,  0.9, 1.0,  1.1, 1.2, 1.3, 1.4,
                                                    1.5, 1.6,  1.7, 1.8,  1.9, 2.0, 3.0, 5.0};
struct GridPoint {
  double temperature, entropy, log_normaliser;
};
struct StageRecord {
  Stage stage;
  bool active;
  Snapshot after;
};

enum class Status : int32_t {
  Ok = 0,
  NonFinite = 1,     // a NaN, a +infinity, or no finite logit
  NoCandidates = 2,  // every finite logit is banned or not allowed
};

// A proposed token and the distribution it was drawn from, in the caller's memory.
struct Draft {
  int32_t token = -1;
  int64_t size = 0;              // of the distribution; 0 = all mass is on the token
  const int32_t* ids = nullptr;  // ascending
  const double* probabilities = nullptr;
};

// How a row's token is chosen.
struct Choice {
  Stream stream = Stream::Draw;  // of the Gumbel noise of a draw
  const Draft* draft = nullptr;  // not null: the rejection rule (rejection.h) instead of a draw
  bool distribution = false;     // report the processed distribution as well
};

struct RowResult {
  Status status = Status::Ok;
  int32_t token = -1;
  std::vector<int32_t> ids;           // the processed distribution, if asked for: ascending ids
  std::vector<double> probabilities;  // of these
  double logprob = 0;                 // meaningful if logprobs were asked for, like rank and top
  int64_t rank = 0;                   // 1 = highest
  std::vector<std::pair<int32_t, double>> top;  // id, logprob; descending
  bool traced = false;
  Snapshot model;  // before all stages
  std::vector<GridPoint> grid;
  std::vector<StageRecord> stages;
};

// ln Z − Σ w·d / Z in nats, not below 0.
static inline double entropy_of(const Moments& m) {
  const double value = natural_log(m.sum) - m.depth / m.sum;
  return value > 0 ? value : 0;
}

// Scratch memory for one thread; grows to the vocabulary once.
struct Scratch {
  std::vector<float> block_max;        // of the model's row
  std::vector<float> row, edited_max;  // the edited row and its blocks
  std::vector<float> maxima;           // reordered
  std::vector<double> logits;          // by id, where edited ids need their places
  std::vector<Candidate> edits, list;  // distribution.h
  std::vector<double> weights;         // of list
  std::vector<int32_t> ids, bins;
  RankScratch ranking;

  int64_t size() const { return static_cast<int64_t>(list.size()); }
  double* weights_for_list() {
    if (weights.size() < list.size()) weights.resize(list.size());
    return weights.data();
  }
  int32_t* ids_for(int64_t n) {
    if (ids.size() < static_cast<size_t>(n)) ids.resize(static_cast<size_t>(n));
    return ids.data();
  }
};

// Chooses a token from row [num_ids]. mask: only ids whose bit (id & 31 of word id >> 5) is set may
// be drawn; null = all. Sets the standard float environment and restores it.
RowResult sample_row(const float* row, int64_t num_ids, const SamplerState& state,
                     const uint32_t* mask, uint32_t position, const Choice& choice,
                     const Passes& passes, Scratch& scratch);

// The model's own log-probability of `token` (rank and `top_n` highest with it) in row [num_ids].
// Sets and restores the float environment too.
RowResult score_row(const float* row, int64_t num_ids, int32_t token, int64_t top_n,
                    const Passes& passes, Scratch& scratch);

}  // namespace headrace::sampling

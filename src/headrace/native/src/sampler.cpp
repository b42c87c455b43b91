#include "sampler.h"

#include <xmmintrin.h>

#include <limits>

#include "distribution.h"
#include "rejection.h"

namespace headrace::sampling {

namespace {

// Round to nearest, no flushing of denormals, all exceptions masked; restored at the end of a
// scope.
class StandardFloats {
 public:
  StandardFloats() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80u); }
  ~StandardFloats() { _mm_setcsr(saved_); }
  StandardFloats(const StandardFloats&) = delete;
  StandardFloats& operator=(const StandardFloats&) = delete;

 private:
  unsigned saved_;
};

bool holds_back_stop(const SamplerState& s) {
  return s.num_output() < s.params().min_tokens && !s.params().stop_ids.empty();
}

bool edits_bias(const SamplerState& s, const uint32_t* mask) {
  const Params& p = s.params();
  return mask != nullptr || p.has_allowed || !p.banned.empty() || !p.bias.empty() ||
         holds_back_stop(s);
}

bool edit_bias(Distribution& d, const SamplerState& s, const uint32_t* mask) {
  if (!edits_bias(s, mask)) return false;
  const Params& p = s.params();
  if (mask != nullptr) d.allow_masked(mask);
  if (p.has_allowed) d.allow_only(p.allowed);
  d.ban(p.banned);
  if (holds_back_stop(s)) d.ban(p.stop_ids);
  d.add_bias(p.bias);
  return true;
}

bool apply(Stage stage, Distribution& d, const SamplerState& s, const uint32_t* mask) {
  const Params& p = s.params();
  if (stage == Stage::Bias) return edit_bias(d, s, mask);
  if (stage == Stage::Penalties) {
    if (s.seen().empty()) return false;
    d.penalise(s);
    return true;
  }
  if (p.greedy()) {  // one stage keeps the highest, all others are off
    if (stage != (p.temperature == 0 ? Stage::Temperature : Stage::TopP)) return false;
    d.keep_highest();
    return true;
  }
  switch (stage) {
    case Stage::Temperature:
      return d.temperature(p.temperature);
    case Stage::TopK:
      return d.top_k(p.top_k);
    case Stage::Typical:
      return d.typical(p.typical_p);
    case Stage::TopP:
      return d.top_p(p.top_p);
    default:
      return d.min_p(p.min_p);
  }
}

// The stages, the choice, and what is reported of the processed distribution.
void run_stages(const float* row, int64_t num_ids, const SamplerState& state, const uint32_t* mask,
                const Choice& choice, const Noise& noise, const RowScan& seen, const Passes& passes,
                Scratch& scratch, RowResult& result) {
  const Params& p = state.params();
  Distribution d(row, num_ids, seen, passes, scratch);
  result.traced = p.trace > 0;
  if (result.traced) result.model = d.snapshot(p.trace);
  for (const Stage stage : p.order) {
    const bool active = apply(stage, d, state, mask);
    if (stage == Stage::Bias && active && d.empty()) {
      result.status = Status::NoCandidates;
      return;
    }
    if (!result.traced) continue;
    const Snapshot& previous = result.stages.empty() ? result.model : result.stages.back().after;
    Snapshot after = active ? d.snapshot(p.trace) : previous;
    result.stages.push_back({stage, active, std::move(after)});
    if (stage == Stage::Penalties)  // the logits that the other stages start from
      for (const double t : kTraceTemperatures) result.grid.push_back(d.at_temperature(t));
  }
  result.token =
      choice.draft != nullptr ? decide(d, *choice.draft, noise) : d.draw(noise.on(choice.stream));
  if (choice.distribution) d.probabilities(result.ids, result.probabilities);
  if (p.num_logprobs >= 0 && p.processed_logprobs) d.score(result.token, p.num_logprobs, result);
}

RowScan scan_row(const float* row, int64_t num_ids, const Passes& passes, Scratch& scratch) {
  scratch.block_max.resize(static_cast<size_t>(num_blocks(num_ids)));
  return passes.scan(row, num_ids, scratch.block_max.data());
}

bool is_finite(const RowScan& seen) {
  return !seen.invalid && seen.max > -std::numeric_limits<float>::infinity();
}

}  // namespace

SamplerState::SamplerState(std::shared_ptr<const Params> params, uint64_t seed,
                           uint32_t sample_index, const int32_t* prompt, int64_t prompt_length)
    : params_(std::move(params)), seed_(seed), sample_index_(sample_index) {
  // Only the repetition penalty looks at the prompt.
  if (params_->repetition_penalty != 1)
    for (int64_t i = 0; i < prompt_length; ++i) entry(prompt[i]).in_prompt = true;
}

void SamplerState::accept(int32_t token) {
  ++num_output_;
  if (params_->penalised()) ++entry(token).num_output;
}

SamplerState SamplerState::fork(uint32_t sample_index) const {
  SamplerState copy = *this;
  copy.sample_index_ = sample_index;
  return copy;
}

SamplerState::Seen& SamplerState::entry(int32_t token) {
  const auto [at, is_new] = where_.try_emplace(token, seen_.size());
  if (is_new) seen_.push_back({token, false, 0});
  return seen_[at->second];
}

RowResult sample_row(const float* row, int64_t num_ids, const SamplerState& state,
                     const uint32_t* mask, uint32_t position, const Choice& choice,
                     const Passes& passes, Scratch& scratch) {
  const StandardFloats floats;
  const Params& p = state.params();
  RowResult result;
  const RowScan seen = scan_row(row, num_ids, passes, scratch);
  if (!is_finite(seen)) {
    result.status = Status::NonFinite;
    return result;
  }
  const bool edited = edits_bias(state, mask) || !state.seen().empty();
  const bool processed = p.num_logprobs >= 0 && p.processed_logprobs;
  if (p.greedy() && !edited && !processed && p.trace == 0) {
    result.token = static_cast<int32_t>(seen.argmax);
    if (choice.distribution) {
      result.ids = {result.token};
      result.probabilities = {1.0};
    }
  } else {
    const Noise noise{state.seed(), position, state.sample_index(), 0};
    run_stages(row, num_ids, state, mask, choice, noise, seen, passes, scratch, result);
  }
  if (result.status == Status::Ok && p.num_logprobs >= 0 && !p.processed_logprobs) {
    RowResult own = score_model(row, num_ids, seen, result.token, p.num_logprobs, passes, scratch);
    result.logprob = own.logprob;
    result.rank = own.rank;
    result.top = std::move(own.top);
  }
  return result;
}

RowResult score_row(const float* row, int64_t num_ids, int32_t token, int64_t top_n,
                    const Passes& passes, Scratch& scratch) {
  const StandardFloats floats;
  const RowScan seen = scan_row(row, num_ids, passes, scratch);
  if (is_finite(seen)) return score_model(row, num_ids, seen, token, top_n, passes, scratch);
  RowResult result;
  result.status = Status::NonFinite;
  return result;
}

}  // namespace headrace::sampling

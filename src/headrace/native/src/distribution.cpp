#include "distribution.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <functional>
#include <limits>

namespace headrace::sampling {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNever = -kInfinity;
constexpr double kEnough = 1 + 1e-9;  // room for sums in another order
constexpr double kDeepest = 1024;     // below, every weight is 0

// At or below v, whatever v's own rounding; finite.
float below(double v) {
  const float f = std::nextafter(std::nextafter(static_cast<float>(v), -FLT_MAX), -FLT_MAX);
  return std::max(f, -FLT_MAX);
}
float above(double v) { return -below(-v); }

// Unsigned numbers in the order of the floats.
uint32_t ordered_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
float from_ordered_bits(uint32_t bits) {
  bits = bits & 0x80000000u ? bits & 0x7fffffffu : ~bits;
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

bool by_id(const Candidate& a, const Candidate& b) { return a.id < b.id; }

// A number at or below the k-th largest entry of a row. With at most as many as there are blocks,
// the k-th largest of the blocks' maxima; else the edge of the bin of float bits that holds it.
float bar_of(const float* x, int64_t n, const float* block_max, int64_t k, Scratch& scratch) {
  const int64_t blocks = num_blocks(n);
  if (k <= blocks) {
    scratch.maxima.assign(block_max, block_max + blocks);
    const auto kth = scratch.maxima.begin() + static_cast<std::ptrdiff_t>(k - 1);
    std::nth_element(scratch.maxima.begin(), kth, scratch.maxima.end(), std::greater<float>());
    return std::max(*kth, -FLT_MAX);
  }
  constexpr int kShift = 20;  // sign, exponent, 3 bits of the mantissa
  scratch.bins.assign(size_t{1} << (32 - kShift), 0);
  for (int64_t i = 0; i < n; ++i) ++scratch.bins[ordered_bits(x[i]) >> kShift];
  size_t bin = scratch.bins.size();
  for (int64_t count = 0; count < k && bin > 0;) count += scratch.bins[--bin];
  const float edge = from_ordered_bits(static_cast<uint32_t>(bin) << kShift);
  return edge > -FLT_MAX ? edge : -FLT_MAX;  // the lowest bins are −infinity and NaN
}

// The k first entries of a row, and possibly others after them; by id.
void gather_highest(const float* x, int64_t n, const float* block_max, double t, int64_t k,
                    const Passes& passes, Scratch& scratch, std::vector<Candidate>& out) {
  out.clear();
  if (k <= 0) return;
  const float bar = bar_of(x, n, block_max, k, scratch);
  const int64_t count = passes.between(x, n, block_max, bar, std::numeric_limits<float>::infinity(),
                                       scratch.ids_for(n));
  out.resize(static_cast<size_t>(count));
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = {static_cast<double>(x[scratch.ids[i]]) / t, scratch.ids[i]};
}

}  // namespace

Distribution::Distribution(const float* row, int64_t n, const RowScan& seen, const Passes& passes,
                           Scratch& scratch)
    : passes_(passes),
      scratch_(scratch),
      x_(row),
      block_max_(scratch.block_max.data()),
      n_(n),
      seen_(seen) {
  scratch.edits.clear();
}

// ---- editing ----------------------------------------------------------------------------------

float* Distribution::own_row() {
  if (!edited_) {
    scratch_.row.assign(x_, x_ + n_);
    x_ = scratch_.row.data();
    edited_ = true;
  }
  stale_ = true;
  return scratch_.row.data();
}

void Distribution::scan_edited() {
  if (!stale_) return;
  scratch_.edited_max.resize(static_cast<size_t>(num_blocks(n_)));
  block_max_ = scratch_.edited_max.data();
  seen_ = passes_.scan(x_, n_, scratch_.edited_max.data());
  stale_ = false;
}

void Distribution::allow_only(const std::vector<int32_t>& ids) {
  const float* old = x_;
  std::vector<std::pair<int32_t, float>> kept;
  kept.reserve(ids.size());
  for (int32_t id : ids)
    if (id >= 0 && id < n_) kept.emplace_back(id, old[id]);
  float* x = own_row();
  std::fill(x, x + n_, -std::numeric_limits<float>::infinity());
  for (const auto& [id, logit] : kept) x[id] = logit;
}

void Distribution::allow_masked(const uint32_t* words) {
  if (!edited_) scratch_.row.resize(static_cast<size_t>(n_));
  float* out = scratch_.row.data();
  passes_.mask(x_, words, n_, out);
  x_ = out;
  edited_ = stale_ = true;
}

void Distribution::ban(const std::vector<int32_t>& ids) {
  if (ids.empty()) return;
  float* x = own_row();
  for (int32_t id : ids)
    if (id >= 0 && id < n_) x[id] = -std::numeric_limits<float>::infinity();
}

// bias: ascending ids, each once. An edited id leaves the row and gets a logit of its own.
void Distribution::add_bias(const std::vector<std::pair<int32_t, double>>& bias) {
  if (bias.empty()) return;
  float* x = own_row();
  for (const auto& [id, amount] : bias) {
    if (id < 0 || id >= n_ || !std::isfinite(x[id])) continue;
    scratch_.edits.push_back({static_cast<double>(x[id]) + amount, id});
    x[id] = -std::numeric_limits<float>::infinity();
  }
}

void Distribution::penalise(const SamplerState& state) {
  const Params& p = state.params();
  float* x = own_row();
  const size_t num_biased = scratch_.edits.size();
  scratch_.edits.reserve(num_biased + state.seen().size());
  for (const SamplerState::Seen& seen : state.seen()) {
    if (seen.id < 0 || seen.id >= n_) continue;
    Candidate* edit;
    if (std::isfinite(x[seen.id])) {
      scratch_.edits.push_back({static_cast<double>(x[seen.id]), seen.id});
      x[seen.id] = -std::numeric_limits<float>::infinity();
      edit = &scratch_.edits.back();
    } else {  // biased, or no candidate
      const auto end = scratch_.edits.begin() + static_cast<std::ptrdiff_t>(num_biased);
      const auto at = std::lower_bound(scratch_.edits.begin(), end, Candidate{0, seen.id}, by_id);
      if (at == end || at->id != seen.id) continue;
      edit = &*at;
    }
    double z = edit->logit;
    z = z > 0 ? z / p.repetition_penalty : z * p.repetition_penalty;
    if (seen.num_output > 0) {
      z = z - p.frequency_penalty * static_cast<double>(seen.num_output);
      z = z - p.presence_penalty;
    }
    edit->logit = z;
  }
}

// ---- thinning ---------------------------------------------------------------------------------

bool Distribution::temperature(double t) {
  if (t == 1) return false;
  if (!listed_) {
    t_ = t;
    for (Candidate& c : scratch_.edits) c.logit = c.logit / t;
    return true;
  }
  std::vector<Candidate>& list = scratch_.list;
  for (Candidate& c : list) c.logit = c.logit / t;
  // Rounding can make new ties.
  if (ranked_ && !std::is_sorted(list.begin(), list.end(), before))
    std::sort(list.begin(), list.end(), before);
  return true;
}

bool Distribution::top_k(int64_t k) {
  if (k <= 0 || k >= n_) return false;
  if (!listed_) {
    gather_first(k);
  } else if (ranked_) {
    if (static_cast<size_t>(k) < scratch_.list.size()) scratch_.list.resize(static_cast<size_t>(k));
  } else {
    keep_first(scratch_.list, static_cast<size_t>(k), first().logit, scratch_.ranking);
  }
  listed_ = ranked_ = true;
  return true;
}

bool Distribution::top_p(double mass) {
  if (mass >= 1) return false;
  const double top = first().logit, target = mass * moments(top).sum;
  if (listed_) {
    become_ranked(top);
    cut(target, top);
    return true;
  }
  // The prefix is usually short: only as deep as the mass lies. Too shallow by rounding:
  // everything.
  for (double depth = 2;; depth *= 2) {
    const bool all = depth > kDeepest;
    gather(all ? kNever : top - depth, kInfinity);
    double sum = 0;
    passes_.weigh(scratch_.list.data(), scratch_.size(), top, scratch_.weights_for_list());
    for (size_t i = 0; i < scratch_.list.size(); ++i) sum += scratch_.weights[i];
    if (!all && sum < target * kEnough) continue;
    become_ranked(top);
    if (cut(target, top) || all) return true;
  }
}

bool Distribution::cut(double target, double top) {
  std::vector<Candidate>& list = scratch_.list;
  passes_.weigh(list.data(), scratch_.size(), top, scratch_.weights_for_list());
  double reached = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    reached = reached + scratch_.weights[i];
    if (reached < target) continue;
    list.resize(i + 1);
    return true;
  }
  return false;
}

bool Distribution::typical(double mass) {
  if (mass >= 1) return false;
  const double top = first().logit;
  const Moments m = moments(top);
  const double target = mass * m.sum, log_sum = natural_log(m.sum);
  const double mean = entropy_of(m);
  if (listed_) {
    become_ranked(top);
    cut_typical(target, top, log_sum, mean, kInfinity);
    return true;
  }
  // As in top_p, but around the logit whose −ln p is the entropy.
  const double centre = top + (log_sum - mean);
  for (double radius = 1;; radius *= 2) {
    const bool all = radius > kDeepest;
    const double room = radius + 1e-6 * (1 + radius) + 1e-12 * std::fabs(centre);
    gather(all ? kNever : centre - room, all ? kInfinity : centre + room);
    double sum = 0;
    passes_.weigh(scratch_.list.data(), scratch_.size(), top, scratch_.weights_for_list());
    for (size_t i = 0; i < scratch_.list.size(); ++i) sum += scratch_.weights[i];
    if (!all && sum < target * kEnough) continue;
    become_ranked(top);
    if (cut_typical(target, top, log_sum, mean, all ? kInfinity : radius)) return true;
  }
}

// Along a ranked list −ln p − mean never falls, so its magnitude falls, then grows: the candidates
// by magnitude are a merge from the turning point outwards.
//
//     −ln p − mean   −3 −2 −2 −1 | 0 1 1 4      left: runs of equal magnitude, in candidate order
//
// False, with the list untouched, if the target is not reached within the radius.
bool Distribution::cut_typical(double target, double top, double log_sum, double mean,
                               double radius) {
  std::vector<Candidate>& list = scratch_.list;
  passes_.weigh(list.data(), scratch_.size(), top, scratch_.weights_for_list());
  const double* weight = scratch_.weights.data();
  const auto signed_deviation = [&](size_t i) { return (log_sum - (list[i].logit - top)) - mean; };
  const size_t size = list.size();
  size_t turn = 0, high = size;
  while (turn < high) {
    const size_t middle = (turn + high) / 2;
    if (signed_deviation(middle) < 0)
      turn = middle + 1;
    else
      high = middle;
  }
  double reached = 0;
  size_t left = turn, right = turn;           // [left, right) is kept
  size_t hole_begin = turn, hole_end = turn;  // but for these, at the left end
  const auto reach = [&](size_t i) {
    reached = reached + weight[i];
    return reached >= target;
  };
  bool done = false;
  while (!done && (left > 0 || right < size)) {
    const double on_left = left > 0 ? -signed_deviation(left - 1) : kInfinity;
    const double on_right = right < size ? signed_deviation(right) : kInfinity;
    if (std::min(on_left, on_right) > radius) return false;
    if (left == 0 || on_right < on_left) {
      done = reach(right++);
      continue;
    }
    size_t begin = left - 1;
    while (begin > 0 && -signed_deviation(begin - 1) == on_left) --begin;
    size_t i = begin;
    while (i < left && !done) done = reach(i++);
    hole_begin = i;
    hole_end = left;
    left = begin;
  }
  if (!done && radius < kInfinity) return false;
  const auto at = [&](size_t i) { return list.begin() + static_cast<std::ptrdiff_t>(i); };
  list.resize(right);
  list.erase(at(hole_begin), at(hole_end));
  list.erase(at(0), at(left));
  return true;
}

bool Distribution::min_p(double fraction) {
  if (fraction <= 0) return false;
  const double top = first().logit;
  std::vector<Candidate>& list = scratch_.list;
  if (!listed_) {
    const double depth = fraction < 1e-300 ? kDeepest : -natural_log(fraction) + 1e-6;
    gather(top - depth - 1e-12 * std::fabs(top), kInfinity);
    std::sort(list.begin(), list.end(), by_id);
    listed_ = true;
  }
  passes_.weigh(list.data(), scratch_.size(), top, scratch_.weights_for_list());
  size_t keep = 0;
  for (size_t i = 0; i < list.size(); ++i)
    if (scratch_.weights[i] >= fraction) list[keep++] = list[i];
  list.resize(keep);
  return true;
}

void Distribution::keep_highest() {
  const Candidate highest = first();
  scratch_.list.assign(1, highest);
  listed_ = ranked_ = true;
}

// ---- forms ------------------------------------------------------------------------------------

void Distribution::gather(double low, double high) {
  scan_edited();
  const float from = below(low * t_), to = above(high * t_);
  const int64_t count = passes_.between(x_, n_, block_max_, from, to, scratch_.ids_for(n_));
  std::vector<Candidate>& list = scratch_.list;
  list.resize(static_cast<size_t>(count));
  for (size_t i = 0; i < list.size(); ++i)
    list[i] = {dense_logit(scratch_.ids[i]), scratch_.ids[i]};
  for (const Candidate& c : scratch_.edits)
    if (c.logit >= low && c.logit <= high) list.push_back(c);
}

void Distribution::gather_first(int64_t k) {
  scan_edited();
  std::vector<Candidate>& list = scratch_.list;
  gather_highest(x_, n_, block_max_, t_, k, passes_, scratch_, list);
  list.insert(list.end(), scratch_.edits.begin(), scratch_.edits.end());
  keep_first(list, static_cast<size_t>(k), first().logit, scratch_.ranking);
}

void Distribution::become_ranked(double top) {
  if (!ranked_) rank(scratch_.list, top, scratch_.ranking);
  listed_ = ranked_ = true;
}

const double* Distribution::dense() {
  if (scratch_.logits.size() < static_cast<size_t>(n_))
    scratch_.logits.resize(static_cast<size_t>(n_));
  double* z = scratch_.logits.data();
  passes_.divide(x_, z, n_, t_);
  for (const Candidate& c : scratch_.edits) z[c.id] = c.logit;
  return z;
}

std::vector<Candidate> Distribution::select(int64_t k) {
  const double top = first().logit;
  std::vector<Candidate> found;
  if (listed_) {
    found = scratch_.list;
    if (ranked_) {
      found.resize(std::min(found.size(), static_cast<size_t>(k)));
      return found;
    }
  } else {
    gather_highest(x_, n_, block_max_, t_, k, passes_, scratch_, found);
    found.insert(found.end(), scratch_.edits.begin(), scratch_.edits.end());
  }
  keep_first(found, static_cast<size_t>(k), top, scratch_.ranking);
  return found;
}

// ---- reading ----------------------------------------------------------------------------------

bool Distribution::empty() { return first().logit == kNever; }

Candidate Distribution::first() {
  if (ranked_) return scratch_.list.front();
  Candidate best{kNever, 0};
  if (!listed_) {
    scan_edited();
    if (seen_.max > -std::numeric_limits<float>::infinity())
      best = {dense_logit(seen_.argmax), static_cast<int32_t>(seen_.argmax)};
  }
  for (const Candidate& c : listed_ ? scratch_.list : scratch_.edits)
    if (before(c, best)) best = c;
  return best;
}

Moments Distribution::moments(double top) {
  if (!listed_)
    return scratch_.edits.empty() ? passes_.moments_f32(x_, n_, t_, top)
                                  : passes_.moments_f64(dense(), n_, top);
  const std::vector<Candidate>& list = scratch_.list;
  double* weight = scratch_.weights_for_list();
  passes_.weigh(list.data(), scratch_.size(), top, weight);
  constexpr int kLanes = 16;
  double sum[kLanes] = {}, depth[kLanes] = {};
  for (size_t i = 0; i < list.size(); ++i) {
    const int lane = ranked_ ? 0 : list[i].id % kLanes;
    sum[lane] = sum[lane] + weight[i];
    if (weight[i] != 0) depth[lane] = depth[lane] + weight[i] * (list[i].logit - top);
  }
  if (!ranked_)
    for (int step = kLanes / 2; step > 0; step >>= 1)
      for (int l = 0; l < step; ++l) {
        sum[l] = sum[l] + sum[l + step];
        depth[l] = depth[l] + depth[l + step];
      }
  return {sum[0], depth[0]};
}

int32_t Distribution::draw(const Noise& noise) {
  const Candidate start = first();
  Drawn best{start.id, start.logit + noise_at(noise, start.id)};
  const std::vector<Candidate>& list = listed_ ? scratch_.list : scratch_.edits;
  if (!listed_) best = passes_.draw_row(x_, n_, block_max_, t_, noise, best);
  best = passes_.draw_list(list.data(), static_cast<int64_t>(list.size()), noise, best);
  return static_cast<int32_t>(best.id);
}

double Distribution::logit_of(int32_t id) {
  for (const Candidate& c : listed_ ? scratch_.list : scratch_.edits)
    if (c.id == id) return c.logit;
  const bool in_row = !listed_ && id >= 0 && id < n_ && std::isfinite(x_[id]);
  return in_row ? dense_logit(id) : kNever;
}

double Distribution::probability(int32_t token) {
  const double logit = logit_of(token), top = first().logit;
  return logit == kNever ? 0 : exp_nonpositive(logit - top) / moments(top).sum;
}

void Distribution::probabilities(std::vector<int32_t>& ids, std::vector<double>& probability) {
  const double top = first().logit, sum = moments(top).sum;
  std::vector<Candidate>& list = scratch_.list;
  if (!listed_) {
    gather(kNever, kInfinity);
    listed_ = true;
  }
  const size_t size = list.size();
  passes_.weigh(list.data(), scratch_.size(), top, scratch_.weights_for_list());
  ids.resize(size);
  probability.resize(size);
  size_t at = 0;
  const auto put = [&](int32_t id, double p) {
    ids[at] = id;
    probability[at] = p;
    at += p > 0;
  };
  if (std::is_sorted(list.begin(), list.end(), by_id)) {
    for (size_t i = 0; i < size; ++i) put(list[i].id, scratch_.weights[i] / sum);
  } else if (size < static_cast<size_t>(n_) / 32) {
    std::vector<Candidate> by_ids(size);  // with probabilities
    for (size_t i = 0; i < size; ++i) by_ids[i] = {scratch_.weights[i] / sum, list[i].id};
    std::sort(by_ids.begin(), by_ids.end(), by_id);
    for (const Candidate& c : by_ids) put(c.id, c.logit);
  } else {  // in order by way of a row: nearly as long as the vocabulary
    scratch_.logits.assign(static_cast<size_t>(n_) + 1, 0);
    for (size_t i = 0; i < size; ++i)
      scratch_.logits[static_cast<size_t>(list[i].id)] = scratch_.weights[i] / sum;
    for (int32_t id = 0; id < n_ && at < size; ++id)
      put(id, scratch_.logits[static_cast<size_t>(id)]);
  }
  ids.resize(at);
  probability.resize(at);
}

void Distribution::score(int32_t token, int64_t top_n, RowResult& result) {
  const double top = first().logit, log_sum = natural_log(moments(top).sum);
  double logit = 0;
  int64_t ahead = 0;
  if (listed_) {
    for (const Candidate& c : scratch_.list)
      if (c.id == token) logit = c.logit;
    for (const Candidate& c : scratch_.list) ahead += before(c, {logit, token});
  } else {
    const double* z = dense();
    logit = z[token];
    for (int64_t i = 0; i < n_; ++i) ahead += z[i] > logit || (z[i] == logit && i < token);
  }
  result.logprob = (logit - top) - log_sum;
  result.rank = ahead + 1;
  for (const Candidate& c : select(top_n)) result.top.emplace_back(c.id, (c.logit - top) - log_sum);
}

Snapshot Distribution::snapshot(int64_t top_n) {
  Snapshot s{};
  const double top = first().logit;
  const Moments m = moments(top);
  s.entropy = entropy_of(m);
  s.log_normaliser = top + natural_log(m.sum);
  s.num_candidates = static_cast<int64_t>(listed_ ? scratch_.list.size() : scratch_.edits.size());
  if (!listed_)
    s.num_candidates += passes_.rank(x_, n_, -std::numeric_limits<float>::infinity(), 0) - 1;
  const std::vector<Candidate> named = select(top_n);
  double mass = 0;
  for (const Candidate& c : named) {
    const double p = exp_nonpositive(c.logit - top) / m.sum;
    s.top.emplace_back(c.id, p);
    s.logits.push_back(c.logit);
    mass = mass + p;
  }
  const bool all = static_cast<int64_t>(named.size()) == s.num_candidates;
  s.tail_mass = all || mass >= 1 ? 0 : 1 - mass;
  return s;
}

GridPoint Distribution::at_temperature(double t) {
  const double top = first().logit / t;
  Moments m;
  if (scratch_.edits.empty()) {
    m = passes_.moments_f32(x_, n_, t, top);
  } else {
    const double* z = dense();
    std::vector<double> divided(static_cast<size_t>(n_));
    for (size_t i = 0; i < divided.size(); ++i) divided[i] = z[i] / t;
    m = passes_.moments_f64(divided.data(), n_, top);
  }
  return {t, entropy_of(m), top + natural_log(m.sum)};
}

RowResult score_model(const float* row, int64_t num_ids, const RowScan& seen, int32_t token,
                      int64_t top_n, const Passes& passes, Scratch& scratch) {
  RowResult result;
  result.token = token;
  const double top = static_cast<double>(seen.max);
  const double log_sum = natural_log(passes.moments_f32(row, num_ids, 1, top).sum);
  result.logprob = (static_cast<double>(row[token]) - top) - log_sum;
  result.rank = passes.rank(row, num_ids, row[token], token);
  std::vector<Candidate>& named = scratch.list;
  gather_highest(row, num_ids, scratch.block_max.data(), 1, top_n, passes, scratch, named);
  keep_first(named, static_cast<size_t>(top_n), top, scratch.ranking);
  for (const Candidate& c : named) result.top.emplace_back(c.id, (c.logit - top) - log_sum);
  return result;
}

}  // namespace headrace::sampling

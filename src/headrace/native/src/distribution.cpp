#include "distribution.h"

#include <algorithm>
#include <limits>

namespace headrace::sampling {

namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

// The k first finite entries of x [n] in candidate order, sorted. A buffer of at most 2k holds what
// beats the k-th found so far; scanning in id order makes equal logits keep their lowest ids.
template <class T>
void select_highest(const T* x, int64_t n, int64_t k, std::vector<Candidate>& out) {
  out.clear();
  if (k <= 0) return;
  const size_t keep = static_cast<size_t>(std::min(k, n));
  const size_t limit = std::max<size_t>(2 * keep, 64);
  double bar = kNever;  // entries must be above it
  auto shrink = [&] {
    std::nth_element(out.begin(), out.begin() + static_cast<ptrdiff_t>(keep - 1), out.end(),
                     before);
    out.resize(keep);
    bar = out[keep - 1].logit;
  };
  constexpr int kChunk = 16;
  for (int64_t first = 0; first < n; first += kChunk) {
    const int64_t end = std::min<int64_t>(n, first + kChunk);
    int any = 0;
    for (int64_t i = first; i < end; ++i) any |= static_cast<double>(x[i]) > bar;
    if (!any) continue;
    for (int64_t i = first; i < end; ++i) {
      const double logit = static_cast<double>(x[i]);
      if (logit > bar) out.push_back({logit, static_cast<int32_t>(i)});
    }
    if (out.size() >= limit) shrink();
  }
  if (out.size() > keep) shrink();
  std::sort(out.begin(), out.end(), before);
}

}  // namespace

Distribution::Distribution(const float* row, int64_t n, const Passes& passes, Scratch& scratch)
    : passes_(passes), scratch_(scratch), n_(n) {
  if (scratch.logits.size() < static_cast<size_t>(n)) {
    scratch.logits.resize(static_cast<size_t>(n));
    scratch.weights.resize(static_cast<size_t>(n));
  }
  z_ = scratch.logits.data();
  passes.widen(row, z_, n);
}

// ---- editing ----------------------------------------------------------------------------------

void Distribution::allow_only(const std::vector<int32_t>& ids) {
  scratch_.marks.assign(static_cast<size_t>(n_), 0);
  for (int32_t id : ids)
    if (id >= 0 && id < n_) scratch_.marks[static_cast<size_t>(id)] = 1;
  for (int64_t i = 0; i < n_; ++i)
    if (!scratch_.marks[static_cast<size_t>(i)]) z_[i] = kNever;
}

void Distribution::ban(const std::vector<int32_t>& ids) {
  for (int32_t id : ids)
    if (id >= 0 && id < n_) z_[id] = kNever;
}

void Distribution::add_bias(const std::vector<std::pair<int32_t, double>>& bias) {
  for (const auto& [id, amount] : bias)
    if (id >= 0 && id < n_) z_[id] = z_[id] + amount;
}

void Distribution::penalise(const SamplerState& state) {
  const Params& p = state.params();
  for (const SamplerState::Seen& seen : state.seen()) {
    if (seen.id < 0 || seen.id >= n_ || z_[seen.id] == kNever) continue;
    double z = z_[seen.id];
    z = z > 0 ? z / p.repetition_penalty : z * p.repetition_penalty;
    if (seen.num_output > 0) {
      z = z - p.frequency_penalty * static_cast<double>(seen.num_output);
      z = z - p.presence_penalty;
    }
    z_[seen.id] = z;
  }
}

// ---- thinning ---------------------------------------------------------------------------------

bool Distribution::temperature(double t) {
  if (t == 1) return false;
  if (dense_) {
    passes_.divide(z_, n_, t);
    return true;
  }
  for (Candidate& c : scratch_.list) c.logit = c.logit / t;
  std::sort(scratch_.list.begin(), scratch_.list.end(), before);  // rounding can make new ties
  return true;
}

bool Distribution::top_k(int64_t k) {
  if (k <= 0 || k >= n_) return false;
  if (dense_) {
    select(k, scratch_.list);
    dense_ = false;
  } else if (static_cast<size_t>(k) < scratch_.list.size()) {
    scratch_.list.resize(static_cast<size_t>(k));
  }
  return true;
}

bool Distribution::typical(double mass) {
  if (mass >= 1) return false;
  const double sum = weigh();
  const double target = mass * sum;
  const double mean = entropy(sum), log_sum = natural_log(sum), top = highest();
  struct Entry {
    double deviation;
    Candidate candidate;
  };
  std::vector<Entry> entries;
  auto add = [&](const Candidate& c) {
    const double deviation = (log_sum - (c.logit - top)) - mean;
    entries.push_back({deviation < 0 ? -deviation : deviation, c});
  };
  if (dense_) {
    for (int64_t i = 0; i < n_; ++i)
      if (z_[i] > kNever) add({z_[i], static_cast<int32_t>(i)});
  } else {
    for (const Candidate& c : scratch_.list) add(c);
  }
  dense_ = false;
  scratch_.list.clear();
  auto nearer = [](const Entry& a, const Entry& b) {
    return a.deviation < b.deviation ||
           (a.deviation == b.deviation && before(a.candidate, b.candidate));
  };
  // Sorted piece by piece, each eight times the last: the mass is mostly reached in the first.
  double reached = 0;
  bool enough = false;
  ptrdiff_t done = 0, piece = 1024;
  const ptrdiff_t all = static_cast<ptrdiff_t>(entries.size());
  for (; done < all && !enough; piece *= 8) {
    const auto from = entries.begin() + done;
    const ptrdiff_t end = std::min(all, done + piece);
    if (end < all) std::nth_element(from, entries.begin() + end, entries.end(), nearer);
    std::sort(from, entries.begin() + end, nearer);
    for (; done < end && !enough; ++done) {
      const Candidate& c = entries[static_cast<size_t>(done)].candidate;
      scratch_.list.push_back(c);
      reached = reached + exp_nonpositive(c.logit - top);
      enough = reached >= target;
    }
  }
  std::sort(scratch_.list.begin(), scratch_.list.end(), before);
  return true;
}

bool Distribution::top_p(double mass) {
  if (mass >= 1) return false;
  const double target = mass * weigh(), top = highest();
  auto cut = [&] {  // keeps the shortest prefix that reaches the target; false: none does
    double reached = 0;
    for (size_t i = 0; i < scratch_.list.size(); ++i) {
      reached = reached + exp_nonpositive(scratch_.list[i].logit - top);
      if (reached < target) continue;
      scratch_.list.resize(i + 1);
      return true;
    }
    return false;
  };
  if (dense_) {
    // Sorting the whole vocabulary is slow, and the prefix is usually short: a histogram of the
    // mass by depth says how deep to look. Too shallow by rounding: sort everything.
    constexpr int kBins = 256;
    double bins[kBins] = {};
    auto bin = [&](double z) {
      const double depth = (top - z) * 4;
      return depth < kBins - 1 ? static_cast<int>(depth) : kBins - 1;
    };
    for (int64_t i = 0; i < n_; ++i) bins[bin(z_[i])] += scratch_.weights[static_cast<size_t>(i)];
    int deepest = 0;
    for (double mass_so_far = bins[0]; mass_so_far < target && deepest < kBins - 1;)
      mass_so_far += bins[++deepest];
    if (deepest < kBins - 1) {
      scratch_.list.clear();
      for (int64_t i = 0; i < n_; ++i)
        if (bin(z_[i]) <= deepest) scratch_.list.push_back({z_[i], static_cast<int32_t>(i)});
      std::sort(scratch_.list.begin(), scratch_.list.end(), before);
      dense_ = false;
      if (cut()) return true;
    }
    sort_all();
  }
  cut();
  return true;
}

bool Distribution::min_p(double fraction) {
  if (fraction <= 0) return false;
  const double top = highest();
  if (dense_) {
    for (int64_t i = 0; i < n_; ++i)
      if (exp_nonpositive(z_[i] - top) < fraction) z_[i] = kNever;
    return true;
  }
  std::vector<Candidate>& list = scratch_.list;
  size_t keep = 0;
  for (const Candidate& c : list)
    if (exp_nonpositive(c.logit - top) >= fraction) list[keep++] = c;
  list.resize(keep);
  return true;
}

void Distribution::keep_highest() {
  if (dense_) select(1, scratch_.list);
  dense_ = false;
  scratch_.list.resize(1);
}

// ---- reading ----------------------------------------------------------------------------------

bool Distribution::empty() { return highest() == kNever; }

double Distribution::highest() {
  return dense_ ? passes_.max(z_, n_) : scratch_.list.front().logit;
}

double Distribution::weigh() {
  const double top = highest();
  if (dense_) return passes_.weights(z_, scratch_.weights.data(), n_, top);
  double sum = 0;
  for (size_t i = 0; i < scratch_.list.size(); ++i) {
    scratch_.weights[i] = exp_nonpositive(scratch_.list[i].logit - top);
    sum = sum + scratch_.weights[i];
  }
  return sum;
}

double Distribution::entropy(double sum) {
  const double top = highest();
  double depth = 0;
  if (dense_) {
    depth = passes_.weighted_depth(z_, scratch_.weights.data(), n_, top);
  } else {
    for (size_t i = 0; i < scratch_.list.size(); ++i) {
      const double w = scratch_.weights[i];
      depth = depth + (w == 0 ? 0 : w * (scratch_.list[i].logit - top));
    }
  }
  const double value = natural_log(sum) - depth / sum;
  return value > 0 ? value : 0;
}

void Distribution::sort_all() {
  scratch_.list.clear();
  for (int64_t i = 0; i < n_; ++i)
    if (z_[i] > kNever) scratch_.list.push_back({z_[i], static_cast<int32_t>(i)});
  std::sort(scratch_.list.begin(), scratch_.list.end(), before);
  dense_ = false;
}

void Distribution::select(int64_t k, std::vector<Candidate>& out) const {
  select_highest(z_, n_, k, out);
}

int32_t Distribution::draw(const Noise& noise) {
  if (dense_) {
    const double top = highest();
    int64_t id = 0;
    while (z_[id] != top) ++id;
    return static_cast<int32_t>(passes_.draw(z_, n_, noise, {id, top + noise_at(noise, id)}).id);
  }
  Drawn best{scratch_.list.front().id, kNever};
  for (const Candidate& c : scratch_.list) {
    const double value = c.logit + noise_at(noise, c.id);
    if (value > best.value || (value == best.value && c.id < best.id)) best = {c.id, value};
  }
  return static_cast<int32_t>(best.id);
}

void Distribution::score(int32_t token, int64_t top_n, RowResult& result) {
  const double top = highest(), log_sum = natural_log(weigh());
  std::vector<Candidate> first;
  if (dense_) {
    select(top_n, first);
    result.logprob = (z_[token] - top) - log_sum;
    result.rank = 1;
    for (int64_t i = 0; i < n_; ++i)
      result.rank += z_[i] > z_[token] || (z_[i] == z_[token] && i < token);
  } else {
    const std::vector<Candidate>& list = scratch_.list;
    size_t at = 0;
    while (list[at].id != token) ++at;
    result.logprob = (list[at].logit - top) - log_sum;
    result.rank = static_cast<int64_t>(at) + 1;
    first.assign(list.begin(),
                 list.begin() + std::min<ptrdiff_t>(top_n, static_cast<ptrdiff_t>(list.size())));
  }
  for (const Candidate& c : first) result.top.emplace_back(c.id, (c.logit - top) - log_sum);
}

Snapshot Distribution::snapshot(int64_t top_n) {
  Snapshot s{};
  const double sum = weigh(), top = highest();
  s.entropy = entropy(sum);
  std::vector<Candidate> first;
  if (dense_) {
    for (int64_t i = 0; i < n_; ++i) s.num_candidates += z_[i] > kNever;
    select(top_n, first);
  } else {
    s.num_candidates = static_cast<int64_t>(scratch_.list.size());
    first.assign(scratch_.list.begin(),
                 scratch_.list.begin() + std::min<int64_t>(top_n, s.num_candidates));
  }
  double named = 0;
  for (const Candidate& c : first) {
    const double p = exp_nonpositive(c.logit - top) / sum;
    s.top.emplace_back(c.id, p);
    named = named + p;
  }
  const bool all = static_cast<int64_t>(first.size()) == s.num_candidates;
  s.tail_mass = all || named >= 1 ? 0 : 1 - named;
  return s;
}

RowResult score_model(const float* row, int64_t num_ids, int32_t token, int64_t top_n,
                      const Passes& passes, Scratch& scratch) {
  RowResult result;
  result.token = token;
  const RowScan seen = passes.scan(row, num_ids);
  if (seen.invalid || seen.max == -std::numeric_limits<float>::infinity()) {
    result.status = Status::NonFinite;
    return result;
  }
  const double top = static_cast<double>(seen.max);
  const double log_sum = natural_log(passes.sum_exp_f32(row, num_ids, top));
  result.logprob = (static_cast<double>(row[token]) - top) - log_sum;
  result.rank = passes.rank(row, num_ids, row[token], token);
  std::vector<Candidate>& first = scratch.list;
  select_highest(row, num_ids, top_n, first);
  for (const Candidate& c : first) result.top.emplace_back(c.id, (c.logit - top) - log_sum);
  return result;
}

}  // namespace headrace::sampling

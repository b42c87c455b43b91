// headrace.native._core: SamplerParams, SamplerState, sample, propose, token_logprobs.
// Checks shapes and ranges, releases the interpreter lock around the work, and returns plain Python
// values.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <exception>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>

#include "bind.h"
#include "dispatch.h"
#include "pool.h"
#include "rejection.h"
#include "sampler.h"

namespace headrace {

namespace {

using namespace headrace::sampling;

using Logits = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Ids = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Words = nb::ndarray<const uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Masks = std::optional<std::vector<std::optional<Words>>>;
using Pairs = std::vector<std::pair<int32_t, double>>;
using Doubles = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
// A draft: its token, and the ids and probabilities it was drawn from, or None for all mass on it.
using Listed = std::pair<Ids, Doubles>;
using Proposed = std::pair<int32_t, std::optional<Listed>>;
using Drafts = std::optional<std::vector<std::optional<Proposed>>>;

const Passes& choose_passes() {
  const std::string isa = choose_kernels(std::nullopt).isa;
  if (isa == "avx512bf16") return avx512bf16::sampler_passes();
  if (isa == "avx512") return avx512::sampler_passes();
  return avx2::sampler_passes();
}

// Kept between calls: fresh memory for a large vocabulary costs more than the draw itself.
Scratch& thread_scratch() {
  static thread_local Scratch scratch;
  return scratch;
}

// Waking the workers costs some tens of microseconds: about this many logits read by one.
constexpr int64_t kWorthSharing = int64_t{1} << 20;

// Calls row(i) for every row, on all workers of a pool where that pays. Which worker takes a row
// changes nothing: rows know nothing of each other.
template <class Row>
void for_rows(Pool* pool, size_t num_rows, int64_t num_ids, Row&& row) {
  if (pool == nullptr || num_rows < 2 || static_cast<int64_t>(num_rows) * num_ids < kWorthSharing) {
    for (size_t i = 0; i < num_rows; ++i) row(i);
    return;
  }
  std::atomic<size_t> next{0};
  std::exception_ptr failure;  // a job must not throw; no memory is the only reason
  std::mutex guard;
  pool->run([&](int, Barrier&) {
    try {
      for (size_t i = next.fetch_add(1); i < num_rows; i = next.fetch_add(1)) row(i);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(guard);
      failure = std::current_exception();
    }
  });
  if (failure) std::rethrow_exception(failure);
}

std::shared_ptr<Params> make_params(double temperature, int64_t top_k, double top_p, double min_p,
                                    double typical_p, double repetition_penalty,
                                    double presence_penalty, double frequency_penalty, Pairs bias,
                                    std::optional<std::vector<int32_t>> allowed,
                                    std::vector<int32_t> banned, int64_t min_tokens,
                                    std::vector<int32_t> stop_ids, std::vector<int32_t> order,
                                    int64_t num_logprobs, bool processed_logprobs, int64_t trace) {
  auto p = std::make_shared<Params>();
  p->temperature = temperature;
  p->top_k = top_k;
  p->top_p = top_p;
  p->min_p = min_p;
  p->typical_p = typical_p;
  p->repetition_penalty = repetition_penalty;
  p->presence_penalty = presence_penalty;
  p->frequency_penalty = frequency_penalty;
  for (size_t i = 1; i < bias.size(); ++i)
    if (bias[i].first <= bias[i - 1].first)
      throw std::invalid_argument("bias must hold ascending ids, each once");
  p->bias = std::move(bias);
  p->has_allowed = allowed.has_value();
  if (allowed) p->allowed = std::move(*allowed);
  p->banned = std::move(banned);
  p->min_tokens = min_tokens;
  p->stop_ids = std::move(stop_ids);
  if (order.size() != kNumStages || order[0] != 0 || order[1] != 1)
    throw std::invalid_argument("order must hold 0, 1 and then the stages 2 … 6 in any order");
  unsigned named = 0;
  for (int i = 0; i < kNumStages; ++i) {
    if (order[i] < 0 || order[i] >= kNumStages || (named >> order[i] & 1u))
      throw std::invalid_argument("order must hold each stage 0 … 6 once");
    named |= 1u << order[i];
    p->order[i] = static_cast<Stage>(order[i]);
  }
  p->num_logprobs = num_logprobs;
  p->processed_logprobs = processed_logprobs;
  p->trace = trace;
  return p;
}

// (candidates, entropy, tail mass, log normaliser, [(id, probability)], [logit])
nb::object snapshot(const Snapshot& s) {
  return nb::make_tuple(s.num_candidates, s.entropy, s.tail_mass, s.log_normaliser, nb::cast(s.top),
                        nb::cast(s.logits));
}

// None, or (model snapshot, [(stage, active, snapshot after it)],
// [(temperature, entropy, log normaliser)])
nb::object trace(const RowResult& r) {
  if (!r.traced) return nb::none();
  nb::list stages;
  for (const StageRecord& s : r.stages)
    stages.append(nb::make_tuple(static_cast<int>(s.stage), s.active, snapshot(s.after)));
  nb::list grid;
  for (const GridPoint& p : r.grid)
    grid.append(nb::make_tuple(p.temperature, p.entropy, p.log_normaliser));
  return nb::make_tuple(snapshot(r.model), stages, grid);
}

// (logprob, rank, [(id, logprob)])
nb::object scored(const RowResult& r) { return nb::make_tuple(r.logprob, r.rank, nb::cast(r.top)); }

int64_t check_ids(int64_t num_ids, size_t vocabulary) {
  if (num_ids < 1 || num_ids > static_cast<int64_t>(vocabulary))
    throw std::invalid_argument("num_ids = " + std::to_string(num_ids) +
                                " is not in 1 … V = " + std::to_string(vocabulary));
  return num_ids;
}

// The words of every row's mask, null where a row has none.
std::vector<const uint32_t*> words_of(const Masks& masks, size_t num_rows, int64_t num_ids) {
  std::vector<const uint32_t*> words(num_rows, nullptr);
  if (!masks) return words;
  if (masks->size() != num_rows)
    throw std::invalid_argument("logits has " + std::to_string(num_rows) + " rows, masks " +
                                std::to_string(masks->size()));
  const size_t needed = static_cast<size_t>((num_ids + 31) / 32);
  for (size_t i = 0; i < num_rows; ++i) {
    const std::optional<Words>& mask = (*masks)[i];
    if (!mask) continue;
    if (mask->shape(0) < needed)
      throw std::invalid_argument("a mask has " + std::to_string(mask->shape(0)) + " words, and " +
                                  std::to_string(num_ids) + " ids need " + std::to_string(needed));
    words[i] = mask->data();
  }
  return words;
}

// The arguments that every choice of tokens has, checked.
struct Rows {
  size_t size, vocabulary;
  int64_t num_ids;
  const float* logits;
  std::vector<const uint32_t*> words;
};

Rows check_rows(const Logits& logits, const std::vector<SamplerState*>& states,
                const std::vector<int64_t>& positions, int64_t num_ids, const Masks& masks) {
  const size_t n = logits.shape(0), vocabulary = logits.shape(1);
  if (states.size() != n || positions.size() != n)
    throw std::invalid_argument("logits has " + std::to_string(n) + " rows, states " +
                                std::to_string(states.size()) + ", positions " +
                                std::to_string(positions.size()));
  check_ids(num_ids, vocabulary);
  for (size_t i = 0; i < n; ++i) {
    if (states[i] == nullptr) throw std::invalid_argument("states holds None");
    if (positions[i] < 0 || positions[i] > 0xffffffffll)
      throw std::invalid_argument("a position is not in 0 … 2^32 - 1");
  }
  return {n, vocabulary, num_ids, logits.data(), words_of(masks, n, num_ids)};
}

// Chooses a token for every row; choice(i) says how. Without the interpreter lock.
template <class How>
std::vector<RowResult> choose_all(const Rows& rows, const std::vector<SamplerState*>& states,
                                  const std::vector<int64_t>& positions, Pool* pool, How&& choice) {
  const Passes& passes = choose_passes();
  std::vector<RowResult> results(rows.size);
  const nb::gil_scoped_release release;
  for_rows(pool, rows.size, rows.num_ids, [&](size_t i) {
    results[i] =
        sample_row(rows.logits + i * rows.vocabulary, rows.num_ids, *states[i], rows.words[i],
                   static_cast<uint32_t>(positions[i]), choice(i), passes, thread_scratch());
  });
  return results;
}

// The token, or (token, status, score or None, trace or None) where there is more to say.
nb::object drawn(const RowResult& r, const SamplerState& state) {
  const bool asked = state.params().num_logprobs >= 0 && r.status == Status::Ok;
  if (r.status == Status::Ok && !asked && !r.traced) return nb::cast(r.token);
  return nb::make_tuple(r.token, static_cast<int>(r.status), asked ? scored(r) : nb::none(),
                        trace(r));
}

// A numpy array that owns what the vector held.
template <class T>
nb::object array_of(std::vector<T> values) {
  auto* owned = new std::vector<T>(std::move(values));
  nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::cast(
      nb::ndarray<nb::numpy, T, nb::ndim<1>>(owned->data(), {owned->size()}, std::move(owner)));
}

nb::list propose(Logits logits, const std::vector<SamplerState*>& states,
                 const std::vector<int64_t>& positions, int64_t num_ids, Pool* pool,
                 const Masks& masks) {
  const Rows rows = check_rows(logits, states, positions, num_ids, masks);
  std::vector<RowResult> results = choose_all(
      rows, states, positions, pool, [](size_t) { return Choice{Stream::Draft, nullptr, true}; });
  nb::list proposals;
  for (RowResult& r : results)
    proposals.append(nb::make_tuple(r.token, static_cast<int>(r.status), array_of(std::move(r.ids)),
                                    array_of(std::move(r.probabilities))));
  return proposals;
}

// Ascending ids from 0 on, and as many probabilities.
void check_distribution(const Ids& ids, const Doubles& probabilities) {
  const size_t n = ids.shape(0);
  if (n == 0 || probabilities.shape(0) != n)
    throw std::invalid_argument("a distribution has " + std::to_string(n) + " ids and " +
                                std::to_string(probabilities.shape(0)) + " probabilities");
  for (size_t i = 0; i < n; ++i) {
    if (ids.data()[i] < 0 || (i > 0 && ids.data()[i] <= ids.data()[i - 1]))
      throw std::invalid_argument("a distribution's ids are not ascending from 0 on");
    if (!(probabilities.data()[i] >= 0 && probabilities.data()[i] <= 1 + 1e-9))
      throw std::invalid_argument("a distribution holds a probability that is not in 0 … 1");
  }
}

Draft check_draft(const Proposed& proposed) {
  Draft draft{proposed.first};
  if (draft.token < 0) throw std::invalid_argument("a draft's token is negative");
  if (!proposed.second) return draft;
  const auto& [ids, probabilities] = *proposed.second;
  check_distribution(ids, probabilities);
  draft.size = static_cast<int64_t>(ids.shape(0));
  draft.ids = ids.data();
  draft.probabilities = probabilities.data();
  if (probability_of(draft, draft.token) <= 0)
    throw std::invalid_argument("a draft's token has no probability where it was drawn from");
  return draft;
}

nb::list sample(Logits logits, const std::vector<SamplerState*>& states,
                const std::vector<int64_t>& positions, int64_t num_ids, Pool* pool,
                const Masks& masks, const Drafts& proposed) {
  const Rows rows = check_rows(logits, states, positions, num_ids, masks);
  if (proposed && proposed->size() != rows.size)
    throw std::invalid_argument("logits has " + std::to_string(rows.size) + " rows, drafts " +
                                std::to_string(proposed->size()));
  std::vector<Draft> drafts(proposed ? rows.size : 0);
  for (size_t i = 0; i < drafts.size(); ++i)
    if ((*proposed)[i]) drafts[i] = check_draft(*(*proposed)[i]);
  const std::vector<RowResult> results = choose_all(rows, states, positions, pool, [&](size_t i) {
    const bool drafted = proposed && (*proposed)[i];
    return Choice{Stream::Draw, drafted ? &drafts[i] : nullptr, false};
  });
  nb::list draws;
  for (size_t i = 0; i < rows.size; ++i) draws.append(drawn(results[i], *states[i]));
  return draws;
}

nb::object rejection_law(Ids ids, Doubles probabilities, const Proposed& proposed) {
  check_distribution(ids, probabilities);
  const Draft draft = check_draft(proposed);
  const size_t n = ids.shape(0);
  const std::vector<int32_t> candidates(ids.data(), ids.data() + n);
  std::vector<double> rest(probabilities.data(), probabilities.data() + n);
  const Draft target{draft.token, static_cast<int64_t>(n), ids.data(), probabilities.data()};
  const double kept =
      acceptance(probability_of(target, draft.token), probability_of(draft, draft.token));
  const double total = subtract(draft, candidates, rest);
  for (double& weight : rest) weight /= total;
  return nb::make_tuple(kept, array_of(std::move(rest)));
}

nb::list token_logprobs(Logits logits, Ids targets, int64_t top_n, int64_t num_ids, Pool* pool) {
  const size_t n = logits.shape(0), vocabulary = logits.shape(1);
  if (targets.shape(0) != n)
    throw std::invalid_argument("logits has " + std::to_string(n) + " rows, targets " +
                                std::to_string(targets.shape(0)));
  check_ids(num_ids, vocabulary);
  for (size_t i = 0; i < n; ++i)
    if (targets.data()[i] < 0 || targets.data()[i] >= num_ids)
      throw std::invalid_argument("targets holds id " + std::to_string(targets.data()[i]) +
                                  ", outside 0 … " + std::to_string(num_ids - 1));
  const Passes& passes = choose_passes();
  std::vector<RowResult> results(n);
  {
    nb::gil_scoped_release release;
    for_rows(pool, n, num_ids, [&](size_t i) {
      results[i] = score_row(logits.data() + i * vocabulary, num_ids, targets.data()[i], top_n,
                             passes, thread_scratch());
    });
  }
  nb::list scores;
  for (const RowResult& r : results) scores.append(r.status == Status::Ok ? scored(r) : nb::none());
  return scores;
}

}  // namespace

void register_sampler(nb::module_& m) {
  using namespace nb::literals;
  nb::class_<Params>(m, "SamplerParams", "A request's sampling parameters, compiled; immutable.")
      .def(nb::new_(&make_params), nb::kw_only(), "temperature"_a, "top_k"_a, "top_p"_a, "min_p"_a,
           "typical_p"_a, "repetition_penalty"_a, "presence_penalty"_a, "frequency_penalty"_a,
           "bias"_a, "allowed"_a.none(), "banned"_a, "min_tokens"_a, "stop_ids"_a, "order"_a,
           "num_logprobs"_a, "processed_logprobs"_a, "trace"_a);
  nb::class_<SamplerState>(m, "SamplerState", "Parameters, seed and token counts of one sample.")
      .def(
          "__init__",
          [](SamplerState* self, std::shared_ptr<Params> params, uint64_t seed,
             uint32_t sample_index, Ids prompt) {
            new (self) SamplerState(std::move(params), seed, sample_index, prompt.data(),
                                    static_cast<int64_t>(prompt.shape(0)));
          },
          "params"_a, "seed"_a, "sample_index"_a, "prompt"_a)
      .def("accept", &SamplerState::accept, "token"_a, "Counts one output token.")
      .def("fork", &SamplerState::fork, "sample_index"_a,
           "The same request and history under another sample index.")
      .def_prop_ro("seed", &SamplerState::seed)
      .def_prop_ro("sample_index", &SamplerState::sample_index)
      .def_prop_ro("num_output", &SamplerState::num_output);
  m.def(
      "sample", &sample, "logits"_a.noconvert(), "states"_a, "positions"_a, "num_ids"_a,
      "pool"_a.none() = nb::none(), "masks"_a.noconvert().none() = nb::none(),
      "drafts"_a.none() = nb::none(),
      "One entry per row: the token, or (token, status, score or None, trace or None) where there "
      "is more to say. pool: workers that share the rows. masks: None, or per row None or uint32 "
      "words; only ids whose bit (id & 31 of word id >> 5) is set can be drawn. drafts: None, or "
      "per row None or (token, (ids, probabilities) or None for all mass on the token): the "
      "rejection rule decides on it.");
  m.def("propose", &propose, "logits"_a.noconvert(), "states"_a, "positions"_a, "num_ids"_a,
        "pool"_a.none() = nb::none(), "masks"_a.noconvert().none() = nb::none(),
        "Drafts for the rejection rule, drawn with a random stream of their own: per row (token, "
        "status, ids, probabilities), the distribution being the one that was drawn from.");
  m.def("rejection_law", &rejection_law, "ids"_a, "probabilities"_a, "draft"_a,
        "What the rejection rule draws by, for one target distribution and draft: (probability "
        "that the "
        "draft is kept, probabilities of the ids if it is not).");
  m.def("token_logprobs", &token_logprobs, "logits"_a.noconvert(), "targets"_a, "top_n"_a,
        "num_ids"_a, "pool"_a.none() = nb::none(),
        "The model's own log-probabilities of given tokens, None for a row that is not finite.");
  m.def(
      "philox",
      [](std::vector<uint32_t> counter, uint64_t key) {
        if (counter.size() != 4) throw std::invalid_argument("counter must hold 4 words");
        std::vector<uint32_t> out(4);
        philox(counter.data(), key, out.data());
        return out;
      },
      "counter"_a, "key"_a, "Philox4x32-10: four words.");
  m.def("gumbel", [](uint32_t word) { return gumbel(word); }, "word"_a);
  m.def("exp_nonpositive", [](double x) { return exp_nonpositive(x); }, "x"_a);
  m.def("natural_log", [](double x) { return natural_log(x); }, "x"_a);
}

}  // namespace headrace

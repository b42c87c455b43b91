#include "pool.h"

#include <stdexcept>
#include <string>

namespace headrace {

namespace {
// About 10-20 µs of PAUSE: longer than the imbalance of a small op, short enough not to burn a core
// that someone else could use.
constexpr int kSpins = 400;
constexpr int kMaxWorkers = 1024;
}  // namespace

void wait_while_equal(const std::atomic<uint32_t>& value, uint32_t old) {
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    _mm_pause();
  }
  while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

void Barrier::wait() {
  if (count_ == 1) return;
  const uint32_t phase = phase_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == count_) {
    arrived_.store(0, std::memory_order_relaxed);
    // Sequentially consistent, not release: notify_all first looks whether anybody sleeps, and that
    // load must not pass the store, or a worker that is just lying down is never woken.
    phase_.store(phase + 1, std::memory_order_seq_cst);
    phase_.notify_all();
  } else {
    wait_while_equal(phase_, phase);
  }
}

Pool::Pool(int count) : count_(count), owner_(0) {
  if (count < 1 || count > kMaxWorkers)
    throw std::invalid_argument("num_threads=" + std::to_string(count) + " is not in 1 … " +
                                std::to_string(kMaxWorkers));
  start();
}

void Pool::start() {
  state_ = std::make_unique<State>(count_);
  owner_ = getpid();
  for (int i = 1; i < count_; ++i) state_->threads.emplace_back(work, state_.get(), i);
}

Pool::~Pool() {
  if (owner_ != getpid()) {  // a forked child: the threads do not exist here
    (void)state_.release();
    return;
  }
  state_->stop = true;
  state_->epoch.fetch_add(1, std::memory_order_seq_cst);
  state_->epoch.notify_all();
  for (std::thread& thread : state_->threads) thread.join();
}

void Pool::run_erased(Entry entry, void* context) {
  if (owner_ != getpid()) {
    (void)state_.release();
    start();
  }
  State& state = *state_;
  std::lock_guard<std::mutex> turn(state.turn);
  FlushDenormals flush;
  if (count_ > 1) {
    state.entry = entry;
    state.context = context;
    state.epoch.fetch_add(1, std::memory_order_seq_cst);  // as in Barrier::wait
    state.epoch.notify_all();
  }
  entry(context, 0, state.barrier);
  state.barrier.wait();  // nobody still works, and the job may be changed
}

uint64_t Pool::meet(int64_t rounds, uint32_t max_pauses) {
  std::vector<uint64_t> met(static_cast<size_t>(count_), 0);
  run([&](int index, Barrier& barrier) {
    uint32_t random = 2654435761u * static_cast<uint32_t>(index + 1);
    for (int64_t i = 0; i < rounds; ++i) {
      random = random * 1664525u + 1013904223u;
      for (uint32_t pauses = (random >> 8) % (max_pauses + 1); pauses > 0; --pauses) _mm_pause();
      ++met[static_cast<size_t>(index)];
      barrier.wait();
    }
  });
  uint64_t sum = 0;
  for (uint64_t n : met) sum += n;
  return sum;
}

void Pool::work(State* state, int index) {
  FlushDenormals flush;
  uint32_t epoch = 0;
  while (true) {
    wait_while_equal(state->epoch, epoch);
    ++epoch;
    if (state->stop) return;
    state->entry(state->context, index, state->barrier);
    state->barrier.wait();
  }
}

}  // namespace headrace

#include "pool.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>

namespace headrace {

namespace {
// A few microseconds of PAUSE: longer than the imbalance of a small op.
constexpr int kSpins = 200;
// Then others that want the core get it meanwhile; looks at the clock are that far apart.
constexpr int kYieldsPerLook = 8;
constexpr std::chrono::nanoseconds kLeastPatience{10000};
constexpr int kMaxWorkers = 1024;
}  // namespace

template <class Ready>
bool WaitingRoom::wait(const Ready& ready, std::chrono::nanoseconds patience) {
  for (int i = 0; i < kSpins; ++i) {
    if (ready()) return true;
    _mm_pause();
  }
  const auto end = std::chrono::steady_clock::now() + patience;
  do {
    for (int i = 0; i < kYieldsPerLook; ++i) {
      if (ready()) return true;
      sched_yield();
    }
  } while (std::chrono::steady_clock::now() < end);
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  while (true) {
    const uint32_t calls = calls_.load(std::memory_order_seq_cst);
    if (ready()) break;
    calls_.wait(calls, std::memory_order_seq_cst);
  }
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
  return false;
}

void WaitingRoom::wake_all() {
  calls_.fetch_add(1, std::memory_order_seq_cst);
  calls_.notify_all();
}

void Barrier::wait() {
  if (meeting_.count == 1) return;
  std::atomic<uint32_t>& mine = meeting_.places[static_cast<size_t>(index_)].arrivals;
  const uint32_t arrival = mine.load(std::memory_order_relaxed) + 1;
  mine.store(arrival, std::memory_order_seq_cst);
  meeting_.room.wake();
  for (int other = 0; other < meeting_.count; ++other) {
    if (other == index_) continue;
    const auto& theirs = meeting_.places[static_cast<size_t>(other)].arrivals;
    // They may be one ahead already: past this meeting, at the next.
    const auto arrived = [&] {
      return static_cast<int32_t>(theirs.load(std::memory_order_seq_cst) - arrival) >= 0;
    };
    if (arrived()) continue;
    if (meeting_.room.wait(arrived, patience_))
      patience_ = std::min(most_patience_, patience_ + patience_ / 8);
    else
      patience_ = std::max(std::min(most_patience_, kLeastPatience), patience_ / 2);
  }
}

Pool::Pool(int count, std::chrono::microseconds patience)
    : count_(count), patience_(patience), owner_(0) {
  if (count < 1 || count > kMaxWorkers)
    throw std::invalid_argument("num_threads=" + std::to_string(count) + " is not in 1 … " +
                                std::to_string(kMaxWorkers));
  start();
}

void Pool::start() {
  state_ = std::make_unique<State>(count_, patience_);
  owner_ = getpid();
  for (int i = 1; i < count_; ++i) state_->threads.emplace_back(work, state_.get(), i, patience_);
}

Pool::~Pool() {
  if (owner_ != getpid()) {  // a forked child: the threads do not exist here
    (void)state_.release();
    return;
  }
  state_->stop = true;
  state_->epoch.fetch_add(1, std::memory_order_seq_cst);
  state_->meeting.room.wake();
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
    state.epoch.fetch_add(1, std::memory_order_seq_cst);
    state.meeting.room.wake();
  }
  entry(context, 0, state.caller);
  state.caller.wait();  // nobody still works, and the job may be changed
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

void Pool::work(State* state, int index, std::chrono::microseconds patience) {
  FlushDenormals flush;
  Barrier barrier(state->meeting, index, patience);
  for (uint32_t epoch = 0;; ++epoch) {
    state->meeting.room.wait([&] { return state->epoch.load(std::memory_order_seq_cst) != epoch; },
                             patience);
    if (state->stop) return;
    state->entry(state->context, index, barrier);
    barrier.wait();
  }
}

}  // namespace headrace

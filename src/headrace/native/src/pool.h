// A persistent pool of workers that walk one job together, with spin-then-sleep barriers.
//
// The caller is worker 0; count − 1 threads are the others. Between jobs the threads stay awake for
// as long as an engine takes to prepare its next step, then sleep. All run
// with flush-to-zero and denormals-are-zero (docs/numerics.md); the caller's mode is restored.
#pragma once

#include <unistd.h>
#include <xmmintrin.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "step.h"

namespace headrace {

// Sets FTZ and DAZ for a scope.
class FlushDenormals {
 public:
  FlushDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040u); }
  ~FlushDenormals() { _mm_setcsr(saved_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  unsigned saved_;
};

// Where workers wait for each other: they spin, then let others run, then sleep; whoever changed
// something that another may wait for calls wake().
class WaitingRoom {
 public:
  // Returns once ready() is true, and whether it took no sleep. `ready` reads atomics whose writers
  // call wake() afterwards. patience: before sleep.
  template <class Ready>
  bool wait(const Ready& ready, std::chrono::nanoseconds patience);
  void wake() {
    // Sequentially consistent, as is the writer's store before: that store must not be passed by
    // this look at the sleepers, or a worker that is just lying down is never woken.
    if (sleepers_.load(std::memory_order_seq_cst) != 0) wake_all();
  }

 private:
  void wake_all();
  alignas(64) std::atomic<uint32_t> sleepers_{0};
  alignas(64) std::atomic<uint32_t> calls_{0};  // bumped to wake
};

// What the workers of a pool meet in. Each announces its arrivals in a cache line of its own and
// looks at everybody else's, so no line is written by two.
struct Meeting {
  struct alignas(64) Place {
    std::atomic<uint32_t> arrivals{0};
  };
  explicit Meeting(int count) : count(count), places(new Place[static_cast<size_t>(count)]) {}
  const int count;
  const std::unique_ptr<Place[]> places;
  WaitingRoom room;
};

// One worker's side of the meetings: all workers meet in wait(); writes before it are seen by
// everyone after it. Whoever had to sleep will be less patient the next times: where threads
// outnumber cores, the one waited for may need this very core.
class Barrier {
 public:
  Barrier(Meeting& meeting, int index, std::chrono::nanoseconds patience)
      : meeting_(meeting), index_(index), most_patience_(patience), patience_(patience) {}
  void wait();

 private:
  Meeting& meeting_;
  const int index_;
  const std::chrono::nanoseconds most_patience_;
  std::chrono::nanoseconds patience_;
};

class Pool {
 public:
  // Long enough for what an engine does between two steps; waking up from sleep takes some 40 µs.
  static constexpr std::chrono::microseconds kPatience{500};

  // Starts count − 1 threads, which wait for `patience` before they sleep. count in 1 … 1024, else
  // std::invalid_argument.
  explicit Pool(int count, std::chrono::microseconds patience = kPatience);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int count() const { return count_; }

  // Every worker calls job(index, barrier) once; returns when all have. `job` must not throw. Calls
  // from several threads take turns. After a fork the child gets fresh threads on its first call.
  template <class Job>
  void run(Job&& job) {
    run_erased(
        [](void* context, int index, Barrier& barrier) {
          (*static_cast<std::remove_reference_t<Job>*>(context))(index, barrier);
        },
        &job);
  }

  // For tests: all workers meet `rounds` times, each after 0 … max_pauses PAUSEs at random. Returns
  // how often a worker met, rounds · count.
  uint64_t meet(int64_t rounds, uint32_t max_pauses);

 private:
  using Entry = void (*)(void* context, int index, Barrier& barrier);
  struct State {
    State(int count, std::chrono::microseconds patience)
        : meeting(count), caller(meeting, 0, patience) {}
    Meeting meeting;
    Barrier caller;  // worker 0's
    std::mutex turn;
    alignas(64) std::atomic<uint32_t> epoch{0};  // bumped to start a job
    Entry entry = nullptr;
    void* context = nullptr;
    bool stop = false;
    std::vector<std::thread> threads;
  };

  void run_erased(Entry entry, void* context);
  void start();
  static void work(State* state, int index, std::chrono::microseconds patience);

  const int count_;
  const std::chrono::microseconds patience_;
  pid_t owner_;
  std::unique_ptr<State> state_;
};

// Runs one op on the pool, with zero-initialised workspaces of its own (tests, single-op bindings).
template <class Args>
void run_op(Pool& pool, OpFn<Args> op, const Args& args, const Step& step,
            Workspace workspace = {}) {
  const int64_t own = (workspace.scratch + 63) / 64 * 64,
                shared = (workspace.shared + 63) / 64 * 64;
  std::vector<std::byte> memory(static_cast<size_t>(own * pool.count() + shared + 64));
  auto start = reinterpret_cast<uintptr_t>(memory.data());
  std::byte* base = memory.data() + ((start + 63) / 64 * 64 - start);
  pool.run([&](int index, Barrier& barrier) {
    Worker worker{index, pool.count(), &barrier, base + shared + own * index, base};
    op(args, step, worker);
  });
}

}  // namespace headrace

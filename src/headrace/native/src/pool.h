// A persistent pool of workers that walk one job together, with spin-then-sleep barriers.
//
// The caller is worker 0; count − 1 threads are the others. Between jobs the threads sleep. All run
// with flush-to-zero and denormals-are-zero (docs/numerics.md); the caller's mode is restored.
#pragma once

#include <unistd.h>
#include <xmmintrin.h>

#include <atomic>
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

// Waits until `value` is no longer `old`: spins for some microseconds, then sleeps.
void wait_while_equal(const std::atomic<uint32_t>& value, uint32_t old);

// All `count` workers meet; writes before wait() are seen by everyone after it.
class Barrier {
 public:
  explicit Barrier(int count) : count_(count) {}
  void wait();

 private:
  const uint32_t count_;
  alignas(64) std::atomic<uint32_t> arrived_{0};
  alignas(64) std::atomic<uint32_t> phase_{0};
};

class Pool {
 public:
  // Starts count − 1 threads. count in 1 … 1024, else std::invalid_argument.
  explicit Pool(int count);
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
    explicit State(int count) : barrier(count) {}
    Barrier barrier;
    std::mutex turn;
    alignas(64) std::atomic<uint32_t> epoch{0};  // bumped to start a job
    Entry entry = nullptr;
    void* context = nullptr;
    bool stop = false;
    std::vector<std::thread> threads;
  };

  void run_erased(Entry entry, void* context);
  void start();
  static void work(State* state, int index);

  const int count_;
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

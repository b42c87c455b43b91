#include "program.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>

namespace headrace {

namespace {

constexpr int64_t kPage = 4096;
constexpr int64_t kMaxBufferBytes = int64_t{1} << 42;

int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument(what); }

std::string at(const char* name, int64_t index, int64_t value) {
  return std::string(name) + "[" + std::to_string(index) + "] = " + std::to_string(value);
}

// Every values[i] in low … high-1.
void check_range(const char* name, const int32_t* values, int64_t n, int64_t low, int64_t high) {
  for (int64_t i = 0; i < n; ++i)
    if (values[i] < low || values[i] >= high)
      refuse(at(name, i, values[i]) + " is not in " + std::to_string(low) + " … " +
             std::to_string(high - 1));
}

}  // namespace

Program::Program(std::shared_ptr<Pool> pool, const KernelTable& kernels, Limits limits)
    : pool_(std::move(pool)),
      kernels_(kernels),
      limits_(limits),
      vocab_(int64_t{1} << 31),
      positions_(limits.max_context) {
  if (limits.max_tokens < 1 || limits.max_tokens > 1 << 20)
    refuse("max_tokens = " + std::to_string(limits.max_tokens) + " is not in 1 … 1048576");
  if (limits.max_requests < 1 || limits.max_requests > 1 << 20)
    refuse("max_requests = " + std::to_string(limits.max_requests) + " is not in 1 … 1048576");
  if (limits.max_context < 1 || limits.max_context > 1 << 30)
    refuse("max_context = " + std::to_string(limits.max_context) + " is not in 1 … 2^30");
}

int64_t Program::capacity(RowKind rows) const {
  return rows == RowKind::PromptRows ? kMaxPromptRows : limits_.max_tokens;
}

void Program::throw_finished() { throw std::logic_error("the program is finished"); }
void Program::throw_in_rows() { throw std::logic_error("a row-wise record is still open"); }

int Program::add_buffer(int64_t bytes) {
  if (bytes < 1 || bytes > kMaxBufferBytes) refuse("buffer of " + std::to_string(bytes) + " bytes");
  // Slack at the end: a kernel may read, not write, one vector past the last row.
  buffers_.emplace_back(bytes + 64);
  return static_cast<int>(buffers_.size()) - 1;
}

int Program::add_group(int64_t layers, int64_t kv_heads, int64_t k_dim, int64_t v_dim) {
  if (layers < 1 || kv_heads < 1 || k_dim < 2 || k_dim % 2 != 0 || v_dim < 1 ||
      std::max({layers, kv_heads, k_dim, v_dim}) > 1 << 20)
    refuse("KV group of " + std::to_string(layers) + " layers, " + std::to_string(kv_heads) +
           " heads, dims " + std::to_string(k_dim) + " and " + std::to_string(v_dim));
  auto group = std::make_unique<KVGroup>();
  group->layers = layers;
  group->window = -1;
  group->memory.kv_heads = kv_heads;
  group->memory.k_dim = k_dim;
  group->memory.v_dim = v_dim;
  groups_.push_back(std::move(group));
  return static_cast<int>(groups_.size()) - 1;
}

Matrix Program::matrix(int buffer, RowKind rows, int64_t columns, int64_t stride,
                       int64_t offset) const {
  if (columns < 1 || offset < 0 || stride < 1 || columns > stride || offset > stride - columns)
    refuse("matrix of " + std::to_string(columns) + " columns at " + std::to_string(offset) +
           ", stride " + std::to_string(stride));
  std::byte* data = this->buffer(buffer, capacity(rows) * stride * 4);
  return {reinterpret_cast<float*>(data) + offset, columns, stride, rows, -1};
}

std::byte* Program::buffer(int index, int64_t bytes) const {
  if (index < 0 || index >= static_cast<int>(buffers_.size()))
    refuse("there is no buffer " + std::to_string(index));
  const Mapping& mapping = buffers_[static_cast<size_t>(index)];
  if (bytes > mapping.size() - 64)
    refuse("buffer " + std::to_string(index) + " has " + std::to_string(mapping.size() - 64) +
           " bytes, " + std::to_string(bytes) + " are needed");
  return mapping.data();
}

KVGroup& Program::group(int64_t index) const {
  if (index < 0 || index >= num_groups()) refuse("there is no KV group " + std::to_string(index));
  return *groups_[static_cast<size_t>(index)];
}

RopeTable* Program::keep(std::unique_ptr<RopeTable> table) {
  ropes_.push_back(std::move(table));
  return ropes_.back().get();
}

void Program::begin_rows(RowKind rows, int64_t tile_rows, int64_t tile_columns, OneToken one_token,
                         int64_t local_floats) {
  if (finished_) throw_finished();
  if (parts_ != nullptr) throw_in_rows();
  if (tile_rows < 1 || tile_columns < 0 || tile_columns % 32 != 0 || local_floats < 0 ||
      local_floats > kMaxBufferBytes / 4)
    refuse("row-wise record with tiles of " + std::to_string(tile_rows) + " rows and " +
           std::to_string(tile_columns) + " columns, " + std::to_string(local_floats) + " floats");
  if (one_token == OneToken::Columns && tile_columns == 0)
    refuse("row-wise record on whole rows cannot share columns");
  rows_.push_back(std::make_unique<std::vector<RowPart>>());
  parts_ = rows_.back().get();
  row_wise_ = {nullptr, 0, rows, tile_rows, tile_columns, 0, one_token};
  local_floats_ = local_floats;
}

void Program::check_part(RowKind rows) const {
  if (parts_ == nullptr) throw std::logic_error("there is no open row-wise record");
  if (rows != row_wise_.rows) refuse("a part of a row-wise record has another kind of rows");
}

void Program::end_rows(int meet) {
  if (parts_ == nullptr || parts_->empty()) throw std::logic_error("an empty row-wise record");
  row_wise_.parts = parts_->data();
  row_wise_.num_parts = static_cast<int64_t>(parts_->size());
  parts_ = nullptr;
  add(row_wise, row_wise_, row_wise_.rows, meet, {round_up(local_floats_ * 4, 64), 0});
}

void Program::check_local(int64_t columns, int64_t stride, int64_t local) const {
  if (parts_ == nullptr) throw std::logic_error("there is no open row-wise record");
  const int64_t width =
      row_wise_.tile_columns > 0 ? std::min(columns, row_wise_.tile_columns) : columns;
  if (columns < 1 || stride < width || local < 0 ||
      local > local_floats_ - ((row_wise_.tile_rows - 1) * stride + width))
    refuse("local matrix of " + std::to_string(columns) + " columns, stride " +
           std::to_string(stride) + ", at " + std::to_string(local) + " of " +
           std::to_string(local_floats_) + " floats");
}

Matrix Program::local_matrix(RowKind rows, int64_t columns, int64_t stride, int64_t local) const {
  check_local(columns, stride, local);
  return {nullptr, columns, stride, rows, local};
}

Matrix Program::with_spare(Matrix matrix, int64_t local) const {
  // Only ever used for the one row of a step of one token.
  check_local(matrix.columns, matrix.columns, local);
  matrix.local = local;
  return matrix;
}

void Program::limit_tokens(int64_t vocab) { vocab_ = std::min(vocab_, vocab); }
void Program::limit_positions(int64_t positions) { positions_ = std::min(positions_, positions); }

void Program::end_segment() {
  if (finished_) throw_finished();
  if (parts_ != nullptr) throw_in_rows();
  segment_ends_.push_back(num_ops());
  shared_in_use_ = kNever;
}

void Program::finish() {
  if (finished_) throw_finished();
  if (segment_ends_.empty() || segment_ends_.back() != num_ops()) end_segment();
  scratch_bytes_ = round_up(scratch_bytes_, kPage);
  shared_bytes_ = round_up(shared_bytes_, kPage);
  workspace_ = Mapping(shared_bytes_ + scratch_bytes_ * pool_->count());
  finished_ = true;
}

void Program::allocate_kv(const std::vector<int64_t>& num_blocks, int64_t block_size,
                          KVFormat format) {
  if (static_cast<int64_t>(num_blocks.size()) != num_groups())
    refuse("num_blocks names " + std::to_string(num_blocks.size()) + " groups, the model has " +
           std::to_string(num_groups()));
  if (block_size < 16 || block_size % 16 != 0 || block_size > 65536)
    refuse("block_size = " + std::to_string(block_size) + " is not a multiple of 16 in 16 … 65536");
  const int64_t element = format == KVFormat::F32 ? 4 : 2;
  for (size_t g = 0; g < groups_.size(); ++g) {
    KVGroup& group = *groups_[g];
    KVMemory& memory = group.memory;
    if (num_blocks[g] < 1 || num_blocks[g] * block_size > INT32_MAX)
      refuse(at("num_blocks", static_cast<int64_t>(g), num_blocks[g]) + " is out of range");
    const int64_t head_positions = memory.kv_heads * block_size * element;
    const int64_t block = round_up(head_positions * (memory.k_dim + memory.v_dim), 64);
    if (static_cast<double>(block) * static_cast<double>(num_blocks[g]) *
            static_cast<double>(group.layers) >
        static_cast<double>(kMaxBufferBytes))
      refuse("the KV memory of group " + std::to_string(g) + " would exceed 4 TiB");
    // A block's layers lie together, so a context fills whole large pages. Blocks are an odd number
    // of small pages apart, or equal parts of them would share a few sets of every cache.
    const int64_t stride = (round_up(block * group.layers, kPage) / kPage | 1) * kPage;
    memory.base = nullptr;
    group.pages = Mapping();
    group.pages = Mapping(stride * num_blocks[g]);
    group.pages.prefer_large_pages();
    memory.format = format;
    memory.num_blocks = num_blocks[g];
    memory.block_size = block_size;
    memory.block_stride = stride;
    memory.layer_stride = block;
    memory.v_offset = head_positions * memory.k_dim;
    memory.base = group.pages.data();
  }
}

void Program::copy_block(int64_t index, int64_t source, int64_t destination) {
  KVGroup& group = this->group(index);
  const KVMemory& memory = group.memory;
  if (memory.base == nullptr) refuse("KV memory is not allocated");
  for (int64_t block : {source, destination})
    if (block < 0 || block >= memory.num_blocks)
      refuse("block " + std::to_string(block) + " of group " + std::to_string(index) +
             " is not in 0 … " + std::to_string(memory.num_blocks - 1));
  if (source == destination) return;
  std::memcpy(memory.base + destination * memory.block_stride,
              memory.base + source * memory.block_stride,
              static_cast<size_t>(memory.layer_stride * group.layers));
}

void Program::check(const Step& step) const {
  const int64_t rows = step.num_tokens, requests = step.num_requests;
  if (rows < 1 || rows > limits_.max_tokens)
    refuse("tokens has " + std::to_string(rows) + " rows, not 1 … " +
           std::to_string(limits_.max_tokens));
  if (requests < 1 || requests > limits_.max_requests)
    refuse("context_lens has " + std::to_string(requests) + " requests, not 1 … " +
           std::to_string(limits_.max_requests));
  check_range("tokens", step.tokens, rows, 0, vocab_);
  check_range("positions", step.positions, rows, 0, positions_);
  check_range("context_lens", step.context_lens, requests, 1, limits_.max_context + 1);
  if (step.spans[0] != 0) refuse(at("spans", 0, step.spans[0]) + ", not 0");
  for (int64_t r = 0; r < requests; ++r)
    if (step.spans[r + 1] <= step.spans[r] || step.spans[r + 1] > rows)
      refuse(at("spans", r + 1, step.spans[r + 1]) + " does not grow from " +
             std::to_string(step.spans[r]) + " within " + std::to_string(rows) + " rows");
  if (step.spans[requests] != rows)
    refuse(at("spans", requests, step.spans[requests]) + ", but tokens has " +
           std::to_string(rows) + " rows");
  for (int64_t r = 0; r < requests; ++r)
    for (int64_t t = step.spans[r]; t < step.spans[r + 1]; ++t)
      if (step.positions[t] >= step.context_lens[r])
        refuse(at("positions", t, step.positions[t]) + " is not below " +
               at("context_lens", r, step.context_lens[r]));
  for (RowKind kind : {RowKind::LogitRows, RowKind::PromptRows}) {
    const char* name = kind == RowKind::LogitRows ? "logit_rows" : "prompt_rows";
    if (kind == RowKind::LogitRows && step.count(kind) > capacity(kind))
      refuse(std::string(name) + " has " + std::to_string(step.count(kind)) + " rows, more than " +
             std::to_string(capacity(kind)));
    check_range(name, step.rows[static_cast<int>(kind)], step.count(kind), 0, rows);
  }
  for (size_t g = 0; g < groups_.size(); ++g) check_group(step, g);
}

void Program::check_group(const Step& step, size_t index) const {
  const KVGroup& group = *groups_[index];
  const KVMemory& memory = group.memory;
  const GroupStep& arrays = step.groups[index];
  const std::string where = "group " + std::to_string(index) + ": ";
  if (memory.base == nullptr) refuse(where + "KV memory is not allocated");
  check_range("slots", arrays.slots, step.num_tokens, -1, memory.num_blocks * memory.block_size);
  check_range("first_pos", arrays.first_pos, step.num_requests, 0, INT32_MAX);
  for (int64_t r = 0; r < step.num_requests; ++r) {
    const int32_t* span = step.positions + step.spans[r];
    const int32_t* end = step.positions + step.spans[r + 1];
    const int64_t low = *std::min_element(span, end), high = *std::max_element(span, end);
    // What the queries of this request can see must be there.
    const int64_t first = group.window > 0 ? std::max<int64_t>(0, low - group.window + 1) : 0;
    const int64_t last_column = high / memory.block_size;
    if (last_column >= arrays.table_columns)
      refuse(where + "block_tables has " + std::to_string(arrays.table_columns) +
             " columns, position " + std::to_string(high) + " needs " +
             std::to_string(last_column + 1));
    const int32_t* table = arrays.block_tables + r * arrays.table_columns;
    for (int64_t c = 0; c < arrays.table_columns; ++c) {
      const bool seen = c >= first / memory.block_size && c <= last_column;
      if (table[c] < (seen ? 0 : -1) || table[c] >= memory.num_blocks)
        refuse(where + "block_tables[" + std::to_string(r) + ", " + std::to_string(c) +
               "] = " + std::to_string(table[c]) + " is not a block of 0 … " +
               std::to_string(memory.num_blocks - 1));
    }
  }
}

void Program::check_prompt_rows(const Step& step) const {
  const int64_t rows = step.count(RowKind::PromptRows);
  if (last_tokens_ == 0) refuse("no step has run yet");
  if (rows > kMaxPromptRows)
    refuse("prompt_rows has " + std::to_string(rows) + " rows, more than " +
           std::to_string(kMaxPromptRows));
  check_range("prompt_rows", step.rows[static_cast<int>(RowKind::PromptRows)], rows, 0,
              last_tokens_);
}

void Program::run(int segment, const Step& step) {
  if (!finished_ || segment < 0 || segment >= num_segments())
    throw std::logic_error("there is no finished segment " + std::to_string(segment));
  if (running_.exchange(true))
    throw std::runtime_error("a step of this program is already running");
  struct Release {
    std::atomic<bool>& running;
    ~Release() { running.store(false); }
  } release{running_};
  if (segment == 0) {
    last_tokens_ = step.num_tokens;
    for (const auto& rope : ropes_)
      rope->ensure(1 + *std::max_element(step.positions, step.positions + step.num_tokens));
  }

  const size_t begin =
      segment == 0 ? 0 : static_cast<size_t>(segment_ends_[static_cast<size_t>(segment) - 1]);
  const size_t end = static_cast<size_t>(segment_ends_[static_cast<size_t>(segment)]);
  const bool timed = !op_seconds_.empty();
  const int meet = step.one_token() ? kOneToken : kSeveralTokens;
  pool_->run([&](int index, Barrier& barrier) {
    using Clock = std::chrono::steady_clock;
    Worker worker{index, pool_->count(), &barrier,
                  workspace_.data() + shared_bytes_ + scratch_bytes_ * index, workspace_.data()};
    Clock::time_point last = timed ? Clock::now() : Clock::time_point();
    for (size_t i = begin; i < end; ++i) {
      const OpRecord& record = records_[i];
      if ((record.meet & meet) != 0 && i != begin) barrier.wait();
      if (step.count(record.rows) > 0) record.invoke(record, step, worker);
      if (timed) {
        barrier.wait();
        if (index == 0) {
          const Clock::time_point now = Clock::now();
          op_seconds_[i] = std::chrono::duration<double>(now - last).count();
          last = now;
        }
      }
    }
  });
}

void Program::profile(bool on) { op_seconds_.assign(on ? static_cast<size_t>(num_ops()) : 0, 0.0); }

}  // namespace headrace

// A record of row-wise ops: one after the other on a tile of rows, so that what one hands to the
// next is still in the first-level cache, or never leaves the worker's scratch at all.
//
//   rows of this worker   |tile|tile|tile|…      on each tile: part 0, part 1, …
//
// In steps of several tokens workers share whole rows, each the same rows in every record, so two
// row-wise records on one kind of rows need no barrier between them. A step of one token has a
// single row; how workers share that is the recorder's choice (OneToken).
#pragma once

#include <cstring>
#include <new>
#include <type_traits>

#include "step.h"

namespace headrace {

enum class OneToken : int32_t {
  Row,      // worker 0 does it
  Columns,  // each does some blocks of 32 columns; for parts that go by such blocks
  Copies    // each does all of it for itself: prepared rows have a copy per worker, worker 0 stores
            // what is shared. Costs no barrier before a matmul reads the copy
};

struct RowPart {
  void (*invoke)(const RowPart& part, const Step& step, const RowTile& tile);
  void (*kernel)();
  alignas(8) std::byte args[160];

  template <class Args>
  static RowPart make(RowFn<Args> kernel, const Args& args) {
    static_assert(std::is_trivially_copyable_v<Args> && sizeof(Args) <= sizeof(RowPart::args));
    RowPart part;
    part.kernel = reinterpret_cast<void (*)()>(kernel);
    part.invoke = [](const RowPart& p, const Step& step, const RowTile& tile) {
      reinterpret_cast<RowFn<Args>>(p.kernel)(*reinterpret_cast<const Args*>(p.args), step, tile);
    };
    new (part.args) Args(args);
    return part;
  }
};

struct RowWiseArgs {
  const RowPart* parts;
  int64_t num_parts;
  RowKind rows;
  int64_t tile_rows;     // rows of a tile
  int64_t tile_columns;  // columns of a tile, a multiple of 32; 0 = whole rows
  int64_t columns;       // of the widest matrix
  OneToken one_token;
};

void row_wise(const RowWiseArgs& args, const Step& step, Worker& worker);

}  // namespace headrace

#include "row_wise.h"

#include <algorithm>

namespace headrace {

namespace {

constexpr int64_t kBlockColumns = 32;

void run_parts(const RowWiseArgs& args, const Step& step, const RowTile& tile) {
  for (int64_t i = 0; i < args.num_parts; ++i) args.parts[i].invoke(args.parts[i], step, tile);
}

// Columns begin … end − 1 of the tile's rows, tile_columns at a time.
void run_columns(const RowWiseArgs& args, const Step& step, RowTile tile, int64_t begin,
                 int64_t end) {
  for (tile.column = begin; tile.column < end; tile.column = tile.end_column) {
    tile.end_column = std::min(end, tile.column + args.tile_columns);
    run_parts(args, step, tile);
  }
}

}  // namespace

void row_wise(const RowWiseArgs& args, const Step& step, Worker& worker) {
  const int64_t rows = step.count(args.rows);
  RowTile tile{0, rows, 0, INT64_MAX, worker.scratch, 0, false};
  if (step.one_token() && args.one_token == OneToken::Copies) {
    tile.copy = worker.index;
    tile.spare = worker.index > 0;
    if (args.tile_columns == 0) return run_parts(args, step, tile);
    return run_columns(args, step, tile, 0, args.columns);
  }
  if (step.one_token() && args.one_token == OneToken::Columns) {
    const Share mine = share(args.columns, worker, kBlockColumns);
    return run_columns(args, step, tile, mine.begin, mine.end);
  }
  const Share mine = share(rows, worker);
  for (tile.row = mine.begin; tile.row < mine.end; tile.row = tile.end_row) {
    tile.end_row = std::min(mine.end, tile.row + args.tile_rows);
    if (args.tile_columns == 0)
      run_parts(args, step, tile);
    else
      run_columns(args, step, tile, 0, args.columns);
  }
}

}  // namespace headrace

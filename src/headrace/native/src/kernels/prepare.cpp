// Activations as a matmul wants them: f32, bf16 or int8 areas, one per token (matmul.h).
//
// x: f32 [T, K] → out: T areas of row_bytes. Row-wise, by blocks of 32 columns.
#include "kernels/prepare.h"

#include "kernels/ops.h"

namespace HR_ISA {

void prepare(const headrace::PrepareArgs& args, const Step& step, const RowTile& tile) {
  const int64_t end = tile.end_column < args.x.columns ? tile.end_column : args.x.columns;
  for (int64_t row = tile.row; row < tile.end_row; ++row)
    prepare_row(args.kind, args.x.at(row, tile.column, tile), end - tile.column,
                args.out + (row + tile.copy) * args.row_bytes, tile.column);
}

int64_t activation_row_bytes(ActivationKind kind, int64_t k) {
  return headrace::activation_area_bytes(kind, k);
}

}  // namespace HR_ISA

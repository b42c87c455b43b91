// The kernels of one instruction-set level, gathered for dispatch.cpp.
#include "kernels/ops.h"

#define HR_STRING_(x) #x
#define HR_STRING(x) HR_STRING_(x)

namespace HR_ISA {

const headrace::KernelTable& kernels() {
  static constexpr headrace::KernelTable table = {
      .isa = HR_STRING(HR_ISA),
      .matmul = matmul,
      .attend = attend,
      .embed = embed,
      .rms_norm = rms_norm,
      .layer_norm = layer_norm,
      .prepare = prepare,
      .rope = rope,
      .kv_write = kv_write,
      .gated = gated,
      .gelu = gelu,
      .scale = scale,
      .soft_cap = soft_cap,
      .copy = copy,
      .exp = exp,
      .exp_nonpositive = exp_nonpositive,
      .add = add,
      .rows = rows,
      .quantize_row = quantize_row,
      .activation_row_bytes = activation_row_bytes,
      .matmul_workspace = matmul_workspace,
      .attend_workspace = attend_workspace,
  };
  return table;
}

}  // namespace HR_ISA

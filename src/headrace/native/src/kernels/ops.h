// What each kernel file defines in namespace HR_ISA, one function per op (step.h has the
// arguments).
//
// Kernel files are compiled once per instruction-set level. They must not instantiate
// standard-library templates or call inline functions of other namespaces that the compiler may
// leave out of line: the linker keeps one copy of such a function, and it could be the AVX-512 one.
// Everything they share is static or lives in HR_ISA.
#pragma once

#include "step.h"

namespace HR_ISA {

using headrace::RowTile;
using headrace::Step;
using headrace::Worker;

// kernels/prepare.cpp
void prepare(const headrace::PrepareArgs& args, const Step& step, const RowTile& tile);

// kernels/matmul.cpp
void matmul(const headrace::MatmulArgs& args, const Step& step, Worker& worker);
int64_t activation_row_bytes(headrace::ActivationKind kind, int64_t k);
headrace::Workspace matmul_workspace(const headrace::MatmulArgs& args,
                                     const headrace::Limits& limits);

// kernels/quantize.cpp
bool quantize_row(headrace::Format to, const float* x, int64_t k, uint8_t* out);

// kernels/kv_write.cpp
void kv_write(const headrace::KVWriteArgs& args, const Step& step, const RowTile& tile);

// kernels/attention.cpp
void attend(const headrace::AttendArgs& args, const Step& step, Worker& worker);
headrace::Workspace attend_workspace(const headrace::AttendArgs& args,
                                     const headrace::Limits& limits);

// kernels/elementwise.cpp
void embed(const headrace::EmbedArgs& args, const Step& step, const RowTile& tile);
void rms_norm(const headrace::RmsNormArgs& args, const Step& step, const RowTile& tile);
void layer_norm(const headrace::LayerNormArgs& args, const Step& step, const RowTile& tile);
void rope(const headrace::RopeArgs& args, const Step& step, const RowTile& tile);
void gated(const headrace::GatedArgs& args, const Step& step, const RowTile& tile);
void gelu(const headrace::UnaryArgs& args, const Step& step, const RowTile& tile);
void scale(const headrace::UnaryArgs& args, const Step& step, const RowTile& tile);
void soft_cap(const headrace::UnaryArgs& args, const Step& step, const RowTile& tile);
void copy(const headrace::UnaryArgs& args, const Step& step, const RowTile& tile);
void exp(const headrace::UnaryArgs& args, const Step& step, const RowTile& tile);
void exp_nonpositive(const headrace::UnaryArgs& args, const Step& step, const RowTile& tile);
void add(const headrace::BinaryArgs& args, const Step& step, const RowTile& tile);
void rows(const headrace::RowsArgs& args, const Step& step, const RowTile& tile);

}  // namespace HR_ISA

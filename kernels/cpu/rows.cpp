#include <cstring>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/for_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rows.cpp"
#include "hwy/foreach_target.h"
//
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace triphase::cpu::HWY_NAMESPACE {
namespace {

template <class T>
void scale_row(const T* from, std::int64_t cols, float scale, float* to) {
  const VF factor = hn::Set(DF(), scale);
  for_columns(cols, [&](std::int64_t c, std::int64_t count) {
    store_some(hn::Mul(load_some(from + c, count), factor), to + c, count);
  });
}

template <class T>
void add_row(const T* from, std::int64_t cols, float* to) {
  for_columns(cols, [&](std::int64_t c, std::int64_t count) {
    store_some(hn::Add(load_some(to + c, count), load_some(from + c, count)), to + c, count);
  });
}

}  // namespace

void embed(ThreadPool& pool, std::span<const TokenId> ids, ConstMatrix table, float scale,
           Matrix y) {
  with_type(table.dtype, [&]<class T>() {
    for_rows(pool, y.rows, y.cols, [&](std::int64_t row) {
      scale_row(row_of<T>(table.data, ids[static_cast<std::size_t>(row)], table.row_stride), y.cols,
                scale, row_of<float>(y.data, row, y.row_stride));
    });
  });
}

void add_positions(ThreadPool& pool, std::span<const std::int32_t> positions, ConstMatrix table,
                   Matrix y) {
  with_type(table.dtype, [&]<class T>() {
    for_rows(pool, y.rows, y.cols, [&](std::int64_t row) {
      add_row(row_of<T>(table.data, positions[static_cast<std::size_t>(row)], table.row_stride),
              y.cols, row_of<float>(y.data, row, y.row_stride));
    });
  });
}

}  // namespace triphase::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace triphase::cpu {
namespace {
HWY_EXPORT(embed);
HWY_EXPORT(add_positions);
}  // namespace

void embed(ThreadPool& pool, std::span<const TokenId> ids, ConstMatrix table, float scale,
           Matrix y) {
  HWY_DYNAMIC_DISPATCH(embed)(pool, ids, table, scale, y);
}

void add_positions(ThreadPool& pool, std::span<const std::int32_t> positions, ConstMatrix table,
                   Matrix y) {
  HWY_DYNAMIC_DISPATCH(add_positions)(pool, positions, table, y);
}

void gather_rows(ThreadPool& pool, ConstMatrix x, std::span<const std::int32_t> rows, Matrix y) {
  if (y.cols == 0) return;
  for_rows(pool, y.rows, y.cols, [&](std::int64_t row) {
    std::memcpy(row_of<float>(y.data, row, y.row_stride),
                row_of<float>(x.data, rows[static_cast<std::size_t>(row)], x.row_stride),
                static_cast<std::size_t>(y.cols) * sizeof(float));
  });
}

}  // namespace triphase::cpu
#endif

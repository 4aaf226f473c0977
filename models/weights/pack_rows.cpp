#include "models/weights/pack_rows.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "base/error.h"
#include "kernels/group_quant.h"
#include "models/weights/tensor_scan.h"

namespace triphase {

std::uint64_t PackedRows::pack(ThreadPool& pool, DType dtype, std::span<const std::byte> rows,
                               std::int64_t cols) {
  const auto columns = static_cast<std::size_t>(cols);
  const std::size_t row_bytes = columns * dtype_bytes(dtype);
  TRIPHASE_CHECK(cols > 0 && rows.size() % row_bytes == 0, "whole rows");
  const std::size_t count = rows.size() / row_bytes;
  const GroupMatrix shape{nullptr, static_cast<std::int64_t>(count), cols};
  const auto groups = static_cast<std::size_t>(shape.groups());
  ranges_.resize(count * groups);
  codes_.resize(count * shape.code_row_bytes());
  constexpr std::size_t kTaskValues = 65536;
  const std::size_t step = std::max<std::size_t>(1, kTaskValues / columns);
  std::atomic<std::uint64_t> lost = 0;
  pool.parallel_for(
      static_cast<std::int64_t>((count + step - 1) / step), [&](std::int64_t task, int) {
        const std::size_t first = static_cast<std::size_t>(task) * step;
        std::vector<float> values(columns);
        for (std::size_t row = first; row < std::min(count, first + step); ++row) {
          widen_to_f32(dtype, rows.subspan(row * row_bytes, row_bytes), values);
          const std::span<GroupRange> ranges = std::span(ranges_).subspan(row * groups, groups);
          pack_groups(values, kGroupValues, ranges.data(),
                      codes_.data() + row * shape.code_row_bytes());
          lost += static_cast<std::uint64_t>(std::ranges::count_if(
              ranges, [](GroupRange range) { return std::isnan(f16_to_f32(range.minimum)); }));
        }
      });
  return lost;
}

}  // namespace triphase

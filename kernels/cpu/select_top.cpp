#include "kernels/cpu/cpu_sparse_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/select_top.cpp"
#include "hwy/foreach_target.h"
//
#include "kernels/cpu/select_top-inl.h"

#if HWY_ONCE
namespace triphase::cpu {
namespace {
HWY_EXPORT(select_top);
}  // namespace

void select_top(const float* scores, std::int64_t size, std::int64_t count, std::int32_t* scratch,
                std::int32_t* to) {
  HWY_DYNAMIC_DISPATCH(select_top)(scores, size, count, scratch, to);
}

}  // namespace triphase::cpu
#endif

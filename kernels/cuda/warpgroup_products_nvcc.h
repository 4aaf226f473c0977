#pragma once

// Warpgroup products under nvcc; see warpgroup_products.h.

#include <cstdint>
#include <type_traits>

namespace triphase::cuda {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
inline constexpr bool kHasWarpgroupProducts = true;
#else
inline constexpr bool kHasWarpgroupProducts = false;
#endif

// Panels of kRows rows, as wgmma's matrix descriptor has them (PTX ISA 9.7.15.5.1.2): address,
// leading and stride offset in 16 bytes, 128-byte swizzle. Eight rows are 1024 bytes, the stride
// between groups of rows. The leading offset, from panel to panel, counts only where columns of
// panels are those of the sums.
template <int kRows>
class SharedPanels {
 public:
  static_assert(kRows % 8 == 0);

  __device__ explicit SharedPanels(const void* panels)
      : bits_(__cvta_generic_to_shared(panels) >> 4 | std::uint64_t{kRows * 128 / 16} << 16 |
              std::uint64_t{1024 / 16} << 32 | std::uint64_t{1} << 62) {}

  // From a row on, a multiple of 8, or from a column on, a multiple of 16.
  [[nodiscard]] __device__ SharedPanels from_row(int row) const { return later(row * 128); }
  [[nodiscard]] __device__ SharedPanels from_column(int column) const {
    return later(column / kPanelColumns * kRows * 128 + column % kPanelColumns * 2);
  }
  [[nodiscard]] __device__ std::uint64_t bits() const { return bits_; }

 private:
  [[nodiscard]] __device__ SharedPanels later(int bytes) const {
    SharedPanels result = *this;
    result.bits_ += static_cast<std::uint64_t>(bytes / 16);
    return result;
  }

  std::uint64_t bits_;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

__device__ __forceinline__ void publish_shared() {
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}
__device__ __forceinline__ void products_begin() {
  asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}
__device__ __forceinline__ void products_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}

namespace detail {

// So that the compiler reads sums behind the wait for their product.
template <int kTiles>
__device__ __forceinline__ void renew(float (&sums)[kTiles][4]) {
  TRIPHASE_UNROLL
  for (int n = 0; n < kTiles; ++n) {
    TRIPHASE_UNROLL
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(sums[n][i])::"memory");
  }
}

}  // namespace detail

template <int kPending, class... Sums>
__device__ __forceinline__ void products_wait(Sums&... sums) {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
  (detail::renew(sums), ...);
}

// Operands of the asm statements below: the sums of 8, 32, 64 and 128 columns, and their names.
#define TRIPHASE_SUMS_8(n) "+f"(sums[n][0]), "+f"(sums[n][1]), "+f"(sums[n][2]), "+f"(sums[n][3])
#define TRIPHASE_SUMS_32(n) \
  TRIPHASE_SUMS_8(n), TRIPHASE_SUMS_8(n + 1), TRIPHASE_SUMS_8(n + 2), TRIPHASE_SUMS_8(n + 3)
#define TRIPHASE_SUMS_64 TRIPHASE_SUMS_32(0), TRIPHASE_SUMS_32(4)
#define TRIPHASE_SUMS_128 TRIPHASE_SUMS_64, TRIPHASE_SUMS_32(8), TRIPHASE_SUMS_32(12)
#define TRIPHASE_NAMES_64                                                  \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TRIPHASE_NAMES_128                                                           \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
// Behind the sums: A, the panels of B, and whether to add. `transposed`: 1 where B's rows are k.
#define TRIPHASE_MULTIPLY(type, columns, a_text, rest_text, adds_text, transposed_text, ...) \
  asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, " adds_text                           \
               ", 0;\nwgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type   \
               " {" TRIPHASE_NAMES_##columns "}, " a_text ", " rest_text                     \
                                             ", adds, 1, 1, " transposed_text ";\n}\n"       \
               : TRIPHASE_SUMS_##columns                                                     \
               : __VA_ARGS__, "l"(b.bits()), "r"(static_cast<int>(add)))
#define TRIPHASE_MULTIPLY_PANELS(type, columns, ...) \
  TRIPHASE_MULTIPLY(type, columns, __VA_ARGS__, "0, 0", "l"(a.bits()))
#define TRIPHASE_MULTIPLY_WORDS(type, columns, transposed, ...)                              \
  TRIPHASE_MULTIPLY(type, columns, __VA_ARGS__, transposed, "r"(a[0]), "r"(a[1]), "r"(a[2]), \
                    "r"(a[3]))

namespace detail {

template <class T>
inline constexpr bool kIsHalf = std::is_same_v<T, Half>;

// A from registers.
template <class T, bool kTransposed, int kTiles, int kRows>
__device__ __forceinline__ void multiply_words(float (&sums)[kTiles][4], const unsigned (&a)[4],
                                               SharedPanels<kRows> b, bool add) {
  static_assert(kTiles == 8 || kTiles == 16);
#define TRIPHASE_BY_TYPE(transposed)                                                        \
  if constexpr (kTiles == 8 && kIsHalf<T>) {                                                \
    TRIPHASE_MULTIPLY_WORDS("f16", 64, transposed, "{%32, %33, %34, %35}", "%36", "%37");   \
  } else if constexpr (kTiles == 8) {                                                       \
    TRIPHASE_MULTIPLY_WORDS("bf16", 64, transposed, "{%32, %33, %34, %35}", "%36", "%37");  \
  } else if constexpr (kIsHalf<T>) {                                                        \
    TRIPHASE_MULTIPLY_WORDS("f16", 128, transposed, "{%64, %65, %66, %67}", "%68", "%69");  \
  } else {                                                                                  \
    TRIPHASE_MULTIPLY_WORDS("bf16", 128, transposed, "{%64, %65, %66, %67}", "%68", "%69"); \
  }
  if constexpr (kTransposed) {
    TRIPHASE_BY_TYPE("1")
  } else {
    TRIPHASE_BY_TYPE("0")
  }
#undef TRIPHASE_BY_TYPE
}

}  // namespace detail

template <class T, int kTiles, int kARows, int kBRows>
__device__ __forceinline__ void multiply_rows(float (&sums)[kTiles][4], SharedPanels<kARows> a,
                                              SharedPanels<kBRows> b, bool add) {
  static_assert(kTiles == 8 || kTiles == 16);
  if constexpr (kTiles == 8 && detail::kIsHalf<T>) {
    TRIPHASE_MULTIPLY_PANELS("f16", 64, "%32", "%33", "%34");
  } else if constexpr (kTiles == 8) {
    TRIPHASE_MULTIPLY_PANELS("bf16", 64, "%32", "%33", "%34");
  } else if constexpr (detail::kIsHalf<T>) {
    TRIPHASE_MULTIPLY_PANELS("f16", 128, "%64", "%65", "%66");
  } else {
    TRIPHASE_MULTIPLY_PANELS("bf16", 128, "%64", "%65", "%66");
  }
}
template <class T, int kTiles, int kRows>
__device__ __forceinline__ void multiply_rows(float (&sums)[kTiles][4], const unsigned (&a)[4],
                                              SharedPanels<kRows> b, bool add) {
  detail::multiply_words<T, false>(sums, a, b, add);
}
template <class T, int kTiles, int kRows>
__device__ __forceinline__ void multiply_columns(float (&sums)[kTiles][4], const unsigned (&a)[4],
                                                 SharedPanels<kRows> b, bool add) {
  detail::multiply_words<T, true>(sums, a, b, add);
}

#undef TRIPHASE_SUMS_8
#undef TRIPHASE_SUMS_32
#undef TRIPHASE_SUMS_64
#undef TRIPHASE_SUMS_128
#undef TRIPHASE_NAMES_64
#undef TRIPHASE_NAMES_128
#undef TRIPHASE_MULTIPLY
#undef TRIPHASE_MULTIPLY_PANELS
#undef TRIPHASE_MULTIPLY_WORDS

#else

// Named, so that kernels compile; where kHasWarpgroupProducts is false nothing may call them.
__device__ void publish_shared();
__device__ void products_begin();
__device__ void products_commit();
template <int kPending, class... Sums>
__device__ void products_wait(Sums&... sums);
template <class T, class Sums, class A, class B>
__device__ void multiply_rows(Sums& sums, const A& a, const B& b, bool add);
template <class T, class Sums, class A, class B>
__device__ void multiply_columns(Sums& sums, const A& a, const B& b, bool add);

#endif

}  // namespace triphase::cuda

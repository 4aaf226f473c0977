#include <string>

#include "kernels/cuda/dialect.h"
#include "kernels/cuda/kv_channels.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/sizing/cuda_workspace.h"

namespace triphase::cuda {
namespace {

constexpr int kTile = 32;
constexpr int kLines = 8;  // warps: lines of a tile at a time

// Element is as wide as the cache's type; the bits are copied. Block x: page and head, y: channels.
template <class Element>
__global__ void __launch_bounds__(kTile* kLines, 4)
    kv_write_channels_kernel(const std::int32_t* pages, const std::int32_t* to, KvCache cache,
                             KvChannels channels) {
  TRIPHASE_SHARED(Element, tile, kTile * (kTile + 1));
  const int head = static_cast<int>(blockIdx.x) % cache.kv_heads;
  const unsigned entry = blockIdx.x / static_cast<unsigned>(cache.kv_heads);
  const std::int64_t page_elements = cache.page_tokens * static_cast<std::int64_t>(cache.head_dim);
  const Element* from =
      static_cast<const Element*>(cache.k) +
      (static_cast<std::int64_t>(pages[entry]) * cache.kv_heads + head) * page_elements;
  const ChannelPlace place =
      channel_place(channels, to[entry], cache.kv_heads, head, cache.page_tokens, cache.head_dim);
  Element* const column = static_cast<Element*>(channels.data) + place.begin;
  const int first_channel = static_cast<int>(blockIdx.y) * kTile;
  for (int first = 0; first < cache.page_tokens; first += kTile) {
    const int c = first_channel + lane_id();
    for (int line = warp_id(); line < kTile; line += kLines) {
      if (c < cache.head_dim) {
        tile[line * (kTile + 1) + lane_id()] = from[(first + line) * cache.head_dim + c];
      }
    }
    __syncthreads();
    for (int line = warp_id(); line < kTile; line += kLines) {
      const int channel = first_channel + line;
      if (channel < cache.head_dim) {
        column[static_cast<std::int64_t>(channel) * place.stride + first + lane_id()] =
            tile[lane_id() * (kTile + 1) + line];
      }
    }
    __syncthreads();
  }
}

}  // namespace

void kv_write_channels(const std::int32_t* pages, const std::int32_t* to, int count,
                       const KvCache& cache, const KvChannels& channels, StreamHandle stream) {
  const auto shape = [&] {
    return shape_text({{"pages", count},
                       {"kv_heads", cache.kv_heads},
                       {"head_dim", cache.head_dim},
                       {"page_tokens", cache.page_tokens}}) +
           ", cache " + std::string(dtype_name(cache.dtype));
  };
  const LaunchCheck check("kv_write_channels", shape);
  check(cache.kv_heads > 0 && cache.head_dim > 0, "sizes must be positive");
  check(gpu_takes_pages(cache.page_tokens), "page_tokens must be 32, 64 or 128");
  check(cache.quantized() || cache.dtype == DType::kF16 || cache.dtype == DType::kBF16,
        "the cache must be F16, BF16 or U8");
  check(count >= 0 && pages != nullptr && to != nullptr && cache.k != nullptr &&
            channels.data != nullptr,
        "null pointer");
  check(channels.pages > 0 && channels.run > 0 && (channels.run & (channels.run - 1)) == 0,
        "K^T needs pages, and a power of two of them side by side");
  if (count == 0) return;
  const dim3 grid{static_cast<unsigned>(count * cache.kv_heads),
                  static_cast<unsigned>(ceil_div(cache.head_dim, kTile)), 1};
  if (cache.quantized()) {
    TRIPHASE_LAUNCH((kv_write_channels_kernel<unsigned char>), grid, kTile * kLines, 0, stream,
                    pages, to, cache, channels);
  } else {
    TRIPHASE_LAUNCH((kv_write_channels_kernel<std::uint16_t>), grid, kTile * kLines, 0, stream,
                    pages, to, cache, channels);
  }
  check_launched("kv_write_channels", shape);
}

}  // namespace triphase::cuda

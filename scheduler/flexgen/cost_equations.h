#pragma once

// FlexGen's own model of time and memory (ICML 2023, appendix A.2 of the paper and the constants of
// its published code), written once as linear functions of the nine placement shares, so that the
// linear program and a direct evaluation cannot disagree. PURE. Bytes, seconds, operations.
//
// Where paper and code differ, both are options: the paper takes the maximum of five concurrent
// times, the code adds the weight loads to the maximum of the other four. Host KV is charged as
// attention on the CPU; contexts are priced at their mean, s + n / 2.

#include <array>
#include <cstdint>
#include <vector>

namespace triphase::flexgen {

// w, c, h: weights, KV cache, hidden states; g, c, n: device, host, disk. Each triple sums to 1.
struct Shares {
  double wg = 1.0, wc = 0.0, wn = 0.0;
  double cg = 1.0, cc = 0.0, cn = 0.0;
  double hg = 1.0, hc = 0.0, hn = 0.0;
};
inline constexpr int kShares = 9;

struct Model {
  double hidden = 0.0;
  double ffn = 0.0;
  double layers = 0.0;
  double heads = 0.0;
  double held_ffn = 0.0;  // of the weights, where a token goes through a part of them; 0: ffn
};

struct Workload {
  double prompt = 0.0;       // s
  double output = 0.0;       // n
  double gpu_batch = 1.0;    // gbs
  double num_batches = 1.0;  // num_gb; the block is their product
  [[nodiscard]] double block() const { return gpu_batch * num_batches; }
};

// Rates in units per second; memory in bytes.
struct Machine {
  double to_device = 0.0;       // host to device
  double to_host_cache = 0.0;   // device to host, KV
  double to_host_hidden = 0.0;  // device to host, hidden states
  double from_disk = 0.0;
  double to_disk = 0.0;
  double matmul_prefill = 0.0;  // operations
  double matmul_decode = 0.0;
  double attention_prefill = 0.0;
  double attention_decode = 0.0;
  double attention_host = 0.0;
  double device_memory = 0.0;
  double host_memory = 0.0;
  double disk = 0.0;    // 0: none
  double usable = 0.8;  // of every tier
};

enum class Objective : std::uint8_t {
  kPaper,  // max of five
  kCode,   // weight loads + max of the other four
};

// A linear function of the shares: constant + sum of coefficient[i] * share[i], in the order of the
// members of Shares.
struct Linear {
  double constant = 0.0;
  std::array<double, kShares> share{};
  [[nodiscard]] double at(const Shares& shares) const;
};
[[nodiscard]] Linear operator+(Linear a, const Linear& b);
[[nodiscard]] Linear operator*(double factor, Linear a);

// Times of one layer. Prefill and one mean decode step.
struct LayerTimes {
  Linear to_device, to_host, from_disk, to_disk, compute;
};
[[nodiscard]] LayerTimes prefill_times(const Model&, const Workload&, const Machine&);
[[nodiscard]] LayerTimes decode_times(const Model&, const Workload&, const Machine&);

// Times that run beside each other: the layer takes the largest one.
[[nodiscard]] std::vector<Linear> prefill_lanes(const LayerTimes& times, Objective objective);
[[nodiscard]] std::vector<Linear> decode_lanes(const LayerTimes& times, Objective objective);

// Peak bytes of each tier for every working set that may be the largest one; all must be at most
// usable x capacity.
struct MemoryUse {
  std::vector<Linear> device, host, disk;
};
[[nodiscard]] MemoryUse memory_use(const Model&, const Workload&);

// Seconds of a block by the equations, whatever the memory; tokens/s = block * n / seconds.
[[nodiscard]] double block_seconds(const Model&, const Workload&, const Machine&, const Shares&,
                                   Objective objective);

}  // namespace triphase::flexgen

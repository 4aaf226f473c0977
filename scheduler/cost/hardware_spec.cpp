#include "scheduler/cost/hardware_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "scheduler/attention/attended_bytes.h"

namespace triphase {
namespace {

// Peaks from the makers' data sheets. Memory as a process sees it. The GEMM share is what vendor
// libraries reach in large FP16 products on these generations; decode kernels read at 80 to 90 % of
// the memory's rate.
constexpr HardwareSpec kHardware[] = {
    {"v100-16gb", "Tesla V100 16 GB", 15.8, 128, 112e12, 0.8, 900e9, 0.85, 20e9, 100e9},
    {"v100-32gb", "Tesla V100 32 GB", 31.7, 128, 112e12, 0.8, 900e9, 0.85, 20e9, 100e9},
    {"h100-80gb", "H100 80 GB", 79.6, 128, 989e12, 0.7, 3350e9, 0.85, 20e9, 100e9},
    {"t4", "Tesla T4", 14.75, 208, 65e12, 0.5, 300e9, 0.8, 12e9, 80e9},
    {"rtx-4090", "GeForce RTX 4090", 23.6, 128, 165e12, 0.8, 1008e9, 0.9, 25e9, 80e9},
    {"a100-40gb", "A100 40 GB", 39.4, 256, 312e12, 0.8, 1555e9, 0.85, 25e9, 150e9},
    {"a100-80gb", "A100 80 GB", 79.2, 256, 312e12, 0.8, 2039e9, 0.85, 25e9, 150e9},
    {"h200", "H200", 139.0, 512, 989e12, 0.7, 4800e9, 0.85, 50e9, 300e9},
};

// Tokens of an INT8 block by default (KvShape).
constexpr std::int64_t kInt8Block = 64;

std::vector<double> powers_of_two(double first, double last, bool with_zero = false) {
  std::vector<double> values;
  if (with_zero) values.push_back(0.0);
  for (double value = first; value <= last; value *= 2.0) values.push_back(value);
  return values;
}

GridTable sample_grid(std::vector<double> x, std::vector<double> y,
                      const std::function<double(double, double)>& seconds) {
  GridTable table{.x = std::move(x), .y = std::move(y)};
  for (const double a : table.x) {
    if (table.y.empty()) table.seconds.push_back(seconds(a, 0.0));
    for (const double b : table.y) table.seconds.push_back(seconds(a, b));
  }
  return table;
}

// The axes of decode steps.
std::vector<double> decode_batches() { return powers_of_two(1, 1024); }
std::vector<double> decode_tokens() { return powers_of_two(64, 64.0 * 1048576, true); }

// Seconds by (batch, tokens of all contexts together) of reading what the method reads beside the
// keys and values that it attends.
GridTable choosing_grid(const AttentionOptions& attention, const ModelCosts& model, DType kv,
                        double memory_rate) {
  const AttendedShape shape{.heads = model.q_width / model.head_dim,
                            .kv_heads = model.kv_width / model.head_dim,
                            .head_dim = model.head_dim,
                            .element_bytes = static_cast<std::int64_t>(dtype_bytes(kv))};
  return sample_grid(decode_batches(), decode_tokens(), [&](double batch, double tokens) {
    const auto context =
        std::max<std::int64_t>(static_cast<std::int64_t>(std::ceil(tokens / batch)), 1);
    const std::int64_t chosen = budget_tokens(attention, context, context);
    const std::uint64_t beside = attended_bytes(attention, shape, context, chosen) -
                                 attended_bytes({}, shape, context, chosen);
    return batch * static_cast<double>(model.layers) * static_cast<double>(beside) / memory_rate;
  });
}

}  // namespace

const HardwareSpec* find_hardware(std::string_view name) {
  const auto* found = std::ranges::find(kHardware, name, &HardwareSpec::name);
  return found == std::end(kHardware) ? nullptr : found;
}

std::vector<std::string> hardware_names() {
  std::vector<std::string> names;
  for (const HardwareSpec& spec : kHardware) names.emplace_back(spec.name);
  return names;
}

HardwareProfile derive_profile(const HardwareSpec& spec, const ModelCosts& model, DType dtype,
                               const DerivedCosts& costs, const AttentionOptions& attention) {
  HardwareProfile profile;
  profile.name = spec.name;
  profile.device = spec.device;
  profile.device_memory = static_cast<std::uint64_t>(spec.device_gib * 1073741824.0);
  profile.host = "host of the data sheet";
  profile.host_memory = static_cast<std::uint64_t>(spec.host_gb * 1e9);
  profile.shape = model.shape();
  profile.notes.push_back(
      fmt::format("derived, not measured: {:.0f} TFLOP/s x {}, {:.0f} GB/s x {}, link {:.0f} GB/s",
                  spec.peak_flops / 1e12, spec.gemm_share, spec.memory_rate / 1e9,
                  spec.memory_share, spec.link_rate / 1e9));

  const double flops = spec.peak_flops * spec.gemm_share;
  const double memory = spec.memory_rate * spec.memory_share;
  const auto layers = static_cast<double>(model.layers);
  const double matmul = layers * model.layer_matmul + model.head_matmul;

  const auto decode = [&](DType kv) {
    const double kv_bytes = layers * kv_layer_bytes(model, kv, kInt8Block);
    // The block that a sequence fills is not quantized yet; on average it is half full.
    const double unquantized = layers * kv_layer_bytes(model, dtype, kInt8Block) - kv_bytes;
    const double partial = kv == DType::kInt8 ? kInt8Block / 2.0 : 0.0;
    return [=, &costs, &model](double batch, double attended) {
      const double bytes = attended * kv_bytes + std::min(attended, batch * partial) * unquantized;
      return std::max(2.0 * batch * matmul / flops, read_weights(model, batch) / memory) +
             bytes / memory + layers * costs.layer_seconds;
    };
  };
  profile.table(CostTable::kDecode) = sample_grid(decode_batches(), decode_tokens(), decode(dtype));
  profile.table(CostTable::kDecodeInt8) =
      sample_grid(decode_batches(), decode_tokens(), decode(DType::kInt8));
  if (attention.sparse() && !needs_fixed_context(attention)) {
    profile.methods.push_back({std::string(attention_name(attention.kind)),
                               describe_attention_options(attention),
                               choosing_grid(attention, model, dtype, memory),
                               choosing_grid(attention, model, DType::kInt8, memory)});
  }
  profile.table(CostTable::kPrefill) =
      sample_grid(powers_of_two(1, 65536), powers_of_two(64, 1048576, true),
                  [&](double tokens, double context) {
                    const double attend = 4.0 * layers * static_cast<double>(model.q_width) *
                                          tokens * (context + tokens / 2.0) /
                                          (spec.peak_flops * costs.prefill_attention_share);
                    return std::max(2.0 * tokens * layers * model.layer_matmul / flops,
                                    read_weights(model, tokens) / memory) +
                           attend + layers * costs.layer_seconds;
                  });
  // 4 h k multiply-adds' worth of operations per token and layer; W_K and W_V are read again.
  const double projection =
      4.0 * static_cast<double>(model.hidden) * static_cast<double>(model.kv_width) * layers;
  const double projection_weights = 2.0 * static_cast<double>(model.hidden * model.kv_width) *
                                    static_cast<double>(dtype_bytes(dtype)) * layers;
  profile.table(CostTable::kRecompute) = sample_grid(
      powers_of_two(1, 1024), powers_of_two(1, 65536), [&](double batch, double tokens) {
        return std::max(batch * tokens * projection / flops, projection_weights / memory);
      });
  const auto copy = [&](double bytes, double /*unused*/) {
    return costs.copy_seconds + bytes / spec.link_rate;
  };
  const std::vector<double> sizes = powers_of_two(4096, 68719476736.0);
  profile.table(CostTable::kH2D) = sample_grid(sizes, {}, copy);
  profile.table(CostTable::kD2H) = sample_grid(sizes, {}, copy);
  profile.table(CostTable::kGather) = sample_grid(
      powers_of_two(256, 1048576), powers_of_two(1, 16777216, true),
      [&](double record, double count) {
        return costs.copy_seconds + count * (record / (spec.link_rate * costs.gather_share) +
                                             costs.gather_record_seconds);
      });
  // Read the compute type, write bytes.
  const double convert = layers * 2.0 * static_cast<double>(model.kv_width) *
                         static_cast<double>(dtype_bytes(dtype) + 1) / memory;
  profile.table(CostTable::kQuantize) =
      sample_grid(powers_of_two(1, 1048576), {},
                  [&](double count, double /*unused*/) { return count * convert; });
  const double host_kv = layers * kv_layer_bytes(model, dtype, kInt8Block) /
                         (spec.host_memory_rate * costs.host_attention_share);
  profile.table(CostTable::kHostAttention) =
      sample_grid({1.0, 1048576.0}, powers_of_two(64, 64.0 * 1048576),
                  [&](double /*rows*/, double count) { return count * host_kv; });
  return profile;
}

}  // namespace triphase

#include "scheduler/cost/step_cost.h"

#include <algorithm>

#include "base/error.h"

namespace triphase {
namespace {

// Copying through pageable memory first: read and written once more on the host, at about the
// link's own rate on the machines that FlexGen was measured on.
constexpr double kPageableFactor = 1.0;

double take(const Estimate& estimate, bool& extrapolated) {
  extrapolated = extrapolated || estimate.extrapolated;
  return estimate.seconds;
}

}  // namespace

CostModel::CostModel(const HardwareProfile& profile, const AttentionOptions& attention) {
  for (std::size_t table = 0; table < kCostTables; ++table) {
    curves_[table] = TimeCurve(profile.tables[table]);
  }
  if (const MethodCosts* method = profile.method_costs(attention)) {
    choosing_ = TimeCurve(method->choosing);
    choosing_int8_ = TimeCurve(method->choosing_int8);
  }
}

Estimate CostModel::h2d(double bytes) const { return curve(CostTable::kH2D).at(bytes); }
Estimate CostModel::d2h(double bytes) const { return curve(CostTable::kD2H).at(bytes); }
Estimate CostModel::gather(double record_bytes, double count) const {
  return count <= 0.0 ? Estimate{} : curve(CostTable::kGather).at(record_bytes, count);
}
Estimate CostModel::decode(bool int8, double batch, double attended) const {
  const TimeCurve& table = curve(CostTable::kDecodeInt8);
  return (int8 && !table.empty() ? table : curve(CostTable::kDecode)).at(batch, attended);
}
Estimate CostModel::choosing(bool int8, double batch, double context_tokens) const {
  return (int8 && !choosing_int8_.empty() ? choosing_int8_ : choosing_).at(batch, context_tokens);
}
Estimate CostModel::prefill(double tokens, double context) const {
  return curve(CostTable::kPrefill).at(tokens, context);
}
Estimate CostModel::host_attention(double rows, double tokens) const {
  return curve(CostTable::kHostAttention).at(rows, tokens);
}
Estimate CostModel::recompute(double batch, double tokens_each) const {
  return tokens_each <= 0.0 ? Estimate{} : curve(CostTable::kRecompute).at(batch, tokens_each);
}

double CostModel::compute(const StepWork& work, bool& extrapolated) const {
  double seconds = 0.0;
  if (work.decode_rows > 0) {
    const auto groups =
        static_cast<double>(std::clamp<std::int64_t>(work.decode_groups, 1, work.decode_rows));
    seconds += groups * take(decode(work.int8_kv, static_cast<double>(work.decode_rows) / groups,
                                    work.attended_tokens / groups),
                             extrapolated);
    if (work.choosing_tokens > 0.0 && knows_method()) {
      seconds +=
          take(choosing(work.int8_kv, static_cast<double>(work.decode_rows), work.choosing_tokens),
               extrapolated);
    }
  }
  if (work.copied_tokens > 0.0) {
    // A copy reads and writes what attention reads once.
    const auto rows = static_cast<double>(std::max<std::int64_t>(work.decode_rows, 1));
    const double copy = take(decode(work.int8_kv, rows, work.copied_tokens), extrapolated);
    seconds += 2.0 * std::max(copy - decode(work.int8_kv, rows, 0.0).seconds, 0.0);
  }
  if (work.prefill_rows > 0) {
    double prefill_seconds =
        take(prefill(static_cast<double>(work.prefill_rows), work.prefill_context), extrapolated);
    // Rows of one step go through the weights together: they are read once.
    if (work.decode_rows > 0) {
      const double weights_once = take(decode(work.int8_kv, 1.0, 0.0), extrapolated);
      prefill_seconds = std::max(prefill_seconds - weights_once, 0.0);
    }
    seconds += prefill_seconds;
  }
  if (work.quantized_tokens > 0.0) {
    seconds += take(curve(CostTable::kQuantize).at(work.quantized_tokens), extrapolated);
  }
  return seconds;
}

double CostModel::on_host(const StepWork& work, bool& extrapolated) const {
  if (work.host_attention_rows <= 0) return 0.0;
  TRIPHASE_CHECK(can_attend_on_host(), "the profile has attention on the host");
  const auto rows = static_cast<double>(work.host_attention_rows);
  const double once = take(host_attention(rows, work.host_attention_tokens), extrapolated);
  const double reading = once - host_attention(rows, 0.0).seconds;
  return once + (work.host_attention_passes - 1.0) * std::max(reading, 0.0);
}

LaneTimes CostModel::step(const StepWork& work, const StepRules& rules) const {
  LaneTimes lanes;
  bool& flag = lanes.extrapolated;
  lanes.compute = compute(work, flag);
  if (work.recompute_tokens > 0.0) {
    const double rows = static_cast<double>(std::max<std::int64_t>(work.recompute_rows, 1));
    lanes.recompute = take(recompute(rows, work.recompute_tokens / rows), flag);
  }
  lanes.host = on_host(work, flag);
  const auto bulk = [&](const TimeCurve& table, double bytes, double copies) {
    if (bytes <= 0.0) return 0.0;
    copies = std::max(copies, 1.0);
    return copies * take(table.at(bytes / copies), flag);
  };
  const double whole = bulk(curve(CostTable::kH2D), work.h2d_bytes, work.h2d_copies);
  double ahead = whole;
  const double gathered = take(gather(work.record_bytes, work.gathered_records), flag) +
                          take(gather(work.input_bytes, work.gathered_inputs), flag);
  lanes.h2d = ahead + gathered;
  if (work.fetch == SparseFetch::kOnDemand) {
    if (rules.overlap) lanes.serial += gathered;
  } else {
    ahead += gathered;
  }
  lanes.d2h = bulk(curve(CostTable::kD2H), work.d2h_bytes, work.d2h_copies);

  if (!rules.pinned) lanes.serial += kPageableFactor * lanes.h2d;
  // A layer's attention on the host is waited for by the rest of the layer, as FlexGen prices it.
  const double device = lanes.compute + lanes.recompute + lanes.host;
  if (!rules.overlap) {
    lanes.step = device + lanes.h2d + lanes.d2h + lanes.serial;
    return lanes;
  }
  // The first layer waits for its own loads. After the last layer's attention the link is idle,
  // unless it prefetches for the next step, whose first layer then waits less.
  const auto layers = static_cast<double>(std::max<std::int64_t>(rules.layers, 1));
  const double early_layer =
      work.early_bytes > 0.0 ? whole * work.early_bytes / work.h2d_bytes / layers : 0.0;
  const double early = rules.early_layers * early_layer;
  const double first_loads = ahead / layers - std::min(early, early_layer);
  const double last_layer = ahead > 0.0 ? std::max(device / layers - early, 0.0) : 0.0;
  const double slowest = std::max({device, ahead, lanes.d2h});
  lanes.serial +=
      std::max({device + first_loads, ahead + last_layer, lanes.d2h + first_loads}) - slowest;
  // Lanes that meet at every layer lose time there: at least the slowest lane starts late.
  if (rules.sync_each_layer) lanes.serial += lanes.d2h / layers + std::min(device, ahead) / layers;
  lanes.step = slowest + lanes.serial;
  return lanes;
}

}  // namespace triphase

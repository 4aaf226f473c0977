#pragma once

// A profile whose tables are planes, so that what they give between samples follows by hand. b:
// rows, t: tokens, n: bytes.
//
//   decode         10 + b + t/2      (INT8: 5 + b + t/4)
//   prefill        12 + 2 rows + rows context / 1000
//   recompute      3 b + b t         (t: of each sequence)
//   to the device  1 + n/1000        to the host  2 + n/500
//   gather         1/2 + record bytes count / 1000
//   quantize       1 + t/10          attention on the host  b + t/2
//
// Under plane_method(), t being the tokens of all contexts:
//
//   choosing       3 + b/4 + t/8     (INT8: 2 + b/4 + t/16)

#include "scheduler/cost/hardware_profile.h"
#include "scheduler/cost/model_costs.h"

namespace triphase {

// A model small enough to count with.
inline ModelCosts countable_model() {
  return {.layers = 2,
          .hidden = 4,
          .ffn = 8,
          .q_width = 4,
          .kv_width = 4,
          .vocab = 10,
          .layer_weights = 100,
          .other_weights = 50};
}

inline AttentionOptions plane_method() {
  AttentionOptions attention;
  attention.kind = attention_from_name("swa");
  set_keep_ratio(attention, 0.5);
  return attention;
}

inline HardwareProfile plane_profile() {
  HardwareProfile profile;
  const auto grid = [](double last_x, double last_y, auto value) {
    GridTable table{.x = {1.0, last_x}, .y = {0.0, last_y}};
    for (const double x : table.x) {
      for (const double y : table.y) table.seconds.push_back(value(x, y));
    }
    return table;
  };
  const auto plane = [&](CostTable which, double last_x, double last_y, auto value) {
    profile.table(which) = grid(last_x, last_y, value);
  };
  const auto line = [&](CostTable which, double last, auto value) {
    profile.table(which) = {.x = {1.0, last}, .y = {}, .seconds = {value(1.0), value(last)}};
  };
  plane(CostTable::kDecode, 64, 1e4, [](double b, double t) { return 10 + b + t / 2; });
  plane(CostTable::kDecodeInt8, 64, 1e4, [](double b, double t) { return 5 + b + t / 4; });
  plane(CostTable::kPrefill, 64, 1e3,
        [](double rows, double context) { return 12 + 2 * rows + rows * context / 1000; });
  plane(CostTable::kRecompute, 64, 1e3, [](double b, double t) { return 3 * b + b * t; });
  plane(CostTable::kGather, 1e3, 1e4,
        [](double bytes, double count) { return 0.5 + bytes * count / 1000; });
  plane(CostTable::kHostAttention, 64, 1e4, [](double b, double t) { return b + t / 2; });
  line(CostTable::kH2D, 1e6, [](double n) { return 1 + n / 1000; });
  line(CostTable::kD2H, 1e6, [](double n) { return 2 + n / 500; });
  line(CostTable::kQuantize, 1e4, [](double t) { return 1 + t / 10; });
  const AttentionOptions method = plane_method();
  profile.methods.push_back(
      {.attention = std::string(attention_name(method.kind)),
       .attention_options = describe_attention_options(method),
       .choosing = grid(64, 1e4, [](double b, double t) { return 3 + b / 4 + t / 8; }),
       .choosing_int8 = grid(64, 1e4, [](double b, double t) { return 2 + b / 4 + t / 16; })});
  return profile;
}

}  // namespace triphase

#include "scheduler/flexgen/cost_equations.h"

#include <algorithm>

namespace triphase::flexgen {
namespace {

enum Share : int { kWg, kWc, kWn, kCg, kCc, kCn, kHg, kHc, kHn };

Linear term(Share share, double coefficient) {
  Linear linear;
  linear.share[static_cast<std::size_t>(share)] = coefficient;
  return linear;
}
Linear constant(double value) { return {.constant = value}; }

// Bytes of one layer's FP16 weights.
double weight_bytes(const Model& m) {
  return 8.0 * m.hidden * m.hidden + 4.0 * m.hidden * (m.held_ffn > 0.0 ? m.held_ffn : m.ffn);
}

// Bytes of what a tier holds all the time: its weights of all layers, hidden states between layers
// for `tokens` tokens per sequence, and KV of the whole length, allocated up front.
Linear home(const Model& m, const Workload& w, double tokens, Share weights, Share cache,
            Share hidden) {
  return term(weights, weight_bytes(m) * m.layers) +
         term(hidden, 2.0 * tokens * m.hidden * w.block()) +
         term(cache, 4.0 * (w.prompt + w.output) * m.hidden * m.layers * w.block());
}

// Working sets of one GPU batch whose sequences compute `tokens` tokens against a context.
std::vector<Linear> working_sets(const Model& m, const Workload& w, double tokens, double context,
                                 const std::vector<Share>& cache) {
  const double states = 2.0 * tokens * m.hidden * w.gpu_batch;
  const double keys = 2.0 * context * m.hidden * w.gpu_batch;
  const double scores = 2.0 * m.heads * tokens * context * w.gpu_batch;
  Linear attention;
  for (const Share share : cache) attention = attention + term(share, states + keys + scores);
  const double mlp = 2.0 * tokens * (m.hidden + m.ffn) * w.gpu_batch;
  return {constant(4.0 * states), attention, constant(mlp)};
}

}  // namespace

double Linear::at(const Shares& s) const {
  const std::array<double, kShares> values = {s.wg, s.wc, s.wn, s.cg, s.cc, s.cn, s.hg, s.hc, s.hn};
  double sum = constant;
  for (std::size_t i = 0; i < values.size(); ++i) sum += share[i] * values[i];
  return sum;
}

Linear operator+(Linear a, const Linear& b) {
  a.constant += b.constant;
  for (std::size_t i = 0; i < a.share.size(); ++i) a.share[i] += b.share[i];
  return a;
}

Linear operator*(double factor, Linear a) {
  a.constant *= factor;
  for (double& coefficient : a.share) coefficient *= factor;
  return a;
}

LayerTimes prefill_times(const Model& m, const Workload& w, const Machine& machine) {
  const double weights = weight_bytes(m);
  const double hidden = 2.0 * w.prompt * m.hidden * w.block();
  const double cache = 4.0 * (w.prompt + 1.0) * m.hidden * w.block();
  LayerTimes times;
  times.to_device = (1.0 / machine.to_device) * (term(kWc, weights) + term(kWn, weights) +
                                                 term(kHc, hidden) + term(kHn, hidden));
  times.to_host = (1.0 / machine.to_host_cache) * (term(kCc, cache) + term(kCn, cache)) +
                  (1.0 / machine.to_host_hidden) * (term(kHc, hidden) + term(kHn, hidden));
  if (machine.disk > 0.0) {
    times.from_disk = (1.0 / machine.from_disk) * (term(kWn, weights) + term(kHn, hidden));
    times.to_disk = (1.0 / machine.to_disk) * (term(kCn, cache) + term(kHn, hidden));
  }
  times.compute =
      constant(w.block() * w.prompt * (8.0 * m.hidden * m.hidden + 4.0 * m.hidden * m.ffn) /
                   machine.matmul_prefill +
               4.0 * w.block() * w.prompt * w.prompt * m.hidden / machine.attention_prefill);
  return times;
}

LayerTimes decode_times(const Model& m, const Workload& w, const Machine& machine) {
  const double weights = weight_bytes(m);
  const double hidden = 2.0 * m.hidden * w.block();
  const double context = w.prompt + w.output / 2.0;
  const double attention = 4.0 * w.block() * context * m.hidden;
  LayerTimes times;
  times.to_device = (1.0 / machine.to_device) * (term(kWc, weights) + term(kWn, weights) +
                                                 term(kHc, hidden) + term(kHn, hidden));
  times.to_host = (1.0 / machine.to_host_hidden) * (term(kHc, hidden) + term(kHn, hidden));
  if (machine.disk > 0.0) {
    times.from_disk =
        (1.0 / machine.from_disk) * (term(kWn, weights) + term(kCn, attention) + term(kHn, hidden));
    times.to_disk =
        (1.0 / machine.to_disk) * (term(kCn, 4.0 * w.block() * m.hidden) + term(kHn, hidden));
  }
  times.compute = constant(w.block() * (8.0 * m.hidden * m.hidden + 4.0 * m.hidden * m.ffn) /
                           machine.matmul_decode) +
                  term(kCg, attention / machine.attention_decode) +
                  (attention / machine.attention_host) * (term(kCc, 1.0) + term(kCn, 1.0));
  return times;
}

std::vector<Linear> prefill_lanes(const LayerTimes& t, Objective objective) {
  if (objective == Objective::kPaper) {
    return {t.to_device, t.to_host, t.from_disk, t.to_disk, t.compute};
  }
  return {t.to_device + t.from_disk, t.to_host + t.to_disk, t.compute};
}

std::vector<Linear> decode_lanes(const LayerTimes& t, Objective objective) {
  if (objective == Objective::kPaper) {
    return {t.to_device, t.to_host, t.from_disk, t.to_disk, t.compute};
  }
  return {t.to_device + t.to_host, t.to_device + t.from_disk, t.to_device + t.to_disk,
          t.to_device + t.compute};
}

MemoryUse memory_use(const Model& m, const Workload& w) {
  const double weights = weight_bytes(m);
  const double length = w.prompt + w.output;
  MemoryUse use;
  struct Stage {
    double tokens, context;
  };
  for (const Stage stage : {Stage{w.prompt, w.prompt}, Stage{1.0, length}}) {
    const double batch_states = 2.0 * stage.tokens * m.hidden * w.gpu_batch;
    // Weights and hidden states that live elsewhere pass through a double buffer.
    const Linear device_buffers = constant(2.0 * weights + batch_states) +
                                  term(kWg, -2.0 * weights) + term(kHg, -batch_states);
    const Linear device_home = home(m, w, stage.tokens, kWg, kCg, kHg) + device_buffers;
    for (const Linear& set : working_sets(m, w, stage.tokens, stage.context, {kCg})) {
      use.device.push_back(device_home + set);
    }
    const Linear host_home = home(m, w, stage.tokens, kWc, kCc, kHc) + term(kWn, 2.0 * weights) +
                             term(kHn, batch_states);
    use.host.push_back(host_home);
    if (stage.tokens == 1.0) {  // attention on the host, in decode only
      use.host.push_back(host_home + working_sets(m, w, 1.0, stage.context, {kCc, kCn})[1]);
    }
    use.disk.push_back(home(m, w, stage.tokens, kWn, kCn, kHn));
  }
  return use;
}

double block_seconds(const Model& m, const Workload& w, const Machine& machine,
                     const Shares& shares, Objective objective) {
  const auto largest = [&](const std::vector<Linear>& lanes) {
    double most = 0.0;
    for (const Linear& lane : lanes) most = std::max(most, lane.at(shares));
    return most;
  };
  return m.layers *
         (largest(prefill_lanes(prefill_times(m, w, machine), objective)) +
          (w.output - 1.0) * largest(decode_lanes(decode_times(m, w, machine), objective)));
}

}  // namespace triphase::flexgen

#include "runtime/profile/profiler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "base/samples.h"
#include "kernels/sizing/sample_workspace.h"
#include "memory/transfer/host_transfer_engine.h"
#include "runtime/engine/gpu_limits.h"
#include "runtime/engine/run_plan.h"
#include "runtime/machine.h"
#include "runtime/plan/config_costs.h"
#include "runtime/profile/host_attention_work.h"
#include "runtime/profile/link_work.h"
#include "runtime/profile/model_work.h"
#include "scheduler/kv/block_tokens.h"

namespace triphase {
namespace {

constexpr std::int64_t kMostRows = 2048;
constexpr std::int64_t kMostContext = 32768;
constexpr std::uint64_t kUncachedBytes = std::uint64_t{256} << 20;
constexpr std::uint64_t kMostKvBytes = std::uint64_t{4} << 30;
constexpr std::uint64_t kMostCopyBytes = std::uint64_t{64} << 20;
constexpr std::uint64_t kMostGatherBytes = std::uint64_t{64} << 20;
// Measuring the memory's own rates takes seconds: only where there is time for it.
constexpr double kTimeForCeilings = 20.0;
constexpr int kCeilingRuns = 3;
// How far the rounds of a table's middle cell may lie apart, as a share of its time.
constexpr double kGoodRounds = 0.05;
constexpr double kPoorRounds = 0.25;
constexpr double kLongProfile = 120.0;  // seconds
// Shares of the time beside those of the other tables, which make 1.
constexpr double kMethodShare = 0.2;
constexpr double kMethodInt8Share = 0.15;

// first, first * factor, ... up to `last`, which ends the list where the step to it is worth it.
std::vector<double> steps(double first, double last, double factor, bool with_zero) {
  std::vector<double> values;
  if (with_zero) values.push_back(0.0);
  for (double value = first; value <= last; value *= factor) values.push_back(value);
  if (values.empty() || last > 1.5 * values.back()) values.push_back(last);
  return values;
}

class Profiler {
 public:
  Profiler(const RunOptions& options, const ProfileRequest& request, const Workplace& place)
      : place_(place), options_(options), request_(request), left_(request.seconds) {
    if (request.attention.sparse()) {
      shares_left_ += kMethodShare + (request.int8_kv ? kMethodInt8Share : 0.0);
    }
  }

  MeasuredProfile measure() {
    // First: a link that cannot be is refused before minutes of measuring.
    const auto transfers = backend_.make_transfers(options_.machine.emulated_link);
    require_attention(backend_.machine(), model_.config, request_.attention);
    describe_machine();
    const ModelRigLimits limits = choose_limits(usable_memory());
    note_limits(limits);
    progress_.begin_phase("loading model");
    const double load_start = steady_seconds();
    rig_.emplace(options_, limits, place_);
    out_.load_seconds = steady_seconds() - load_start;
    measure_start_ = steady_seconds();
    measure_model();
    measure_method();
    measure_host_attention(*transfers);
    rig_.reset();
    measure_link(*transfers);
    progress_.end_parts();
    if (request_.seconds >= kTimeForCeilings) measure_memory();
    out_.measure_seconds = steady_seconds() - measure_start_;
    for (const ProfiledTable& table : out_.tables) {
      out_.profile.notes.push_back(fmt::format("{}: {}", table.name, to_text(table.repeatability)));
    }
    return std::move(out_);
  }

 private:
  void note_limits(const ModelRigLimits& limits) {
    const auto& gpu = backend_.machine().gpu;
    out_.cut = gpu && usable_memory() < gpu->memory &&
               (usable_memory() / 4 < kMostCopyBytes || limits != choose_limits(gpu->memory));
    if (limits.layers == model_.config.layers && limits.batch == request_.batch_size) return;
    out_.profile.notes.push_back(
        fmt::format("memory is short: measured with the weights of {} of {} layers, batches of up "
                    "to {} and contexts of up to {} tokens",
                    limits.layers, model_.config.layers, limits.batch, limits.context));
    place_.log.info(out_.profile.notes.back());
  }

  [[nodiscard]] DType kv_dtype() const {
    std::optional<DType> asked = options_.machine.kv_dtype;
    if (asked == DType::kInt8) asked.reset();
    return kv_dtype_on(backend_.machine(), asked, model_.weights_dtype);
  }
  [[nodiscard]] std::int64_t record_bytes(DType dtype) const {
    return 2 * model_.config.kv_width() * static_cast<std::int64_t>(dtype_bytes(dtype));
  }

  void describe_machine() {
    const MachineInfo machine = inspect_machine();
    const std::uint64_t free = usable_host_memory();
    HardwareProfile& profile = out_.profile;
    profile.name = request_.name;
    profile.measured = true;
    profile.emulated = options_.machine.emulated_link.has_value();
    profile.device = device_identity(backend_);
    profile.link = link_identity(backend_, options_.machine.emulated_link);
    profile.host = fmt::format("{}, {} cores", machine.cpu_name, machine.usable_cores);
    profile.device_memory = options_.machine.device_memory.value_or(backend_.default_memory());
    profile.host_memory = options_.machine.host_memory.value_or(default_host_budget(
        free, backend_.machine().gpu ? std::uint64_t{0} : profile.device_memory));
    profile.model_name = model_.identity.path;
    profile.model_fingerprint = model_.identity.fingerprint;
    profile.shape = model_costs(model_.config, model_.weights_dtype).shape();
    profile.notes.push_back(fmt::format(
        "weights {}, KV {} in the tables that are not INT8; times are wall time, medians "
        "of three rounds",
        dtype_name(model_.weights_dtype), dtype_name(kv_dtype())));
    profile.notes.emplace_back(
        "h2d and d2h move whole KV blocks; recompute reads cached INT8 hidden states and writes KV "
        "that is "
        "not INT8; host_attention is of the host's threads with nothing beside it, the link's way "
        "there and back included");
  }

  // The larger one of the caches that are measured, with what the method keeps beside it.
  [[nodiscard]] std::uint64_t kv_bytes(const ModelRigLimits& limits) const {
    const ModelConfig& config = model_.config;
    std::uint64_t most = 0;
    for (const DType dtype : {kv_dtype(), DType::kInt8}) {
      const KvShape shape = rig_kv_shape(config, request_.attention, dtype, kv_dtype());
      const KvSizes sizes = rig_kv_sizes(shape, limits);
      const auto pages = static_cast<std::uint64_t>(sizes.device_pages);
      most = std::max(
          most, pages * (shape.page_bytes() + shape.transposed_k_bytes() + shape.scale_bytes()) +
                    static_cast<std::uint64_t>(sizes.partial_pages) * shape.partial_page_bytes());
    }
    if (!request_.attention.sparse()) return most;
    const auto method = make_attention_method(
        request_.attention, {config.layers, config.heads, config.kv_heads, config.head_dim});
    return most + method->state_bytes(limits.batch, limits.context);
  }

  [[nodiscard]] std::uint64_t scratch_bytes(const ModelRigLimits& limits) const {
    const ComputeMachine& machine = backend_.machine();
    const BatchLimits steps{.rows = limits.rows,
                            .segments = limits.rows,
                            .logit_rows = limits.batch,
                            .context = limits.context};
    BatchLimits calls = steps;
    calls.sparse = request_.attention.sparse();
    RunOptions options = options_;
    options.attention = request_.attention;
    KvShape kv;
    kv.dtype = request_.int8_kv ? DType::kInt8 : kv_dtype();
    kv.partial_dtype = kv_dtype();
    kv.block_tokens = default_block_tokens(kv.dtype);
    const std::uint64_t dense = DecoderModel::scratch_bytes(model_.config, steps, machine.threads) +
                                ops_reserved_bytes(machine, ops_shape(model_, options, calls, kv)) +
                                sample_workspace_bytes(machine, model_.config.vocab_size);
    if (!calls.sparse) return dense;
    return dense +
           DecoderModel::scratch_bytes(model_.config, method_limits(limits), machine.threads);
  }

  [[nodiscard]] std::uint64_t weights(std::int64_t layers) const {
    ModelConfig config = model_.config;
    config.layers = layers;
    return weight_bytes(config, model_.weights_dtype);
  }

  // Bytes of the device that measuring may take.
  [[nodiscard]] std::uint64_t usable_memory() const {
    const auto& gpu = backend_.machine().gpu;
    if (!gpu) return usable_host_memory();
    return std::min(gpu->memory, options_.machine.device_memory.value_or(UINT64_MAX));
  }

  // Within `free` bytes of the device.
  [[nodiscard]] ModelRigLimits choose_limits(std::uint64_t free) const {
    const ModelConfig& config = model_.config;
    ModelRigLimits limits;
    limits.layers = config.layers;
    limits.batch = request_.batch_size;
    limits.context = request_.context > 0 ? std::min(request_.context, config.max_positions)
                                          : std::min(config.max_positions, kMostContext);
    limits.rows = std::max(limits.batch, kMostRows);
    const auto needed = [&] {
      limits.tokens = 2 * limits.rows + limits.context;
      return weights(limits.layers) + scratch_bytes(limits) + kv_bytes(limits);
    };
    // Layers that a cache would hold must not stand for others.
    const std::uint64_t layer = std::ranges::max(layer_bytes(config, model_.weights_dtype));
    const std::int64_t fewest = fewest_layers(config);
    const auto few = std::max(fewest, static_cast<std::int64_t>(kUncachedBytes / layer + 1));
    while (needed() > free && limits.layers > few) --limits.layers;
    while (needed() > free && limits.rows > limits.batch)
      limits.rows = std::max(limits.rows / 2, limits.batch);
    while (needed() > free && limits.context > 64) limits.context /= 2;
    while (needed() > free && limits.layers > fewest) --limits.layers;
    while (needed() > free && limits.batch > 1) limits.rows = limits.batch /= 2;
    if (needed() > free) {
      throw Error(ErrorRole::kResources, "E-MEM-FIT", "memory")
          .found(fmt::format("{} needed to measure {} with batches of {}, {} usable",
                             format_bytes(needed()), model_.identity.path, limits.batch,
                             format_bytes(free)))
          .expected("a layer of each kind that fits");
    }
    const std::uint64_t spare = (free - needed()) / 2;
    const std::int64_t least = limits.tokens;
    const std::uint64_t token = kv_bytes(limits) / static_cast<std::uint64_t>(least);
    const std::uint64_t most = std::max(kMostKvBytes, token * static_cast<std::uint64_t>(least));
    limits.tokens =
        std::clamp(least + static_cast<std::int64_t>(std::min(spare, most - token * least) / token),
                   least, std::max(limits.batch * limits.context, least));
    return limits;
  }

  // `share` of what was not given to the tables before; the rest of the shares is still to come.
  void fill(CostTable table, GridWork& work, const std::vector<double>& x,
            const std::vector<double>& y, double share) {
    fill(std::string(cost_table_info(table).name), out_.profile.table(table), work, x, y, share);
  }

  void fill(const std::string& name, GridTable& table, GridWork& work, const std::vector<double>& x,
            const std::vector<double>& y, double share) {
    const double whole = std::max(request_.seconds, 1e-9);
    const double seconds = std::max(left_ * share / shares_left_, 1e-3);
    const double from = 1.0 - left_ / whole;
    progress_.begin_part(fmt::format("measuring {}", name), from,
                         std::min(from + seconds / whole, 1.0));
    GridMeasurement measured =
        measure_grid(work, x, y, seconds, [&](double spent) { progress_.update_share(spent); });
    left_ = std::max(left_ - measured.repeatability.seconds, 0.0);
    shares_left_ -= share;
    out_.tables.push_back({name, measured.repeatability});
    table = std::move(measured.table);
  }

  void measure_decode(CostTable table, double share) {
    const ModelRigLimits& limits = rig_->limits();
    const std::int64_t most = std::min(limits.tokens, limits.batch * limits.context);
    DecodeWork decode(*rig_);
    fill(table, decode, steps(1, static_cast<double>(limits.batch), 2, false),
         steps(64, static_cast<double>(most), 4, true), share);
  }

  // Steps under the method that the request names, less the dense steps that were measured before.
  void measure_method() {
    const AttentionOptions& attention = request_.attention;
    if (!attention.sparse() || rig_->limits().context < 2 * DecodeWork::kGrowth) return;
    MethodCosts& method = out_.profile.methods.emplace_back();
    method.attention = attention_name(attention.kind);
    method.attention_options = describe_attention_options(attention);
    rig_->use_method(attention);
    const auto measure = [&](DType dtype, CostTable dense, GridTable& table, double share) {
      const bool int8 = dtype == DType::kInt8;
      rig_->use_kv(dtype);
      fill_choosing(fmt::format("{} under {}", method_table_info(int8).name, method.attention),
                    table, share);
      subtract_dense(out_.profile.table(dense), attention, table);
    };
    measure(kv_dtype(), CostTable::kDecode, method.choosing, kMethodShare);
    if (request_.int8_kv) {
      measure(DType::kInt8, CostTable::kDecodeInt8, method.choosing_int8, kMethodInt8Share);
    }
    rig_->use_method({});
  }

  // Choosing takes time in proportion to rows and tokens: a few cells that lie far apart say more
  // than many that the time would cut off early. A row needs several steps before its first one.
  void fill_choosing(const std::string& name, GridTable& table, double share) {
    const ModelRigLimits& limits = rig_->limits();
    const auto batch = static_cast<double>(limits.batch);
    const std::int64_t most = std::min(limits.tokens, limits.batch * limits.context) -
                              limits.batch * (DecodeWork::kGrowth + 1);
    const double last = static_cast<double>(std::max(most, DecodeWork::kGrowth));
    const double first = std::min(std::max(64.0, last / 512.0),
                                  static_cast<double>(limits.context - DecodeWork::kGrowth));
    std::vector<double> batches = {1.0};
    if (batch > 1.0) batches.push_back(batch);
    DecodeWork decode(*rig_);
    fill(name, table, decode, batches, steps(first, last, 8, false), share);
  }

  void measure_model() {
    const ModelRigLimits& limits = rig_->limits();
    const auto batch = static_cast<double>(limits.batch);
    const auto context = static_cast<double>(limits.context);
    rig_->use_kv(kv_dtype());
    measure_decode(CostTable::kDecode, 0.23);
    {
      PrefillWork prefill(*rig_);
      const double half = context / 2.0;
      std::vector<double> before = {0.0};
      for (double value = 128; value <= half; value *= 4) before.push_back(value);
      if (before.size() == 1 && half >= 1.0) before.push_back(std::floor(half));
      fill(CostTable::kPrefill, prefill, steps(1, static_cast<double>(limits.rows), 4, false),
           before, 0.19);
    }
    {
      RecomputeWork recompute(*rig_);
      fill(CostTable::kRecompute, recompute, steps(1, batch, 4, false),
           steps(16, std::min(context, 4096.0), 4, false), 0.08);
    }
    // INT8 decides where the KV of a quantizing job goes, so quantizing full blocks is always
    // measured.
    rig_->use_kv(DType::kInt8);
    if (request_.int8_kv) {
      measure_decode(CostTable::kDecodeInt8, 0.17);
    } else {
      shares_left_ -= 0.17;
    }
    QuantizeWork quantize(*rig_);
    const auto block = static_cast<double>(rig_->kv().memory().shape().block_tokens);
    fill(CostTable::kQuantize, quantize, steps(block, 64 * block, 4, false), {}, 0.05);
    // No tokens take no time: what single tokens cost is their part of a block.
    GridTable& table = out_.profile.table(CostTable::kQuantize);
    table.x.insert(table.x.begin(), 0.0);
    table.seconds.insert(table.seconds.begin(), 0.0);
    table.spread.insert(table.spread.begin(), 0.0);
  }

  // Half of the KV's room for the device's places and half for the host's.
  void measure_host_attention(TransferEngine& transfers) {
    rig_->drop_kv();
    const ModelRigLimits& limits = rig_->limits();
    const std::int64_t tokens = std::min(limits.tokens / 2, limits.batch * limits.context);
    HostAttentionWork work(*rig_, transfers, kv_dtype(), tokens);
    fill(CostTable::kHostAttention, work, steps(1, static_cast<double>(limits.batch), 4, false),
         steps(64, static_cast<double>(tokens), 4, true), 0.08);
  }

  void measure_link(TransferEngine& transfers) {
    const LinkShape shape{.kv_heads = model_.config.kv_heads,
                          .block_tokens = default_block_tokens(kv_dtype())};
    const std::int64_t record = record_bytes(kv_dtype());
    const auto block = static_cast<double>(shape.block_tokens * record);
    const auto copies = [&](double last) {
      std::vector<double> sizes = {static_cast<double>(record), static_cast<double>(8 * record)};
      for (double size = block; size <= last; size *= 4) sizes.push_back(size);
      return sizes;
    };
    const auto room = static_cast<double>(usable_memory()) / 4.0;
    const auto most = static_cast<std::int64_t>(
        std::max(std::min(static_cast<double>(kMostCopyBytes), room), 4.0 * block));
    for (const auto& [table, lane] :
         {std::pair(CostTable::kH2D, Lane::kToDevice), std::pair(CostTable::kD2H, Lane::kToHost)}) {
      BlockCopyWork copy(transfers, backend_, lane, shape, most / record, record);
      fill(table, copy, copies(static_cast<double>(most)), {}, 0.06);
    }
    // Records of every KV type of this model, and of cached hidden states.
    const std::int64_t heads = 2 * model_.config.kv_heads;
    const std::int64_t inputs = (model_.config.hidden_size + 4 + heads - 1) / heads * heads;
    const std::set<double> records = {static_cast<double>(2 * model_.config.kv_width()),
                                      static_cast<double>(4 * model_.config.kv_width()),
                                      static_cast<double>(8 * model_.config.kv_width()),
                                      static_cast<double>(inputs)};
    const double largest = *records.rbegin();
    const double count =
        std::clamp(std::min(static_cast<double>(kMostGatherBytes), room) / largest, 64.0, 65536.0);
    // Twice as many places as records.
    GatherWork gather(transfers, backend_, Lane::kToDevice, shape,
                      2 * static_cast<std::int64_t>(count), static_cast<std::int64_t>(largest));
    fill(CostTable::kGather, gather, {records.begin(), records.end()}, steps(1, count, 8, false),
         0.08);
  }

  void measure_memory() {
    progress_.begin_phase("measuring memory");
    const Ceilings ceilings = backend_.measure_ceilings(kCeilingRuns);
    out_.profile.notes.push_back(fmt::format(
        "memory of the device: {:.1f} GB/s read, {:.1f} GB/s copied (read plus written); {:.0f} "
        "GFLOP/s in registers",
        ceilings.read_bytes_per_second * 1e-9, ceilings.copy_bytes_per_second * 1e-9,
        ceilings.fma_flops * 1e-9));
  }

  const Workplace& place_;
  const ModelBundle& model_ = place_.model;
  Backend& backend_ = place_.backend;
  Progress& progress_ = place_.progress;
  const RunOptions& options_;
  const ProfileRequest& request_;
  std::optional<ModelRig> rig_;
  MeasuredProfile out_;
  double measure_start_ = 0.0;
  double left_;
  double shares_left_ = 1.0;
};

}  // namespace

std::string device_identity(Backend& backend) {
  const std::string cpu = inspect_machine().cpu_name;
  const std::string_view ops = backend.ops().name();
  const int threads = backend.threads().threads();
  if (!backend.machine().gpu) return fmt::format("{}, {}, {} threads", cpu, ops, threads);
  return fmt::format("{} beside {}, {} threads", ops, cpu, threads);
}

std::string link_identity(const Backend& backend, const std::optional<EmulatedLink>& link) {
  if (!link) return std::string(backend.machine().gpu ? kGpuLink : "memory copies");
  return fmt::format("emulated: {:g} GB/s, {:g} us for each record", link->bytes_per_second * 1e-9,
                     link->seconds_per_record * 1e6);
}

void subtract_dense(const GridTable& dense, const AttentionOptions& attention, GridTable& steps) {
  const TimeCurve curve(dense);
  auto cell = steps.seconds.begin();
  for (const double batch : steps.x) {
    for (const double tokens : steps.y) {
      // As long as the contexts are while they grow, on average.
      const auto context = static_cast<std::int64_t>(std::ceil(tokens / batch));
      const std::int64_t attended =
          budget_tokens(attention, context + DecodeWork::kGrowth / 2, context);
      const double beside = *cell - curve.at(batch, batch * static_cast<double>(attended)).seconds;
      *cell++ = std::max(beside, 0.0);
    }
  }
}

MeasuredProfile measure_profile(const RunOptions& options, const ProfileRequest& request,
                                const Workplace& place) {
  return Profiler(options, request, place).measure();
}

std::string verdict(const MeasuredProfile& measured, std::string_view file) {
  std::int64_t cells = 0;
  std::vector<double> rounds;
  const ProfiledTable* worst = nullptr;
  for (const ProfiledTable& table : measured.tables) {
    cells += table.repeatability.cells;
    rounds.push_back(table.repeatability.rounds);
    if (worst == nullptr || table.repeatability.rounds > worst->repeatability.rounds)
      worst = &table;
  }
  TRIPHASE_CHECK(worst != nullptr, "a profile has tables");
  std::ranges::sort(rounds);
  const double apart = quantile(rounds, 0.5);
  std::string use = fmt::format("use it with --profile {} (run, plan, simulate)", file);
  if (apart > kPoorRounds) {
    use = fmt::format("measure again on an idle machine{}, or take predictions with it as guesses",
                      measured.measure_seconds < kLongProfile ? ", or with more --time" : "");
  }
  return fmt::format(
      "{}: {} cells of {} tables measured in {:.1f} s after loading for {:.1f} s; repeated rounds "
      "lie {:.0f} % apart ({}; {} at worst, {:.0f} %): {}",
      file, cells, measured.tables.size(), measured.measure_seconds, measured.load_seconds,
      100.0 * apart,
      apart > kPoorRounds   ? "poor"
      : apart > kGoodRounds ? "fair"
                            : "good",
      worst->name, 100.0 * worst->repeatability.rounds, use);
}

}  // namespace triphase

// How many sequences run together where nobody asks for a number: from memory and machine alone.

#include <gtest/gtest.h>

#include "runtime/engine/loaded_model.h"

namespace triphase {
namespace {

ComputeMachine gpu_of(std::int64_t multiprocessors, std::uint64_t memory) {
  return {.threads = 1,
          .gpu = GpuMachine{.multiprocessors = multiprocessors,
                            .shared_bytes_per_multiprocessor = 228 << 10,
                            .shared_bytes_per_block = 227 << 10,
                            .memory = memory}};
}

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

RunPlan planned(const std::string& shape, const ComputeMachine& machine, std::int64_t requests = 0,
                AttentionKind attention = AttentionKind::kDense) {
  RunOptions options;
  options.files.model = shape;
  options.weights.random = true;
  options.machine.requests = requests;
  options.machine.host_memory = kGiB;
  options.attention.kind = attention;
  if (!machine.gpu) options.machine.device_memory = 2 * kGiB;
  return plan_run(options, open_model(options), machine);
}

TEST(DefaultBatch, OfAGpuFillsItsProducts) {
  EXPECT_EQ(default_batch_size(gpu_of(132, 139 * kGiB)), 256);  // H200
  EXPECT_EQ(default_batch_size(gpu_of(108, 79 * kGiB)), 128);   // A100
  EXPECT_EQ(default_batch_size(gpu_of(40, 15 * kGiB)), 64);     // T4
  EXPECT_EQ(default_batch_size(gpu_of(4, kGiB)), 32);
  EXPECT_EQ(default_batch_size({.threads = 64}), 32);
  EXPECT_EQ(planned("opt-30b", gpu_of(132, 139 * kGiB)).memory.batch_size, 256);
}

TEST(DefaultBatch, IsNoLargerThanTheJob) {
  EXPECT_EQ(planned("opt-30b", gpu_of(132, 139 * kGiB), 100).memory.batch_size, 100);
  EXPECT_EQ(planned("opt-30b", gpu_of(132, 139 * kGiB), 3).memory.batch_size, 3);
}

// H2O keeps sums of every head and token: at 256 sequences they would take the KV's room.
TEST(DefaultBatch, LeavesMostOfTheRoomToKv) {
  for (const AttentionKind kind : {AttentionKind::kDense, AttentionKind::kSwa, AttentionKind::kH2o,
                                   AttentionKind::kSparq, AttentionKind::kQuest}) {
    for (const std::uint64_t memory : {16 * kGiB, 24 * kGiB, 79 * kGiB}) {
      const RunPlan plan = planned("opt-6.7b", gpu_of(132, memory), 0, kind);
      SCOPED_TRACE(attention_name(kind));
      if (plan.memory.batch_size > 32) {
        EXPECT_LE(4 * plan.memory.scratch, memory - plan.memory.weights);
        EXPECT_GT(2 * (plan.memory.kv + plan.memory.staging + plan.memory.cache),
                  memory - plan.memory.weights);
      }
    }
  }
  EXPECT_LT(planned("opt-6.7b", gpu_of(132, 16 * kGiB), 0, AttentionKind::kH2o).memory.batch_size,
            256);
  EXPECT_EQ(planned("opt-6.7b", gpu_of(132, 79 * kGiB)).memory.batch_size, 256);
}

}  // namespace
}  // namespace triphase

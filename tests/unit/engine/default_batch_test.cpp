// How many sequences run together where nobody asks for a number: from memory and machine alone.

#include <gtest/gtest.h>

#include "base/error.h"
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

// A model that was made for long contexts, and requests that need `job_context` tokens; 0: any.
RunPlan planned_long(const ComputeMachine& machine, AttentionKind attention,
                     std::int64_t job_context) {
  RunOptions options;
  options.files.model = "llama-3-8b";
  options.weights.random = true;
  options.machine.host_memory = 16 * kGiB;
  options.machine.job_context = job_context;
  options.attention.kind = attention;
  ModelBundle model = open_model(options);
  model.config.max_positions = 131072;
  return plan_run(options, model, machine);
}

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

// Scratch, look-up tables and staging for requests that are not there take nobody's room.
TEST(JobContext, ShortRequestsOfALongModelRunInLargerBatches) {
  for (const AttentionKind kind :
       {AttentionKind::kDense, AttentionKind::kH2o, AttentionKind::kSparq, AttentionKind::kQuest}) {
    for (const std::uint64_t memory : {24 * kGiB, 79 * kGiB}) {
      SCOPED_TRACE(attention_name(kind));
      const RunPlan any = planned_long(gpu_of(132, memory), kind, 0);
      const RunPlan job = planned_long(gpu_of(132, memory), kind, 2000);
      EXPECT_EQ(any.context, 131072);
      EXPECT_EQ(job.longest_request, 2000);
      EXPECT_GE(job.memory.batch_size, any.memory.batch_size);
      if (job.prefill_chunk == any.prefill_chunk) {
        const auto batch = static_cast<std::uint64_t>(job.memory.batch_size);
        const auto any_batch = static_cast<std::uint64_t>(any.memory.batch_size);
        EXPECT_LT(job.memory.scratch / batch, any.memory.scratch / any_batch);
      }
      // What is saved is the KV's.
      EXPECT_GT(job.memory.kv + job.memory.cache, any.memory.kv + any.memory.cache);
    }
  }
  EXPECT_GE(planned_long(gpu_of(132, 79 * kGiB), AttentionKind::kQuest, 2000).memory.batch_size,
            128);
  EXPECT_LE(planned_long(gpu_of(132, 79 * kGiB), AttentionKind::kQuest, 0).memory.batch_size, 32);
  // Every row of a request of 131,072 would be more than the device has: SWA keeps buckets of them.
  const RunPlan longest = planned_long(gpu_of(132, 79 * kGiB), AttentionKind::kSwa, 0);
  EXPECT_EQ(longest.longest_request, 131072);
  EXPECT_GT(longest.memory.kv, longest.memory.scratch);
  EXPECT_GE(planned_long(gpu_of(132, 79 * kGiB), AttentionKind::kSwa, 2000).memory.batch_size, 128);
}

// A full batch of a job's requests takes a small part: the rest still keeps ended prompts for those
// that begin alike.
TEST(JobContext, KvKeepsTheRoomThatItHad) {
  const RunPlan any = planned_long(gpu_of(132, 79 * kGiB), AttentionKind::kDense, 0);
  const RunPlan job = planned_long(gpu_of(132, 79 * kGiB), AttentionKind::kDense, 500);
  EXPECT_GE(job.memory.kv_pages, any.memory.kv_pages);
  EXPECT_EQ(job.memory.host_blocks, 0);
}

TEST(JobContext, IsNeverMoreThanTheModelTakes) {
  EXPECT_EQ(planned_long(gpu_of(132, 79 * kGiB), AttentionKind::kDense, 1 << 20).context, 131072);
}

}  // namespace
}  // namespace triphase

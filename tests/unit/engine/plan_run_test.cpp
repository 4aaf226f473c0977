// What a run's plan makes of its options: the type of the KV that a policy asks for, and what
// excludes it, each in one line.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "runtime/engine/loaded_model.h"
#include "tests/support/tiny_model.h"

namespace triphase {
namespace {

using ::testing::HasSubstr;

ModelBundle bundle() {
  ModelBundle model;
  model.config = tiny_config();
  model.config.heads = model.config.kv_heads = 2;
  model.config.head_dim = 64;
  model.weights_dtype = DType::kF16;
  model.weight_bytes = weight_bytes(model.config, DType::kF16);
  return model;
}

RunOptions compressed() {
  RunOptions options;
  options.policy = "flexgen";
  options.policy_options = {"kv-quantization=4bit"};
  options.device_memory = 8 << 20;
  options.host_memory = 8 << 20;
  options.batch_size = 2;
  return options;
}

std::string refusal(const RunOptions& options, const ComputeMachine& machine = {}) {
  try {
    (void)plan_run(options, bundle(), machine);
  } catch (const Error& error) {
    EXPECT_EQ(error.role(), ErrorRole::kUsage);
    return error.what();
  }
  return "none";
}

TEST(PlanRun, CompressedKvHasItsOwnBytesInEveryBudget) {
  RunOptions options = compressed();
  for (const JobKind job : {JobKind::kScore, JobKind::kGenerate}) {
    options.job = job;
    const RunPlan plan = plan_run(options, bundle(), {});
    EXPECT_EQ(plan.kv.dtype, DType::kQ4);
    EXPECT_EQ(kv_dtype_name(plan.kv), "4bit");
    // K and V of 2 heads, 32 codes and one group of 4 bytes each.
    EXPECT_EQ(KvStore::page_bytes(plan.kv), 2U * 2 * 36 * 32);
  }
  EXPECT_GT(plan_run(options, bundle(), {}).memory.host_blocks, 0);
  options.policy_options.emplace_back("kv-share=1");
  EXPECT_EQ(plan_run(options, bundle(), {}).memory.host_blocks, 0);
  // The last of several has the say.
  options.policy_options.emplace_back("kv-quantization=model");
  EXPECT_EQ(plan_run(options, bundle(), {}).kv.dtype, DType::kF16);
}

TEST(PlanRun, WhatExcludesCompressedKvIsNamed) {
  EXPECT_EQ(refusal(compressed()), "none");
  EXPECT_THAT(refusal(compressed(), {.threads = 1, .gpu = GpuMachine{}}),
              HasSubstr("a GPU with 4-bit KV"));
  const auto with = [](const auto& change) {
    RunOptions options = compressed();
    change(options);
    return refusal(options);
  };
  EXPECT_THAT(with([](RunOptions& o) { o.policy_options.emplace_back("kv-share=0.25"); }),
              HasSubstr("kv-share=0.25 with kv-quantization=4bit"));
  EXPECT_THAT(with([](RunOptions& o) { o.policy_options.emplace_back("host-kv=cpu-attention"); }),
              HasSubstr("host-kv=stream"));
  EXPECT_THAT(with([](RunOptions& o) { o.kv_dtype = DType::kU8; }), HasSubstr("int8"));
  EXPECT_THAT(with([](RunOptions& o) { o.layer_inputs = 32; }), HasSubstr("--layer-inputs"));
  for (const AttentionKind kind :
       {AttentionKind::kDense, AttentionKind::kLocal, AttentionKind::kStrided, AttentionKind::kSwa,
        AttentionKind::kH2o, AttentionKind::kLmInfinite, AttentionKind::kTopk}) {
    EXPECT_EQ(with([&](RunOptions& o) { o.attention.kind = kind; }), "none");
  }
  for (const AttentionKind kind :
       {AttentionKind::kSparq, AttentionKind::kQuest, AttentionKind::kSqueezed}) {
    EXPECT_THAT(with([&](RunOptions& o) { o.attention.kind = kind; }),
                HasSubstr(std::string(attention_name(kind)) + " with 4-bit KV"));
  }
}

}  // namespace
}  // namespace triphase

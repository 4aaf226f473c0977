// What families compute where config.json leaves fields out.

#include "models/config/model_config.h"
#include "tests/unit/models/config_text.h"
#include "tests/unit/models/error_matcher.h"

namespace triphase {
namespace {

std::string llama_of_type(const std::string& type) {
  return with(with(kLlamaConfig, "model_type", "\"" + type + "\""), "architectures", "null");
}

TEST(FamilyDefaults, SeedOssHasBiasesOfQueriesKeysAndValues) {
  const std::string text = llama_of_type("seed_oss");
  const ModelConfig config = parse(text);
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_TRUE(config.attention.qkv_bias);
  EXPECT_FALSE(config.attention.out_bias || config.mlp.bias || config.embedding.tied);
  EXPECT_TRUE(parse(with(text, "attention_out_bias", "true")).attention.out_bias);
  EXPECT_FALSE(parse(with(text, "attention_bias", "false")).attention.qkv_bias);
}

}  // namespace
}  // namespace triphase

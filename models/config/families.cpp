#include "models/config/families.h"

#include <array>

namespace triphase {
namespace {

constexpr std::array<std::string_view, 2> kGemma{"GemmaForCausalLM", "GemmaModel"};
constexpr std::array<std::string_view, 2> kGptNeox{"GPTNeoXForCausalLM", "GPTNeoXModel"};
// The first conversions of LLaMA spelled it with two more capitals.
constexpr std::array<std::string_view, 3> kLlama{"LlamaForCausalLM", "LlamaModel",
                                                 "LLaMAForCausalLM"};
constexpr std::array<std::string_view, 2> kMistral{"MistralForCausalLM", "MistralModel"};
constexpr std::array<std::string_view, 2> kMixtral{"MixtralForCausalLM", "MixtralModel"};
constexpr std::array<std::string_view, 2> kOpt{"OPTForCausalLM", "OPTModel"};
constexpr std::array<std::string_view, 2> kQwen2{"Qwen2ForCausalLM", "Qwen2Model"};
constexpr std::array<std::string_view, 2> kQwen3{"Qwen3ForCausalLM", "Qwen3Model"};
constexpr std::array<std::string_view, 2> kQwen3Moe{"Qwen3MoeForCausalLM", "Qwen3MoeModel"};
constexpr std::array<std::string_view, 2> kSmolLm3{"SmolLM3ForCausalLM", "SmolLM3Model"};
constexpr std::array<std::string_view, 2> kOlmo2{"Olmo2ForCausalLM", "Olmo2Model"};
constexpr std::array<std::string_view, 2> kOlmo3{"Olmo3ForCausalLM", "Olmo3Model"};
constexpr std::array<std::string_view, 2> kPhi3{"Phi3ForCausalLM", "Phi3Model"};
constexpr std::array<std::string_view, 2> kGranite{"GraniteForCausalLM", "GraniteModel"};
constexpr std::array<std::string_view, 2> kMinistral{"MinistralForCausalLM", "MinistralModel"};
constexpr std::array<std::string_view, 2> kMinistral3{"Ministral3ForCausalLM", "Ministral3Model"};
constexpr std::array<std::string_view, 2> kGlm{"GlmForCausalLM", "GlmModel"};
constexpr std::array<std::string_view, 2> kGlm4{"Glm4ForCausalLM", "Glm4Model"};
constexpr std::array<std::string_view, 2> kGemma2{"Gemma2ForCausalLM", "Gemma2Model"};
constexpr std::array<std::string_view, 2> kGemma3{"Gemma3ForCausalLM", "Gemma3TextModel"};
constexpr std::array<std::string_view, 2> kStableLm{"StableLmForCausalLM", "StableLmModel"};
constexpr std::array<std::string_view, 2> kStarcoder2{"Starcoder2ForCausalLM", "Starcoder2Model"};
constexpr std::array<std::string_view, 2> kFalcon{"FalconForCausalLM", "FalconModel"};
constexpr std::array<std::string_view, 2> kGpt2{"GPT2LMHeadModel", "GPT2Model"};
constexpr std::array<std::string_view, 2> kGptOss{"GptOssForCausalLM", "GptOssModel"};
constexpr std::array<std::string_view, 2> kSeedOss{"SeedOssForCausalLM", "SeedOssModel"};
// transformers saves it with the class that computes it, LLaMA's.
constexpr std::array<std::string_view, 4> kInternLm3{"InternLM3ForCausalLM", "InternLM3Model",
                                                     "LlamaForCausalLM", "LlamaModel"};
constexpr std::array<std::string_view, 2> kErnie45{"Ernie4_5ForCausalLM", "Ernie4_5Model"};
constexpr std::array<std::string_view, 2> kCohere{"CohereForCausalLM", "CohereModel"};
constexpr std::array<std::string_view, 2> kCohere2{"Cohere2ForCausalLM", "Cohere2Model"};
constexpr std::array<std::string_view, 2> kExaone4{"Exaone4ForCausalLM", "Exaone4Model"};
constexpr std::array<std::string_view, 2> kOlmo{"OlmoForCausalLM", "OlmoModel"};

constexpr std::array<std::string_view, 2> kFalconLayouts{"new_decoder_architecture",
                                                         "parallel_attn"};
constexpr std::array<std::string_view, 1> kParallelResidual{"use_parallel_residual"};
constexpr std::array<std::string_view, 2> kSoftCaps{"attn_logit_softcapping",
                                                    "final_logit_softcapping"};
constexpr std::array<std::string_view, 4> kMultipliers{
    "attention_multiplier", "embedding_multiplier", "logits_scaling", "residual_multiplier"};
constexpr std::array<std::string_view, 1> kLogitScale{"logit_scale"};
constexpr std::array<std::string_view, 2> kCohere2Fields{"logit_scale", "position_embedding_type"};
constexpr std::array<std::string_view, 1> kNoRopeLayers{"no_rope_layers"};
constexpr std::array<std::string_view, 3> kExperts{"num_local_experts", "num_experts",
                                                   "num_experts_per_tok"};

constexpr std::array<std::string_view, 4> kQuantizedExperts{
    "num_local_experts", "num_experts", "num_experts_per_tok", "quantization_config"};

constexpr std::array<Family, 32> kFamilies{{
    {"cohere", kCohere, read_cohere, kLogitScale},
    {"cohere2", kCohere2, read_cohere2, kCohere2Fields},
    {"ernie4_5", kErnie45, read_ernie4_5},
    {"exaone4", kExaone4, read_exaone4},
    {"falcon", kFalcon, read_falcon, kFalconLayouts},
    {"gemma", kGemma, read_gemma},
    {"gemma2", kGemma2, read_gemma2, kSoftCaps},
    {"gemma3_text", kGemma3, read_gemma3},
    {"glm", kGlm, read_glm},
    {"glm4", kGlm4, read_glm4},
    {"gpt2", kGpt2, read_gpt2},
    {"gpt_neox", kGptNeox, read_gpt_neox, kParallelResidual},
    {"gpt_oss", kGptOss, read_gpt_oss, kQuantizedExperts},
    {"granite", kGranite, read_granite, kMultipliers},
    {"internlm3", kInternLm3, read_internlm3},
    {"llama", kLlama, read_llama},
    {"ministral", kMinistral, read_ministral},
    {"ministral3", kMinistral3, read_ministral3},
    {"mistral", kMistral, read_mistral},
    {"mixtral", kMixtral, read_mixtral, kExperts},
    {"olmo", kOlmo, read_olmo1},
    {"olmo2", kOlmo2, read_olmo2},
    {"olmo3", kOlmo3, read_olmo3},
    {"opt", kOpt, read_opt},
    {"phi3", kPhi3, read_phi3},
    {"qwen2", kQwen2, read_qwen2},
    {"qwen3", kQwen3, read_qwen3},
    {"qwen3_moe", kQwen3Moe, read_qwen3_moe, kExperts},
    {"seed_oss", kSeedOss, read_seed_oss},
    {"smollm3", kSmolLm3, read_smollm3, kNoRopeLayers},
    {"stablelm", kStableLm, read_stablelm, kParallelResidual},
    {"starcoder2", kStarcoder2, read_starcoder2},
}};

}  // namespace

std::span<const Family> families() { return kFamilies; }

}  // namespace triphase

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
constexpr std::array<std::string_view, 2> kOpt{"OPTForCausalLM", "OPTModel"};
constexpr std::array<std::string_view, 2> kQwen2{"Qwen2ForCausalLM", "Qwen2Model"};
constexpr std::array<std::string_view, 2> kQwen3{"Qwen3ForCausalLM", "Qwen3Model"};
constexpr std::array<std::string_view, 2> kSmolLm3{"SmolLM3ForCausalLM", "SmolLM3Model"};

constexpr std::array<std::string_view, 1> kNoRopeLayers{"no_rope_layers"};

constexpr std::array<Family, 8> kFamilies{{
    {"gemma", kGemma, read_gemma},
    {"gpt_neox", kGptNeox, read_gpt_neox},
    {"llama", kLlama, read_llama},
    {"mistral", kMistral, read_mistral},
    {"opt", kOpt, read_opt},
    {"qwen2", kQwen2, read_qwen2},
    {"qwen3", kQwen3, read_qwen3},
    {"smollm3", kSmolLm3, read_smollm3, kNoRopeLayers},
}};

}  // namespace

std::span<const Family> families() { return kFamilies; }

}  // namespace triphase

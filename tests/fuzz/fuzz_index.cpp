// model.safetensors.index.json.

#include "models/files/weight_index.h"
#include "tests/fuzz/fuzz_support.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using triphase::require;
  triphase::accept_or_refuse(triphase::ErrorRole::kModel, [&] {
    const triphase::WeightIndex index =
        triphase::parse_weight_index(triphase::as_text(data, size), "model.safetensors.index.json");
    require(!index.shards.empty() && !index.tensors.empty());
    for (const std::string& shard : index.shards) {
      require(shard.find('/') == std::string::npos && shard.find('\0') == std::string::npos);
      require(shard.ends_with(".safetensors"));
    }
    for (std::size_t i = 0; i < index.tensors.size(); ++i) {
      require(index.tensors[i].second < index.shards.size());
      require(i == 0 || index.tensors[i - 1].first < index.tensors[i].first);
    }
  });
  return 0;
}

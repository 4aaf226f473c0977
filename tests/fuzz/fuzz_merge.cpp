// Two shards and their manifests, between NUL bytes: a merge writes every line once, or nothing.

#include "runtime/job/merge.h"
#include "tests/fuzz/fuzz_support.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace triphase;
  const std::vector<std::string_view> files = parts_of(as_text(data, size), 4);
  MergeOptions options{.shards = {}, .output = scratch_folder() + "/merged.jsonl"};
  for (const std::string name : {"a.jsonl", "b.jsonl"}) {
    const std::size_t first = options.shards.size() * 2;
    options.shards.push_back(scratch_file(name, files[first]));
    scratch_file(name + ".manifest.json", files[first + 1]);
  }
  const auto clear = [&] {
    for (const char* end : {"", ".manifest.json", ".part"}) {
      std::filesystem::remove(options.output + end);
    }
  };
  clear();
  const auto counts = accepted(ErrorRole::kInput, [&] { return merge_shards(options); });
  require(std::filesystem::exists(options.output) == counts.has_value());
  if (counts) {
    std::ifstream merged(options.output);
    std::uint64_t lines = 0;
    for (std::string line; std::getline(merged, line);) ++lines;
    require(lines == counts->total());
  }
  clear();
  return 0;
}

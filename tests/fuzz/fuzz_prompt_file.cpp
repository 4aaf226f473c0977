// A whole prompt file through the line reader. Byte 0 chooses the shard and the form.

#include "runtime/job/prompt_file.h"
#include "tests/fuzz/fuzz_support.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace triphase;
  if (size == 0) return 0;
  RunOptions options;
  options.files.prompts = scratch_file("prompts.jsonl", as_text(data + 1, size - 1));
  const auto facts = accepted(ErrorRole::kInput, [&] { return examine_prompt_file(options); });
  if (!facts) return 0;
  require(facts->rereadable && facts->bytes == size - 1 && facts->line_hashes != nullptr);
  require(facts->line_hashes->size() == facts->lines && facts->requests <= facts->lines);
  // Reading it again gives as many lines, each an index further, in this shard and in all together.
  const auto count = [&](const Shard& shard) {
    RunOptions part = options;
    part.files.shard = shard;
    const PromptFileFacts own = examine_prompt_file(part);
    PromptReader reader(part, &own);
    std::uint64_t lines = 0;
    std::optional<std::uint64_t> last;
    while (const auto line = reader.next()) {
      const std::uint64_t index = std::visit([](const auto& any) { return any.index; }, *line);
      require(index < own.lines && index % shard.count == shard.index);
      require(!last || index >= *last);
      lines += last == index ? 0 : 1;
      last = index;
    }
    require(lines == own.requests && reader.bytes_read() == own.bytes);
    return lines;
  };
  require(count({0, 1}) == facts->requests);
  require(count({0, 2}) + count({1, 2}) == facts->requests);
  return 0;
}

// A safetensors file. The first byte chooses: 0 the rest is a whole file; otherwise the rest is a
// header that gets the right length in front and bytes of data behind, so that mutations reach past
// the length check.

#include <algorithm>
#include <span>

#include "models/files/safetensors.h"
#include "tests/fuzz/fuzz_support.h"

namespace triphase {
namespace {

void check(const SafetensorsHeader& header, std::uint64_t file_bytes) {
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < header.size(); ++i) {
    const TensorRecord tensor = header[i];
    require(tensor.begin <= file_bytes && tensor.bytes <= file_bytes - tensor.begin);
    std::uint64_t bits = tensor.type->bits;
    for (const std::uint64_t dimension : tensor.shape) bits *= dimension;
    require(bits == tensor.bytes * 8);
    require(tensor.shape.size() <= kMaxTensorRank && tensor.name.size() <= kMaxTensorName);
    const std::optional<TensorRecord> found = header.find(tensor.name);
    require(found && found->begin == tensor.begin && found->name.data() == tensor.name.data());
    total += tensor.bytes;
  }
  require(total + header.trailing_bytes() <= file_bytes);
}

void parse_file(std::span<const std::uint8_t> file) {
  const std::span<const std::byte> bytes = std::as_bytes(file);
  const std::uint64_t length = safetensors_header_length(
      bytes.first(std::min<std::size_t>(bytes.size(), 512)), bytes.size(), "x.safetensors");
  const std::string_view text = as_text(file.data() + 8, length);
  check(parse_safetensors_header(text, bytes.size(), "x.safetensors", false), bytes.size());
}

void parse_header(std::string_view text, std::uint64_t data_bytes) {
  const std::uint64_t file_bytes = 8 + text.size() + data_bytes;
  check(parse_safetensors_header(text, file_bytes, "x.safetensors", true), file_bytes);
}

}  // namespace
}  // namespace triphase

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  triphase::accept_or_refuse(triphase::ErrorRole::kModel, [&] {
    if (data[0] == 0) {
      triphase::parse_file({data + 1, size - 1});
    } else {
      triphase::parse_header(triphase::as_text(data + 1, size - 1), std::uint64_t{data[0]} << 8);
    }
  });
  return 0;
}

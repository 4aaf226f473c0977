#include "models/files/safetensors.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/checked_math.h"
#include "models/files/file_kind.h"

namespace triphase {
namespace {

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::size_t kMaxDepth = 64;

constexpr std::array<SafetensorsType, 21> kTypes{{
    {"F32", 32, DType::kF32},     {"F16", 16, DType::kF16},     {"BF16", 16, DType::kBF16},
    {"F64", 64, DType::kF64},     {"I64", 64, std::nullopt},    {"I32", 32, DType::kI32},
    {"I16", 16, std::nullopt},    {"I8", 8, std::nullopt},      {"U8", 8, std::nullopt},
    {"BOOL", 8, std::nullopt},    {"U16", 16, std::nullopt},    {"U32", 32, std::nullopt},
    {"U64", 64, std::nullopt},    {"C64", 64, std::nullopt},    {"F8_E5M2", 8, std::nullopt},
    {"F8_E4M3", 8, std::nullopt}, {"F8_E8M0", 8, std::nullopt}, {"F8_E4M3FNUZ", 8, std::nullopt},
    {"F6_E2M3", 6, std::nullopt}, {"F6_E3M2", 6, std::nullopt}, {"F4", 4, std::nullopt},
}};

Error header_error(std::string_view code, std::string_view field, std::string_view file) {
  Error error(ErrorRole::kModel, code, field);
  error.file(file);
  return error;
}

}  // namespace

TensorRecord SafetensorsHeader::operator[](std::size_t index) const {
  const Tensor& tensor = tensors_[index];
  return {.name = name_of(tensor),
          .type = &kTypes[tensor.type],
          .shape = {shapes_.data() + tensor.shape_offset, tensor.rank},
          .begin = data_begin_ + tensor.begin,
          .bytes = tensor.end - tensor.begin};
}

std::optional<TensorRecord> SafetensorsHeader::find(std::string_view name) const {
  const std::uint64_t hash = XXH3_64bits(name.data(), name.size());
  auto it = std::lower_bound(by_hash_.begin(), by_hash_.end(), std::pair{hash, std::uint32_t{0}});
  for (; it != by_hash_.end() && it->first == hash; ++it) {
    if (name_of(tensors_[it->second]) == name) return (*this)[it->second];
  }
  return std::nullopt;
}

// Takes nlohmann's parse events straight into the header's tables: the text is never held as a
// tree. Stops at the first broken rule and keeps the error.
class SafetensorsParser : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit SafetensorsParser(std::string_view file) : file_(file) {}

  SafetensorsHeader parse(std::string_view text, std::uint64_t file_bytes, bool allow_trailing) {
    if (text.empty() || text.front() != '{') {
      throw header_error("E-ST-JSON", "header", file_)
          .byte(kLengthBytes + 1)
          .found(text.empty() ? "no header" : fmt::format("\"{}\"", escape_untrusted(text, 8)))
          .expected("\"{\"");
    }
    // nlohmann takes a NUL between values for the end of the text.
    if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
      throw header_error("E-ST-JSON", "header", file_)
          .byte(kLengthBytes + nul + 1)
          .found("a NUL byte")
          .expected("JSON, with spaces behind it");
    }
    const bool parsed = nlohmann::json::sax_parse(text.begin(), text.end(), this);
    if (error_) throw *error_;
    TRIPHASE_CHECK(parsed, "a header was refused without a reason");
    header_.data_begin_ = kLengthBytes + text.size();
    header_.text_hash_ = XXH3_64bits(text.data(), text.size());
    index_names();
    check_layout(file_bytes - header_.data_begin_, allow_trailing);
    return std::move(header_);
  }

  bool null() override { return scalar("null"); }
  bool boolean(bool value) override { return scalar(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override {
    return scalar(std::to_string(value));  // negative, or it would be unsigned
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (state_ == State::kShape) {
      if (tensor_.rank == kMaxTensorRank) {
        return fail("E-ST-LIMIT", "shape", fmt::format("more than {} dimensions", kMaxTensorRank),
                    fmt::format("at most {}", kMaxTensorRank));
      }
      header_.shapes_.push_back(value);
      ++tensor_.rank;
      return true;
    }
    if (state_ == State::kOffsets) {
      if (offsets_ == 2) {
        return fail("E-ST-OFFSETS", "data_offsets", "more than 2 numbers", "[begin, end]");
      }
      (offsets_ == 0 ? tensor_.begin : tensor_.end) = value;
      ++offsets_;
      return true;
    }
    return scalar(std::to_string(value));
  }
  bool number_float(number_float_t, const string_t& text) override { return scalar(text); }
  bool string(string_t& value) override {
    if (state_ == State::kMetadata) return true;
    if (state_ == State::kTensor && field_ == Field::kDtype) return take_type(value);
    return scalar("\"" + escape_untrusted(value, 40) + "\"");
  }
  bool binary(binary_t&) override { return scalar("binary data"); }

  bool start_object(std::size_t) override {
    switch (state_) {
      case State::kStart:
        state_ = State::kRoot;
        return true;
      case State::kRoot:
        if (name_ == "__metadata__") {
          if (metadata_seen_) {
            return fail("E-ST-DUPLICATE", "__metadata__", "twice", "at most once", false);
          }
          metadata_seen_ = true;
          state_ = State::kMetadata;
          return true;
        }
        return start_tensor();
      default:
        return open_nested("an object");
    }
  }
  bool start_array(std::size_t) override {
    if (state_ == State::kTensor && field_ == Field::kShape) {
      state_ = State::kShape;
      return true;
    }
    if (state_ == State::kTensor && field_ == Field::kOffsets) {
      state_ = State::kOffsets;
      return true;
    }
    return open_nested("an array");
  }
  bool key(string_t& key) override {
    if (state_ == State::kRoot) {
      if (key.size() > kMaxTensorName) {
        return fail("E-ST-LIMIT", escape_untrusted(key, 40),
                    fmt::format("a name of {} bytes", key.size()),
                    fmt::format("at most {}", kMaxTensorName), false);
      }
      name_ = key;
    } else if (state_ == State::kMetadata) {
      metadata_key_ = key.substr(0, 80);
    } else if (state_ == State::kTensor) {
      field_ = key == "dtype"          ? Field::kDtype
               : key == "shape"        ? Field::kShape
               : key == "data_offsets" ? Field::kOffsets
                                       : Field::kOther;
      if (field_ == Field::kOther) return true;
      const unsigned bit = 1U << static_cast<unsigned>(field_);
      if ((seen_ & bit) != 0) return fail("E-ST-DUPLICATE", key, "given twice", "once");
      seen_ |= bit;
    }
    return true;
  }
  bool end_object() override {
    if (state_ == State::kTensor) return end_tensor();
    if (state_ == State::kMetadata) {
      state_ = State::kRoot;
    } else if (state_ == State::kSkip) {
      close_skipped();
    }
    return true;
  }
  bool end_array() override {
    if (state_ == State::kOffsets && offsets_ != 2) {
      return fail("E-ST-OFFSETS", "data_offsets", fmt::format("{} numbers", offsets_),
                  "[begin, end]");
    }
    if (state_ == State::kSkip) {
      close_skipped();
    } else {
      state_ = State::kTensor;
    }
    return true;
  }
  bool parse_error(std::size_t position, const std::string& last_token,
                   const nlohmann::json::exception&) override {
    if (!error_) {
      error_ = header_error("E-ST-JSON", "header", file_);
      error_->byte(kLengthBytes + position)
          .found(last_token.empty()
                     ? "end of text"
                     : fmt::format("unexpected \"{}\"", escape_untrusted(last_token, 40)))
          .expected("valid UTF-8 JSON that fills the header");
    }
    return false;
  }

 private:
  enum class State { kStart, kRoot, kMetadata, kTensor, kShape, kOffsets, kSkip };
  enum class Field { kDtype, kShape, kOffsets, kOther };

  bool fail(std::string_view code, std::string_view field, std::string_view found,
            std::string_view expected, bool of_tensor = true) {
    error_ = header_error(
        code, of_tensor ? fmt::format("{}: {}", escape_untrusted(name_), field) : field, file_);
    error_->found(found).expected(expected);
    return false;
  }

  // A value where it may not be, or one of a field nobody needs.
  bool scalar(std::string_view found) {
    switch (state_) {
      case State::kStart:
        return fail("E-ST-HEADER", "header", found, "an object", false);
      case State::kRoot:
        return fail("E-ST-HEADER", name_, found, "an object with dtype, shape and data_offsets",
                    false);
      case State::kMetadata:
        return fail("E-ST-HEADER", metadata_key_, found, "a string");
      case State::kTensor:
        return field_ == Field::kOther || misplaced(found);
      case State::kShape:
        return fail("E-ST-HEADER", "shape", found, "integers from 0 to 2^64 - 1");
      case State::kOffsets:
        return fail("E-ST-HEADER", "data_offsets", found, "integers from 0 to 2^64 - 1");
      case State::kSkip:
        return true;
    }
    return true;
  }

  bool misplaced(std::string_view found) {
    switch (field_) {
      case Field::kDtype:
        return fail("E-ST-HEADER", "dtype", found, "a string");
      case Field::kShape:
        return fail("E-ST-HEADER", "shape", found, "an array of integers");
      default:
        return fail("E-ST-HEADER", "data_offsets", found, "[begin, end]");
    }
  }

  bool open_nested(std::string_view found) {
    if (state_ == State::kSkip) {
      if (++skip_depth_ > kMaxDepth) {
        return fail("E-ST-JSON", "header", fmt::format("nesting deeper than {}", kMaxDepth),
                    "flat JSON", false);
      }
      return true;
    }
    if (state_ == State::kTensor && field_ == Field::kOther) {
      state_ = State::kSkip;
      skip_depth_ = 1;
      return true;
    }
    return scalar(found);
  }

  void close_skipped() {
    if (--skip_depth_ == 0) state_ = State::kTensor;
  }

  bool start_tensor() {
    if (header_.tensors_.size() == kMaxTensors) {
      return fail("E-ST-LIMIT", "header", fmt::format("more than {} tensors", kMaxTensors),
                  fmt::format("at most {}", kMaxTensors), false);
    }
    state_ = State::kTensor;
    seen_ = 0;
    offsets_ = 0;
    tensor_ = {};
    tensor_.name_offset = static_cast<std::uint32_t>(header_.names_.size());
    tensor_.name_bytes = static_cast<std::uint16_t>(name_.size());
    tensor_.shape_offset = static_cast<std::uint32_t>(header_.shapes_.size());
    header_.names_ += name_;
    return true;
  }

  bool take_type(const std::string& name) {
    for (std::size_t index = 0; index < kTypes.size(); ++index) {
      if (kTypes[index].name != name) continue;
      tensor_.type = static_cast<std::uint8_t>(index);
      return true;
    }
    return fail("E-ST-DTYPE", "dtype", fmt::format("\"{}\"", escape_untrusted(name, 40)),
                "a safetensors type such as F32, F16 or BF16");
  }

  bool end_tensor() {
    state_ = State::kRoot;
    constexpr unsigned kAll = 0b111;
    if (seen_ != kAll) {
      const std::string_view missing = (seen_ & 1U) == 0   ? "dtype"
                                       : (seen_ & 2U) == 0 ? "shape"
                                                           : "data_offsets";
      return fail("E-ST-HEADER", missing, "missing", "dtype, shape and data_offsets");
    }
    if (tensor_.begin > tensor_.end) {
      return fail("E-ST-OFFSETS", "data_offsets",
                  fmt::format("[{}, {}]", tensor_.begin, tensor_.end), "begin <= end");
    }
    std::uint64_t bits = kTypes[tensor_.type].bits;
    bool overflow = false;
    bool empty = false;
    for (std::size_t i = 0; i < tensor_.rank; ++i) {
      const std::uint64_t dimension = header_.shapes_[tensor_.shape_offset + i];
      empty = empty || dimension == 0;
      overflow = overflow || !checked_mul(bits, dimension, bits);
    }
    // A zero anywhere makes the product 0 in any order, but an overflow before it is still wrong.
    if (overflow) {
      return fail("E-ST-SHAPE", "shape", "more than 2^64 bits", "a size that fits 64 bits");
    }
    if (bits % 8 != 0) {
      return fail("E-ST-SHAPE", "shape", fmt::format("{} bits", bits), "whole bytes");
    }
    const std::uint64_t bytes = empty ? 0 : bits / 8;
    if (tensor_.end - tensor_.begin != bytes) {
      return fail("E-ST-OFFSETS", "data_offsets",
                  fmt::format("{} bytes", tensor_.end - tensor_.begin),
                  fmt::format("{} bytes, from dtype and shape", bytes));
    }
    header_.tensors_.push_back(tensor_);
    return true;
  }

  // Sorting by (hash, name) also finds names that occur twice, whatever the hashes.
  void index_names() {
    const auto& tensors = header_.tensors_;
    header_.by_hash_.resize(tensors.size());
    for (std::size_t index = 0; index < tensors.size(); ++index) {
      const std::string_view name = header_.name_of(tensors[index]);
      header_.by_hash_[index] = {XXH3_64bits(name.data(), name.size()),
                                 static_cast<std::uint32_t>(index)};
    }
    std::sort(header_.by_hash_.begin(), header_.by_hash_.end(), [&](const auto& a, const auto& b) {
      if (a.first != b.first) return a.first < b.first;
      return header_.name_of(tensors[a.second]) < header_.name_of(tensors[b.second]);
    });
    for (std::size_t i = 1; i < header_.by_hash_.size(); ++i) {
      const std::string_view name = header_.name_of(tensors[header_.by_hash_[i].second]);
      if (name != header_.name_of(tensors[header_.by_hash_[i - 1].second])) continue;
      throw header_error("E-ST-DUPLICATE", name, file_).found("given twice").expected("once");
    }
  }

  // The ranges must follow each other without overlap or hole and fill the data section.
  void check_layout(std::uint64_t data_bytes, bool allow_trailing) {
    const auto& tensors = header_.tensors_;
    std::vector<std::uint32_t> order(tensors.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::uint32_t>(i);
    std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
      return std::pair{tensors[a].begin, tensors[a].end} <
             std::pair{tensors[b].begin, tensors[b].end};
    });
    std::uint64_t end = 0;
    for (const std::uint32_t index : order) {
      const auto& tensor = tensors[index];
      const std::string_view name = header_.name_of(tensor);
      if (tensor.begin != end) {
        throw header_error("E-ST-OFFSETS", fmt::format("{}: data_offsets", escape_untrusted(name)),
                           file_)
            .found(fmt::format("begins at {}", tensor.begin))
            .expected(fmt::format("{}, where the tensor before it ends", end));
      }
      end = tensor.end;
      if (end > data_bytes) {
        const std::uint64_t last = tensors[order.back()].end;
        throw header_error("E-ST-TRUNCATED", name, file_)
            .found(fmt::format("data ends {} bytes past the end of the file, which lacks {} bytes "
                               "in all",
                               end - data_bytes, last - data_bytes))
            .expected("a complete file")
            .hint("download this file again");
      }
    }
    header_.trailing_bytes_ = data_bytes - end;
    if (end < data_bytes && !allow_trailing) {
      throw header_error("E-ST-OFFSETS", "data", file_)
          .found(fmt::format("{} bytes after the last tensor", data_bytes - end))
          .expected("none")
          .hint("--allow-trailing-bytes ignores them");
    }
  }

  std::string file_;
  SafetensorsHeader header_;
  std::optional<Error> error_;
  State state_ = State::kStart;
  Field field_ = Field::kOther;
  std::string name_;
  std::string metadata_key_;
  bool metadata_seen_ = false;
  unsigned seen_ = 0;
  int offsets_ = 0;
  std::size_t skip_depth_ = 0;
  SafetensorsHeader::Tensor tensor_;
};

std::uint64_t safetensors_header_length(std::span<const std::byte> start, std::uint64_t file_bytes,
                                        std::string_view file) {
  refuse_other_kind(start, file_bytes, file, /*broken=*/false);
  if (file_bytes < kLengthBytes || start.size() < kLengthBytes) {
    throw header_error("E-ST-LENGTH", "size", file)
        .found(fmt::format("{} bytes", file_bytes))
        .expected("a safetensors file of at least 8 bytes")
        .hint("download this file again");
  }
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    length |= std::to_integer<std::uint64_t>(start[i]) << (8 * i);
  }
  const std::uint64_t rest = file_bytes - kLengthBytes;
  const bool opens = start.size() > kLengthBytes && start[kLengthBytes] == std::byte{'{'};
  if (length > kMaxSafetensorsHeader || length > rest || !opens) {
    refuse_other_kind(start, file_bytes, file, /*broken=*/true);
  }
  if (length > kMaxSafetensorsHeader) {
    throw header_error("E-ST-LENGTH", "header length", file)
        .found(std::to_string(length))
        .expected(fmt::format("at most {}", kMaxSafetensorsHeader));
  }
  if (length > rest) {
    throw header_error("E-ST-LENGTH", "header length", file)
        .found(fmt::format("{}, and {} bytes follow", length, rest))
        .expected("a header inside the file")
        .hint("download this file again");
  }
  return length;
}

SafetensorsHeader parse_safetensors_header(std::string_view text, std::uint64_t file_bytes,
                                           std::string_view file, bool allow_trailing_bytes) {
  TRIPHASE_CHECK(file_bytes >= kLengthBytes && text.size() <= file_bytes - kLengthBytes &&
                     text.size() <= kMaxSafetensorsHeader,
                 "a header larger than its file");
  return SafetensorsParser(file).parse(text, file_bytes, allow_trailing_bytes);
}

SafetensorsHeader read_safetensors_header(const FileReader& file, bool allow_trailing_bytes) {
  std::array<std::byte, 512> buffer{};
  const std::span<std::byte> start =
      std::span(buffer).first(std::min<std::uint64_t>(buffer.size(), file.size()));
  file.read(0, start);
  const std::uint64_t length = safetensors_header_length(start, file.size(), file.name());
  std::string text(length, '\0');
  file.read(kLengthBytes, std::as_writable_bytes(std::span(text)));
  return parse_safetensors_header(text, file.size(), file.name(), allow_trailing_bytes);
}

}  // namespace triphase

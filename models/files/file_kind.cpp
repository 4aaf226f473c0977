#include "models/files/file_kind.h"

#include <fmt/format.h>

#include <array>
#include <string>

#include "base/error.h"

namespace triphase {
namespace {

struct Kind {
  std::string_view start;  // in lower case, behind white space
  std::string_view found;
  std::string_view hint;
  bool certain = false;  // however the rest looks
};

constexpr std::string_view kDownload = "download this file again";
constexpr std::string_view kConvert = "tools/convert_to_safetensors.py converts pytorch_model.bin";
constexpr std::string_view kPickle = "a Python pickle, as old torch.save writes";

constexpr std::array<Kind, 11> kKinds{{
    {"<!doctype html", "a web page", kDownload, true},
    {"<html", "a web page", kDownload, true},
    {"<?xml", "a web page", kDownload, true},
    {"pk\x03\x04", "a zip archive, as torch.save writes", kConvert},
    {"\x80\x02", kPickle, kConvert},
    {"\x80\x03", kPickle, kConvert},
    {"\x80\x04", kPickle, kConvert},
    {"\x80\x05", kPickle, kConvert},
    {"gguf", "a GGUF file", "use the original checkpoint, in Hugging Face form"},
    {"\x1f\x8b", "a gzip archive", "unpack it"},
    {"{", "JSON text", kDownload},
}};

std::string lower_start(std::span<const std::byte> start) {
  std::string text;
  for (const std::byte byte : start) {
    const auto c = std::to_integer<char>(byte);
    if (text.empty() && (c == ' ' || c == '\n' || c == '\r' || c == '\t')) continue;
    text.push_back(c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c);
  }
  return text;
}

}  // namespace

void refuse_other_kind(std::span<const std::byte> start, std::uint64_t file_bytes,
                       std::string_view file, bool broken) {
  const std::string text = lower_start(start);
  if (text.starts_with("version https://git-lfs") && (broken || file_bytes < 4096)) {
    throw Error(ErrorRole::kModel, "E-ST-LFS", "header")
        .file(file)
        .found(fmt::format("Git LFS pointer of {} bytes", file_bytes))
        .expected("weights")
        .hint("run git lfs pull in the model directory");
  }
  for (const Kind& kind : kKinds) {
    if (!(broken || kind.certain) || !text.starts_with(kind.start)) continue;
    throw Error(ErrorRole::kModel, "E-ST-FORMAT", "header")
        .file(file)
        .found(kind.found)
        .expected("safetensors")
        .hint(kind.hint);
  }
}

}  // namespace triphase

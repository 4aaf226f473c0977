#include "models/files/file_kind.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/error.h"

namespace triphase {
namespace {

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

std::optional<FileKind> short_file_kind(std::span<const std::byte> start,
                                        std::uint64_t file_bytes) {
  const std::string text = lower_start(start);
  if (text.starts_with("version https://git-lfs") && file_bytes < 4096) {
    return FileKind::kLfsPointer;
  }
  for (const std::string_view opening : {"<!doctype html", "<html", "<?xml"}) {
    if (text.starts_with(opening)) return FileKind::kHtml;
  }
  return std::nullopt;
}

std::optional<FileKind> recognise_file(std::span<const std::byte> start) {
  const std::string text = lower_start(start);
  if (text.starts_with("version https://git-lfs")) return FileKind::kLfsPointer;
  if (text.starts_with("pk\x03\x04")) return FileKind::kZip;
  if (text.size() >= 2 && text[0] == '\x80' && text[1] >= 2 && text[1] <= 5) {
    return FileKind::kPickle;
  }
  if (text.starts_with("gguf")) return FileKind::kGguf;
  if (text.starts_with("\x1f\x8b")) return FileKind::kGzip;
  if (text.starts_with("{")) return FileKind::kJsonText;
  return std::nullopt;
}

void throw_wrong_kind(FileKind kind, std::uint64_t file_bytes, std::string_view file) {
  Error error(ErrorRole::kModel, kind == FileKind::kLfsPointer ? "E-ST-LFS" : "E-ST-FORMAT",
              "header");
  error.file(file);
  switch (kind) {
    case FileKind::kLfsPointer:
      throw error.found(fmt::format("Git LFS pointer of {} bytes", file_bytes))
          .expected("weights")
          .hint("run git lfs pull in the model directory");
    case FileKind::kHtml:
      throw error.found("a web page").expected("safetensors").hint("download this file again");
    case FileKind::kZip:
      throw error.found("a zip archive, as torch.save writes")
          .expected("safetensors")
          .hint("tools/convert_to_safetensors.py converts pytorch_model.bin");
    case FileKind::kPickle:
      throw error.found("a Python pickle, as old torch.save writes")
          .expected("safetensors")
          .hint("tools/convert_to_safetensors.py converts pytorch_model.bin");
    case FileKind::kGguf:
      throw error.found("a GGUF file")
          .expected("safetensors")
          .hint("use the original checkpoint, in Hugging Face form");
    case FileKind::kGzip:
      throw error.found("a gzip archive").expected("safetensors").hint("unpack it");
    case FileKind::kJsonText:
      throw error.found("JSON text").expected("safetensors").hint("download this file again");
  }
  throw error.found("another format").expected("safetensors");
}

}  // namespace triphase

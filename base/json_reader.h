#pragma once

// Reading the project's own JSON files (manifests, profiles, plans) field by field, with errors
// that name the field, what was found and what was expected. Not for files of other projects.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace triphase {

// One object of a file. Every function throws ErrorRole::kInput with the given code and hint.
// Unknown members are refused by finish(), so that a misspelled field never passes silently.
class JsonObjectReader {
 public:
  JsonObjectReader(const Json& object, std::string path, std::string_view file,
                   std::string_view code, std::string_view hint = "");

  [[nodiscard]] bool has(std::string_view key) const { return object_->find(key) != nullptr; }
  [[nodiscard]] const Json& value(std::string_view key);
  [[nodiscard]] std::string text(std::string_view key);
  [[nodiscard]] bool boolean(std::string_view key);
  [[nodiscard]] std::int64_t integer(std::string_view key, std::int64_t low, std::int64_t high);
  [[nodiscard]] std::uint64_t count(std::string_view key);  // any that fits
  [[nodiscard]] std::uint64_t bytes(std::string_view key);
  [[nodiscard]] double number(std::string_view key, double low, double high);
  [[nodiscard]] std::vector<double> numbers(std::string_view key);
  [[nodiscard]] std::vector<std::string> texts(std::string_view key);
  [[nodiscard]] JsonObjectReader object(std::string_view key);
  [[nodiscard]] std::vector<JsonObjectReader> objects(std::string_view key);

  // The value must be the format's name and version.
  void format(std::string_view expected);
  // Throws when the object has members that nobody asked for.
  void finish() const;

  [[noreturn]] void fail(std::string_view key, std::string_view found,
                         std::string_view expected) const;
  [[nodiscard]] std::string name(std::string_view key) const;

 private:
  const Json* object_;
  std::string path_;
  std::string_view file_;
  std::string_view code_;
  std::string_view hint_;
  std::vector<std::string_view> known_;
};

}  // namespace triphase

#pragma once

// Typed access to the members of one JSON object of a config file. Every error names the field by
// its path ("rope_scaling.factor"), what was found and what was expected. Borrows the JSON value
// and the file name. `null` counts as absent where a field is optional.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/json.h"

namespace triphase {

class ConfigFields {
 public:
  // `family` is named when a required field is missing. `object` must be a JSON object.
  ConfigFields(const Json& object, std::string_view file, std::string_view family,
               std::string_view prefix = {});

  // The member, or nullptr when absent or null.
  [[nodiscard]] const Json* find(std::string_view key) const;
  [[nodiscard]] bool has(std::string_view key) const { return find(key) != nullptr; }
  // Present, perhaps as null.
  [[nodiscard]] bool present(std::string_view key) const { return object_->find(key) != nullptr; }

  // Integers in [1, max]: E-CFG-MISSING, E-CFG-TYPE (also zero and negative) or E-CFG-LIMIT.
  [[nodiscard]] std::int64_t size(std::string_view key, std::int64_t max) const;
  [[nodiscard]] std::optional<std::int64_t> optional_size(std::string_view key,
                                                          std::int64_t max) const;
  // An integer in [0, max]; `otherwise` when absent.
  [[nodiscard]] std::int64_t count(std::string_view key, std::int64_t max,
                                   std::int64_t otherwise) const;

  [[nodiscard]] bool flag(std::string_view key, bool otherwise) const;
  [[nodiscard]] std::optional<double> optional_number(std::string_view key) const;
  [[nodiscard]] std::optional<std::string> optional_string(std::string_view key) const;

  // An error about a member of this object, found() filled from its value (or "missing").
  [[nodiscard]] Error error(std::string_view code, std::string_view key) const;
  // The same about an element of an array-valued member.
  [[nodiscard]] Error element_error(std::string_view code, std::string_view key, std::size_t index,
                                    const Json& element) const;

  [[nodiscard]] std::string path(std::string_view key) const;
  // Of the whole file, not of an object in it.
  [[nodiscard]] bool top_level() const { return prefix_.empty(); }
  [[nodiscard]] const std::string& file() const { return file_; }
  [[nodiscard]] const std::string& family() const { return family_; }

  // The members of an object-valued member, errors prefixed with its path.
  [[nodiscard]] std::optional<ConfigFields> optional_object(std::string_view key) const;

 private:
  const Json* object_;
  std::string file_;
  std::string family_;
  std::string prefix_;
};

}  // namespace triphase

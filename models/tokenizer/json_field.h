#pragma once

// A value of a tokenizer file with its JSON path, so that every complaint names both. Views into a
// parsed document; errors are kModel with E-TOK-* codes.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/ids.h"
#include "base/json.h"

namespace triphase {

class JsonField {
 public:
  JsonField(const Json* value, std::string path, std::string_view file)
      : value_(value), path_(std::move(path)), file_(file) {}

  // Absent members and null are the same here, as they are to Hugging Face.
  [[nodiscard]] bool absent() const { return value_ == nullptr || value_->is_null(); }
  [[nodiscard]] const Json* value() const { return value_; }
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::string_view file() const { return file_; }

  [[nodiscard]] JsonField member(std::string_view name) const;
  [[nodiscard]] JsonField element(std::size_t index) const;  // of an array

  // Each throws E-TOK-FORMAT when the value is of another type.
  [[nodiscard]] const JsonObject& object() const;
  [[nodiscard]] const JsonArray& array() const;
  [[nodiscard]] const std::string& string() const;
  [[nodiscard]] std::int64_t integer() const;
  [[nodiscard]] TokenId token_id() const;  // E-TOK-ID for integers that no id may be
  [[nodiscard]] bool boolean() const;
  [[nodiscard]] bool boolean_or(bool fallback) const { return absent() ? fallback : boolean(); }

  // An error about this field, with its value as what was found.
  [[nodiscard]] Error error(std::string_view code, std::string_view expected) const;
  // E-TOK-COMPONENT: a component or setting that Triphase does not know.
  [[noreturn]] void refuse(std::string_view expected) const;

 private:
  const Json* value_;
  std::string path_;
  std::string_view file_;
};

}  // namespace triphase

#include "models/config/config_fields.h"

#include <fmt/format.h>

namespace triphase {

ConfigFields::ConfigFields(const Json& object, std::string_view file, std::string_view family,
                           std::string_view prefix)
    : object_(&object), file_(file), family_(family), prefix_(prefix) {
  TRIPHASE_CHECK(object.is_object(), "config fields of something that is no object");
}

std::string ConfigFields::path(std::string_view key) const {
  return prefix_.empty() ? std::string(key) : fmt::format("{}.{}", prefix_, key);
}

const Json* ConfigFields::find(std::string_view key) const {
  const Json* value = object_->find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

Error ConfigFields::error(std::string_view code, std::string_view key) const {
  const Json* value = object_->find(key);
  Error error(ErrorRole::kModel, code, path(key));
  error.file(file_).found(value == nullptr ? "missing" : value->describe());
  return error;
}

Error ConfigFields::element_error(std::string_view code, std::string_view key, std::size_t index,
                                  const Json& element) const {
  Error error(ErrorRole::kModel, code, fmt::format("{}[{}]", path(key), index));
  error.file(file_).found(element.describe());
  return error;
}

std::int64_t ConfigFields::size(std::string_view key, std::int64_t max) const {
  if (object_->find(key) == nullptr) {
    throw error("E-CFG-MISSING", key)
        .expected(fmt::format("an integer: models of type {} need it", family_));
  }
  if (const auto value = optional_size(key, max)) return *value;
  throw error("E-CFG-TYPE", key).expected("an integer of at least 1");
}

std::optional<std::int64_t> ConfigFields::optional_size(std::string_view key,
                                                        std::int64_t max) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  const std::optional<std::int64_t> number = value->whole_number();
  if (!number && value->is_integer()) {  // beyond 63 bits
    throw error("E-CFG-LIMIT", key).expected(fmt::format("at most {}", max));
  }
  if (!number || *number < 1) throw error("E-CFG-TYPE", key).expected("an integer of at least 1");
  if (*number > max) throw error("E-CFG-LIMIT", key).expected(fmt::format("at most {}", max));
  return number;
}

std::int64_t ConfigFields::count(std::string_view key, std::int64_t max,
                                 std::int64_t otherwise) const {
  const Json* value = find(key);
  if (value == nullptr) return otherwise;
  if (value->number() == 0.0) return 0;
  return *optional_size(key, max);
}

bool ConfigFields::flag(std::string_view key, bool otherwise) const {
  const Json* value = find(key);
  if (value == nullptr) return otherwise;
  if (const auto flag = value->boolean()) return *flag;
  throw error("E-CFG-TYPE", key).expected("true or false");
}

std::optional<double> ConfigFields::optional_number(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (const auto number = value->number()) return number;
  throw error("E-CFG-TYPE", key).expected("a number");
}

std::optional<std::string> ConfigFields::optional_string(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (const std::string* text = value->string()) return *text;
  throw error("E-CFG-TYPE", key).expected("a string");
}

std::optional<ConfigFields> ConfigFields::optional_object(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_object()) throw error("E-CFG-TYPE", key).expected("an object");
  return ConfigFields(*value, file_, family_, path(key));
}

}  // namespace triphase

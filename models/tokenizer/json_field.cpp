#include "models/tokenizer/json_field.h"

#include <fmt/format.h>

namespace triphase {

JsonField JsonField::member(std::string_view name) const {
  const std::string path = path_.empty() ? std::string(name) : fmt::format("{}.{}", path_, name);
  return {value_ == nullptr ? nullptr : value_->find(name), path, file_};
}

JsonField JsonField::element(std::size_t index) const {
  return {&array().at(index), fmt::format("{}[{}]", path_, index), file_};
}

Error JsonField::error(std::string_view code, std::string_view expected) const {
  return Error(ErrorRole::kModel, code, path_.empty() ? "JSON" : path_)
      .file(file_)
      .found(value_ == nullptr ? "nothing" : value_->describe())
      .expected(expected);
}

void JsonField::refuse(std::string_view expected) const {
  throw error("E-TOK-COMPONENT", expected);
}

const JsonObject& JsonField::object() const {
  if (value_ == nullptr || value_->object() == nullptr) throw error("E-TOK-FORMAT", "an object");
  return *value_->object();
}

const JsonArray& JsonField::array() const {
  if (value_ == nullptr || value_->array() == nullptr) throw error("E-TOK-FORMAT", "an array");
  return *value_->array();
}

const std::string& JsonField::string() const {
  if (value_ == nullptr || value_->string() == nullptr) throw error("E-TOK-FORMAT", "a string");
  return *value_->string();
}

std::int64_t JsonField::integer() const {
  const std::optional<std::int64_t> number = value_ == nullptr ? std::nullopt : value_->integer();
  if (!number) throw error("E-TOK-FORMAT", "an integer");
  return *number;
}

TokenId JsonField::token_id() const {
  const std::int64_t id = integer();
  if (id < 0 || id > INT32_MAX) throw error("E-TOK-ID", "an id of 0 to 2147483647");
  return static_cast<TokenId>(id);
}

bool JsonField::boolean() const {
  const std::optional<bool> flag = value_ == nullptr ? std::nullopt : value_->boolean();
  if (!flag) throw error("E-TOK-FORMAT", "true or false");
  return *flag;
}

}  // namespace triphase

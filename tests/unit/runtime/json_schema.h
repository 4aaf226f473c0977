#pragma once

// The part of JSON Schema that docs/schemas uses: type, const, enum, properties, required,
// additionalProperties, items, minimum, pattern-free. Returns "" or the first violation with its
// path. An unknown keyword is a violation itself, so that no rule is skipped silently.

#include <array>
#include <string>

#include "base/json.h"

namespace triphase::testing {

inline bool json_equal(const Json& a, const Json& b) {
  if (a.is_object() || a.is_array() || b.is_object() || b.is_array()) return false;
  return a.describe() == b.describe();
}

inline bool has_type(const Json& value, std::string_view type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_bool();
  if (type == "null") return value.is_null();
  if (type == "integer") return value.is_integer();
  return type == "number" && value.is_number();
}

inline std::string schema_violation(const Json& schema, const Json& value, const Json& root,
                                    const std::string& path = "$") {
  static constexpr std::array<std::string_view, 16> kKnown = {
      "$schema", "$id",        "title",    "description", "type",  "const",
      "enum",    "properties", "required", "items",       "oneOf", "additionalProperties",
      "minimum", "$defs",      "$ref",     "minItems"};
  for (const auto& [keyword, rule] : *schema.object()) {
    bool known = false;
    for (const std::string_view word : kKnown) known = known || keyword == word;
    if (!known) return path + ": the schema uses " + keyword;
  }
  if (const Json* reference = schema.find("$ref")) {
    const std::string name = reference->string()->substr(std::string("#/$defs/").size());
    return schema_violation(*root.find("$defs")->find(name), value, root, path);
  }
  if (const Json* type = schema.find("type")) {
    bool matches = false;
    if (type->is_string()) {
      matches = has_type(value, *type->string());
    } else {
      for (const Json& one : *type->array()) matches = matches || has_type(value, *one.string());
    }
    if (!matches) return path + ": " + value.describe() + " is of another type";
  }
  if (const Json* wanted = schema.find("const"); wanted != nullptr && !json_equal(*wanted, value)) {
    return path + ": " + value.describe() + " is not " + wanted->describe();
  }
  if (const Json* choices = schema.find("enum")) {
    bool found = false;
    for (const Json& choice : *choices->array()) found = found || json_equal(choice, value);
    if (!found) return path + ": " + value.describe() + " is not in the enum";
  }
  if (const Json* minimum = schema.find("minimum"); minimum != nullptr && value.is_number()) {
    if (*value.number() < *minimum->number()) return path + ": below the minimum";
  }
  if (const Json* choices = schema.find("oneOf")) {
    int matches = 0;
    std::string reasons;
    for (const Json& choice : *choices->array()) {
      const std::string reason = schema_violation(choice, value, root, path);
      matches += reason.empty() ? 1 : 0;
      reasons += reason + "; ";
    }
    if (matches != 1)
      return path + ": matches " + std::to_string(matches) + " of oneOf: " + reasons;
  }
  if (value.is_object()) {
    if (const Json* required = schema.find("required")) {
      for (const Json& name : *required->array()) {
        if (value.find(*name.string()) == nullptr) return path + ": no " + *name.string();
      }
    }
    const Json* properties = schema.find("properties");
    const Json* additional = schema.find("additionalProperties");
    for (const auto& [key, member] : *value.object()) {
      const Json* rule = properties == nullptr ? nullptr : properties->find(key);
      if (rule == nullptr && additional != nullptr) {
        if (additional->boolean() == false) return path + ": unexpected " + key;
        if (additional->is_object()) rule = additional;
      }
      if (rule == nullptr) continue;
      const std::string reason = schema_violation(*rule, member, root, path + "." + key);
      if (!reason.empty()) return reason;
    }
  }
  if (value.is_array()) {
    const Json* items = schema.find("items");
    if (const Json* least = schema.find("minItems");
        least != nullptr && static_cast<std::int64_t>(value.array()->size()) < *least->integer()) {
      return path + ": too few items";
    }
    for (std::size_t at = 0; items != nullptr && at < value.array()->size(); ++at) {
      const std::string reason = schema_violation(*items, (*value.array())[at], root,
                                                  path + "[" + std::to_string(at) + "]");
      if (!reason.empty()) return reason;
    }
  }
  return "";
}

}  // namespace triphase::testing

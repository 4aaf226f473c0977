#include "runtime/plan/profile_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "base/content_hash.h"
#include "base/error.h"
#include "base/json_reader.h"
#include "base/json_writer.h"

namespace triphase {
namespace {

constexpr std::string_view kCode = "E-PLAN-PROFILE";
constexpr std::int64_t kLargeSize = std::int64_t{1} << 40;
// Of a step: rates are divided by it.
constexpr double kLeastSeconds = 1e-9;

using Layout = JsonWriter::Layout;

struct ShapeField {
  std::string_view key;   // in the file
  std::string_view name;  // in messages
  std::int64_t ModelShape::*value;
};
constexpr ShapeField kShapeFields[] = {
    {"layers", "layers", &ModelShape::layers},
    {"hidden_size", "hidden size", &ModelShape::hidden},
    {"q_width", "query width", &ModelShape::q_width},
    {"kv_width", "KV width", &ModelShape::kv_width},
    {"head_dim", "head dim", &ModelShape::head_dim},
    {"ffn_size", "FFN width of a token", &ModelShape::ffn},
    {"held_ffn_size", "FFN width of a layer", &ModelShape::held_ffn},
};

// A row for every x where there are two variables.
void write_cells(JsonWriter& json, const GridTable& table, const std::vector<double>& cells) {
  if (table.y.empty()) {
    json.array(cells);
    return;
  }
  json.begin_array(Layout::kRows);
  for (std::size_t row = 0; row < table.x.size(); ++row) {
    json.array(std::span(cells).subspan(row * table.y.size(), table.y.size()));
  }
  json.end();
}

void write_table(JsonWriter& json, const CostTableInfo& info, const GridTable& table) {
  json.key(info.name).begin_object(Layout::kLines);
  json.key(info.x).array(table.x);
  if (!info.y.empty()) json.key(info.y).array(table.y);
  write_cells(json.key("seconds"), table, table.seconds);
  if (!table.spread.empty()) write_cells(json.key("spread"), table, table.spread);
  json.end();
}

// What holds for one method with its options.
template <class Entry>
void begin_of_method(JsonWriter& json, const Entry& entry) {
  json.begin_object(Layout::kLines);
  json.member("attention", entry.attention);
  json.key("attention_options").array(entry.attention_options);
}
template <class Entry>
void read_method_of(JsonObjectReader& reader, Entry& entry) {
  entry.attention = reader.text("attention");
  entry.attention_options = reader.texts("attention_options");
}

void write_methods(JsonWriter& json, const std::vector<MethodCosts>& methods) {
  json.key("methods").begin_array(Layout::kLines);
  for (const MethodCosts& method : methods) {
    begin_of_method(json, method);
    write_table(json, method_table_info(false), method.choosing);
    if (!method.choosing_int8.empty()) {
      write_table(json, method_table_info(true), method.choosing_int8);
    }
    json.end();
  }
  json.end();
}

void write_miss_rates(JsonWriter& json, const std::vector<MissRate>& rates) {
  json.key("miss_rates").begin_array(Layout::kLines);
  for (const MissRate& rate : rates) {
    begin_of_method(json, rate);
    json.members({{"rate", rate.rate},
                  {"token_cache_share", rate.token_cache_share},
                  {"prompts", rate.prompts},
                  {"steps", rate.steps}});
    json.end();
  }
  json.end();
}

MissRate read_miss_rate(JsonObjectReader reader) {
  MissRate rate;
  read_method_of(reader, rate);
  rate.rate = reader.number("rate", 0.0, 1.0);
  rate.token_cache_share = reader.number("token_cache_share", 0.0, 1e12);
  rate.prompts = reader.integer("prompts", 1, kLargeSize);
  rate.steps = reader.integer("steps", 1, kLargeSize);
  reader.finish();
  return rate;
}

std::vector<double> read_cells(JsonObjectReader& reader, std::string_view key,
                               const CostTableInfo& info, const GridTable& table) {
  if (info.y.empty()) return reader.numbers(key);
  const Json& rows = reader.value(key);
  if (rows.array() == nullptr) reader.fail(key, rows.describe(), "an array of rows");
  std::vector<double> cells;
  std::size_t row_number = 0;
  for (const Json& row : *rows.array()) {
    const std::string row_name = fmt::format("{}[{}]", key, row_number++);
    if (row.array() == nullptr || row.array()->size() != table.y.size()) {
      reader.fail(row_name, row.describe(), fmt::format("an array of {}", table.y.size()));
    }
    for (const Json& cell : *row.array()) {
      if (!cell.number()) reader.fail(row_name, cell.describe(), "numbers");
      cells.push_back(*cell.number());
    }
  }
  return cells;
}

GridTable read_table(JsonObjectReader reader, const CostTableInfo& info) {
  GridTable table;
  table.x = reader.numbers(info.x);
  if (!info.y.empty()) {
    table.y = reader.numbers(info.y);
    if (table.y.empty()) reader.fail(info.y, "an empty array", "at least one sample");
  }
  table.seconds = read_cells(reader, "seconds", info, table);
  if (reader.has("spread")) table.spread = read_cells(reader, "spread", info, table);
  reader.finish();
  const std::string problem = table_problem(table);
  if (!problem.empty()) {
    // "x[3]: ..." becomes the axis's name in the file.
    const std::string axis = problem[0] == 'x'   ? std::string(info.x) + problem.substr(1)
                             : problem[0] == 'y' ? std::string(info.y) + problem.substr(1)
                                                 : problem;
    const std::size_t colon = axis.find(": ");
    const std::size_t comma = axis.find(", expected ");
    reader.fail(axis.substr(0, colon), axis.substr(colon + 2, comma - colon - 2),
                axis.substr(comma + 11));
  }
  return table;
}

GridTable read_step_table(const JsonObjectReader& reader, const CostTableInfo& info) {
  GridTable table = read_table(reader, info);
  const auto least = std::ranges::min_element(table.seconds);
  if (*least < kLeastSeconds) {
    reader.fail(fmt::format("seconds[{}]", least - table.seconds.begin()),
                fmt::format("{}", *least), fmt::format("at least {} for a step", kLeastSeconds));
  }
  return table;
}

bool is_step(CostTable table) {
  return table == CostTable::kDecode || table == CostTable::kDecodeInt8 ||
         table == CostTable::kPrefill;
}

MethodCosts read_method(JsonObjectReader reader) {
  MethodCosts method;
  read_method_of(reader, method);
  method.choosing = read_table(reader.object("choosing"), method_table_info(false));
  if (reader.has("choosing_int8")) {
    method.choosing_int8 = read_table(reader.object("choosing_int8"), method_table_info(true));
  }
  reader.finish();
  return method;
}

}  // namespace

std::string profile_to_json(const HardwareProfile& profile) {
  std::string out;
  JsonWriter json(out, Layout::kLines);
  json.begin_object();
  json.members({{"format", kProfileFormat},
                {"name", profile.name},
                {"measured", profile.measured},
                {"emulated", profile.emulated}});
  json.key("device").object({{"name", profile.device}, {"memory_bytes", profile.device_memory}});
  json.key("host").object({{"name", profile.host}, {"memory_bytes", profile.host_memory}});
  if (!profile.link.empty()) json.member("link", profile.link);
  json.key("model").begin_object();
  json.members({{"name", profile.model_name}, {"fingerprint", profile.model_fingerprint}});
  for (const ShapeField& field : kShapeFields) json.member(field.key, profile.shape.*field.value);
  json.end();
  json.key("notes").array(profile.notes);
  json.key("tables").begin_object(Layout::kLines);
  for (std::size_t which = 0; which < kCostTables; ++which) {
    if (profile.tables[which].empty()) continue;
    write_table(json, cost_table_info(static_cast<CostTable>(which)), profile.tables[which]);
  }
  json.end();
  if (!profile.methods.empty()) write_methods(json, profile.methods);
  if (!profile.miss_rates.empty()) write_miss_rates(json, profile.miss_rates);
  json.end();
  return out + "\n";
}

HardwareProfile parse_profile(std::string_view text, std::string_view file) {
  const Json json = parse_json_file(text, file, ErrorRole::kInput, kCode);
  JsonObjectReader top(json, "", file, kCode, "make the profile again with triphase profile");
  top.format(kProfileFormat);
  HardwareProfile profile;
  profile.name = top.text("name");
  profile.measured = top.boolean("measured");
  profile.emulated = top.boolean("emulated");
  JsonObjectReader device = top.object("device");
  profile.device = device.text("name");
  profile.device_memory = device.bytes("memory_bytes");
  device.finish();
  JsonObjectReader host = top.object("host");
  profile.host = host.text("name");
  profile.host_memory = host.bytes("memory_bytes");
  host.finish();
  if (top.has("link")) profile.link = top.text("link");
  JsonObjectReader model = top.object("model");
  profile.model_name = model.text("name");
  profile.model_fingerprint = model.text("fingerprint");
  for (const ShapeField& field : kShapeFields) {
    profile.shape.*field.value = model.integer(field.key, 1, kLargeSize);
  }
  model.finish();
  profile.notes = top.texts("notes");
  JsonObjectReader tables = top.object("tables");
  for (std::size_t which = 0; which < kCostTables; ++which) {
    const CostTableInfo& info = cost_table_info(static_cast<CostTable>(which));
    if (!info.required && !tables.has(info.name)) continue;
    const bool step = is_step(static_cast<CostTable>(which));
    profile.tables[which] = step ? read_step_table(tables.object(info.name), info)
                                 : read_table(tables.object(info.name), info);
  }
  tables.finish();
  if (top.has("methods")) {
    for (const JsonObjectReader& method : top.objects("methods")) {
      profile.methods.push_back(read_method(method));
    }
  }
  if (top.has("miss_rates")) {
    for (const JsonObjectReader& rate : top.objects("miss_rates")) {
      profile.miss_rates.push_back(read_miss_rate(rate));
    }
  }
  top.finish();
  return profile;
}

void require_profile_for_model(const HardwareProfile& profile, const ModelCosts& model,
                               std::string_view model_name, std::string_view file) {
  const ModelShape shape = model.shape();
  for (const ShapeField& field : kShapeFields) {
    const std::int64_t found = profile.shape.*field.value;
    const std::int64_t expected = shape.*field.value;
    if (found == expected) continue;
    throw Error(ErrorRole::kInput, "E-PLAN-MODEL", fmt::format("model.{}", field.key))
        .file(file)
        .found(fmt::format("{} {}", field.name, found))
        .expected(fmt::format("{} of {}", expected, model_name))
        .hint("profile this model with triphase profile");
  }
}

std::string profile_fingerprint(const HardwareProfile& profile) {
  return hash_text(profile_to_json(profile));
}

}  // namespace triphase

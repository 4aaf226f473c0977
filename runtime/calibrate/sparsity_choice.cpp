#include "runtime/calibrate/sparsity_choice.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/json_reader.h"

namespace triphase {
namespace {

constexpr std::string_view kFormat = "triphase-sparsity/1";
constexpr std::string_view kCode = "E-IN-SPARSITY";
constexpr double kMostNats = 1e6;

TriedSparsity read_tried(JsonObjectReader& reader) {
  TriedSparsity tried;
  tried.sparsity = reader.number("kv_sparsity", 0.0, 1.0);
  tried.divergence.kl = reader.number("kl_divergence", 0.0, kMostNats);
  tried.divergence.kl_stderr = reader.number("kl_divergence_stderr", 0.0, kMostNats);
  tried.divergence.agreement = reader.number("greedy_agreement", 0.0, 1.0);
  tried.divergence.agreement_stderr = reader.number("greedy_agreement_stderr", 0.0, 1.0);
  tried.divergence.tokens = reader.integer("tokens", 0, INT64_MAX);
  reader.finish();
  return tried;
}

}  // namespace

void write_sparsity_choice(JsonWriter& json, const SparsityChoice& choice) {
  constexpr auto kLines = JsonWriter::Layout::kLines;
  json.begin_object(kLines).members({{"format", kFormat},
                                     {"attention", choice.attention},
                                     {"max_divergence", choice.max_divergence},
                                     {"prompts", choice.prompts},
                                     {"kv_dtype", choice.kv_dtype}});
  json.key("tried").begin_array(kLines);
  for (const TriedSparsity& tried : choice.tried) {
    const Divergence& at = tried.divergence;
    json.object({{"kv_sparsity", tried.sparsity},
                 {"kl_divergence", at.kl},
                 {"kl_divergence_stderr", at.kl_stderr},
                 {"greedy_agreement", at.agreement},
                 {"greedy_agreement_stderr", at.agreement_stderr},
                 {"tokens", at.tokens}});
  }
  json.end().member("chosen", choice.chosen).end();
}

std::string sparsity_choice_to_json(const SparsityChoice& choice) {
  std::string out;
  JsonWriter json(out, JsonWriter::Layout::kLines);
  write_sparsity_choice(json, choice);
  return out;
}

SparsityChoice parse_sparsity_choice(std::string_view text, std::string_view file) {
  JsonProblem problem;
  const std::optional<Json> json = parse_json(text, problem);
  if (!json || !json->is_object()) {
    throw Error(ErrorRole::kInput, std::string(kCode), "file")
        .file(std::string(file))
        .found(json ? json->describe() : problem.found)
        .expected(json ? "a JSON object" : problem.expected);
  }
  JsonObjectReader reader(*json, "", file, kCode);
  reader.format(kFormat);
  SparsityChoice choice;
  choice.attention = reader.text("attention");
  choice.max_divergence = reader.number("max_divergence", 0.0, kMostNats);
  choice.prompts = reader.integer("prompts", 0, INT64_MAX);
  choice.kv_dtype = reader.text("kv_dtype");
  for (JsonObjectReader& one : reader.objects("tried")) choice.tried.push_back(read_tried(one));
  if (!reader.value("chosen").is_null()) choice.chosen = reader.number("chosen", 0.0, 1.0);
  reader.finish();
  return choice;
}

std::string describe(const SparsityChoice& choice) {
  if (choice.tried.empty()) {
    return "no prompt of the job could be continued: decoding stays dense";
  }
  const TriedSparsity& last = choice.tried.back();
  const std::string found = fmt::format(
      "KL divergence {:.3g} +- {:.2g} nats (at most {:g}), greedy agreement {:.1f} % over {} "
      "tokens "
      "of {} prompts",
      last.divergence.kl, last.divergence.kl_stderr, choice.max_divergence,
      100.0 * last.divergence.agreement, last.divergence.tokens, choice.prompts);
  if (choice.chosen) {
    return fmt::format("{} at KV sparsity {:g}: {}", choice.attention, *choice.chosen, found);
  }
  return fmt::format(
      "{} keeps the divergence at no KV sparsity down to {:g} ({}): decoding is dense",
      choice.attention, last.sparsity, found);
}

}  // namespace triphase

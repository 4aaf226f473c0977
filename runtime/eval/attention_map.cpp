#include "runtime/eval/attention_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>

#include "runtime/compare/bars.h"

namespace triphase::eval {
namespace {

using compare::escaped;

constexpr double kLeft = 56.0;
constexpr double kTop = 54.0;
constexpr double kPlotWidth = 860.0;
constexpr double kBottom = 48.0;
constexpr double kRight = 20.0;
constexpr double kTallestRow = 8.0;
constexpr double kTallestPlot = 640.0;
constexpr std::int64_t kTicks = 8;

std::vector<std::int32_t> tokens_of(const AttentionMapStep& step) {
  if (!step.dense) return step.tokens;
  std::vector<std::int32_t> all(static_cast<std::size_t>(step.context));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// Neighbours as one rectangle: [begin, end) pairs.
template <class Each>
void for_each_run(const std::vector<std::int32_t>& tokens, const Each& each) {
  for (std::size_t i = 0; i < tokens.size();) {
    std::size_t end = i + 1;
    while (end < tokens.size() && tokens[end] == tokens[end - 1] + 1) ++end;
    each(tokens[i], tokens[end - 1] + 1);
    i = end;
  }
}

std::string text(double x, double y, std::string_view anchor, const std::string& words) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor,
                     escaped(words));
}

// 1, 2 or 5 times a power of ten, so that at most kTicks fit into `count`.
std::int64_t tick_step(std::int64_t count) {
  for (std::int64_t power = 1;; power *= 10) {
    for (const std::int64_t factor : {1, 2, 5}) {
      if (power * factor * kTicks >= count) return power * factor;
    }
  }
}

}  // namespace

void AttentionMapRecorder::decoded(SequenceId, const LayerCall& call, ConstMatrix, std::int64_t,
                                   const TokenChoice& choice) {
  if (call.layer != layer_) return;
  AttentionMapStep step{.context = call.keys.context_tokens, .dense = choice.dense, .tokens = {}};
  if (!choice.dense) {
    const std::size_t lists = choice.begins.size() - 1;
    const std::size_t list = lists == 1 ? 0 : static_cast<std::size_t>(kv_head_);
    step.tokens.assign(choice.tokens.begin() + choice.begins[list],
                       choice.tokens.begin() + choice.begins[list + 1]);
  }
  steps_.push_back(std::move(step));
}

AttentionMapCounts count_changes(const std::vector<AttentionMapStep>& steps) {
  AttentionMapCounts counts;
  std::vector<std::int32_t> before;
  std::vector<std::uint8_t> has_left;
  for (const AttentionMapStep& step : steps) {
    std::vector<std::int32_t> now = tokens_of(step);
    counts.touched += static_cast<std::int64_t>(now.size());
    counts.context += step.context;
    has_left.resize(static_cast<std::size_t>(step.context), 0);
    for (const std::int32_t token : now) {
      std::uint8_t& gone = has_left[static_cast<std::size_t>(token)];
      counts.returned += gone;
      gone = 0;
    }
    std::vector<std::int32_t> leaving;
    std::ranges::set_difference(before, now, std::back_inserter(leaving));
    for (const std::int32_t token : leaving) has_left[static_cast<std::size_t>(token)] = 1;
    counts.left += static_cast<std::int64_t>(leaving.size());
    before = std::move(now);
  }
  return counts;
}

std::string attention_map_svg(const std::string& title, std::int64_t prompt_tokens,
                              const std::vector<AttentionMapStep>& steps) {
  std::int64_t context = std::max<std::int64_t>(prompt_tokens, 1);
  for (const AttentionMapStep& step : steps) context = std::max(context, step.context);
  const auto rows = static_cast<std::int64_t>(std::max<std::size_t>(steps.size(), 1));
  const double row = std::min(kTallestRow, kTallestPlot / static_cast<double>(rows));
  const double column = kPlotWidth / static_cast<double>(context);
  const double height = row * static_cast<double>(rows);
  const double width = kLeft + kPlotWidth + kRight;
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
      "width=\"{0:.0f}\" height=\"{1:.0f}\" font-family=\"system-ui, sans-serif\" "
      "font-size=\"12\" role=\"img\">\n<style>\n.back {{ fill: #ffffff; }}\n"
      ".there {{ fill: #e8e8e8; }}\n.touched {{ fill: #0072b2; }}\n"
      ".prompt {{ stroke: #d55e00; stroke-width: 1.5; stroke-dasharray: 4 3; }}\n"
      "text {{ fill: #1a1a1a; }}\n@media screen and (prefers-color-scheme: dark) {{\n"
      ".back {{ fill: #16181c; }}\n.there {{ fill: #2b2e33; }}\n.touched {{ fill: #56b4e9; }}\n"
      "text {{ fill: #e6e6e6; }}\n}}\n</style>\n<title>{2}</title>\n"
      "<rect class=\"back\" width=\"{0:.0f}\" height=\"{1:.0f}\"/>\n",
      width, kTop + height + kBottom, escaped(title));
  out += text(kLeft, 24, "start", title);
  std::string there;
  std::string touched;
  for (std::size_t index = 0; index < steps.size(); ++index) {
    const double y = kTop + row * static_cast<double>(index);
    there += fmt::format("M{:.1f} {:.2f}h{:.2f}v{:.2f}H{:.1f}z", kLeft, y,
                         column * static_cast<double>(steps[index].context), row, kLeft);
    for_each_run(tokens_of(steps[index]), [&](std::int32_t begin, std::int32_t end) {
      touched += fmt::format("M{:.2f} {:.2f}h{:.2f}v{:.2f}h-{:.2f}z", kLeft + column * begin, y,
                             column * (end - begin), row, column * (end - begin));
    });
  }
  out += fmt::format("<path class=\"there\" d=\"{}\"/>\n<path class=\"touched\" d=\"{}\"/>\n",
                     there, touched);
  const double prompt_end = kLeft + column * static_cast<double>(prompt_tokens);
  out += fmt::format(
      "<line class=\"prompt\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\"/>\n",
      prompt_end, kTop - 4, kTop + height + 4);
  out += text(prompt_end, kTop - 8, prompt_tokens * 2 > context ? "end" : "start",
              "end of the prompt");
  for (std::int64_t token = 0; token <= context; token += tick_step(context)) {
    out += text(kLeft + column * static_cast<double>(token), kTop + height + 18, "middle",
                fmt::to_string(token));
  }
  for (std::int64_t step = 0; step < rows; step += tick_step(rows)) {
    out += text(kLeft - 6, kTop + row * static_cast<double>(step) + std::max(row, 8.0), "end",
                fmt::to_string(step));
  }
  out += text(kLeft + kPlotWidth / 2, kTop + height + 38, "middle", "token");
  out += fmt::format(
      "<text x=\"14\" y=\"{0:.1f}\" text-anchor=\"middle\" "
      "transform=\"rotate(-90 14 {0:.1f})\">decode step</text>\n",
      kTop + height / 2);
  return out + "</svg>\n";
}

}  // namespace triphase::eval

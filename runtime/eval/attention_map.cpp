#include "runtime/eval/attention_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <utility>

#include "base/svg.h"

namespace triphase::eval {
namespace {

constexpr double kLeft = 56.0;
constexpr double kTop = 92.0;
constexpr double kPlotWidth = 860.0;
constexpr double kBottom = 48.0;
constexpr double kSwatch = 11.0;
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

// So that at most kTicks fit into `count`.
std::int64_t tick_step(std::int64_t count) {
  const double least = static_cast<double>(count) / static_cast<double>(kTicks);
  return std::max<std::int64_t>(1, std::llround(svg::round_step(least)));
}

std::string legend() {
  std::string out;
  double x = kLeft;
  for (const auto& [look, words] : {std::pair{"attended", "attended in this step"},
                                    std::pair{"there", "in the context, not attended"}}) {
    out +=
        fmt::format("<rect class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{}\" height=\"{}\"/>\n",
                    look, x, 64.0 - kSwatch, kSwatch, kSwatch);
    out += svg::text(x + kSwatch + 6, 63, "start", words);
    x += 170;
  }
  return out;
}

}  // namespace

void AttentionMapRecorder::decoded(SequenceId, const LayerCall& call, ConstMatrix, std::int64_t,
                                   const TokenChoice& choice) {
  if (call.layer != layer_) return;
  AttentionMapStep step{.context = call.keys.context_tokens, .dense = choice.dense, .tokens = {}};
  if (!choice.dense) {
    const std::size_t lists = choice.begins.size() - 1;
    const std::size_t list = lists == 1 ? 0 : static_cast<std::size_t>(list_);
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
    counts.attended += static_cast<std::int64_t>(now.size());
    counts.context += step.context;
    has_left.resize(static_cast<std::size_t>(step.context), 0);
    for (const std::int32_t token : now) {
      std::uint8_t& gone = has_left[static_cast<std::size_t>(token)];
      counts.returned += gone;
      gone = 0;
    }
    std::vector<std::int32_t> dropped;
    std::ranges::set_difference(before, now, std::back_inserter(dropped));
    for (const std::int32_t token : dropped) has_left[static_cast<std::size_t>(token)] = 1;
    counts.left += static_cast<std::int64_t>(dropped.size());
    before = std::move(now);
  }
  return counts;
}

std::string attention_map_svg(const AttentionMapTitle& title, std::int64_t prompt_tokens,
                              const std::vector<AttentionMapStep>& steps) {
  std::int64_t context = std::max<std::int64_t>(prompt_tokens, 1);
  for (const AttentionMapStep& step : steps) context = std::max(context, step.context);
  const auto rows = static_cast<std::int64_t>(std::max<std::size_t>(steps.size(), 1));
  const double row = std::min(kTallestRow, kTallestPlot / static_cast<double>(rows));
  const double column = kPlotWidth / static_cast<double>(context);
  const double height = row * static_cast<double>(rows);
  const double width = kLeft + kPlotWidth + kRight;
  std::string out = svg::opening(
      width, kTop + height + kBottom, title.title,
      ".there { fill: #e4e4e4; }\n.attended { fill: #0072b2; }\n.soft { fill: #5a5f66; }\n"
      ".tick { stroke: #5a5f66; }\n.prompt { stroke: #d55e00; stroke-width: 1.5; }\n"
      ".halo { stroke: #ffffff; stroke-width: 4; }\n",
      ".there { fill: #33373d; }\n.attended { fill: #56b4e9; }\n.soft { fill: #a0a6ad; }\n"
      ".tick { stroke: #a0a6ad; }\n.prompt { stroke: #ff9d4d; }\n.halo { stroke: #16181c; }\n");
  out += svg::text(kLeft, 24, "start", title.title, " font-size=\"15\" font-weight=\"600\"");
  out += svg::text(kLeft, 44, "start", title.subtitle, " class=\"soft\"");
  out += legend();
  std::string there;
  std::string attended;
  for (std::size_t index = 0; index < steps.size(); ++index) {
    const double y = kTop + row * static_cast<double>(index);
    there += fmt::format("M{:.1f} {:.2f}h{:.2f}v{:.2f}H{:.1f}z", kLeft, y,
                         column * static_cast<double>(steps[index].context), row, kLeft);
    for_each_run(tokens_of(steps[index]), [&](std::int32_t begin, std::int32_t end) {
      attended += fmt::format("M{:.2f} {:.2f}h{:.2f}v{:.2f}h-{:.2f}z", kLeft + column * begin, y,
                              column * (end - begin), row, column * (end - begin));
    });
  }
  out += fmt::format("<path class=\"there\" d=\"{}\"/>\n<path class=\"attended\" d=\"{}\"/>\n",
                     there, attended);
  const double prompt_end = kLeft + column * static_cast<double>(prompt_tokens);
  // Light around the line, which is to be seen on attended tokens too.
  for (const char* look : {"halo", "prompt"}) {
    out += fmt::format("<path class=\"{}\" d=\"M{:.1f} {:.1f}V{:.1f}\"/>\n", look, prompt_end,
                       kTop - 4, kTop + height + 4);
  }
  out += svg::text(prompt_end, kTop - 8, prompt_tokens * 2 > context ? "end" : "start",
                   "end of the prompt");
  for (std::int64_t token = 0; token <= context; token += tick_step(context)) {
    const double x = kLeft + column * static_cast<double>(token);
    out += fmt::format("<path class=\"tick\" d=\"M{:.1f} {:.1f}v4\"/>\n", x, kTop + height);
    out += svg::text(x, kTop + height + 18, "middle", fmt::to_string(token));
  }
  for (std::int64_t step = 0; step < rows; step += tick_step(rows)) {
    const double y = kTop + row * (static_cast<double>(step) + 0.5);
    out += fmt::format("<path class=\"tick\" d=\"M{:.1f} {:.1f}h-4\"/>\n", kLeft, y);
    out += svg::text(kLeft - 8, y + 4, "end", fmt::to_string(step));
  }
  out += svg::text(kLeft + kPlotWidth / 2, kTop + height + 38, "middle",
                   "token, by its position in the sequence");
  const double middle = kTop + height / 2;
  out += svg::text(14, middle, "middle", "decode step",
                   fmt::format(" transform=\"rotate(-90 14 {:.1f})\"", middle));
  return out + "</svg>\n";
}

}  // namespace triphase::eval

#include "runtime/compare/bars.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/format_bytes.h"
#include "runtime/base/svg.h"

namespace triphase::compare {
namespace {

using svg::escaped;

constexpr double kWidth = 760.0;
constexpr double kLabels = 210.0;
constexpr double kTexts = 150.0;
constexpr double kRow = 26.0;
constexpr double kThickness = 16.0;

constexpr double kPlotHeight = 190.0;
constexpr double kPlotLeft = 86.0;
constexpr double kPlotRight = 16.0;
constexpr double kPlotTop = 26.0;
constexpr double kPlotBottom = 30.0;
// More points than pixels say nothing more.
constexpr std::size_t kMostPoints = 600;

std::string opening(const std::string& name, double height) {
  return fmt::format(
      "<svg viewBox=\"0 0 {0:.0f} {1:.0f}\" role=\"img\" aria-label=\"{2}\"><title>{2}</title>\n",
      kWidth, height, escaped(name));
}

}  // namespace

std::string bars_svg(const std::string& name, const std::vector<Bar>& bars) {
  double longest = 0.0;
  for (const Bar& bar : bars) {
    double whole = 0.0;
    for (const BarPart& part : bar.parts) whole += part.value;
    longest = std::max({longest, whole, bar.high});
  }
  const double scale = longest > 0.0 ? (kWidth - kLabels - kTexts) / longest : 0.0;
  std::string out = opening(name, kRow * static_cast<double>(bars.size()) + 6.0);
  double y = 3.0;
  for (const Bar& bar : bars) {
    const double middle = y + kRow / 2.0;
    out += svg::text(kLabels - 8.0, middle + 4.0, "end", bar.label);
    double x = kLabels;
    for (const BarPart& part : bar.parts) {
      const double width = part.value * scale;
      out += fmt::format(
          "<rect class=\"c{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.0f}\">"
          "<title>{}</title></rect>\n",
          part.color, x, middle - kThickness / 2.0, width, kThickness, escaped(part.title));
      x += width;
    }
    if (bar.high > 0.0) {
      out += fmt::format(
          "<path class=\"axis\" d=\"M{0:.1f} {2:.1f}H{1:.1f}M{0:.1f} {3:.1f}v8M{1:.1f} "
          "{3:.1f}v8\"/>\n",
          kLabels + bar.low * scale, kLabels + bar.high * scale, middle, middle - 4.0);
      x = std::max(x, kLabels + bar.high * scale);
    }
    out += svg::text(x + 8.0, middle + 4.0, "start", bar.text);
    y += kRow;
  }
  return out + "</svg>\n";
}

std::string steps_svg(const std::string& name, const std::vector<StepPoint>& points,
                      const std::vector<StepMark>& marks, double highest) {
  std::string out = opening(name, kPlotHeight);
  const double last = points.empty() ? 1.0 : std::max(points.back().step, 1.0);
  const auto x = [&](double step) {
    return kPlotLeft + step / last * (kWidth - kPlotLeft - kPlotRight);
  };
  const auto y = [&](double bytes) {
    return kPlotHeight - kPlotBottom -
           (highest > 0.0 ? bytes / highest : 0.0) * (kPlotHeight - kPlotTop - kPlotBottom);
  };
  for (const double share : {0.0, 0.5, 1.0}) {
    const double bytes = highest * share;
    out += fmt::format("<path class=\"grid\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>\n", kPlotLeft, y(bytes),
                       kWidth - kPlotRight);
    out += svg::text(kPlotLeft - 6.0, y(bytes) + 4.0, "end",
                     format_bytes(static_cast<std::uint64_t>(bytes)));
  }
  const std::size_t every = points.size() / kMostPoints + 1;
  for (const bool device : {true, false}) {
    std::string line;
    for (std::size_t index = 0; index < points.size(); index += every) {
      const StepPoint& point = points[index];
      line += fmt::format("{}{:.1f},{:.1f}", line.empty() ? "" : " ", x(point.step),
                          y(device ? point.device : point.host));
    }
    out += fmt::format("<polyline class=\"line s{}\" points=\"{}\"/>\n", device ? 0 : 1, line);
  }
  for (const StepMark& mark : marks) {
    out += fmt::format("<path class=\"mark\" d=\"M{0:.1f} {1:.1f}V{2:.1f}\"/>\n", x(mark.step),
                       kPlotTop - 10.0, kPlotHeight - kPlotBottom);
    out += svg::text(x(mark.step) + 4.0, kPlotTop - 12.0, "start", mark.name);
  }
  out += svg::text(kPlotLeft, kPlotHeight - 10.0, "start", "step 0");
  out +=
      svg::text(kWidth - kPlotRight, kPlotHeight - 10.0, "end", fmt::format("step {:.0f}", last));
  return out + "</svg>\n";
}

}  // namespace triphase::compare

#include "runtime/compare/bars.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/compare/svg.h"

namespace triphase::compare {
namespace {

using svg::escaped;

constexpr double kWidth = 760.0;
constexpr double kCharacter = 6.6;  // mean width at this size, generously
constexpr double kWidestLabels = 300.0;
constexpr double kGap = 8.0;
constexpr double kTop = 4.0;
constexpr double kAxis = 40.0;   // ticks and their label
constexpr double kTrack = 18.0;  // a lone one; of several each is thinner
constexpr double kThinTrack = 12.0;
constexpr double kBetween = 8.0;  // bars
constexpr int kTicks = 8;

double width_of(const std::string& text) { return kCharacter * static_cast<double>(text.size()); }

double height_of(const Bar& bar) {
  const auto tracks = static_cast<double>(bar.tracks.size());
  return kBetween + (bar.tracks.size() > 1 ? kThinTrack * tracks : kTrack);
}

double length_of(const BarTrack& track) {
  double length = 0.0;
  for (const BarPart& part : track.parts) length += part.value;
  return length;
}

// Columns for labels and texts, and the axis between them.
struct Layout {
  double labels = 0.0;
  double plot = 0.0;
  double step = 1.0;  // of ticks, in units
  double end = 1.0;   // of the axis, in units

  explicit Layout(const BarScale& scale) : labels(scale.labels + kGap) {
    plot = kWidth - labels - scale.texts - 2 * kGap;
    const double longest = scale.longest / scale.unit;
    if (longest <= 0.0) return;
    step = svg::round_step(longest / kTicks);
    end = longest;
  }
  [[nodiscard]] double x(double units) const { return labels + units / end * plot; }
};

void draw_axis(const Layout& layout, const BarScale& scale, double bottom, std::string& out) {
  for (double tick = 0.0; tick <= layout.end * (1.0 + 1e-9); tick += layout.step) {
    out += fmt::format("<path class=\"grid\" d=\"M{:.1f} {:.1f}V{:.1f}\"/>\n", layout.x(tick), kTop,
                       bottom);
    out += svg::text(layout.x(tick), bottom + 15.0, "middle", fmt::format("{:.4g}", tick),
                     " class=\"soft\"");
  }
  out +=
      svg::text(layout.x(layout.end / 2), bottom + 32.0, "middle", scale.label, " class=\"soft\"");
}

void draw_track(const BarTrack& track, const Bar& bar, const Layout& layout, double unit, double y,
                double thickness, std::string& out) {
  double sum = 0.0;
  for (const BarPart& part : track.parts) {
    const double begin = layout.x(sum / unit);
    sum += part.value;
    out += fmt::format(
        "<rect class=\"c{}\" x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.0f}\">"
        "<title>{}</title></rect>\n",
        part.color, begin, y, layout.x(sum / unit) - begin, thickness, escaped(part.title));
  }
  const double middle = y + thickness / 2.0;
  double end = layout.x(sum / unit);
  if (bar.high > 0.0) {
    const double high = layout.x(bar.high / unit);
    out += fmt::format(
        "<path class=\"axis\" d=\"M{0:.1f} {2:.1f}H{1:.1f}M{0:.1f} {3:.1f}v8M{1:.1f} {3:.1f}v8\"/>"
        "\n",
        layout.x(bar.low / unit), high, middle, middle - 4.0);
    end = std::max(end, high);
  }
  out += svg::text(end + kGap, middle + 4.0, "start", track.text);
}

}  // namespace

void BarScale::fit(const std::vector<Bar>& bars) {
  for (const Bar& bar : bars) {
    longest = std::max(longest, bar.high);
    labels = std::max(labels, std::min(width_of(bar.label), kWidestLabels));
    for (const BarTrack& track : bar.tracks) {
      longest = std::max(longest, length_of(track));
      texts = std::max(texts, width_of(track.text));
    }
  }
}

std::string bars_svg(const std::string& name, const std::vector<Bar>& bars, const BarScale& scale) {
  const Layout layout(scale);
  double bottom = kTop;
  for (const Bar& bar : bars) bottom += height_of(bar);
  std::string out = fmt::format(
      "<svg viewBox=\"0 0 {0:.0f} {1:.0f}\" role=\"img\" aria-label=\"{2}\"><title>{2}</title>\n",
      kWidth, bottom + kAxis, escaped(name));
  draw_axis(layout, scale, bottom, out);
  double y = kTop;
  for (const Bar& bar : bars) {
    const double height = height_of(bar);
    out += svg::text(layout.labels - kGap, y + height / 2.0 + 4.0, "end", bar.label);
    const bool several = bar.tracks.size() > 1;
    double top = y + kBetween / 2.0;
    for (const BarTrack& track : bar.tracks) {
      draw_track(track, bar, layout, scale.unit, top, several ? kThinTrack - 2.0 : kTrack, out);
      top += kThinTrack;
    }
    y += height;
  }
  return out + "</svg>\n";
}

}  // namespace triphase::compare

#include "runtime/compare/steps_plot.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/format_bytes.h"
#include "runtime/compare/svg.h"

namespace triphase::compare {
namespace {

using svg::escaped;

constexpr double kWidth = 410.0;
constexpr double kHeight = 190.0;
constexpr double kLeft = 52.0;
constexpr double kRight = 12.0;
constexpr double kTop = 22.0;
constexpr double kBottom = 40.0;
constexpr double kPhaseLabel = 56.0;  // a band narrower than its name goes without
constexpr int kTicks = 6;
// More points than pixels say nothing more.
constexpr std::size_t kMostPoints = 400;

class StepsPlot {
 public:
  StepsPlot(const Traced& traced, double highest)
      : traced_(traced),
        last_(traced.memory.empty()
                  ? 1.0
                  : std::max(static_cast<double>(traced.memory.back().step), 1.0)),
        unit_(byte_unit(highest)),
        highest_(std::max(highest, 1.0) / unit_.bytes) {}

  std::string draw(const std::string& name) {
    out_ = fmt::format(
        "<svg viewBox=\"0 0 {0:.0f} {1:.0f}\" role=\"img\" aria-label=\"{2}\"><title>{2}</title>\n",
        kWidth, kHeight, escaped(name));
    draw_phases();
    draw_axes();
    draw_tier("s0", &MemoryPoint::device);
    draw_tier("s1", &MemoryPoint::host);
    return std::move(out_) + "</svg>\n";
  }

 private:
  [[nodiscard]] double x(double step) const {
    return kLeft + step / last_ * (kWidth - kLeft - kRight);
  }
  [[nodiscard]] double y(double units) const {
    return bottom() - units / highest_ * (bottom() - kTop);
  }
  [[nodiscard]] static double bottom() { return kHeight - kBottom; }

  void draw_phases() {
    for (std::size_t index = 0; index < traced_.phases.size(); ++index) {
      const PhaseStart& phase = traced_.phases[index];
      // Several batches may begin a phase; a line where it changes.
      if (index > 0 && traced_.phases[index - 1].name == phase.name) continue;
      std::size_t next = index + 1;
      while (next < traced_.phases.size() && traced_.phases[next].name == phase.name) ++next;
      const double begin = x(static_cast<double>(phase.step));
      const double end = next < traced_.phases.size()
                             ? x(static_cast<double>(traced_.phases[next].step))
                             : kWidth - kRight;
      const char* look = phase.name == "Phase II" ? "p2" : phase.name == "Phase III" ? "p3" : "p1";
      out_ += fmt::format(
          "<rect class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\">"
          "<title>{} from step {}</title></rect>\n",
          look, begin, kTop, std::max(end - begin, 0.0), bottom() - kTop, escaped(phase.name),
          phase.step);
      if (phase.step > 0) {
        out_ += fmt::format("<path class=\"mark\" d=\"M{:.1f} {:.1f}V{:.1f}\"/>\n", begin,
                            kTop - 14.0, bottom());
      }
      if (end - begin >= kPhaseLabel) {
        out_ += svg::text(begin + 4.0, kTop - 6.0, "start", phase.name, " class=\"soft\"");
      }
    }
  }

  void draw_axes() {
    const double step = svg::round_step(highest_ / kTicks);
    for (double tick = 0.0; tick <= highest_ * (1.0 + 1e-9); tick += step) {
      out_ += fmt::format("<path class=\"grid\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>\n", kLeft, y(tick),
                          kWidth - kRight);
      out_ += svg::text(kLeft - 6.0, y(tick) + 4.0, "end", fmt::format("{:.4g}", tick),
                        " class=\"soft\"");
    }
    const double middle = (kTop + bottom()) / 2.0;
    out_ += svg::text(12.0, middle, "middle", fmt::format("KV ({})", unit_.name),
                      fmt::format(" class=\"soft\" transform=\"rotate(-90 12 {:.1f})\"", middle));
    const double steps = std::max(svg::round_step(last_ / 5.0), 1.0);
    for (double tick = 0.0; tick <= last_; tick += steps) {
      out_ += svg::text(x(tick), bottom() + 15.0, "middle", fmt::format("{:.0f}", tick),
                        " class=\"soft\"");
    }
    out_ += svg::text((kLeft + kWidth - kRight) / 2.0, bottom() + 32.0, "middle", "step",
                      " class=\"soft\"");
  }

  void draw_tier(const char* look, double MemoryPoint::*bytes) {
    std::string line;
    const std::size_t every = traced_.memory.size() / kMostPoints + 1;
    for (std::size_t index = 0; index < traced_.memory.size(); index += every) {
      const MemoryPoint& point = traced_.memory[index];
      line += fmt::format("{}{:.1f},{:.1f}", line.empty() ? "" : " ",
                          x(static_cast<double>(point.step)), y(point.*bytes / unit_.bytes));
    }
    out_ += fmt::format("<polyline class=\"line {}\" points=\"{}\"/>\n", look, line);
  }

  const Traced& traced_;
  double last_;
  ByteUnit unit_;
  double highest_;  // in units
  std::string out_;
};

}  // namespace

std::string steps_svg(const std::string& name, const Traced& traced, double highest) {
  return StepsPlot(traced, highest).draw(name);
}

}  // namespace triphase::compare

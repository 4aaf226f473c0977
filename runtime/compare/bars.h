#pragma once

// Horizontal bars as inline SVG: a label, one or several parts laid end to end, a text. Colours are
// classes c0 ... c7 of the page. Pure.

#include <string>
#include <vector>

namespace triphase::compare {

struct BarPart {
  double value = 0.0;  // not negative
  int color = 0;
  std::string title;  // shown on pointing
};

struct Bar {
  std::string label;
  std::vector<BarPart> parts;
  std::string text;  // after the bar
  double low = 0.0;  // whiskers, where high > 0
  double high = 0.0;
};

// `name` is read to those who do not see the picture.
[[nodiscard]] std::string bars_svg(const std::string& name, const std::vector<Bar>& bars);

// KV bytes of both tiers over steps, with lines where phases begin.
struct StepPoint {
  double step = 0.0;
  double device = 0.0;
  double host = 0.0;
};
struct StepMark {
  double step = 0.0;
  std::string name;
};
[[nodiscard]] std::string steps_svg(const std::string& name, const std::vector<StepPoint>& points,
                                    const std::vector<StepMark>& marks, double highest);

}  // namespace triphase::compare

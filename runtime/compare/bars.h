#pragma once

// Horizontal bars as inline SVG, over an axis with round steps: a label, one or several tracks
// under each other, each of parts laid end to end with a text behind. Colours are classes c0 ... c7
// of the page. Pure.

#include <string>
#include <vector>

namespace triphase::compare {

struct BarPart {
  double value = 0.0;  // not negative
  int color = 0;
  std::string title;  // shown on pointing
};

struct BarTrack {
  std::vector<BarPart> parts;
  std::string text;  // after the parts
};

struct Bar {
  std::string label;
  std::vector<BarTrack> tracks;  // at least one
  double low = 0.0;              // whiskers, where high > 0
  double high = 0.0;
};

// What charts below each other share, so that their bars can be compared.
struct BarScale {
  double unit = 1.0;   // of the values, that the axis counts in
  std::string label;   // what the axis counts: "MiB"
  double longest = 0;  // where the axis ends at least
  double labels = 0;   // pixels of the longest label, of the longest text
  double texts = 0;

  // Makes room for these bars.
  void fit(const std::vector<Bar>& bars);
};

// `name` is read to those who do not see the picture.
[[nodiscard]] std::string bars_svg(const std::string& name, const std::vector<Bar>& bars,
                                   const BarScale& scale);

}  // namespace triphase::compare

#include "runtime/compare/svg.h"

#include <fmt/format.h>

#include <cmath>

#include "base/error.h"

namespace triphase::svg {

std::string escaped(std::string_view text) {
  std::string out;
  // XML has no control characters and no bytes that are not UTF-8.
  for (const char c : escape_untrusted(text, text.size())) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '&') {
      out += "&amp;";
    } else if (c == '"') {
      out += "&quot;";
    } else if (c == '\'') {
      out += "&#39;";
    } else {
      out += c;
    }
  }
  return out;
}

std::string text(double x, double y, std::string_view anchor, std::string_view words,
                 std::string_view more) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y,
                     anchor, more, escaped(words));
}

double round_step(double least) {
  const double power = std::pow(10.0, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (power * factor >= least) return power * factor;
  }
  return power * 10.0;
}

}  // namespace triphase::svg

// The chart is one well-formed text whatever the names in it are.

#include "runtime/eval/svg_chart.h"

#include <gtest/gtest.h>

#include <cmath>
#include <regex>

#include "tests/support/count_text.h"

namespace triphase::eval {
namespace {

TEST(SvgChart, DrawsEverySeriesWithItsPointsAndErrors) {
  const std::string svg = svg_chart({"score",
                                     "bytes",
                                     "y",
                                     {{3e6, 0.5, 0.1, "sparq"},
                                      {1e6, 0.25, 0.0, "sparq"},
                                      {2e6, 0.4, 0.0, "swa"},
                                      {2e6, NAN, 0.0, "swa"},
                                      {INFINITY, 1.0, 0.0, "none"}}});
  EXPECT_EQ(count_text(svg, "<polyline"), 2U);
  EXPECT_EQ(count_text(svg, "<circle"), 3U);
  EXPECT_EQ(count_text(svg, ">sparq<"), 1U);
  EXPECT_EQ(count_text(svg, ">none<"), 0U);
  EXPECT_NE(svg.find("prefers-color-scheme: dark"), std::string::npos);
  EXPECT_EQ(svg.find("<script"), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
  // Joined in the order of x: the left point first.
  std::smatch points;
  ASSERT_TRUE(
      std::regex_search(svg, points, std::regex("polyline points=\"([0-9.]+),[0-9.]+ ([0-9.]+),")));
  EXPECT_LT(std::stod(points[1]), std::stod(points[2]));
}

TEST(SvgChart, EscapesForeignText) {
  const std::string svg = svg_chart({"<script>\x01&", "\"x\"", "'y'", {{1, 1, 0, "</svg><a>"}}});
  EXPECT_EQ(count_text(svg, "<script>"), 0U);
  EXPECT_EQ(count_text(svg, "</svg>"), 1U);
  EXPECT_EQ(count_text(svg, "<a>"), 0U);
  EXPECT_EQ(svg.find('\x01'), std::string::npos);
  EXPECT_NE(svg.find("&lt;script&gt; &amp;"), std::string::npos);
}

TEST(SvgChart, TheAxisOfNumbersThatAreNeverNegativeBeginsAtZero) {
  // An error bar reaches below 0, where no score can be.
  const std::string svg = svg_chart({"t", "x", "y", {{1, 1, 3, "a"}, {2, 40, 1, "a"}}});
  EXPECT_EQ(count_text(svg, ">-"), 0U);
  EXPECT_EQ(count_text(svg, "± standard error"), 1U);
  EXPECT_GT(count_text(svg_chart({"t", "x", "y", {{1, -1, 0, "a"}, {2, 1, 0, "a"}}}), ">-"), 0U);
}

TEST(SvgChart, MarksTheLevelOfALonePointToCompareWith) {
  Chart chart{"t", "x", "y", {{1, 1, 0, "swa"}, {2, 2, 0, "swa"}, {3, 3, 0, "dense"}}};
  const std::size_t without = count_text(svg_chart(chart), "<line");
  chart.reference = "dense";
  EXPECT_EQ(count_text(svg_chart(chart), "<line"), without + 1);
  chart.reference = "swa";
  EXPECT_EQ(count_text(svg_chart(chart), "<line"), without) << "a curve has no level";
}

TEST(SvgChart, BreaksALongSubtitleIntoLines) {
  Chart chart{"t", "x", "y", {{1, 1, 0, "a"}}};
  for (int word = 0; word < 40; ++word) chart.subtitle += "word ";
  const std::string svg = svg_chart(chart);
  EXPECT_EQ(count_text(svg, "word"), 40U);
  EXPECT_EQ(count_text(svg, "word</text>"), 2U) << "200 characters, 100 a line";
}

TEST(SvgChart, OnePointOrNone) {
  EXPECT_EQ(count_text(svg_chart({"t", "x", "y", {{0, 0, 0, "a"}}}), "<circle"), 1U);
  EXPECT_EQ(count_text(svg_chart({"t", "x", "y", {}}), "<circle"), 0U);
}

}  // namespace
}  // namespace triphase::eval

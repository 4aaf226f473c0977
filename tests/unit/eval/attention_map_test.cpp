// What the map of an attention method counts and draws.

#include "runtime/eval/attention_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/count_text.h"

namespace triphase::eval {
namespace {

TEST(AttentionMap, RecordsOneLayerAndHead) {
  AttentionMapRecorder recorder(1, 1);
  TokenChoice choice;
  choice.begins = {0, 2, 3};
  choice.tokens = {0, 5, 4};
  LayerCall call;
  call.keys.context_tokens = 6;
  for (const std::int64_t layer : {0, 1, 2}) {
    call.layer = layer;
    recorder.decoded(SequenceId(0), call, {}, 0, choice);
  }
  call.layer = 1;
  choice.begins = {0, 2};
  choice.tokens = {1, 6};
  recorder.decoded(SequenceId(0), call, {}, 0, choice);  // one list for all heads
  choice.dense = true;
  recorder.decoded(SequenceId(0), call, {}, 0, choice);
  ASSERT_EQ(recorder.steps().size(), 3U);
  EXPECT_THAT(recorder.steps()[0].tokens, testing::ElementsAre(4));
  EXPECT_THAT(recorder.steps()[1].tokens, testing::ElementsAre(1, 6));
  EXPECT_TRUE(recorder.steps()[2].dense);
}

TEST(AttentionMap, CountsWhatLeavesAndWhatComesBack) {
  const std::vector<AttentionMapStep> steps = {{4, false, {0, 2, 3}},
                                               {5, false, {0, 3, 4}},  // 2 leaves
                                               {6, false, {1, 4, 5}},  // 0 and 3 leave; 1 is new
                                               {7, false, {2, 3, 6}},  // 1, 4, 5 leave; 2, 3 return
                                               {8, true, {}}};         // 0, 1, 4, 5 return
  const AttentionMapCounts counts = count_changes(steps);
  EXPECT_EQ(counts.attended, 3 * 4 + 8);
  EXPECT_EQ(counts.context, 4 + 5 + 6 + 7 + 8);
  EXPECT_EQ(counts.left, 1 + 2 + 3);
  EXPECT_EQ(counts.returned, 2 + 4);
}

TEST(AttentionMap, DrawsRunsAndEscapesItsTitle) {
  const std::string svg =
      attention_map_svg({"<swa> & \x01", "</svg>"}, 3,
                        {{4, false, {0, 2, 3}}, {5, true, {}}, {6, false, {0, 1, 2, 4, 5}}});
  const std::size_t begin = svg.find("class=\"attended\" d=\"");
  ASSERT_NE(begin, std::string::npos);
  const std::string attended = svg.substr(begin + 19, svg.find("\"/>", begin + 19) - begin - 19);
  EXPECT_EQ(count_text(attended, "M"), 2U + 1U + 2U);  // a rectangle for each run of neighbours
  EXPECT_EQ(count_text(svg, "<swa>"), 0U);
  EXPECT_EQ(count_text(svg, "</svg>"), 1U);
  // What the colours mean is said with them.
  EXPECT_EQ(count_text(svg, "attended in this step"), 1U);
  EXPECT_EQ(count_text(svg, "in the context, not attended"), 1U);
  EXPECT_EQ(svg.find('\x01'), std::string::npos);
  EXPECT_NE(svg.find("prefers-color-scheme: dark"), std::string::npos);
  EXPECT_EQ(svg.find("<script"), std::string::npos);
  // Nothing decoded is a map too.
  EXPECT_NE(attention_map_svg({"t", "s"}, 3, {}).find("</svg>"), std::string::npos);
}

}  // namespace
}  // namespace triphase::eval

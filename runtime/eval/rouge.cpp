#include "runtime/eval/rouge.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace triphase::eval {
namespace {

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  std::string word;
  for (const char c : text) {
    const bool upper = c >= 'A' && c <= 'Z';
    if (upper || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) {
      word += upper ? static_cast<char>(c - 'A' + 'a') : c;
    } else if (!word.empty()) {
      words.push_back(std::move(word));
      word.clear();
    }
  }
  if (!word.empty()) words.push_back(std::move(word));
  return words;
}

std::size_t common_subsequence(const std::vector<std::string>& a,
                               const std::vector<std::string>& b) {
  std::vector<std::size_t> row(b.size() + 1, 0);
  for (const std::string& word : a) {
    std::size_t diagonal = 0;
    for (std::size_t column = 0; column < b.size(); ++column) {
      const std::size_t above = row[column + 1];
      row[column + 1] = word == b[column] ? diagonal + 1 : std::max(above, row[column]);
      diagonal = above;
    }
  }
  return row.back();
}

}  // namespace

RougeL rouge_l(std::string_view reference, std::string_view candidate) {
  const std::vector<std::string> expected = words_of(reference);
  const std::vector<std::string> given = words_of(candidate);
  RougeL score;
  if (expected.empty() || given.empty()) return score;
  const auto common = static_cast<double>(common_subsequence(expected, given));
  score.recall = common / static_cast<double>(expected.size());
  score.precision = common / static_cast<double>(given.size());
  if (common > 0.0) {
    score.f = 2.0 * score.recall * score.precision / (score.recall + score.precision);
  }
  return score;
}

}  // namespace triphase::eval

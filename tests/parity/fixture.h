#pragma once

// One directory of tests/fixtures/parity: a checkpoint and what transformers computes for it in
// float64. The format is described in tests/fixtures/parity/README.md. Plain values.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"

namespace triphase::parity {

struct ExpectedLogits {
  std::vector<TokenId> tokens;
  std::vector<std::int32_t> positions;  // ascending; the last one is tokens.size() - 1
  std::vector<double> logits;           // [positions, vocab]
  std::size_t vocab = 0;

  [[nodiscard]] std::span<const double> row(std::size_t index) const {
    return std::span(logits).subspan(index * vocab, vocab);
  }
};

struct ExpectedGreedy {
  std::vector<TokenId> prompt;
  std::vector<TokenId> tokens;
  // Per step: best logit less the second best, as a part of that step's logit range.
  std::vector<double> leads;
};

struct Fixture {
  std::string name;
  std::string directory;
  std::vector<ExpectedLogits> prompts;
  std::vector<ExpectedGreedy> greedy;
};

// The folder of all fixtures, in the source tree or where TRIPHASE_SOURCE_DIR says.
[[nodiscard]] std::string fixtures_folder();

// Names of the fixtures, sorted; empty when the folder is missing.
[[nodiscard]] std::vector<std::string> fixture_names();

// Throws when expected.safetensors is not as the README says.
[[nodiscard]] Fixture read_fixture(const std::string& name);

}  // namespace triphase::parity

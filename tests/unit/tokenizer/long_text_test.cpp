// A line of a million characters takes about linear time, whatever it is made of, and threads can
// share one tokenizer.

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <thread>

#include "tests/unit/tokenizer/case_file.h"

namespace triphase {
namespace {

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

std::string repeated(std::string_view unit, std::size_t characters) {
  std::size_t per_unit = 0;
  for (const char c : unit) per_unit += (static_cast<unsigned char>(c) & 0xC0) != 0x80 ? 1 : 0;
  std::string text;
  for (std::size_t i = 0; i < characters; i += per_unit) text.append(unit);
  return text;
}

std::unique_ptr<Tokenizer> load(const std::string& name) {
  Notes notes;
  return load_tokenizer(committed_tokenizer(name), config_with_vocabulary(2000), notes);
}

// Processor time, as other programs may run beside the test.
double encode_seconds(const Tokenizer& tokenizer, std::string_view text) {
  const double begin = thread_seconds();
  const std::vector<TokenId> ids = tokenizer.encode(text, {});
  const double seconds = thread_seconds() - begin;
  EXPECT_FALSE(ids.empty());
  return seconds;
}

class LongText : public testing::TestWithParam<const char*> {};

TEST_P(LongText, MillionCharactersTakeLinearTime) {
  const auto tokenizer = load(GetParam());
  const std::string_view units[] = {"a",
                                    " ",
                                    "\n",
                                    "hello world, ",
                                    "\xE4\xBB\x8A\xE5\xA4\xA9",
                                    "\xCC\x81\xCC\x96" /* two marks out of order */,
                                    "1",
                                    " \n",
                                    "'s",
                                    "\xF0\x9F\x98\x80",
                                    "\xE2\x96\x81"};
  for (const std::string_view unit : units) {
    // 16 times the text; quadratic would be 256 times the time. Short times are noise, and programs
    // that share the caches may slow down one of two measurements, but not every time.
    double times = 0.0;
    for (int attempt = 0; attempt < 3; ++attempt) {
      const double small = encode_seconds(*tokenizer, repeated(unit, 62'500));
      times = encode_seconds(*tokenizer, repeated(unit, 1'000'000)) / std::max(small, 0.002);
      if (times < 64.0) break;
    }
    EXPECT_LT(times, 64.0) << "unit " << escape_untrusted(unit);
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, LongText,
                         testing::Values("llama3", "qwen2", "o200k", "neox", "sp-bpe", "sp-unigram",
                                         "gemma-json"),
                         [](const auto& tested) {
                           std::string name = tested.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(SharedTokenizer, ThreadsGetTheSameIds) {
  for (const char* name : {"llama3", "sp-bpe", "sp-unigram"}) {
    const auto tokenizer = load(name);
    const std::string text = repeated("To be, or not to be: 12345 caf\xC3\xA9\n ", 5'000);
    const std::vector<TokenId> expected = tokenizer->encode(text, {});
    std::vector<int> different(4, 0);
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&, thread] {
        for (int round = 0; round < 20; ++round) {
          if (tokenizer->encode(text, {}) != expected)
            ++different[static_cast<std::size_t>(thread)];
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(different, std::vector<int>(4, 0)) << name;
  }
}

}  // namespace
}  // namespace triphase

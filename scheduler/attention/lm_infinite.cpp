// lm-infinite: the first tokens and a window of the most recent ones (LM-Infinite, StreamingLLM).

#include "scheduler/attention/method_options.h"

namespace triphase {
namespace {

// A preset is the options it stands for: what is set after it holds.
MethodOption preset_option() {
  MethodOption option = word_option(
      "lm-infinite.preset", "lm-infinite or streaming (StreamingLLM at absolute positions)",
      {"lm-infinite", "streaming"}, TRIPHASE_FIELD(lm_infinite.preset),
      "streaming takes StreamingLLM's sinks=4 and k=516; options after it win.");
  option.set = [set = option.set](AttentionOptions& options, std::string_view text) {
    if (!set(options, text)) return false;
    auto& to = options.lm_infinite;
    const bool streaming = text == "streaming";
    to.sinks = streaming ? 4 : 16;
    to.k = streaming ? 4 + 512 : 128;
    to.k_ratio = 0;
    return true;
  };
  return option;
}

}  // namespace

AttentionInfo lm_infinite_info() {
  return {
      .options = {preset_option(),
                  count_option("lm-infinite.sinks", 0, "tokens", TRIPHASE_FIELD(lm_infinite.sinks),
                               "First tokens of the context that are always attended."),
                  count_option("lm-infinite.k", 1, "tokens, at least 1",
                               TRIPHASE_FIELD(lm_infinite.k),
                               "Attended tokens, sinks and window together."),
                  share_option("lm-infinite.k_ratio", TRIPHASE_FIELD(lm_infinite.k_ratio),
                               "Above 0: attended tokens, as a share of the context instead.")},
      .budget =
          [](const AttentionOptions& options, std::int64_t context, std::int64_t) {
            return by_ratio(options.lm_infinite.k_ratio, options.lm_infinite.k, context);
          },
      .set_keep = [](AttentionOptions& options,
                     double keep) { options.lm_infinite.k_ratio = keep; }};
}

}  // namespace triphase

#include "scheduler/attention/attended_bytes.h"

#include <string>

#include "base/error.h"
#include "scheduler/attention/attention_info.h"

namespace triphase {

std::uint64_t attended_bytes(const AttentionOptions& options, const AttendedShape& shape,
                             std::int64_t context, std::int64_t attended) {
  const std::int64_t row = shape.head_dim * shape.element_bytes;  // one key or value
  std::int64_t bytes = shape.kv_heads * 2 * attended * row;
  const AttentionInfo& info = attention_info(options.kind);
  if (info.extra_bytes != nullptr) bytes += info.extra_bytes(options, shape, context, attended);
  return static_cast<std::uint64_t>(bytes);
}

void set_compression(AttentionOptions& options, const AttendedShape& shape, double compression,
                     std::int64_t longest) {
  const auto refuse = [&](const std::string& expected) {
    throw Error(ErrorRole::kUsage, "E-CLI-ATTOPTION", "compression")
        .found(std::to_string(compression) + " with --attention " +
               std::string(attention_name(options.kind)))
        .expected(expected);
  };
  if (!(compression > 0.0 && compression <= 1.0)) refuse("a share above 0, at most 1");
  const AttentionInfo& info = attention_info(options.kind);
  ReadShares shares;
  if (info.read_shares != nullptr) shares = info.read_shares(options, shape, compression);
  const double sparse = 1.0 - shape.dense_share;  // of the layers
  const double always = shape.dense_share + sparse * shares.always;
  const double token = sparse * shares.token;
  const double keep = compression == 1.0 ? 1.0 : (compression - always) / token;
  if (keep <= 0.0) refuse("more than " + std::to_string(always) + ", which it always reads");
  if (longest > 0 && info.least_tokens != nullptr) {
    const double least =
        static_cast<double>(info.least_tokens(options, longest)) / static_cast<double>(longest);
    if (keep < least) {
      refuse("at least " + std::to_string(always + token * least) + ", which it reads of " +
             std::to_string(longest) + " tokens at the least");
    }
  }
  set_keep_ratio(options, keep);
}

}  // namespace triphase

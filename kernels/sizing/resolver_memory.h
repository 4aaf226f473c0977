#pragma once

// Device memory of kernels/kv_resolver.h as pure functions of sizes: the planner budgets with them,
// and the resolver lays its memory out by them.

#include <cstdint>

#include "base/rounding.h"

namespace triphase {

// Units of a method that chooses before the layer begins: so many are looked up ahead.
inline constexpr std::int64_t kResolvedAhead = 4;

struct ResolverShape {
  std::int64_t layers = 0;
  std::int64_t lists = 1;         // of a row
  std::int64_t block_tokens = 0;  // on a GPU 32, 64 or 128
  std::int64_t rows = 0;          // most requests of a step
  std::int64_t batch_rows = 0;    // most new tokens of a step
  std::int64_t row_blocks = 0;    // of the longest context
  std::int64_t list_tokens = 0;   // of the longest list
  bool early = false;             // tokens are chosen ahead
  bool quantized = false;
  bool recomputes = false;  // blocks of cached hidden states may be among the host's
  std::int64_t host_blocks = 0;
  std::int64_t input_blocks = 0;    // of cached hidden states; of one list alone
  std::int64_t hot_rows = 0;        // of a layer and list
  std::int64_t first_hot_slot = 0;  // of layer 0; those of the next layer follow

  [[nodiscard]] std::int64_t units() const { return early ? kResolvedAhead : 1; }
  // Counts both kinds of blocks; those with saved hidden states come after the others.
  [[nodiscard]] std::int64_t host_tokens() const {
    return (host_blocks + input_blocks) * block_tokens;
  }
  [[nodiscard]] std::int64_t stored_tokens() const { return host_blocks * block_tokens; }
  [[nodiscard]] std::int64_t host_words() const { return ceil_div(host_tokens(), 32); }
  [[nodiscard]] std::int64_t hot_words() const { return ceil_div(hot_rows, 32); }
  [[nodiscard]] std::int64_t list_entries() const { return rows * lists * list_tokens; }
};

// Offsets in bytes. [layer][list] where a comment says so, else [list].
struct ResolverLayout {
  std::int64_t map = 0;      // [layer][list][host token]; without hot rows none
  std::int64_t owners = 0;   // [layer][list][hot row]
  std::int64_t stamps = 0;   // as owners
  std::int64_t claims = 0;   // [list][host word]
  std::int64_t seen = 0;     // as claims
  std::int64_t ranks = 0;    // as claims
  std::int64_t hits = 0;     // [list][hot word]
  std::int64_t victims = 0;  // [list][hot row]
  std::int64_t found = 0;    // [list] of five
  std::int64_t totals = 0;   // [list] of four 64-bit numbers
  std::int64_t units = 0;    // the first of the units
  std::int64_t unit_bytes = 0;
  std::int64_t bytes = 0;

  // Offsets inside one unit, from the unit's own begin.
  std::int64_t slots = 0;
  std::int64_t missing_slots = 0;
  std::int64_t missing_records = 0;
  std::int64_t missing_heads = 0;   // of several lists alone
  std::int64_t missing_widths = 0;  // of several lists alone
  std::int64_t missing_count = 0;
  std::int64_t recomputed = 0;  // where there may be any, as recomputed_count
  std::int64_t recomputed_count = 0;
};
[[nodiscard]] ResolverLayout resolver_layout(const ResolverShape& shape);

// What the layout of a shape takes at most, so that memory can be divided before the number of host
// blocks and hot rows is known: fixed + (host_blocks + input_blocks) * host_block + hot_rows *
// hot_row.
struct ResolverCosts {
  std::uint64_t fixed = 0;
  std::uint64_t host_block = 0;
  std::uint64_t hot_row = 0;
};
[[nodiscard]] ResolverCosts resolver_costs(ResolverShape shape);

}  // namespace triphase

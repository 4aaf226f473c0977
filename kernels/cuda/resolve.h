#pragma once

// Looks tokens that an attention method chose up on the device: in a page, in a hot row (a slot of
// the token cache), or on the host. What is on the host gets a hot row, in place of the token that
// was chosen longest ago, or else a spare slot that serves this choice alone, and is named for the
// link to bring (kernels/kv_resolver.h): its K and V, or the cached hidden states that they are
// projected from where nobody stores them.
//
// Three kernels: every token is looked up, and those that are missing are claimed by a bit of their
// own; hot rows are made free for them, those first that were chosen longest ago, of these the
// first; then each claimed token gets its place by its rank among all that are claimed. So no
// result depends on which thread came first.

#include <cstdint>

#include "kernels/cuda/stream_handle.h"
#include "kernels/kv_records.h"

namespace triphase::cuda {

// Hot rows of one layer. Of each list its own: [list][host token], [list][hot row].
struct HotRowBooks {
  std::int32_t* map = nullptr;     // hot row, or -1
  std::int32_t* owners = nullptr;  // host token, or -1
  std::int32_t* stamps = nullptr;  // step that last chose it; 0: none
  int rows = 0;                    // of a list; 0: there are none, and all of this is null
};

// Found per list, in this order.
struct FoundTokens {
  std::int32_t chosen;   // on the host, or with a hot row
  std::int32_t hits;     // of these, with a hot row
  std::int32_t missing;  // of these, brought: each once
  std::int32_t stored;   // of the missing, those with K and V
  std::int32_t victims;  // hot rows for them
};

// What a method chose: `rows` rows of `lists` lists.
struct ResolveChoice {
  const std::int32_t* tokens = nullptr;  // [row][list][capacity]
  const std::int32_t* counts = nullptr;  // [row][list]
  int rows = 0;
  int lists = 1;
  int capacity = 0;
};

// The block tables of these rows.
struct ResolveTables {
  const std::int32_t* pages = nullptr;        // [row][max_blocks]: of layer 0, or -1
  const std::int32_t* host_blocks = nullptr;  // [row][max_blocks]
  const std::int32_t* staged = nullptr;  // [row][max_blocks]: pages of host blocks, -1; or null
  const std::int32_t* scale_pages = nullptr;  // [row][max_blocks], of RecomputedToken; or null
  const std::int32_t* lengths = nullptr;      // [row]
  int max_blocks = 0;
  int page_tokens = 0;           // 32, 64 or 128
  bool own_block_apart = false;  // INT8: the query's own block lies in a page of another pool
  int layer = 0;
};

// Tokens of the host's blocks.
struct ResolveHost {
  std::int64_t tokens = 0;
  // Of the first of them K and V lie there, of the others cached hidden states: these must be in
  // one list.
  std::int64_t stored_tokens = 0;
  std::int64_t first_record = 0;  // of the layer
};

// Slots for tokens of the host.
struct ResolveRoom {
  int first_hot_slot = 0;  // of the layer
  int first_spare_slot = 0;
  int spare_slots = 0;
};

// claims, hits and found hold zeros before and after.
struct ResolveScratch {
  unsigned* claims = nullptr;       // [list][host words], a bit per host token
  unsigned* hits = nullptr;         // [list][hot words], a bit per hot row
  unsigned* seen = nullptr;         // as claims
  std::int32_t* ranks = nullptr;    // as claims
  std::int32_t* victims = nullptr;  // [list][hot row]
  FoundTokens* found = nullptr;     // [list]
};

// What the link must bring: MissingTokens, as they are written.
struct ResolvedMissing {
  std::int32_t* slots = nullptr;
  std::int32_t* records = nullptr;
  std::int32_t* heads = nullptr;   // the list, where there are several; else null
  std::int32_t* widths = nullptr;  // 1 beside it
  std::int32_t* count = nullptr;
};

// What must be projected: RecomputedTokens, as they are written. Null where K and V of all host
// tokens lie there.
struct ResolvedRecomputes {
  RecomputedToken* tokens = nullptr;
  std::int32_t* count = nullptr;
};

struct ResolveArgs {
  ResolveChoice choice;
  ResolveTables tables;
  HotRowBooks hot;
  ResolveHost host;
  ResolveRoom room;
  int step = 0;  // above 0; grows from step to step
  ResolveScratch scratch;
  std::int64_t* totals = nullptr;  // [list][chosen, hits, brought, recomputed]: are added to

  // [row][list][capacity]: the choice's slots. They count from the cache's first page; of the own
  // block apart: the token's offset.
  std::int32_t* slots = nullptr;
  ResolvedMissing missing;
  ResolvedRecomputes recomputed;
};

void resolve_tokens(const ResolveArgs& args, StreamHandle stream);

// Hot rows of `layers` layers forget the tokens of `count` host blocks: their content is new.
// `books`: of layer 0; maps of a layer are `lists` * host_tokens apart, the others lists * rows.
void forget_host_blocks(const std::int32_t* blocks, int count, int layers, int lists,
                        std::int64_t host_tokens, int page_tokens, const HotRowBooks& books,
                        StreamHandle stream);

void fill_words(std::int32_t* to, std::int64_t count, std::int32_t value, StreamHandle stream);

}  // namespace triphase::cuda

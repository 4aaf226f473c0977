#include <bit>

#include "kernels/cuda/block_reduce.h"
#include "kernels/cuda/dialect.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/cuda/resolve.h"
#include "kernels/sizing/cuda_workspace.h"

namespace triphase::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRoomThreads = 1024;
// A stamp in three digits, the highest first.
constexpr int kBins = 2048;
constexpr int kMostRows = 65535;  // of a grid's second dimension

// What look_up leaves for place: the token is missing, and this thread claimed it or another did.
constexpr int kClaimed = -1;
constexpr int kShared = -2;

struct ResolveShape : ResolveArgs {
  int page_shift;
  std::int64_t host_words;
  std::int64_t stored_words;
  int hot_words;
};

// Where the token of a list's entry is on the host.
__device__ inline std::int64_t host_token(const ResolveShape& shape, int row, int token) {
  const ResolveTables& tables = shape.tables;
  const int block = token >> shape.page_shift;
  const int host = tables.host_blocks[static_cast<std::int64_t>(row) * tables.max_blocks + block];
  device_check(host >= 0);
  const std::int64_t at = (static_cast<std::int64_t>(host) << shape.page_shift) +
                          (token & ((1 << shape.page_shift) - 1));
  device_check(at < shape.host.tokens);
  return at;
}

__global__ void __launch_bounds__(kThreads) look_up_kernel(const ResolveShape shape) {
  const ResolveChoice& choice = shape.choice;
  const ResolveTables& tables = shape.tables;
  const ResolvedLists& lists = shape.lists;
  const ResolveScratch& scratch = shape.scratch;
  const int entry = static_cast<int>(blockIdx.y);  // a list of a row
  const int list = entry % choice.lists;
  const int row = entry / choice.lists;
  const int count = choice.counts[entry];
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  bool chosen = false;
  bool hit = false;
  if (i < count) {
    const std::int64_t at = static_cast<std::int64_t>(entry) * choice.capacity + i;
    const int token = choice.tokens[at];
    if (lists.kept_tokens != nullptr) lists.kept_tokens[at] = token;
    const int block = token >> shape.page_shift;
    const int offset = token & ((1 << shape.page_shift) - 1);
    const int own = (tables.lengths[row] - 1) >> shape.page_shift;
    int slot = offset;
    if (!tables.own_block_apart || block != own) {
      const std::int64_t entry_block = static_cast<std::int64_t>(row) * tables.max_blocks + block;
      int page = tables.pages[entry_block];
      if (page >= 0) {
        page += tables.layer;
      } else if (tables.staged != nullptr) {
        page = tables.staged[entry_block];
      }
      if (page >= 0) {
        slot = (page << shape.page_shift) + offset;
      } else {
        const std::int64_t key = host_token(shape, row, token);
        chosen = true;
        const int hot =
            shape.hot.rows > 0
                ? shape.hot.map[static_cast<std::int64_t>(list) * shape.host.tokens + key]
                : -1;
        hit = hot >= 0;
        if (hit) {
          atomic_or(&scratch.hits[static_cast<std::int64_t>(list) * shape.hot_words + hot / 32],
                    1U << hot % 32);
          slot = shape.room.first_hot_slot + hot;
        } else {
          const unsigned bit = 1U << static_cast<int>(key % 32);
          const unsigned before =
              atomic_or(&scratch.claims[list * shape.host_words + key / 32], bit);
          slot = (before & bit) == 0 ? kClaimed : kShared;
        }
      }
    }
    lists.slots[at] = slot;
  }
  if (lists.kept_counts != nullptr && i == 0) lists.kept_counts[entry] = count;
  const int chosen_here = count_bits(ballot(chosen));
  const int hits_here = count_bits(ballot(hit));
  if (lane_id() == 0 && chosen_here > 0) {
    atomic_add(&scratch.found[list].chosen, chosen_here);
    if (hits_here > 0) atomic_add(&scratch.found[list].hits, hits_here);
  }
}

// Of the stamps that are not `step`, those that leave so that `wanted` do: all below `stamp`, and
// the first `equals` of those equal to it.
struct OldestCut {
  unsigned stamp;
  unsigned equals;
};

struct RoomShared {
  unsigned* bins;
  unsigned* scratch;
  unsigned* found;  // 2: bin, entries below it
};

// There must be more than `wanted` > 0 of them.
__device__ inline OldestCut find_oldest(const std::int32_t* stamps, int rows, int step,
                                        unsigned wanted, const RoomShared& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  unsigned prefix = 0;
  for (int digit = 0; digit < 3; ++digit) {
    const int shift = digit == 0 ? 21 : digit == 1 ? 10 : 0;
    const int bits = digit == 2 ? 10 : 11;
    for (int bin = thread; bin < kBins; bin += kRoomThreads) shared.bins[bin] = 0;
    __syncthreads();
    for (int row = thread; row < rows; row += kRoomThreads) {
      const auto stamp = static_cast<unsigned>(stamps[row]);
      if (stamp == static_cast<unsigned>(step)) continue;
      if (digit > 0 && stamp >> (shift + bits) != prefix) continue;
      atomic_add(&shared.bins[(stamp >> shift) & ((1U << bits) - 1U)], 1U);
    }
    __syncthreads();
    constexpr int kOwnBins = kBins / kRoomThreads;
    unsigned own = 0;
    for (int i = 0; i < kOwnBins; ++i) own += shared.bins[thread * kOwnBins + i];
    unsigned total = 0;
    unsigned below = block_scan(own, shared.scratch, total);
    for (int i = 0; i < kOwnBins; ++i) {
      const unsigned in_bin = shared.bins[thread * kOwnBins + i];
      if (below < wanted && wanted <= below + in_bin) {
        shared.found[0] = static_cast<unsigned>(thread * kOwnBins + i);
        shared.found[1] = below;
      }
      below += in_bin;
    }
    __syncthreads();
    prefix = (prefix << bits) | shared.found[0];
    wanted -= shared.found[1];
    __syncthreads();
  }
  return {prefix, wanted};
}

// Writes the rows that leave in ascending order; returns how many.
__device__ inline unsigned write_victims(const std::int32_t* stamps, int rows, int step,
                                         OldestCut cut, std::int32_t* victims, unsigned* scratch) {
  unsigned older_before = 0;
  unsigned equal_before = 0;
  for (int chunk = 0; chunk < rows; chunk += kRoomThreads) {
    const int row = chunk + static_cast<int>(threadIdx.x);
    bool older = false;
    bool equal = false;
    if (row < rows) {
      const auto stamp = static_cast<unsigned>(stamps[row]);
      const bool may_leave = stamp != static_cast<unsigned>(step);
      older = may_leave && stamp < cut.stamp;
      equal = may_leave && stamp == cut.stamp;
    }
    unsigned total = 0;
    const unsigned before = block_scan(
        static_cast<unsigned>(older) | static_cast<unsigned>(equal) << 16, scratch, total);
    const unsigned older_rank = older_before + (before & 0xFFFFU);
    const unsigned equal_rank = equal_before + (before >> 16);
    if (older || (equal && equal_rank < cut.equals)) {
      victims[older_rank + smaller(equal_rank, cut.equals)] = row;
    }
    older_before += total & 0xFFFFU;
    equal_before += total >> 16;
  }
  return older_before + smaller(equal_before, cut.equals);
}

// A block for each list: ranks of what was claimed, stamps of what was hit, rows that leave.
__global__ void __launch_bounds__(kRoomThreads) make_room_kernel(const ResolveShape shape) {
  TRIPHASE_SHARED(unsigned, bins, kBins);
  TRIPHASE_SHARED(unsigned, scratch, kBlockReduceWords);
  TRIPHASE_SHARED(unsigned, found, 2);
  const int list = static_cast<int>(blockIdx.x);
  const int thread = static_cast<int>(threadIdx.x);
  unsigned* claims = shape.scratch.claims + list * shape.host_words;
  const std::int64_t own_words = ceil_div<std::int64_t>(shape.host_words, kRoomThreads);
  const std::int64_t begin = smaller<std::int64_t>(thread * own_words, shape.host_words);
  const std::int64_t end = smaller<std::int64_t>(begin + own_words, shape.host_words);
  const auto claimed_before = [&](std::int64_t last) {
    unsigned count = 0;
    for (std::int64_t word = begin; word < last; ++word) {
      count += static_cast<unsigned>(count_bits(claims[word]));
    }
    return count;
  };
  unsigned stored = 0;
  if (shape.recomputed.tokens != nullptr) {
    (void)block_scan(claimed_before(smaller(end, shape.stored_words)), scratch, stored);
  }
  const unsigned own = claimed_before(end);
  unsigned missing = 0;
  unsigned rank = block_scan(own, scratch, missing);
  if (shape.recomputed.tokens == nullptr) stored = missing;
  for (std::int64_t word = begin; word < end && own > 0; ++word) {
    const unsigned bits = claims[word];
    if (bits == 0) continue;
    shape.scratch.seen[list * shape.host_words + word] = bits;
    shape.scratch.ranks[list * shape.host_words + word] = static_cast<std::int32_t>(rank);
    rank += static_cast<unsigned>(count_bits(bits));
    claims[word] = 0;
  }

  std::int32_t* stamps = shape.hot.stamps + static_cast<std::int64_t>(list) * shape.hot.rows;
  unsigned candidates = 0;
  for (int word = thread; word < shape.hot_words; word += kRoomThreads) {
    unsigned* hits = shape.scratch.hits + static_cast<std::int64_t>(list) * shape.hot_words + word;
    const unsigned bits = *hits;
    *hits = 0;
    const int rows = smaller(32, shape.hot.rows - word * 32);
    for (int i = 0; i < rows; ++i) {
      if ((bits >> i & 1U) != 0U) stamps[word * 32 + i] = shape.step;
      candidates += static_cast<unsigned>(stamps[word * 32 + i] != shape.step);
    }
  }
  __syncthreads();
  unsigned evictable = 0;
  (void)block_scan(candidates, scratch, evictable);
  unsigned victims = 0;
  if (missing > 0 && evictable > 0) {
    OldestCut cut{0xFFFFFFFFU, 0};  // all
    if (missing < evictable) {
      cut = find_oldest(stamps, shape.hot.rows, shape.step, missing, {bins, scratch, found});
    }
    victims = write_victims(
        stamps, shape.hot.rows, shape.step, cut,
        shape.scratch.victims + static_cast<std::int64_t>(list) * shape.hot.rows, scratch);
  }
  if (thread != 0) return;
  FoundTokens& of_list = shape.scratch.found[list];
  of_list.missing = static_cast<std::int32_t>(missing);
  of_list.stored = static_cast<std::int32_t>(stored);
  of_list.victims = static_cast<std::int32_t>(victims);
  std::int64_t* totals = shape.totals + static_cast<std::int64_t>(list) * 4;
  totals[0] += of_list.chosen;
  totals[1] += of_list.hits;
  totals[2] += stored;
  totals[3] += missing - stored;
  of_list.chosen = 0;
  of_list.hits = 0;
}

__global__ void __launch_bounds__(kThreads) place_kernel(const ResolveShape shape) {
  const ResolveChoice& choice = shape.choice;
  const ResolveTables& tables = shape.tables;
  const ResolveHost& host = shape.host;
  const ResolveScratch& scratch = shape.scratch;
  const ResolvedMissing& missing = shape.missing;
  const int entry = static_cast<int>(blockIdx.y);
  const int list = entry % choice.lists;
  const int row = entry / choice.lists;
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (entry == 0 && i == 0) {
    int brought = 0;
    for (int each = 0; each < choice.lists; ++each) brought += scratch.found[each].stored;
    *missing.count = brought;
    if (shape.recomputed.tokens != nullptr) {
      *shape.recomputed.count = scratch.found->missing - scratch.found->stored;
    }
  }
  if (i >= choice.counts[entry]) return;
  const std::int64_t at = static_cast<std::int64_t>(entry) * choice.capacity + i;
  const int state = shape.lists.slots[at];
  if (state >= 0) return;
  const std::int64_t key = host_token(shape, row, choice.tokens[at]);
  const std::int64_t word = list * shape.host_words + key / 32;
  const unsigned before = scratch.seen[word] & ((1U << static_cast<int>(key % 32)) - 1U);
  const int rank = scratch.ranks[word] + count_bits(before);
  const int victims = scratch.found[list].victims;
  int slot = shape.room.first_spare_slot + rank - victims;
  const bool becomes_hot = rank < victims;
  const std::int64_t first_row = static_cast<std::int64_t>(list) * shape.hot.rows;
  if (becomes_hot) {
    const int hot = scratch.victims[first_row + rank];
    slot = shape.room.first_hot_slot + hot;
    if (state == kClaimed) {
      std::int32_t* map = shape.hot.map + static_cast<std::int64_t>(list) * host.tokens;
      const int old = shape.hot.owners[first_row + hot];
      if (old >= 0) map[old] = -1;
      map[key] = hot;
      shape.hot.owners[first_row + hot] = static_cast<std::int32_t>(key);
      shape.hot.stamps[first_row + hot] = shape.step;
    }
  } else {
    device_check(rank - victims < shape.room.spare_slots);
  }
  shape.lists.slots[at] = slot;
  if (state != kClaimed) return;
  // Ranks follow keys: what has no K and V comes behind all that has.
  if (key >= host.stored_tokens) {
    const int token = choice.tokens[at];
    const std::int64_t block =
        static_cast<std::int64_t>(row) * tables.max_blocks + (token >> shape.page_shift);
    shape.recomputed.tokens[rank - scratch.found->stored] = {
        slot, static_cast<std::int32_t>(key - host.stored_tokens), token,
        tables.scale_pages == nullptr ? 0 : tables.scale_pages[block]};
    return;
  }
  int brought = rank;
  for (int each = 0; each < list; ++each) brought += scratch.found[each].stored;
  missing.slots[brought] = slot;
  missing.records[brought] = static_cast<std::int32_t>(host.first_record + key);
  if (missing.heads == nullptr) return;
  missing.heads[brought] = list;
  missing.widths[brought] = 1;
}

__global__ void __launch_bounds__(128)
    forget_host_blocks_kernel(const std::int32_t* blocks, int page_shift, std::int64_t host_tokens,
                              const HotRowBooks books) {
  const std::int64_t list = blockIdx.y;  // of all layers
  const std::int64_t token =
      (static_cast<std::int64_t>(blocks[blockIdx.x]) << page_shift) + threadIdx.x;
  std::int32_t* row = books.map + list * host_tokens + token;
  if (*row < 0) return;
  const std::int64_t hot = list * books.rows + *row;
  books.owners[hot] = -1;
  books.stamps[hot] = 0;
  *row = -1;
}

__global__ void __launch_bounds__(kThreads)
    fill_words_kernel(std::int32_t* to, std::int64_t count, std::int32_t value) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += step) {
    to[i] = value;
  }
}

int page_shift_of(int page_tokens) { return std::countr_zero(static_cast<unsigned>(page_tokens)); }

}  // namespace

void resolve_tokens(const ResolveArgs& args, StreamHandle stream) {
  const ResolveChoice& choice = args.choice;
  const ResolveTables& tables = args.tables;
  const ResolveHost& host = args.host;
  const HotRowBooks& hot = args.hot;
  const ResolveScratch& scratch = args.scratch;
  const auto shape_of_call = [&] {
    return shape_text({{"rows", choice.rows},
                       {"lists", choice.lists},
                       {"capacity", choice.capacity},
                       {"max_blocks", tables.max_blocks},
                       {"page_tokens", tables.page_tokens},
                       {"hot_rows", hot.rows},
                       {"host_tokens", host.tokens},
                       {"first_record", host.first_record},
                       {"step", args.step}});
  };
  const auto check = [&](bool condition, const char* what) {
    require(condition, "resolve_tokens", what, shape_of_call);
  };
  const std::int64_t entries = std::int64_t{choice.rows} * choice.lists;
  check(choice.rows > 0 && choice.lists > 0 && choice.capacity > 0 && tables.max_blocks > 0 &&
            host.tokens > 0 && args.step > 0 && hot.rows >= 0 && args.room.spare_slots >= 0,
        "sizes must be positive");
  check(gpu_takes_pages(tables.page_tokens), "page_tokens must be 32, 64 or 128");
  check(entries <= kMostRows, "too many lists");
  check(host.first_record + host.stored_tokens <= INT32_MAX && host.tokens <= INT32_MAX,
        "more records than 32 bits count");
  check(host.stored_tokens >= 0 && host.stored_tokens <= host.tokens &&
            host.stored_tokens % tables.page_tokens == 0,
        "stored tokens are whole blocks of the host's");
  check((args.recomputed.tokens == nullptr) == (args.recomputed.count == nullptr) &&
            (args.recomputed.tokens == nullptr ? host.stored_tokens == host.tokens
                                               : choice.lists == 1),
        "hidden states without a list for them, or for several");
  check(choice.tokens != nullptr && choice.counts != nullptr && tables.pages != nullptr &&
            tables.host_blocks != nullptr && tables.lengths != nullptr &&
            scratch.claims != nullptr && scratch.seen != nullptr && scratch.ranks != nullptr &&
            scratch.found != nullptr && args.totals != nullptr && args.lists.slots != nullptr &&
            args.missing.slots != nullptr && args.missing.records != nullptr &&
            args.missing.count != nullptr,
        "null pointer");
  check(hot.rows == 0 || (hot.map != nullptr && hot.owners != nullptr && hot.stamps != nullptr &&
                          scratch.hits != nullptr && scratch.victims != nullptr),
        "hot rows without books");
  check((args.lists.kept_tokens == nullptr) == (args.lists.kept_counts == nullptr) &&
            (args.missing.heads == nullptr) == (args.missing.widths == nullptr),
        "half of a pair");
  ResolveShape shape{};
  static_cast<ResolveArgs&>(shape) = args;
  shape.page_shift = page_shift_of(tables.page_tokens);
  shape.host_words = ceil_div<std::int64_t>(host.tokens, 32);
  shape.stored_words = host.stored_tokens / 32;
  shape.hot_words = ceil_div(hot.rows, 32);
  const dim3 grid(static_cast<unsigned>(ceil_div(choice.capacity, kThreads)),
                  static_cast<unsigned>(entries));
  TRIPHASE_LAUNCH((look_up_kernel), grid, kThreads, 0, stream, shape);
  TRIPHASE_LAUNCH((make_room_kernel), dim3(static_cast<unsigned>(choice.lists)), kRoomThreads, 0,
                  stream, shape);
  TRIPHASE_LAUNCH((place_kernel), grid, kThreads, 0, stream, shape);
  check_launched("resolve_tokens", shape_of_call);
}

void forget_host_blocks(const std::int32_t* blocks, int count, int layers, int lists,
                        std::int64_t host_tokens, int page_tokens, const HotRowBooks& books,
                        StreamHandle stream) {
  const auto shape = [&] {
    return shape_text({{"count", count},
                       {"layers", layers},
                       {"lists", lists},
                       {"host_tokens", host_tokens},
                       {"page_tokens", page_tokens},
                       {"hot_rows", books.rows}});
  };
  const std::int64_t all = std::int64_t{layers} * lists;
  require(blocks != nullptr && count >= 0 && all > 0 && all <= kMostRows &&
              gpu_takes_pages(page_tokens) && books.rows > 0 && books.map != nullptr &&
              books.owners != nullptr && books.stamps != nullptr,
          "forget_host_blocks", "null pointer or sizes out of range", shape);
  if (count == 0) return;
  const dim3 grid(static_cast<unsigned>(count), static_cast<unsigned>(all));
  TRIPHASE_LAUNCH((forget_host_blocks_kernel), grid, static_cast<unsigned>(page_tokens), 0, stream,
                  blocks, page_shift_of(page_tokens), host_tokens, books);
  check_launched("forget_host_blocks", shape);
}

void fill_words(std::int32_t* to, std::int64_t count, std::int32_t value, StreamHandle stream) {
  const auto shape = [&] { return shape_text({{"count", count}}); };
  require(to != nullptr && count >= 0, "fill_words", "null pointer", shape);
  if (count == 0) return;
  constexpr std::int64_t kMostBlocks = 1024;
  const std::int64_t blocks = smaller(ceil_div<std::int64_t>(count, kThreads), kMostBlocks);
  TRIPHASE_LAUNCH((fill_words_kernel), dim3(static_cast<unsigned>(blocks)), kThreads, 0, stream, to,
                  count, value);
  check_launched("fill_words", shape);
}

}  // namespace triphase::cuda

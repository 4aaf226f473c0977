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
    shape.slots[at] = slot;
  }
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
  unsigned* bins;     // kBins
  unsigned* scratch;  // kBlockReduceWords
  unsigned* found;    // 2: bin, entries before it
};

// The entries [begin, end) of `count` that a warp goes through, 32 at a time; begin is a multiple
// of 32.
struct WarpStretch {
  int begin;
  int end;
};
__device__ inline WarpStretch own_stretch(int count) {
  constexpr int kWarps = kRoomThreads / kWarpSize;
  const int each = ceil_div(ceil_div(count, kWarpSize), kWarps) * kWarpSize;
  const int begin = smaller(uniform_warp_id() * each, count);
  return {begin, smaller(begin + each, count)};
}

// Of a count that is the same in all lanes of a warp: the sum over the warps before, and over all.
__device__ inline unsigned warps_before(unsigned count, unsigned* scratch, unsigned& total) {
  return shuffle(block_scan(lane_id() == 0 ? count : 0U, scratch, total), 0);
}

struct ClaimedTokens {
  unsigned missing;
  unsigned stored;  // of the missing
};

// Ranks what was claimed, in the order of the host's tokens.
__device__ inline ClaimedTokens rank_claims(const ResolveShape& shape, int list,
                                            unsigned* scratch) {
  unsigned* claims = shape.scratch.claims + list * shape.host_words;
  unsigned* seen = shape.scratch.seen + list * shape.host_words;
  std::int32_t* ranks = shape.scratch.ranks + list * shape.host_words;
  const WarpStretch own = own_stretch(static_cast<int>(shape.host_words));
  unsigned count = 0;
  unsigned stored = 0;
  for (int word = own.begin + lane_id(); word < own.end; word += kWarpSize) {
    const auto bits = static_cast<unsigned>(count_bits(claims[word]));
    count += bits;
    if (word < shape.stored_words) stored += bits;
  }
  count = warp_sum(count);
  ClaimedTokens claimed{};
  unsigned rank = warps_before(count, scratch, claimed.missing);
  claimed.stored = claimed.missing;
  if (shape.recomputed.tokens != nullptr) {
    (void)warps_before(warp_sum(stored), scratch, claimed.stored);
  }
  for (int first = own.begin; first < own.end && count > 0; first += kWarpSize) {
    const int word = first + lane_id();
    const unsigned bits = word < own.end ? claims[word] : 0U;
    const auto inclusive = warp_scan(static_cast<unsigned>(count_bits(bits)));
    if (bits != 0) {
      seen[word] = bits;
      ranks[word] =
          static_cast<std::int32_t>(rank + inclusive - static_cast<unsigned>(count_bits(bits)));
      claims[word] = 0;
    }
    rank += shuffle(inclusive, kWarpSize - 1);
  }
  return claimed;
}

// Calls visit(row, stamp) for the warp's hot rows, of which several are read at once; `step` stands
// for the stamp behind the last one. All lanes take part.
template <class Visit>
__device__ inline void for_stamps(const std::int32_t* stamps, WarpStretch own, int step,
                                  const Visit& visit) {
  constexpr int kTogether = 4;
  for (int first = own.begin; first < own.end; first += kTogether * kWarpSize) {
    int stamp[kTogether];
    TRIPHASE_UNROLL
    for (int i = 0; i < kTogether; ++i) {
      const int row = first + i * kWarpSize + lane_id();
      stamp[i] = row < own.end ? stamps[row] : step;
    }
    TRIPHASE_UNROLL
    for (int i = 0; i < kTogether; ++i) visit(first + i * kWarpSize + lane_id(), stamp[i]);
  }
}

// Bins of hot rows by age in steps. Those of the last ones: older than all others, never chosen.
constexpr int kOlderBin = kBins - 2;
constexpr int kFreeBin = kBins - 1;

__device__ inline int age_bin(int stamp, int step) {
  return stamp == 0 ? kFreeBin : smaller(step - stamp, kOlderBin);
}

// Adds the lanes' bins; a negative one is left out. Most lanes have the same few.
__device__ inline void add_to_bins(unsigned* bins, int bin) {
  constexpr int kLeaders = 3;
  unsigned left = ballot(bin >= 0);
  for (int round = 0; round < kLeaders && left != 0; ++round) {
    const int leader = count_bits((left & (0U - left)) - 1U);
    const unsigned alike = ballot(bin == shuffle(bin, leader)) & left;
    if (lane_id() == leader) (void)atomic_add(&bins[bin], static_cast<unsigned>(count_bits(alike)));
    left &= ~alike;
  }
  if ((left >> lane_id() & 1U) != 0U) (void)atomic_add(&bins[bin], 1U);
}

// Stamps what was hit; where `counts`, the others' ages go to the bins.
__device__ inline void stamp_hits(const ResolveShape& shape, int list, std::int32_t* stamps,
                                  bool counts, unsigned* bins) {
  if (counts) {
    for (int bin = static_cast<int>(threadIdx.x); bin < kBins; bin += kRoomThreads) bins[bin] = 0;
    __syncthreads();
  }
  unsigned* words = shape.scratch.hits + static_cast<std::int64_t>(list) * shape.hot_words;
  const WarpStretch all = own_stretch(shape.hot.rows);
  // A lane holds the hits of 32 rows.
  constexpr int kRows = kWarpSize * kWarpSize;
  for (int begin = all.begin; begin < all.end; begin += kRows) {
    const WarpStretch own{begin, smaller(begin + kRows, all.end)};
    const int word = begin / kWarpSize + lane_id();
    unsigned hits = 0;
    if (word * kWarpSize < own.end) {
      hits = words[word];
      if (hits != 0) words[word] = 0;
    }
    for_stamps(stamps, own, shape.step, [&](int row, int stamp) {
      const unsigned of_rows = shuffle(hits, (row - begin) / kWarpSize);
      const bool hit = row < own.end && (of_rows >> lane_id() & 1U) != 0U;
      if (hit) stamps[row] = shape.step;
      if (counts) {
        add_to_bins(bins, hit || stamp == shape.step ? -1 : age_bin(stamp, shape.step));
      }
    });
  }
  __syncthreads();
}

// The bin with the wanted-th entry, from the last one down where `last_first`; shared.found is its
// number and how many entries come before it. Returns how many there are.
template <bool kLastFirst>
__device__ inline unsigned find_bin(unsigned wanted, const RoomShared& shared) {
  constexpr int kOwnBins = kBins / kRoomThreads;
  const auto bin_of = [](int i) {
    const int at = static_cast<int>(threadIdx.x) * kOwnBins + i;
    return kLastFirst ? kBins - 1 - at : at;
  };
  unsigned own = 0;
  for (int i = 0; i < kOwnBins; ++i) own += shared.bins[bin_of(i)];
  unsigned total = 0;
  unsigned before = block_scan(own, shared.scratch, total);
  for (int i = 0; i < kOwnBins; ++i) {
    const unsigned in_bin = shared.bins[bin_of(i)];
    if (before < wanted && wanted <= before + in_bin) {
      shared.found[0] = static_cast<unsigned>(bin_of(i));
      shared.found[1] = before;
    }
    before += in_bin;
  }
  __syncthreads();
  return total;
}

// There must be more than `wanted` > 0 of them.
__device__ inline OldestCut find_oldest(const std::int32_t* stamps, int rows, int step,
                                        unsigned wanted, const RoomShared& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  unsigned prefix = 0;
  for (int digit = 0; digit < 3; ++digit) {
    const int shift = digit == 0 ? 21 : digit == 1 ? 10 : 0;
    const int bits = digit == 2 ? 10 : 11;
    __syncthreads();
    for (int bin = thread; bin < kBins; bin += kRoomThreads) shared.bins[bin] = 0;
    __syncthreads();
    for_stamps(stamps, own_stretch(rows), step, [&](int, int signed_stamp) {
      const auto stamp = static_cast<unsigned>(signed_stamp);
      const bool counts =
          stamp != static_cast<unsigned>(step) && (digit == 0 || stamp >> (shift + bits) == prefix);
      add_to_bins(shared.bins,
                  counts ? static_cast<int>((stamp >> shift) & ((1U << bits) - 1U)) : -1);
    });
    __syncthreads();
    (void)find_bin<false>(wanted, shared);
    prefix = (prefix << bits) | shared.found[0];
    wanted -= shared.found[1];
  }
  return {prefix, wanted};
}

// What leaves for `missing` > 0 tokens, from the bins that stamp_hits() filled.
__device__ inline OldestCut find_cut(const std::int32_t* stamps, int rows, int step,
                                     unsigned missing, const RoomShared& shared) {
  if (find_bin<true>(missing, shared) <= missing) return {0xFFFFFFFFU, 0};  // all
  const auto bin = static_cast<int>(shared.found[0]);
  if (bin == kOlderBin) return find_oldest(stamps, rows, step, missing, shared);
  const auto stamp = bin == kFreeBin ? 0U : static_cast<unsigned>(step - bin);
  return {stamp, missing - shared.found[1]};
}

// Writes the rows that leave in ascending order; returns how many.
__device__ inline unsigned write_victims(const std::int32_t* stamps, int rows, int step,
                                         OldestCut cut, std::int32_t* victims, unsigned* scratch) {
  const WarpStretch own = own_stretch(rows);
  const auto is_older = [&](int stamp) {
    return stamp != step && static_cast<unsigned>(stamp) < cut.stamp;
  };
  const auto is_equal = [&](int stamp) {
    return stamp != step && static_cast<unsigned>(stamp) == cut.stamp;
  };
  unsigned older = 0;
  unsigned equal = 0;
  for_stamps(stamps, own, step, [&](int, int stamp) {
    older += static_cast<unsigned>(count_bits(ballot(is_older(stamp))));
    equal += static_cast<unsigned>(count_bits(ballot(is_equal(stamp))));
  });
  unsigned all_older = 0;
  unsigned all_equal = 0;
  older = warps_before(older, scratch, all_older);
  equal = warps_before(equal, scratch, all_equal);
  const unsigned lanes_before = (1U << lane_id()) - 1U;
  for_stamps(stamps, own, step, [&](int row, int stamp) {
    const unsigned older_lanes = ballot(is_older(stamp));
    const unsigned equal_lanes = ballot(is_equal(stamp));
    const unsigned older_rank =
        older + static_cast<unsigned>(count_bits(older_lanes & lanes_before));
    const unsigned equal_rank =
        equal + static_cast<unsigned>(count_bits(equal_lanes & lanes_before));
    if (is_older(stamp) || (is_equal(stamp) && equal_rank < cut.equals)) {
      victims[older_rank + smaller(equal_rank, cut.equals)] = row;
    }
    older += static_cast<unsigned>(count_bits(older_lanes));
    equal += static_cast<unsigned>(count_bits(equal_lanes));
  });
  return all_older + smaller(all_equal, cut.equals);
}

// A block for each list: ranks of what was claimed, stamps of what was hit, rows that leave.
__global__ void __launch_bounds__(kRoomThreads) make_room_kernel(const ResolveShape shape) {
  TRIPHASE_SHARED(unsigned, bins, kBins);
  TRIPHASE_SHARED(unsigned, scratch, kBlockReduceWords);
  TRIPHASE_SHARED(unsigned, found, 2);
  const int list = static_cast<int>(blockIdx.x);
  const ClaimedTokens claimed = rank_claims(shape, list, scratch);
  unsigned victims = 0;
  if (shape.hot.rows > 0) {
    std::int32_t* stamps = shape.hot.stamps + static_cast<std::int64_t>(list) * shape.hot.rows;
    stamp_hits(shape, list, stamps, claimed.missing > 0, bins);
    if (claimed.missing > 0) {
      const OldestCut cut =
          find_cut(stamps, shape.hot.rows, shape.step, claimed.missing, {bins, scratch, found});
      victims = write_victims(
          stamps, shape.hot.rows, shape.step, cut,
          shape.scratch.victims + static_cast<std::int64_t>(list) * shape.hot.rows, scratch);
    }
  }
  if (threadIdx.x != 0) return;
  FoundTokens& of_list = shape.scratch.found[list];
  of_list.missing = static_cast<std::int32_t>(claimed.missing);
  of_list.stored = static_cast<std::int32_t>(claimed.stored);
  of_list.victims = static_cast<std::int32_t>(victims);
  std::int64_t* totals = shape.totals + static_cast<std::int64_t>(list) * 4;
  totals[0] += of_list.chosen;
  totals[1] += of_list.hits;
  totals[2] += claimed.stored;
  totals[3] += claimed.missing - claimed.stored;
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
  const int state = shape.slots[at];
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
  shape.slots[at] = slot;
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
  const LaunchCheck check("resolve_tokens", shape_of_call);
  const std::int64_t entries = std::int64_t{choice.rows} * choice.lists;
  check(choice.rows > 0 && choice.lists > 0 && choice.capacity > 0 && tables.max_blocks > 0 &&
            host.tokens > 0 && args.step > 0 && hot.rows >= 0 && args.room.spare_slots >= 0,
        "sizes must be positive");
  check(gpu_takes_pages(tables.page_tokens), "page_tokens must be 32, 64 or 128");
  check(entries <= kMostGridY, "too many lists");
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
            scratch.found != nullptr && args.totals != nullptr && args.slots != nullptr &&
            args.missing.slots != nullptr && args.missing.records != nullptr &&
            args.missing.count != nullptr,
        "null pointer");
  check(hot.rows == 0 || (hot.map != nullptr && hot.owners != nullptr && hot.stamps != nullptr &&
                          scratch.hits != nullptr && scratch.victims != nullptr),
        "hot rows without books");
  check((args.missing.heads == nullptr) == (args.missing.widths == nullptr), "half of a pair");
  ResolveShape shape{};
  static_cast<ResolveArgs&>(shape) = args;
  shape.page_shift = page_shift(tables.page_tokens);
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
  require(blocks != nullptr && count >= 0 && all > 0 && all <= kMostGridY &&
              gpu_takes_pages(page_tokens) && books.rows > 0 && books.map != nullptr &&
              books.owners != nullptr && books.stamps != nullptr,
          "forget_host_blocks", "null pointer or sizes out of range", shape);
  if (count == 0) return;
  const dim3 grid(static_cast<unsigned>(count), static_cast<unsigned>(all));
  TRIPHASE_LAUNCH((forget_host_blocks_kernel), grid, static_cast<unsigned>(page_tokens), 0, stream,
                  blocks, page_shift(page_tokens), host_tokens, books);
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

#pragma once

// The decoded rows of a step whose chosen tokens a KvResolver looks up. Says which rows these are
// and how many staging pages they need, and looks their tokens up. Kept between steps to reuse its
// memory; not thread safe.

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kv_resolver.h"
#include "memory/kv/kv_store.h"
#include "memory/kv/sequence_groups.h"
#include "memory/kv/step_block_tables.h"
#include "models/attention_runner.h"
#include "models/column_places.h"

namespace triphase {

class TokenLookup {
 public:
  // Without a resolver the blocks of rows that choose are brought as a whole. It must outlive the
  // steps.
  void set_resolver(KvResolver* resolver) { resolver_ = resolver; }

  // Entries below count in `rows`. `attention`: null where all tokens are attended. `columns`: null
  // where the method reads no K^T. All must stay until the step ends.
  void begin_step(KvStore& store, std::span<const BatchSegment> rows,
                  std::span<const std::int64_t> windows, AttentionRunner* attention,
                  const ColumnPlaces* columns, Stream& stream);
  // Sends the resolver its tables of the step, a row for each entry.
  [[nodiscard]] const SegmentTables& send_tables();
  // Blocks in a row of the tables.
  [[nodiscard]] std::int64_t row_blocks() const { return row_blocks_; }

  // Whether a resolver looks up what the entry's row chooses.
  [[nodiscard]] bool chooses(std::size_t entry) const { return chooses_[entry]; }
  [[nodiscard]] bool any_chooses() const;
  // Whether a resolver looks up what a group's rows choose in a layer: some blocks are on the host.
  [[nodiscard]] bool looks_up(const SequenceGroup& group, LayerId layer) const {
    return group.chooses && group.pages > 0 && chooses_in(layer);
  }
  [[nodiscard]] bool chooses_in(LayerId layer) const {
    return attention_->timing(layer) != AttentionMethod::Timing::kDense;
  }
  // Whether the layer's tokens are known before its queries.
  [[nodiscard]] bool chooses_ahead(LayerId layer) const {
    return attention_->timing(layer) == AttentionMethod::Timing::kEarly;
  }
  // Calls whose results can exist side by side.
  [[nodiscard]] std::int64_t results() const { return resolver_->units(); }

  // Staging pages for what a row that chooses reads in any layer.
  [[nodiscard]] std::int64_t pages(std::size_t entry);
  // The row's blocks on the host that come as a whole in a layer, ascending. These are blocks that
  // the method looks into before it chooses, and recomputable blocks whose tokens cannot be listed.
  // Valid until the next call, or pages().
  [[nodiscard]] std::span<const std::int64_t> whole_blocks(std::size_t entry, LayerId layer);

  struct Found {
    Selection lists;              // with slots
    RecomputedTokens recomputed;  // to be projected first
  };
  // Looks up what rows chose, and adds to `tickets` what brings the missing tokens. The rows of the
  // call's tables are entries.
  [[nodiscard]] Found look_up(const ResolveCall& call, std::vector<Ticket>& tickets);

  // Waits for the device where it counts; zeros without a resolver.
  [[nodiscard]] ResolveCounts counts() const;

 private:
  [[nodiscard]] bool lists_recomputes(const BatchSegment& rows) const {
    // Tokens are recomputed whole, by the angles of key 0.
    return rows.rope_key == 0 && attention_->method().lists() == 1;
  }
  [[nodiscard]] bool on_device(std::size_t entry, std::int64_t block) const {
    return store_->book().table(rows_[entry].sequence)[block].on_device();
  }
  // The first block that a late method looks into before it chooses; 0: all.
  [[nodiscard]] std::int64_t first_block_to_choose(std::size_t entry, LayerId layer) const;
  // The most tokens that the call's rows choose in recomputable blocks.
  [[nodiscard]] std::int64_t most_recomputed(const ResolveCall& call) const;

  KvResolver* resolver_ = nullptr;
  KvStore* store_ = nullptr;
  std::span<const BatchSegment> rows_;
  std::span<const std::int64_t> windows_;  // as of KvStep::begin
  AttentionRunner* attention_ = nullptr;
  const ColumnPlaces* columns_ = nullptr;
  Stream* stream_ = nullptr;
  std::vector<bool> chooses_;  // by entry
  StepBlockTables step_block_tables_;
  SegmentTables block_tables_;
  Ticket last_;  // of the step's last look-up
  std::int64_t row_blocks_ = 0;
  std::vector<std::int64_t> whole_blocks_;
};

}  // namespace triphase

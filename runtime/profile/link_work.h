#pragma once

// What a profile times of the link: copies through the transfer engine of a run, paced where a link
// is emulated, waited for one by one.

#include <vector>

#include "memory/memory_pool.h"
#include "memory/transfer/transfer_engine.h"
#include "runtime/backend.h"
#include "runtime/profile/grid_measurement.h"

namespace triphase {

// KV of one layer as it lies in pages and in records (memory/transfer/link.h).
struct LinkShape {
  std::int64_t kv_heads = 0;
  std::int64_t block_tokens = 0;
};

// Bulk copies of `x` bytes, as whole KV blocks move: one transfer of runs of up to a block of
// consecutive tokens. `record_bytes`: of one token's K and V in one layer.
class BlockCopyWork final : public GridWork {
 public:
  BlockCopyWork(TransferEngine& transfers, Backend& backend, Lane lane, const LinkShape& shape,
                std::int64_t record_bytes, std::int64_t most_bytes);
  void begin(double x, double y) override;
  void run() override { transfers_.wait(transfers_.move_tokens(lane_, geometry_, runs_)); }

 private:
  TransferEngine& transfers_;
  Lane lane_;
  LinkShape shape_;
  MemoryPool device_pool_;
  MemoryPool host_pool_;
  Buffer device_;
  Buffer host_;
  KvGeometry geometry_;
  std::vector<TokenRun> runs_;
};

// `y` records of `x` bytes from scattered places on the host to scattered places on the device, one
// transfer. `x` a multiple of 2 * kv_heads bytes.
class GatherWork final : public GridWork {
 public:
  GatherWork(TransferEngine& transfers, Backend& backend, const LinkShape& shape,
             std::int64_t most_record_bytes, std::int64_t most_records);
  void begin(double x, double y) override;
  void run() override {
    transfers_.wait(transfers_.move_tokens(Lane::kToDevice, geometry_, runs_));
  }

 private:
  TransferEngine& transfers_;
  LinkShape shape_;
  std::int64_t places_;  // records that host and device have room for
  MemoryPool device_pool_;
  MemoryPool host_pool_;
  Buffer device_;
  Buffer host_;
  KvGeometry geometry_;
  std::vector<TokenRun> runs_;
};

}  // namespace triphase

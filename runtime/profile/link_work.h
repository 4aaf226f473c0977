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

// One transfer of records between `places` of them on the host and as many on the device, in whole
// blocks.
class LinkWork : public GridWork {
 public:
  LinkWork(TransferEngine& transfers, Backend& backend, Lane lane, const LinkShape& shape,
           std::int64_t places, std::int64_t most_record_bytes);
  void run() final { transfers_.wait(transfers_.move_tokens(lane_, geometry_, runs_)); }

 protected:
  // Of `bytes` each, from now on; none yet.
  void begin_records(std::int64_t bytes);
  void add_run(std::int64_t slot, std::int64_t record, std::int64_t count);

  const LinkShape shape_;
  const std::int64_t places_;
  const std::int64_t most_record_bytes_;

 private:
  TransferEngine& transfers_;
  Lane lane_;
  MemoryPool device_pool_;
  MemoryPool host_pool_;
  Buffer device_;
  Buffer host_;
  KvGeometry geometry_;
  std::vector<TokenRun> runs_;
};

// Bulk copies of `x` bytes, as whole KV blocks move: runs of up to a block of consecutive tokens.
class BlockCopyWork final : public LinkWork {
 public:
  using LinkWork::LinkWork;
  void begin(double x, double y) override;
};

// `y` records of `x` bytes from scattered places to scattered places. `x` a multiple of
// 2 * kv_heads bytes.
class GatherWork final : public LinkWork {
 public:
  using LinkWork::LinkWork;
  void begin(double x, double y) override;
};

}  // namespace triphase

#include "memory/transfer/link.h"

#include "base/error.h"

namespace triphase {

TransferSize transfer_size(const KvGeometry& geometry, std::span<const TokenRun> runs) {
  TransferSize size;
  std::int64_t end = -1;  // of the run before, in bytes of the host's memory
  for (const TokenRun& run : runs) {
    TRIPHASE_CHECK(
        run.count > 0 && run.slot % geometry.page_tokens + run.count <= geometry.page_tokens,
        "a run of tokens crosses a page");
    // Whole records of consecutive tokens are one piece on the host; parts of records are not.
    size.records += run.head_count == geometry.kv_heads ? 1 : static_cast<std::uint64_t>(run.count);
    if (geometry.host_begin(run) == end) --size.records;
    end = geometry.host_end(run);
    size.bytes += static_cast<std::uint64_t>(geometry.bytes(run));
  }
  return size;
}

TransferSize transfer_size(Lane lane, std::span<const BytePiece> pieces) {
  TransferSize size;
  const std::byte* end = nullptr;  // of the piece before, in the host's memory
  for (const BytePiece& piece : pieces) {
    const std::byte* host = lane == Lane::kToHost ? piece.to : piece.from;
    if (host != end) ++size.records;
    end = host + piece.bytes;
    size.bytes += piece.bytes;
  }
  return size;
}

}  // namespace triphase

#pragma once

// Tokens between host records, [token][kv_head][K, V][head_dim], and slots of the device cache,
// which lies head by head: the transposition happens while copying. Host memory is mapped pinned
// memory that the kernel reads or writes in place, 16 bytes per lane and 2 KiB per warp at a time;
// long runs of whole pages are better served by the copy engine.

#include <cstdint>

#include "kernels/cuda/kv_cache.h"
#include "kernels/cuda/stream_handle.h"

namespace triphase::cuda {

enum class StageDirection : std::uint8_t { kToDevice, kToHost };

struct StageRowsArgs {
  StageDirection direction = StageDirection::kToDevice;
  void* records = nullptr;
  KvCache cache;                        // k and v in its type; scales stay where they are
  const std::int32_t* slots = nullptr;  // device, [count]
  // Optional, device, [count]: which record belongs to slots[i]; without it record i does.
  const std::int32_t* record_ids = nullptr;
  // Optional, device, [count]: the first of the KV heads that are copied, and how many; without it
  // all are.
  const std::int32_t* first_heads = nullptr;
  const std::int32_t* head_counts = nullptr;
  int count = 0;  // at most
  // Consecutive tokens that each entry of the lists stands for, within a page.
  int run_tokens = 1;
  // Optional, device: the real number, when only the device knows it; larger ones are cut to
  // `count`.
  const std::int32_t* device_count = nullptr;
  // Most blocks (of 8 warps) to use, so that compute beside it keeps its multiprocessors; 0: no
  // limit.
  int max_blocks = 0;
};

void stage_rows(const StageRowsArgs& args, StreamHandle stream);

}  // namespace triphase::cuda

#include "models/weight_stream.h"

#include <algorithm>

#include "base/error.h"
#include "models/weights/weight_parts.h"

namespace triphase {
namespace {

// The same weights at another address.
LayerWeights moved(LayerWeights layer, const std::byte* old_base, const std::byte* new_base) {
  for (const auto& [slot, vector] : kLayerVectors) {
    const auto* at = reinterpret_cast<const std::byte*>(layer.*vector);
    if (at != nullptr) layer.*vector = reinterpret_cast<const float*>(new_base + (at - old_base));
  }
  for (const auto& [slot, matrix] : kLayerMatrices) {
    ConstMatrix& at = layer.*matrix;
    if (!at.empty()) at.data = new_base + (static_cast<const std::byte*>(at.data) - old_base);
  }
  return layer;
}

}  // namespace

WeightStream::WeightStream(const ModelWeights& weights, TransferEngine* transfers, MemoryPool& pool)
    : weights_(&weights), transfers_(transfers) {
  std::uint64_t largest = 0;
  for (const ModelWeights::HostLayer& layer : weights.host_layers) {
    if (layer.data == nullptr) continue;
    largest = std::max(largest, layer.bytes);
    ++streamed_;
  }
  if (streamed_ == 0) return;
  TRIPHASE_CHECK(transfers != nullptr, "streamed weights need a link");
  for (Slot& slot : slots_) slot.buffer = pool.allocate(largest, MemoryTag::kWeights);
}

WeightStream::~WeightStream() {
  for (Slot& slot : slots_) {
    if (slot.layer < 0) continue;
    try {
      transfers_->wait(slot.ticket);
    } catch (const std::exception&) {
      // Nobody reads the slot any more.
    }
  }
}

void WeightStream::fetch(Slot& slot, std::int64_t layer) {
  const ModelWeights::HostLayer& from = weights_->host_layers[layer];
  slot.layer = layer;
  slot.ticket = transfers_->move_bytes(Lane::kToDevice, slot.buffer.data(), from.data, from.bytes);
  brought_bytes_ += from.bytes;
  slot.weights = moved(weights_->layers[layer], from.data, slot.buffer.data());
}

WeightStream::Slot* WeightStream::holding(std::int64_t layer) {
  const auto found = std::ranges::find(slots_, layer, &Slot::layer);
  return found == slots_.end() ? nullptr : &*found;
}

std::int64_t WeightStream::next_streamed(std::int64_t layer) const {
  const auto layers = std::ssize(weights_->host_layers);
  for (std::int64_t i = 1; i <= layers; ++i) {
    const std::int64_t next = (layer + i) % layers;
    if (weights_->host_layers[next].data != nullptr) return next;
  }
  return -1;
}

const LayerWeights& WeightStream::acquire(std::int64_t layer) {
  if (streamed_ == 0 || weights_->host_layers[layer].data == nullptr) {
    return weights_->layers[layer];
  }
  Slot* slot = holding(layer);
  if (slot == nullptr) {
    slot = holding(-1) != nullptr ? holding(-1) : slots_.data();
    fetch(*slot, layer);
  }
  if (prefetch_ && streamed_ > 1) {
    Slot& other = slot == slots_.data() ? slots_[1] : slots_[0];
    const std::int64_t next = next_streamed(layer);
    // Its layer, if any, was done before this one was asked for.
    if (other.layer != next) {
      fetch(other, next);
    }
  }
  transfers_->hold(slot->ticket);
  return slot->weights;
}

void WeightStream::done(std::int64_t layer) {
  if (prefetch_) return;
  if (Slot* slot = holding(layer); slot != nullptr) slot->layer = -1;
}

}  // namespace triphase

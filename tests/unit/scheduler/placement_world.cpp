#include "tests/unit/scheduler/placement_world.h"

#include <algorithm>

namespace triphase {

PlacementWorld::Sequence& PlacementWorld::find(SequenceId id) {
  for (Sequence& sequence : running_) {
    if (sequence.id == id) return sequence;
  }
  fail("no running sequence " + std::to_string(id.value));
}

std::int64_t PlacementWorld::used(Home home) const {
  std::set<const Block*> blocks;
  for (const auto* group : {&running_, &suspended_}) {
    for (const Sequence& sequence : *group) {
      for (const auto& block : sequence.blocks) {
        if (block->home == home) blocks.insert(block.get());
      }
    }
  }
  std::int64_t reserved = 0;
  for (const Sequence& sequence : running_) {
    if (home == Home::kDevice) reserved += sequence.device_reserved;
    if (home == Home::kHost) reserved += sequence.host_reserved;
  }
  return static_cast<std::int64_t>(blocks.size()) + reserved;
}

std::int64_t PlacementWorld::used_inputs() const {
  std::set<const Block*> blocks;
  std::int64_t ahead = 0;
  for (const auto* group : {&running_, &suspended_}) {
    for (const Sequence& sequence : *group) {
      for (const auto& block : sequence.blocks) {
        if (block->has_x) blocks.insert(block.get());
      }
      ahead += std::max<std::int64_t>(
          sequence.input_blocks - static_cast<std::int64_t>(sequence.blocks.size()), 0);
    }
  }
  return static_cast<std::int64_t>(blocks.size()) + ahead;
}

void PlacementWorld::check(const char* when) const {
  const auto hold = [&](const char* tier, std::int64_t blocks, std::int64_t limit) {
    if (blocks > limit) {
      fail(std::string(when) + ": " + tier + " holds " + std::to_string(blocks) + " blocks of " +
           std::to_string(limit) + " in step " + std::to_string(steps_));
    }
  };
  hold("device", used(Home::kDevice), limits_.device_blocks());
  hold("host", used(Home::kHost), limits_.host_blocks());
  hold("inputs", used_inputs(), limits_.input_blocks());
  for (const Sequence& sequence : running_) {
    for (std::size_t at = 1; at < sequence.blocks.size(); ++at) {
      const auto rank = [](Home home) {
        return home == Home::kRecompute ? 0 : home == Home::kHost;
      };
      const bool now_device = sequence.blocks[at]->home == Home::kDevice;
      const bool before_device = sequence.blocks[at - 1]->home == Home::kDevice;
      if ((before_device && !now_device) ||
          (!before_device && !now_device &&
           rank(sequence.blocks[at - 1]->home) > rank(sequence.blocks[at]->home))) {
        fail("homes out of order");
      }
    }
    for (const auto& block : sequence.blocks) {
      if (block->home == Home::kRecompute && !block->has_x) fail("a token is lost");
    }
  }
}

std::vector<std::int64_t> PlacementWorld::step_tokens() const {
  std::vector<std::int64_t> tokens;
  std::int64_t left = limits_.prefill_chunk;
  for (const Sequence& sequence : running_) {
    const std::int64_t missing = sequence.target - sequence.context;
    const std::int64_t count = missing > 0 ? std::min(missing, left) : 1;
    if (missing > 0) left -= count;
    tokens.push_back(count);
  }
  return tokens;
}

StepView PlacementWorld::view() const {
  StepView view{.step = steps_, .limits = limits_};
  view.free_device_pages = (limits_.device_blocks() - used(Home::kDevice)) * limits_.layers;
  view.free_host_pages = (limits_.host_blocks() - used(Home::kHost)) * limits_.layers;
  view.free_input_pages = (limits_.input_blocks() - used_inputs()) * limits_.layers;
  const std::vector<std::int64_t> tokens = step_tokens();
  const auto count = [](const Sequence& sequence, Home home) {
    return std::ranges::count_if(sequence.blocks, [&](const auto& b) { return b->home == home; });
  };
  for (std::size_t index = 0; index < running_.size(); ++index) {
    const Sequence& sequence = running_[index];
    RunningSequence entry{.id = sequence.id,
                          .prompt_tokens = lines_[sequence.line].prompt,
                          .prefill_tokens = sequence.target,
                          .context = sequence.context,
                          .step_tokens = tokens[index],
                          .max_tokens = lines_[sequence.line].max_tokens,
                          .recompute_blocks = count(sequence, Home::kRecompute),
                          .host_blocks = count(sequence, Home::kHost),
                          .device_blocks = count(sequence, Home::kDevice),
                          .input_blocks = sequence.input_blocks,
                          .device_reserved = sequence.device_reserved,
                          .host_reserved = sequence.host_reserved};
    for (std::size_t other = 0; other < index; ++other) {
      const auto [mine, theirs] = std::ranges::mismatch(sequence.blocks, running_[other].blocks);
      const std::int64_t common = mine - sequence.blocks.begin();
      if (common > entry.shared_blocks) {
        entry.shared_blocks = common;
        entry.shares_with = static_cast<std::int64_t>(other);
      }
    }
    view.running.push_back(entry);
  }
  for (const Sequence& sequence : suspended_) {
    view.suspended.push_back({.id = sequence.id,
                              .mode = sequence.mode,
                              .prompt_tokens = lines_[sequence.line].prompt,
                              .prefill_tokens = sequence.target,
                              .context = sequence.context,
                              .max_tokens = lines_[sequence.line].max_tokens,
                              .recompute_blocks = count(sequence, Home::kRecompute),
                              .host_blocks = count(sequence, Home::kHost),
                              .input_blocks = sequence.input_blocks});
  }
  for (std::size_t place = 0; place < waiting_.size() && place < 10; ++place) {
    const WorldLine& line = lines_[waiting_[place]];
    WaitingPrompt prompt{.prompt_tokens = line.prompt, .max_tokens = line.max_tokens};
    for (std::size_t other = 0; other < running_.size(); ++other) {
      const Sequence& owner = running_[other];
      const WorldLine& theirs = lines_[owner.line];
      if (line.family == 0 || theirs.family != line.family) continue;
      const std::int64_t common =
          std::min({line.prompt - 1, theirs.prompt, owner.context}) / limits_.block_tokens;
      if (common > prompt.shared_blocks) {
        prompt.shared_blocks = common;
        prompt.shares_with = static_cast<std::int64_t>(other);
      }
    }
    view.waiting.push_back(prompt);
  }
  return view;
}

void PlacementWorld::move(const SequenceId& id, std::int64_t first, std::int64_t end, Home from,
                          Home to) {
  Sequence& sequence = find(id);
  for (std::int64_t at = first; at < end; ++at) {
    Block& block = *sequence.blocks.at(static_cast<std::size_t>(at));
    if (block.home != from) fail("a block is not where the action says");
    if (from == Home::kDevice && (at + 1) * limits_.block_tokens > sequence.context) {
      fail("an open block leaves the device");
    }
    block.home = to;
    if (to == Home::kHost && from == Home::kDevice) {
      ++offloaded_;
      if (sequence.host_reserved > 0) --sequence.host_reserved;
    }
    if (to == Home::kRecompute) ++discarded_;
  }
}

void PlacementWorld::admit(const StepView& view, const Admit& action) {
  const WaitingPrompt& prompt = view.waiting.at(static_cast<std::size_t>(action.waiting));
  Sequence sequence{.id = SequenceId(next_id_++),
                    .line = waiting_.at(static_cast<std::size_t>(action.waiting)),
                    .device_reserved = action.device_blocks,
                    .host_reserved = action.host_blocks,
                    .input_blocks = action.input_blocks};
  sequence.target = lines_[sequence.line].prompt;
  if (prompt.shared_blocks > 0) {
    const SequenceId owner = view.running.at(static_cast<std::size_t>(prompt.shares_with)).id;
    const Blocks& blocks = find(owner).blocks;
    sequence.blocks.assign(blocks.begin(), blocks.begin() + prompt.shared_blocks);
    sequence.context = prompt.shared_blocks * limits_.block_tokens;
  }
  running_.push_back(std::move(sequence));
}

void PlacementWorld::step(const StepView& view, const PlacementActions& actions) {
  std::vector<std::size_t> admitted;
  for (const PlacementAction& action : actions) {
    if (const auto* a = std::get_if<Offload>(&action)) {
      move(a->sequence, a->first_block, a->end_block, Home::kDevice, Home::kHost);
    } else if (const auto* b = std::get_if<Reload>(&action)) {
      move(b->sequence, b->first_block, b->end_block, Home::kHost, Home::kDevice);
    } else if (const auto* c = std::get_if<Discard>(&action)) {
      move(c->sequence, c->first_block, c->end_block, Home::kHost, Home::kRecompute);
    } else if (const auto* d = std::get_if<Suspend>(&action)) {
      ++suspensions_;
      Sequence sequence = std::move(find(d->sequence));
      std::erase_if(running_, [&](const Sequence& s) { return s.id == d->sequence; });
      sequence.mode = d->mode;
      sequence.device_reserved = sequence.host_reserved = 0;
      if (d->mode == SuspendMode::kDrop) {
        sequence.target = std::max(sequence.target, sequence.context);
        sequence.context = 0;
        sequence.blocks.clear();
        sequence.input_blocks = 0;
      } else {
        for (auto& block : sequence.blocks) {
          if (block->home == Home::kRecompute) continue;
          const bool shared = block.use_count() > 1;
          if (block->home == Home::kHost && !shared) continue;
          block = std::make_shared<Block>(Block{Home::kHost, !shared && block->has_x});
        }
        std::int64_t with_x = 0;
        for (const auto& block : sequence.blocks) {
          if (!block->has_x) break;
          ++with_x;
        }
        sequence.input_blocks = with_x;
      }
      const auto place = std::ranges::find_if(
          suspended_, [&](const Sequence& s) { return s.line > sequence.line; });
      suspended_.insert(place, std::move(sequence));
    } else if (const auto* e = std::get_if<Resume>(&action)) {
      const auto found = std::ranges::find(suspended_, e->sequence, &Sequence::id);
      if (found == suspended_.end()) fail("not suspended");
      Sequence sequence = std::move(*found);
      suspended_.erase(found);
      if (sequence.mode == SuspendMode::kDrop) {
        sequence.device_reserved = e->device_blocks;
      } else {
        for (std::int64_t back = 0; back < e->device_blocks; ++back) {
          sequence.blocks.at(sequence.blocks.size() - 1 - static_cast<std::size_t>(back))->home =
              Home::kDevice;
        }
      }
      running_.push_back(std::move(sequence));
    } else {
      const auto& a2 = std::get<Admit>(action);
      admit(view, a2);
      admitted.push_back(static_cast<std::size_t>(a2.waiting));
    }
    check("after an action");
  }
  std::ranges::sort(admitted, std::greater<>());
  for (const std::size_t place : admitted) {
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(place));
  }
  max_running_ = std::max(max_running_, static_cast<std::int64_t>(running_.size()));
  if (static_cast<std::int64_t>(running_.size()) > limits_.batch_size) fail("batch too large");

  const std::vector<std::int64_t> tokens = step_tokens();
  for (std::size_t index = 0; index < running_.size(); ++index) {
    Sequence& sequence = running_[index];
    sequence.context += tokens[index];
    while (static_cast<std::int64_t>(sequence.blocks.size()) * limits_.block_tokens <
           sequence.context) {
      const bool has_x = static_cast<std::int64_t>(sequence.blocks.size()) < sequence.input_blocks;
      sequence.blocks.push_back(std::make_shared<Block>(Block{Home::kDevice, has_x}));
      if (sequence.device_reserved > 0) --sequence.device_reserved;
    }
  }
  check("after the step");
  finished_lines_ += std::erase_if(running_, [&](const Sequence& sequence) {
    return sequence.context >= lines_[sequence.line].ends_at;
  });
  ++steps_;
}

}  // namespace triphase

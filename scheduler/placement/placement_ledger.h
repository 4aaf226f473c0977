#pragma once

// Bookkeeping of pages while actions are taken one after another: what every policy plans with and
// what the checker replays. PURE. Each method does one action and throws an internal error
// (E-INT-CHECK) that names the broken rule when the action is not allowed in the present state.

#include <cstdint>
#include <string_view>
#include <vector>

#include "scheduler/placement/placement_view.h"

namespace triphase {

class PlacementLedger {
 public:
  explicit PlacementLedger(const StepView& view);

  void apply(const PlacementAction& action);

  // What the step will need and has: throws when the growth of the running sequences does not fit
  // the free and reserved pages, when staging cannot hold what is touched, or when nothing runs
  // although something could.
  void check_step() const;

  // Device pages (neither held nor reserved) that are left after the step has grown; may be < 0.
  [[nodiscard]] std::int64_t spare_device_pages() const;
  [[nodiscard]] std::int64_t free_device_pages() const { return view_.free_device_pages; }
  [[nodiscard]] std::int64_t free_host_pages() const { return view_.free_host_pages; }
  [[nodiscard]] std::int64_t free_input_pages() const { return view_.free_input_pages; }

  // Device pages that this admission and its first step would take from the free ones.
  [[nodiscard]] std::int64_t admission_pages(const Admit& action) const;

  // The view after the actions so far. Admitted sequences are not in it: they have no id yet.
  // Suspended ones stay in `running` (their index must not move); see is_running().
  [[nodiscard]] const StepView& view() const { return view_; }
  [[nodiscard]] const RunningSequence& running(std::size_t index) const {
    return view_.running[index];
  }
  [[nodiscard]] bool is_running(std::size_t index) const { return !gone_[index]; }
  // Admitted or resumed in this step; without ids.
  [[nodiscard]] const std::vector<RunningSequence>& started() const { return started_; }
  [[nodiscard]] std::int64_t running_count() const;  // admitted and resumed ones included
  [[nodiscard]] std::int64_t prefill_left() const { return prefill_left_; }

  // Leading blocks of running[index] that another running sequence holds too.
  [[nodiscard]] std::int64_t shared_with_others(std::size_t index) const;

  // Running sequences that hold any block of running[index], itself included.
  [[nodiscard]] std::int64_t sharers(std::size_t index) const;

  // Host blocks that a swap takes: what is on the device, and copies of host blocks that others
  // hold too, which may move while this sequence waits.
  [[nodiscard]] std::int64_t swap_host_blocks(std::size_t index) const;
  // How running[index] makes room: it waits on the host where that has room for all of it.
  [[nodiscard]] Suspend swap_if_it_fits(std::size_t index) const;

  // Tokens of one layer that staging must hold for the fullest group of sequences.
  [[nodiscard]] std::int64_t staged_tokens() const;
  // Tokens of one layer that this sequence needs in staging, were its first `away_blocks` away.
  [[nodiscard]] std::int64_t touched_away(const RunningSequence& sequence,
                                          std::int64_t away_blocks) const;

  [[nodiscard]] const PlacementActions& actions() const { return actions_; }

 private:
  void admit(const Admit& action);
  void offload(const Offload& action);
  void reload(const Reload& action);
  void discard(const Discard& action);
  void suspend(const Suspend& action);
  void resume(const Resume& action);

  void require_not_started(std::string_view action) const;
  void take_device_pages(std::int64_t blocks);
  void take_host_pages(RunningSequence& sequence, std::int64_t blocks);
  [[nodiscard]] std::size_t index_of(SequenceId id) const;
  // Leading blocks that two running sequences hold in common.
  [[nodiscard]] std::int64_t common_blocks(std::size_t a, std::size_t b) const;
  [[nodiscard]] std::int64_t new_blocks(const RunningSequence& sequence) const;

  StepView view_;
  bool any_sharing_ = false;
  std::int64_t prefill_left_ = 0;
  std::vector<bool> gone_;                // by index into view_.running: suspended in this step
  std::vector<bool> admitted_;            // by index into view_.waiting
  std::vector<bool> resumed_;             // by index into view_.suspended
  std::vector<RunningSequence> started_;  // admitted or resumed in this step
  PlacementActions actions_;
};

// Replays the actions on the view and checks the step. Throws as PlacementLedger does, with the
// number of the offending action.
void validate_actions(const StepView& view, const PlacementActions& actions);

}  // namespace triphase

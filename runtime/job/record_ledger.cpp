#include "runtime/job/record_ledger.h"

#include <algorithm>

#include "base/error.h"

namespace triphase {

std::uint64_t RecordCounts::failed() const {
  std::uint64_t sum = 0;
  for (const auto& [code, count] : failed_by_code) sum += count;
  return sum;
}

bool RecordLedger::is_line(std::uint64_t index) const {
  if (!shard_.owns(index)) return false;
  if (line_hashes_ == nullptr) return true;
  const std::uint64_t slot = slot_of(index);
  return slot < line_hashes_->size() && (*line_hashes_)[slot] != 0;
}

std::uint64_t RecordLedger::next_line(std::uint64_t index) const {
  std::uint64_t slot = (index + shard_.count - 1 - shard_.index) / shard_.count;
  if (line_hashes_ != nullptr) {
    while (slot < line_hashes_->size() && (*line_hashes_)[slot] == 0) ++slot;
  }
  return slot * shard_.count + shard_.index;
}

std::uint64_t RecordLedger::hash_of(std::uint64_t index) const {
  TRIPHASE_CHECK(is_line(index), "a line of the job");
  // Records of a pipe are never resumed, so that their check need not know the line's text.
  return line_hashes_ == nullptr ? index : (*line_hashes_)[slot_of(index)];
}

bool RecordLedger::finished(std::uint64_t index) const {
  const std::uint64_t slot = slot_of(index);
  return slot < offsets_.size() && offsets_[slot] != kNone;
}

bool RecordLedger::failed(std::uint64_t index) const {
  return finished(index) && errors_[slot_of(index)] != 0;
}

void RecordLedger::add(std::uint64_t index, std::uint64_t offset, std::string_view error_code) {
  TRIPHASE_CHECK(is_line(index) && !finished(index), "one record for a line of ours");
  const std::uint64_t slot = slot_of(index);
  if (slot >= offsets_.size()) {
    offsets_.resize(slot + 1, kNone);
    errors_.resize(slot + 1, 0);
  }
  offsets_[slot] = offset;
  if (error_code.empty()) {
    errors_[slot] = 0;
    ++counts_.succeeded;
    return;
  }
  auto known = std::find(error_codes_.begin(), error_codes_.end(), error_code);
  if (known == error_codes_.end()) {
    // Foreign files could hold any number of codes; the last place stands for all further ones.
    if (error_codes_.size() == 250) error_code = "E-OTHER";
    if (error_codes_.size() < 251) error_codes_.emplace_back(error_code);
    known = error_codes_.end() - 1;
  }
  errors_[slot] = static_cast<std::uint8_t>(known - error_codes_.begin() + 1);
  ++counts_.failed_by_code[*known];
}

void RecordLedger::remove(std::uint64_t index) {
  TRIPHASE_CHECK(failed(index), "only failed lines are done again");
  const std::uint64_t slot = slot_of(index);
  const std::string& code = error_codes_[errors_[slot] - 1];
  if (--counts_.failed_by_code[code] == 0) counts_.failed_by_code.erase(code);
  offsets_[slot] = kNone;
}

}  // namespace triphase

#pragma once

// Which lines of a job have a record, where the record begins in its file, and which lines failed.
// Memory: 9 bytes for every line, beside the lines' hashes, which it shares. Not thread safe.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/job/prompt_file.h"
#include "runtime/options/run_options.h"

namespace triphase {

struct RecordCounts {
  std::uint64_t succeeded = 0;
  std::map<std::string, std::uint64_t> failed_by_code;

  [[nodiscard]] std::uint64_t failed() const;
  [[nodiscard]] std::uint64_t total() const { return succeeded + failed(); }
};

class RecordLedger {
 public:
  RecordLedger(const Shard& shard, const PromptFileFacts& input)
      : shard_(shard), line_hashes_(input.line_hashes) {}

  // A line of our shard that has or will have a record: there, as far as is known, and not blank.
  [[nodiscard]] bool is_line(std::uint64_t index) const;
  // The first such line at or after `index`; past the end of the file, any number.
  [[nodiscard]] std::uint64_t next_line(std::uint64_t index) const;
  // What the line's record is checked with.
  [[nodiscard]] std::uint64_t hash_of(std::uint64_t index) const;

  [[nodiscard]] bool finished(std::uint64_t index) const;
  // Finished, and with an error record.
  [[nodiscard]] bool failed(std::uint64_t index) const;
  // Of a finished line.
  [[nodiscard]] std::uint64_t offset_of(std::uint64_t index) const {
    return offsets_[slot_of(index)];
  }
  // `error_code` is empty for a success.
  void add(std::uint64_t index, std::uint64_t offset, std::string_view error_code);
  // Forgets the record of a line that failed: the line is to be done again.
  void remove(std::uint64_t index);

  // visit(index, offset) for every finished line, by index.
  template <class Visit>
  void for_each(const Visit& visit) const {
    for (std::uint64_t slot = 0; slot < offsets_.size(); ++slot) {
      if (offsets_[slot] != kNone) visit(slot * shard_.count + shard_.index, offsets_[slot]);
    }
  }
  [[nodiscard]] const RecordCounts& counts() const { return counts_; }

 private:
  [[nodiscard]] std::uint64_t slot_of(std::uint64_t index) const { return index / shard_.count; }

  static constexpr std::uint64_t kNone = ~std::uint64_t{0};

  Shard shard_;
  std::shared_ptr<const std::vector<std::uint64_t>> line_hashes_;  // null: a pipe
  // By line of our shard: its record's offset (kNone: not yet), and its error (0: a success, else
  // 1 + position in error_codes_).
  std::vector<std::uint64_t> offsets_;
  std::vector<std::uint8_t> errors_;
  std::vector<std::string> error_codes_;
  RecordCounts counts_;
};

}  // namespace triphase

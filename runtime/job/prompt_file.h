#pragma once

// The prompt file as a stream of lines. Memory is bounded by the longest allowed line plus 8 bytes
// per line (its hash) and 16 per id seen (duplicate detection), whatever the file's size. Not
// thread safe.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/job/prompt_line.h"
#include "runtime/job/request.h"
#include "runtime/options/run_options.h"

namespace triphase {

// What one pass over a regular prompt file finds before the job starts.
struct PromptFileFacts {
  bool rereadable = false;  // regular file; a pipe has no further facts and cannot be resumed
  std::uint64_t bytes = 0;
  std::uint64_t lines = 0;     // blank ones included
  std::uint64_t requests = 0;  // non-blank lines of our shard = records of a complete output
  bool chats = false;          // a line of our shard is a chat
  std::string hash;            // "xxh3:" and 32 hex digits over all bytes
  // line_hash() of every line of our shard, 0 for a blank one; null for a pipe. 8 bytes a line.
  std::shared_ptr<const std::vector<std::uint64_t>> line_hashes;
};

// Opens and reads `options.prompts` once from front to end. Throws ErrorRole::kInput E-IN-OPEN
// (missing, directory, device, unreadable, compressed) and E-IN-UTF16. With `options.strict` also
// parses every line and throws E-IN-STRICT for the first bad one. A pipe returns at once.
[[nodiscard]] PromptFileFacts examine_prompt_file(const RunOptions& options);

// Ids seen so far, 16 bytes each: 88 bits of a hash and 40 bits of line index. Two different ids
// among n are taken for equal with a chance below n^2 / 2^89 (10^8 ids: 2 in 10^11).
class SeenIds {
 public:
  // The index of the first line with this id, when there is one; else remembers `index`.
  [[nodiscard]] std::optional<std::uint64_t> insert(std::string_view id, std::uint64_t index);
  [[nodiscard]] std::uint64_t size() const { return size_; }

 private:
  struct Slot {
    std::uint64_t high = 0;  // 64 bits of hash
    std::uint64_t low = 0;   // 24 bits of hash, 40 bits of index + 1; 0: empty
  };
  void grow();
  std::vector<Slot> slots_;
  std::uint64_t size_ = 0;
};

class PromptReader {
 public:
  // Opens the file again (or takes stdin). With `facts` every line of a regular file must be the
  // one that was examined. `options` must outlive the reader. Errors as examine_prompt_file.
  explicit PromptReader(const RunOptions& options, const PromptFileFacts* facts = nullptr);
  ~PromptReader();
  PromptReader(const PromptReader&) = delete;
  PromptReader& operator=(const PromptReader&) = delete;

  // The next non-blank line of our shard, or nothing at the end; of a line with a list of prompts,
  // each of its parts. Blocks on a pipe. Throws
  // ErrorRole::kIo E-IO-READ when reading fails underway, E-IO-CHANGED for a line that is not the
  // one that was examined, or at the end when the file is not. A pipe also ends when a stop is
  // requested.
  [[nodiscard]] std::optional<PromptLine> next();
  // Whether next() would wait (for a slow pipe): do other work first.
  [[nodiscard]] bool would_block();

  [[nodiscard]] std::uint64_t bytes_read() const;  // for progress, against PromptFileFacts::bytes
  // Fields that no reader knows, each with the number of lines so far that have it. At most
  // kMostIgnoredFields fields.
  static constexpr std::size_t kMostIgnoredFields = 100;
  [[nodiscard]] const std::map<std::string, std::uint64_t>& ignored_fields() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace triphase

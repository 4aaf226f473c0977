#include "runtime/job/prompt_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "runtime/job/file_ops.h"
#include "runtime/job/line_reader.h"
#include "runtime/job/record_check.h"

namespace triphase {
namespace {

// How far to look for a line that shows the file's form.
constexpr std::uint64_t kFormLines = 1000;

[[noreturn]] void refuse_input(const std::string& path, std::string_view found) {
  throw Error(ErrorRole::kInput, "E-IN-OPEN", "prompts")
      .file(path)
      .found(found)
      .expected("a readable file, a pipe, or - for stdin");
}

struct Opened {
  FileDescriptor fd;
  bool pipe = false;
  std::uint64_t bytes = 0;
};

// Regular file, FIFO or stdin. A FIFO is only opened when `open_pipes`: opening and closing it
// would look to its writer like a reader that went away.
Opened open_prompts(const std::string& path, bool open_pipes) {
  FileOps& ops = system_file_ops();
  struct stat status = {};
  if (path == "-") {
    Opened opened;
    opened.pipe = true;
    if (open_pipes) {
      opened.fd = FileDescriptor(ops, ::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0));
      if (!opened.fd.valid()) refuse_input("stdin", std::strerror(errno));
    }
    return opened;
  }
  if (::stat(path.c_str(), &status) != 0) refuse_input(path, std::strerror(errno));
  Opened opened;
  opened.pipe = S_ISFIFO(status.st_mode);
  if (S_ISDIR(status.st_mode)) refuse_input(path, "a directory");
  if (!opened.pipe && !S_ISREG(status.st_mode)) refuse_input(path, "a device or socket");
  if (opened.pipe && !open_pipes) return opened;
  const int flags = O_RDONLY | O_CLOEXEC | (opened.pipe ? 0 : O_NONBLOCK);
  opened.fd = FileDescriptor(ops, open_repeating(ops, path, flags, /*mode=*/0));
  if (!opened.fd.valid()) refuse_input(path, std::strerror(errno));
  if (::fstat(opened.fd.get(), &status) != 0) refuse_input(path, std::strerror(errno));
  // The name may have been given to another file between the two looks.
  if (!opened.pipe && !S_ISREG(status.st_mode)) refuse_input(path, "not a regular file");
  opened.bytes = static_cast<std::uint64_t>(status.st_size);
  return opened;
}

PromptLineRules rules_of(const RunOptions& options) {
  return {options.job, options.input_format, options.sampling, options.replace_invalid_utf8,
          options.input_format == InputFormat::kOpenAi ? LineForm::kOpenAi : LineForm::kSimple};
}

// The form of the first line that shows one: broken lines of the file get their error records in
// the same form, wherever they stand.
LineForm form_of_file(const RunOptions& options) {
  PromptLineRules rules = rules_of(options);
  Opened opened = open_prompts(options.prompts, /*open_pipes=*/false);
  if (rules.format != InputFormat::kAuto || !opened.fd.valid()) return rules.fallback_form;
  LineReader lines(std::move(opened.fd), options.prompts, opened.pipe, opened.bytes,
                   options.max_line_bytes);
  for (std::uint64_t seen = 0; seen < kFormLines; ++seen) {
    const std::optional<LineReader::Line> line = lines.next();
    if (!line) break;
    if (line->too_long || is_blank_line(line->text)) continue;
    // Two fallbacks with one answer: the line itself decided.
    const auto form_under = [&](LineForm fallback) {
      rules.fallback_form = fallback;
      const PromptLine parsed = parse_prompt_line(line->text, 0, rules);
      return std::visit([](const auto& any) { return any.line_form; }, parsed);
    };
    const LineForm form = form_under(LineForm::kSimple);
    if (form == form_under(LineForm::kOpenAi)) return form;
  }
  return LineForm::kSimple;
}

// 0: a blank line, which has no record.
std::uint64_t hash_of(const LineReader::Line& line, std::uint64_t index) {
  if (!line.too_long && is_blank_line(line.text)) return 0;
  return line_hash(line.too_long ? std::string_view("too long") : line.text, index);
}

}  // namespace

class PromptReader::Impl {
 public:
  Impl(const RunOptions& options, const PromptFileFacts* facts)
      : options_(options), rules_(rules_of(options)) {
    rules_.fallback_form = form_of_file(options);
    if (facts != nullptr && facts->rereadable) {
      expected_hash_ = facts->hash;
      expected_lines_ = facts->line_hashes;
    }
    Opened opened = open_prompts(options.prompts, /*open_pipes=*/true);
    lines_ = std::make_unique<LineReader>(std::move(opened.fd),
                                          options.prompts == "-" ? "stdin" : options.prompts,
                                          opened.pipe, opened.bytes, options.max_line_bytes);
  }

  std::optional<PromptLine> next() {
    for (;;) {
      const std::optional<LineReader::Line> line = lines_->next();
      if (!line) {
        if (!expected_hash_.empty() && lines_->hash() != expected_hash_) changed(0);
        return std::nullopt;
      }
      const std::uint64_t index = next_index_++;
      // Before the line becomes a record: what came of another text must never be kept.
      const std::uint64_t hash = hash_of(*line, index);
      if (expected_lines_ && options_.shard.owns(index)) {
        const std::uint64_t slot = index / options_.shard.count;
        if (slot >= expected_lines_->size() || (*expected_lines_)[slot] != hash) changed(index + 1);
      }
      if (hash == 0) continue;
      // Every shard reads every id, so that a duplicate is one whatever the number of shards.
      if (options_.allow_duplicate_ids && !options_.shard.owns(index)) continue;
      PromptLine parsed = line->too_long ? PromptLine(too_long(index))
                                         : parse_prompt_line(line->text, index, rules_);
      if (!options_.allow_duplicate_ids) refuse_duplicate(parsed, index);
      if (options_.shard.owns(index)) return parsed;
    }
  }

  bool would_block() { return lines_->would_block(); }
  std::uint64_t bytes_read() const { return lines_->bytes_read(); }
  std::uint64_t lines_read() const { return next_index_; }

 private:
  BadLine too_long(std::uint64_t index) const {
    BadLine bad;
    bad.index = index;
    bad.line_form = rules_.fallback_form;
    bad.error = {"E-IN-LONGLINE",
                 fmt::format("line: more than {} bytes, expected a newline before; hint: raise "
                             "--max-line-bytes",
                             options_.max_line_bytes)};
    return bad;
  }

  void refuse_duplicate(PromptLine& parsed, std::uint64_t index) {
    const auto& [id, is_number, form] = std::visit(
        [](const auto& any) { return std::tuple(any.id, any.id_is_number, any.line_form); },
        parsed);
    if (!id) return;
    // The number 7 and the string "7" are different ids.
    const std::optional<std::uint64_t> first = seen_.insert((is_number ? "n" : "s") + *id, index);
    if (!first) return;
    BadLine bad;
    bad.index = index;
    bad.line_form = form;
    bad.id = id;
    bad.id_is_number = is_number;
    bad.error = {"E-IN-DUPLICATE",
                 fmt::format("{}: the same as on line {}, expected a new one; hint: "
                             "--allow-duplicate-ids accepts it",
                             form == LineForm::kOpenAi ? "custom_id" : "id", *first + 1)};
    parsed = std::move(bad);
  }

  // `line` counts from 1; 0: no line of ours.
  [[noreturn]] void changed(std::uint64_t line) const {
    throw Error(ErrorRole::kIo, "E-IO-CHANGED", "prompts")
        .file(options_.prompts)
        .line(line)
        .found("the content changed while the job ran")
        .expected("the file as when the run started")
        .hint(
            "restore the file and run the same command to resume, or start anew with --overwrite");
  }

  const RunOptions& options_;
  PromptLineRules rules_;
  std::string expected_hash_;
  std::shared_ptr<const std::vector<std::uint64_t>> expected_lines_;
  std::unique_ptr<LineReader> lines_;
  SeenIds seen_;
  std::uint64_t next_index_ = 0;
};

PromptReader::PromptReader(const RunOptions& options, const PromptFileFacts* facts)
    : impl_(std::make_unique<Impl>(options, facts)) {}
PromptReader::~PromptReader() = default;
std::optional<PromptLine> PromptReader::next() { return impl_->next(); }
bool PromptReader::would_block() { return impl_->would_block(); }
std::uint64_t PromptReader::bytes_read() const { return impl_->bytes_read(); }
std::uint64_t PromptReader::lines_read() const { return impl_->lines_read(); }

PromptFileFacts examine_prompt_file(const RunOptions& options) {
  PromptFileFacts facts;
  Opened opened = open_prompts(options.prompts, /*open_pipes=*/false);
  if (opened.pipe) return facts;
  facts.rereadable = true;
  LineReader lines(std::move(opened.fd), options.prompts, opened.pipe, opened.bytes,
                   options.max_line_bytes);
  std::vector<std::uint64_t> hashes;
  while (const std::optional<LineReader::Line> line = lines.next()) {
    if (options.shard.owns(facts.lines)) {
      hashes.push_back(hash_of(*line, facts.lines));
      if (hashes.back() != 0) ++facts.requests;
    }
    ++facts.lines;
  }
  facts.line_hashes = std::make_shared<const std::vector<std::uint64_t>>(std::move(hashes));
  facts.bytes = opened.bytes;
  facts.hash = lines.hash();
  if (!options.strict) return facts;

  PromptReader reader(options, &facts);
  while (const std::optional<PromptLine> line = reader.next()) {
    const BadLine* bad = std::get_if<BadLine>(&*line);
    if (bad == nullptr) continue;
    throw Error(ErrorRole::kInput, "E-IN-STRICT", "line")
        .file(options.prompts)
        .line(bad->index + 1)
        .byte(bad->byte)
        .found(options.redact ? bad->error.code + " (redacted)" : bad->error.message)
        .hint("without --strict the line gets an error record and the job goes on");
  }
  return facts;
}

}  // namespace triphase

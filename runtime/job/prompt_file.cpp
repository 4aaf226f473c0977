#include "runtime/job/prompt_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/content_hash.h"
#include "base/error.h"
#include "runtime/job/file_ops.h"
#include "runtime/job/record_check.h"
#include "runtime/signals.h"

namespace triphase {
namespace {

struct Opened {
  FileDescriptor fd;
  // The end is wherever it comes, and waiting ends when a stop is requested; else exactly `bytes`
  // bytes are read and fewer are an error.
  bool pipe = false;
  std::uint64_t bytes = 0;
};

// Splits a byte stream at '\n' with bounded memory, and hashes every byte on the way. The one
// splitter of prompt files, so that counting and reading agree. Not thread safe.
class LineReader {
 public:
  struct Line {
    std::string_view text;  // without "\n" or "\r\n"; valid until the next call
    bool too_long = false;  // then `text` is only the first bytes
  };

  LineReader(Opened prompts, const RunOptions& options)
      : prompts_(std::move(prompts)),
        path_(options.files.prompts == "-" ? "stdin" : options.files.prompts),
        max_line_bytes_(options.reading.max_line_bytes) {}

  // The next line, or nothing at the end (or when stopped while waiting). Throws E-IO-READ. The
  // first call throws E-IN-UTF16, or E-IN-OPEN for a compressed file.
  [[nodiscard]] std::optional<Line> next();

  // A pipe has no whole line at hand now and none can be had without waiting.
  [[nodiscard]] bool would_block();

  [[nodiscard]] std::uint64_t bytes_read() const { return bytes_consumed_; }
  [[nodiscard]] std::string hash() const { return hash_.text(); }  // of everything read so far

 private:
  bool fill();  // reads more; false at the end
  void check_encoding();

  Opened prompts_;
  std::string path_;
  std::uint64_t max_line_bytes_;
  std::string buffer_;
  std::size_t begin_ = 0;    // first unread byte of buffer_
  std::size_t scanned_ = 0;  // bytes from begin_ known to hold no '\n'
  std::uint64_t bytes_in_ = 0;
  std::uint64_t bytes_consumed_ = 0;
  bool end_ = false;
  bool encoding_checked_ = false;
  ContentHasher hash_;
};

constexpr std::size_t kReadBytes = std::size_t{1} << 20;
constexpr int kPollMilliseconds = 200;  // how soon a stop ends the wait for a pipe

// Waits until `fd` has something or a stop is requested.
bool wait_readable(int fd) {
  while (!stop_requested()) {
    pollfd waiting = {fd, POLLIN, 0};
    if (::poll(&waiting, 1, kPollMilliseconds) > 0) return true;
  }
  return false;
}

bool LineReader::fill() {
  if (end_) return false;
  std::size_t want = kReadBytes;
  if (!prompts_.pipe)
    want = static_cast<std::size_t>(std::min<std::uint64_t>(want, prompts_.bytes - bytes_in_));
  if (want == 0 || (prompts_.pipe && !wait_readable(prompts_.fd.get()))) {
    end_ = true;
    return false;
  }
  if (begin_ > 0) {
    buffer_.erase(0, begin_);
    begin_ = 0;
  }
  const std::size_t before = buffer_.size();
  buffer_.resize(before + want);
  ssize_t got = -1;
  do {
    got = ::read(prompts_.fd.get(), buffer_.data() + before, want);
  } while (got < 0 && (errno == EINTR || errno == EAGAIN));
  const int error_number = errno;
  buffer_.resize(before + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  if (got < 0) throw_io_error(path_, "read", error_number);
  if (got == 0) {
    if (!prompts_.pipe) {
      throw Error(ErrorRole::kIo, "E-IO-READ", "read")
          .file(path_)
          .found(fmt::format("the file ends at byte {}", bytes_in_))
          .expected(fmt::format("{} bytes as when the run started", prompts_.bytes));
    }
    end_ = true;
    return false;
  }
  bytes_in_ += static_cast<std::uint64_t>(got);
  hash_.add(std::string_view(buffer_).substr(before));
  return true;
}

// How a compressed file begins, and what decompresses it.
struct Compression {
  std::string_view start;
  std::string_view name;
  std::string_view tool;
};
constexpr Compression kCompressions[] = {{"\x1F\x8B", "gzip", "gunzip -c"},
                                         {"\x28\xB5\x2F\xFD", "zstd", "zstd -dc"},
                                         {"\xFD\x37zXZ", "xz", "xz -dc"},
                                         {"BZh", "bzip2", "bzip2 -dc"},
                                         {"PK\x03\x04", "zip", "unzip -p"}};
constexpr std::size_t kLongestStart = 5;  // a byte order mark is shorter

void LineReader::check_encoding() {
  encoding_checked_ = true;
  // A pipe may pause after a short first line.
  while (buffer_.size() < kLongestStart && buffer_.find('\n') == std::string::npos && fill()) {
  }
  const std::string_view start = buffer_;
  for (const Compression& compression : kCompressions) {
    if (!start.starts_with(compression.start)) continue;
    throw Error(ErrorRole::kInput, "E-IN-OPEN", "encoding")
        .file(path_)
        .found(fmt::format("compressed with {}", compression.name))
        .expected("lines of JSON")
        .hint(fmt::format("decompress it, or pipe it in: {} FILE | triphase ... -i -",
                          compression.tool));
  }
  const std::string_view two = start.substr(0, 2);
  const bool nul_beside_brace =
      two == std::string_view("{\0", 2) || two == std::string_view("\0{", 2);
  if (two == "\xFF\xFE" || two == "\xFE\xFF" || nul_beside_brace) {
    throw Error(ErrorRole::kInput, "E-IN-UTF16", "encoding")
        .file(path_)
        .found("UTF-16")
        .expected("UTF-8")
        .hint("convert it, for example with iconv -f UTF-16 -t UTF-8");
  }
  if (start.substr(0, 3) == "\xEF\xBB\xBF") {
    begin_ = 3;
    bytes_consumed_ = 3;
  }
}

std::optional<LineReader::Line> LineReader::next() {
  if (!encoding_checked_) check_encoding();
  Line line;
  for (;;) {
    const std::string_view rest = std::string_view(buffer_).substr(begin_);
    const std::size_t newline = rest.find('\n', scanned_);
    if (newline != std::string_view::npos) {
      line.text = rest.substr(0, newline);
      begin_ += newline + 1;
      bytes_consumed_ += newline + 1;
      scanned_ = 0;
      break;
    }
    scanned_ = rest.size();
    if (scanned_ > max_line_bytes_ + 1) {
      // Too long already: forget it while looking for its end, so that memory stays bounded.
      line.too_long = true;
      bytes_consumed_ += scanned_;
      begin_ = buffer_.size();
      scanned_ = 0;
    }
    if (!fill()) {
      const std::string_view last = std::string_view(buffer_).substr(begin_);
      // A stop while a pipe was waiting leaves half a line, which is nobody's request.
      if (stop_requested() && prompts_.pipe) return std::nullopt;
      if (last.empty() && !line.too_long) return std::nullopt;
      line.text = last;
      begin_ = buffer_.size();
      bytes_consumed_ += last.size();
      scanned_ = 0;
      break;
    }
  }
  if (line.text.ends_with('\r')) line.text.remove_suffix(1);
  if (line.too_long) line.text = {};
  if (line.text.size() > max_line_bytes_) line.too_long = true;
  return line;
}

bool LineReader::would_block() {
  if (!prompts_.pipe || end_ || !encoding_checked_) return false;
  if (buffer_.find('\n', begin_ + scanned_) != std::string::npos) return false;
  pollfd now = {prompts_.fd.get(), POLLIN, 0};
  return ::poll(&now, 1, 0) == 0;
}

// How far to look for a line that shows the file's form.
constexpr std::uint64_t kFormLines = 1000;

[[noreturn]] void refuse_input(const std::string& path, std::string_view found) {
  throw Error(ErrorRole::kInput, "E-IN-OPEN", "open")
      .file(path)
      .found(found)
      .expected("a readable file, a pipe, or - for stdin");
}

// A file that is made while it is read, as those of /proc: what it says of its size means nothing.
bool is_made_by_reading(int fd, const struct stat& status) {
  char first = 0;
  return S_ISREG(status.st_mode) && status.st_size == 0 && ::pread(fd, &first, 1, 0) == 1;
}

// Regular file, FIFO or stdin. A FIFO is only opened when `open_pipes`: opening and closing it
// would look to its writer like a reader that went away. A file that is made by reading is a pipe
// too, since it need not say the same twice.
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
  if (is_made_by_reading(opened.fd.get(), status)) {
    opened.pipe = true;
    if (!open_pipes) opened.fd.reset();
  }
  return opened;
}

PromptLineRules rules_of(const RunOptions& options) {
  return {
      options.job, options.files.input_format, options.generation.sampling,
      options.reading.replace_invalid_utf8,
      options.files.input_format == InputFormat::kOpenAi ? LineForm::kOpenAi : LineForm::kSimple};
}

// The form of the first line that shows one: broken lines of the file get their error records in
// the same form, wherever they stand.
LineForm form_of_file(const RunOptions& options) {
  PromptLineRules rules = rules_of(options);
  Opened opened = open_prompts(options.files.prompts, /*open_pipes=*/false);
  if (rules.format != InputFormat::kAuto || !opened.fd.valid()) return rules.fallback_form;
  LineReader lines(std::move(opened), options);
  for (std::uint64_t seen = 0; seen < kFormLines; ++seen) {
    const std::optional<LineReader::Line> line = lines.next();
    if (!line) break;
    if (line->too_long || is_blank_line(line->text)) continue;
    // Two fallbacks with one answer: the line itself decided.
    const auto form_under = [&](LineForm fallback) {
      rules.fallback_form = fallback;
      const PromptLine parsed = parse_prompt_line(line->text, 0, rules);
      return std::visit([](const LineIdentity& any) { return any.line_form; }, parsed);
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

// Nearly every line that is none costs a search for the word.
bool is_chat(const LineReader::Line& line, const PromptLineRules& rules) {
  if (line.too_long || line.text.find("\"messages\"") == std::string_view::npos) return false;
  const PromptLine parsed = parse_prompt_line(line.text, 0, rules);
  const auto* request = std::get_if<Request>(&parsed);
  return request != nullptr && request->prompt_form == PromptForm::kChat;
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
    lines_ = std::make_unique<LineReader>(open_prompts(options.files.prompts, /*open_pipes=*/true),
                                          options);
  }

  std::optional<PromptLine> next() {
    for (;;) {
      if (list_.part < listed_.size()) return next_of_list();
      const std::optional<LineReader::Line> line = lines_->next();
      if (!line) {
        if (!expected_hash_.empty() && lines_->hash() != expected_hash_) changed(0);
        return std::nullopt;
      }
      const std::uint64_t index = next_index_++;
      // Before the line becomes a record: what came of another text must never be kept.
      const std::uint64_t hash = hash_of(*line, index);
      if (expected_lines_ && options_.files.shard.owns(index)) {
        const std::uint64_t slot = index / options_.files.shard.count;
        if (slot >= expected_lines_->size() || (*expected_lines_)[slot] != hash) changed(index + 1);
      }
      if (hash == 0) continue;
      // Every shard reads every id, so that a duplicate is one whatever the number of shards.
      if (options_.reading.allow_duplicate_ids && !options_.files.shard.owns(index)) continue;
      PromptLine parsed = line->too_long ? PromptLine(too_long(index))
                                         : parse_prompt_line(line->text, index, rules_);
      if (!options_.reading.allow_duplicate_ids) refuse_duplicate(parsed);
      if (!options_.files.shard.owns(index)) continue;
      auto* request = std::get_if<Request>(&parsed);
      if (request != nullptr) count_ignored(*request);
      if (request == nullptr || request->listed.empty()) return parsed;
      listed_ = std::exchange(request->listed, {});
      list_ = std::move(*request);
      list_.parts = static_cast<std::uint32_t>(listed_.size());
    }
  }

  bool would_block() { return list_.part >= listed_.size() && lines_->would_block(); }
  std::uint64_t bytes_read() const { return lines_->bytes_read(); }
  const std::map<std::string, std::uint64_t>& ignored_fields() const { return ignored_fields_; }

 private:
  PromptLine next_of_list() {
    Request request = list_;
    request.text = std::move(listed_[list_.part].text);
    request.tokens = std::move(listed_[list_.part].tokens);
    ++list_.part;
    return request;
  }

  void count_ignored(const Request& request) {
    for (const std::string& name : request.ignored_fields) {
      const auto known = ignored_fields_.find(name);
      if (known != ignored_fields_.end()) {
        ++known->second;
      } else if (ignored_fields_.size() < kMostIgnoredFields) {
        ignored_fields_.emplace(name, 1);
      }
    }
  }

  BadLine too_long(std::uint64_t index) const {
    BadLine bad{{.index = index, .line_form = rules_.fallback_form}};
    bad.error = {"E-IN-LONGLINE",
                 fmt::format("line: more than {} bytes, expected a newline before; hint: raise "
                             "--max-line-bytes",
                             options_.reading.max_line_bytes)};
    return bad;
  }

  void refuse_duplicate(PromptLine& parsed) {
    const auto& line =
        std::visit([](const LineIdentity& any) -> const LineIdentity& { return any; }, parsed);
    if (!line.id) return;
    // The number 7 and the string "7" are different ids.
    const std::optional<std::uint64_t> first =
        seen_.insert((line.id_is_number ? "n" : "s") + *line.id, line.index);
    if (!first) return;
    BadLine bad{line};
    const char* field = bad.line_form == LineForm::kOpenAi ? "custom_id" : "id";
    bad.error = {"E-IN-DUPLICATE",
                 fmt::format("{}: the same as on line {}, expected a new one; hint: "
                             "--allow-duplicate-ids accepts it",
                             field, *first + 1),
                 field};
    parsed = std::move(bad);
  }

  // `line` counts from 1; 0: no line of ours.
  [[noreturn]] void changed(std::uint64_t line) const {
    throw Error(ErrorRole::kIo, "E-IO-CHANGED", "lines")
        .file(options_.files.prompts)
        .line(line)
        .found("the content changed while the job ran")
        .expected("the file as when the run started")
        .hint(fmt::format("restore the file and {}, or start anew with --overwrite",
                          resume_hint(options_)));
  }

  const RunOptions& options_;
  PromptLineRules rules_;
  std::string expected_hash_;
  std::shared_ptr<const std::vector<std::uint64_t>> expected_lines_;
  std::unique_ptr<LineReader> lines_;
  SeenIds seen_;
  std::map<std::string, std::uint64_t> ignored_fields_;
  std::uint64_t next_index_ = 0;
  // A line with several prompts, which are given out one by one; `list_.part` comes next.
  Request list_;
  std::vector<ListedPrompt> listed_;
};

PromptReader::PromptReader(const RunOptions& options, const PromptFileFacts* facts)
    : impl_(std::make_unique<Impl>(options, facts)) {}
PromptReader::~PromptReader() = default;
std::optional<PromptLine> PromptReader::next() { return impl_->next(); }
bool PromptReader::would_block() { return impl_->would_block(); }
std::uint64_t PromptReader::bytes_read() const { return impl_->bytes_read(); }
const std::map<std::string, std::uint64_t>& PromptReader::ignored_fields() const {
  return impl_->ignored_fields();
}

PromptFileFacts examine_prompt_file(const RunOptions& options) {
  PromptFileFacts facts;
  Opened opened = open_prompts(options.files.prompts, /*open_pipes=*/false);
  if (opened.pipe) return facts;
  facts.rereadable = true;
  facts.bytes = opened.bytes;
  LineReader lines(std::move(opened), options);
  std::vector<std::uint64_t> hashes;
  const PromptLineRules rules = rules_of(options);
  while (const std::optional<LineReader::Line> line = lines.next()) {
    if (options.files.shard.owns(facts.lines)) {
      hashes.push_back(hash_of(*line, facts.lines));
      if (hashes.back() != 0) ++facts.requests;
      facts.chats = facts.chats || is_chat(*line, rules);
    }
    ++facts.lines;
  }
  facts.line_hashes = std::make_shared<const std::vector<std::uint64_t>>(std::move(hashes));
  facts.hash = lines.hash();
  if (!options.reading.strict) return facts;

  PromptReader reader(options, &facts);
  while (const std::optional<PromptLine> line = reader.next()) {
    const BadLine* bad = std::get_if<BadLine>(&*line);
    if (bad == nullptr) continue;
    throw Error(ErrorRole::kInput, "E-IN-STRICT", "line")
        .file(options.files.prompts)
        .line(bad->index + 1)
        .byte(bad->byte)
        .found(options.looking.redact ? bad->error.code + " (redacted)" : bad->error.message)
        .hint("without --strict the line gets an error record and the job goes on");
  }
  return facts;
}

}  // namespace triphase

#include "runtime/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/steady_seconds.h"

namespace triphase {
namespace {

constexpr double kTerminalInterval = 0.1;
constexpr double kPlainInterval = 10.0;

double share_of(std::uint64_t done, std::uint64_t total) {
  return total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 0.0;
}

}  // namespace

Progress::Progress(Log& log, ProgressMode mode, Clock clock)
    : log_(log), mode_(mode), clock_(clock ? std::move(clock) : Clock(steady_seconds)) {
  if (mode_ == ProgressMode::kAuto && !log_.is_terminal()) mode_ = ProgressMode::kPlain;
}

Progress::~Progress() { finish(); }

void Progress::begin_part(std::string_view name, double from, double to) {
  const double now = clock_();
  part_ = {std::string(name), from, to, part_ ? part_->whole_start : now};
  phase_.clear();
  phase_start_ = now;
  last_draw_ = now;
  const std::optional<double> left = eta(now, 0.0);
  draw(left ? fmt::format("{}, ETA {}", label(), format_duration(*left)) : label(),
       {{"progress", label()}, {"eta_seconds", left}});
}

void Progress::end_parts() { part_.reset(); }

void Progress::begin_phase(std::string_view name) {
  phase_ = name;
  phase_start_ = clock_();
  // A part's phases may be many and short: its own line was enough.
  if (part_ && mode_ != ProgressMode::kAuto) return;
  last_draw_ = phase_start_;
  draw(label(), {{"progress", label()}});
  // A phase's first numbers come soon after its name on a terminal.
  if (mode_ == ProgressMode::kAuto) last_draw_ = -1e9;
}

std::string Progress::label() const {
  if (!part_) return phase_;
  return phase_.empty() ? part_->name : fmt::format("{}: {}", part_->name, phase_);
}

std::optional<double> Progress::eta(double now, double fraction) const {
  double elapsed = now - phase_start_;
  if (part_) {
    elapsed = now - part_->whole_start;
    fraction = part_->from + (part_->to - part_->from) * fraction;
  }
  if (elapsed <= 0.0 || fraction <= 0.0) return std::nullopt;
  return elapsed * (1.0 - std::min(fraction, 1.0)) / fraction;
}

bool Progress::due(double now) {
  if (mode_ == ProgressMode::kOff) return false;
  const double interval = mode_ == ProgressMode::kAuto ? kTerminalInterval : kPlainInterval;
  if (now - last_draw_ < interval) return false;
  last_draw_ = now;
  return true;
}

void Progress::draw(std::string_view text, std::initializer_list<JsonMember> members) {
  switch (mode_) {
    case ProgressMode::kOff:
      return;
    case ProgressMode::kAuto:
      log_.status(text);
      return;
    case ProgressMode::kPlain:
      log_.info(text);
      return;
    case ProgressMode::kJson: {
      std::string line;
      JsonWriter(line, JsonWriter::Layout::kCompact).object(members);
      log_.raw_line(line);
      return;
    }
  }
}

void Progress::update(const ProgressState& state) {
  const double now = clock_();
  if (!due(now)) return;
  const double elapsed = now - phase_start_;
  const std::optional<double> left = eta(now, state.fraction.value_or(0.0));
  const std::uint64_t tokens = state.scores ? state.prompt_tokens : state.generated_tokens;
  const double rate = elapsed > 0.0 ? static_cast<double>(tokens) / elapsed : 0.0;
  std::string text = fmt::format("{}: {}/{} lines", label(), state.done,
                                 state.total ? fmt::to_string(*state.total) : "?");
  if (state.failed != 0) text += fmt::format(" ({} failed)", state.failed);
  // A narrow terminal cuts the end, so the most wanted comes first.
  if (left) text += ", ETA " + format_duration(*left);
  text += fmt::format(", {} running, {:.1f} tok/s, {} tokens {}", state.running, rate, tokens,
                      state.scores ? "computed" : "generated");
  draw(text, {{"progress", label()},
              {"done", state.done},
              {"total", state.total},
              {"failed", state.failed},
              {"running", state.running},
              {"prompt_tokens", state.prompt_tokens},
              {"generated_tokens", state.generated_tokens},
              {"tokens_per_second", rate},
              {"eta_seconds", left}});
}

void Progress::update_bytes(std::uint64_t done, std::uint64_t total) {
  const double now = clock_();
  if (!due(now)) return;
  const double elapsed = now - phase_start_;
  const double rate = elapsed > 0.0 ? static_cast<double>(done) / elapsed : 0.0;
  std::string text = fmt::format("{}: {} of {}, {:.2f} GB/s", label(), format_bytes(done),
                                 format_bytes(total), rate / 1e9);
  // Within a part, bytes read do not tell how much is left.
  const std::optional<double> left = eta(now, part_ ? 0.0 : share_of(done, total));
  if (left) text += ", ETA " + format_duration(*left);
  draw(text,
       {{"progress", label()}, {"bytes", done}, {"total_bytes", total}, {"eta_seconds", left}});
}

void Progress::update_items(std::uint64_t done, std::uint64_t total) {
  const double now = clock_();
  if (!due(now)) return;
  const std::optional<double> left = eta(now, share_of(done, total));
  std::string text = fmt::format("{}: {}/{}", label(), done, total);
  if (left) text += ", ETA " + format_duration(*left);
  draw(text, {{"progress", label()}, {"done", done}, {"total", total}, {"eta_seconds", left}});
}

void Progress::update_share(double fraction) {
  const double now = clock_();
  if (!due(now)) return;
  const std::optional<double> left = eta(now, fraction);
  std::string text = fmt::format("{}: {:.0f} %", label(), 100.0 * fraction);
  if (left) text += ", ETA " + format_duration(*left);
  draw(text, {{"progress", label()}, {"fraction", fraction}, {"eta_seconds", left}});
}

void Progress::first_failure(std::uint64_t line, std::string_view code, std::string_view message) {
  log_.warning(fmt::format("line {} failed, {}: {}; its record says so, others are counted", line,
                           code, escape_untrusted(message, 300)));
}

void Progress::finish() { log_.status(""); }

std::string format_duration(double seconds) {
  if (!(seconds >= 0.0)) seconds = 0.0;
  if (seconds > 1e9) return "years";
  const auto whole = static_cast<std::uint64_t>(std::llround(seconds));
  if (whole >= 3600) return fmt::format("{}h{:02}m", whole / 3600, whole / 60 % 60);
  if (whole >= 60) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  return fmt::format("{}s", whole);
}

}  // namespace triphase

#include "runtime/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace triphase {
namespace {

constexpr double kTerminalInterval = 0.1;
constexpr double kPlainInterval = 10.0;

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Progress::Progress(Log& log, ProgressMode mode, Clock clock)
    : log_(log), mode_(mode), clock_(clock ? std::move(clock) : Clock(steady_seconds)) {
  if (mode_ == ProgressMode::kAuto && !log_.is_terminal()) mode_ = ProgressMode::kPlain;
}

Progress::~Progress() { finish(); }

void Progress::begin_phase(std::string_view name) {
  phase_ = name;
  phase_start_ = clock_();
  last_draw_ = phase_start_;
  draw(phase_, {{"progress", phase_}});
  // A phase's first numbers come soon after its name on a terminal.
  if (mode_ == ProgressMode::kAuto) last_draw_ = -1e9;
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
  const std::uint64_t here = state.done - std::min(state.done, state.resumed);
  std::optional<double> eta;
  if (elapsed > 0.0) {
    if (state.fraction && *state.fraction > 0.0) {
      eta = elapsed * (1.0 - *state.fraction) / *state.fraction;
    } else if (!state.fraction && state.total && here > 0) {
      const auto left = static_cast<double>(*state.total - std::min(*state.total, state.done));
      eta = elapsed * left / static_cast<double>(here);
    }
  }
  const double rate = elapsed > 0.0 ? static_cast<double>(state.generated_tokens) / elapsed : 0.0;
  std::string text = fmt::format("{}: {}/{} lines", phase_, state.done,
                                 state.total ? fmt::to_string(*state.total) : "?");
  if (state.failed != 0) text += fmt::format(" ({} failed)", state.failed);
  text += fmt::format(", {} running, {} tokens generated, {:.1f} tok/s", state.running,
                      state.generated_tokens, rate);
  if (eta) text += ", ETA " + format_duration(*eta);
  draw(text, {{"progress", phase_},
              {"done", state.done},
              {"total", state.total},
              {"failed", state.failed},
              {"running", state.running},
              {"prompt_tokens", state.prompt_tokens},
              {"generated_tokens", state.generated_tokens},
              {"tokens_per_second", rate},
              {"eta_seconds", eta}});
}

void Progress::update_bytes(std::uint64_t done, std::uint64_t total) {
  const double now = clock_();
  if (!due(now)) return;
  const double elapsed = now - phase_start_;
  const double rate = elapsed > 0.0 ? static_cast<double>(done) / elapsed : 0.0;
  std::string text = fmt::format("{}: {} of {}, {:.2f} GB/s", phase_, format_bytes(done),
                                 format_bytes(total), rate / 1e9);
  std::optional<double> eta;
  if (rate > 0.0 && total >= done) {
    eta = static_cast<double>(total - done) / rate;
    text += ", ETA " + format_duration(*eta);
  }
  draw(text, {{"progress", phase_}, {"bytes", done}, {"total_bytes", total}, {"eta_seconds", eta}});
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

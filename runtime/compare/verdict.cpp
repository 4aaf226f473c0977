#include "runtime/compare/verdict.h"

#include <fmt/format.h>

#include <algorithm>

namespace triphase::compare {
namespace {

using Rows = std::vector<const Row*>;

bool faster(const Row* one, const Row* other) {
  return one->median().tokens_per_second > other->median().tokens_per_second;
}

// What the policies of one attention method did.
struct Field {
  Rows ranked;  // each policy's fastest row, fastest first
  std::uint64_t failed_lines = 0;
  std::vector<std::string> left_out;  // with the reason

  explicit Field(const Rows& rows) {
    Rows ran;
    std::ranges::copy_if(rows, std::back_inserter(ran), &Row::completed_any);
    if (!ran.empty()) {
      failed_lines = std::ranges::min(ran, {}, failures)->median().failed_lines;
    }
    std::ranges::stable_sort(ran, faster);
    for (const Row* row : ran) {
      if (failures(row) == failed_lines && !ranks(row->cell.policy)) ranked.push_back(row);
    }
    for (const Row* row : rows) {
      const std::string name = row->cell.shown_policy();
      if (ranks(row->cell.policy) || mentions(name)) continue;
      left_out.push_back(name +
                         (row->infeasible.empty() ? " (more lines failed)" : " (cannot run)"));
    }
  }

  [[nodiscard]] bool ranks(const std::string& policy) const {
    return std::ranges::any_of(ranked, [&](const Row* row) { return row->cell.policy == policy; });
  }
  // The fastest of triphase's own rows, or of the baselines'; null: none.
  [[nodiscard]] const Row* best(bool baseline) const {
    const auto found =
        std::ranges::find(ranked, baseline, [](const Row* row) { return row->cell.is_baseline(); });
    return found == ranked.end() ? nullptr : *found;
  }

 private:
  static std::uint64_t failures(const Row* row) { return row->median().failed_lines; }
  [[nodiscard]] bool mentions(const std::string& name) const {
    return std::ranges::any_of(
        left_out, [&](const std::string& text) { return text.starts_with(name + " "); });
  }
};

std::string named(const Row& row, bool several_batches) {
  std::string name = row.cell.shown_policy();
  if (several_batches) {
    name +=
        row.cell.batch_size == "0" ? " at its largest batch" : " at batch " + row.cell.batch_size;
  }
  return name;
}

double speed(const Row& row) { return row.median().tokens_per_second; }

std::string ranking(const Field& field, bool several_batches) {
  const Row& first = *field.ranked.front();
  const std::string winner = named(first, several_batches);
  if (field.ranked.size() == 1) {
    return fmt::format("{} generated {:.1f} tokens/s; {}", winner, speed(first),
                       field.left_out.empty() ? "no other policy was asked for"
                                              : "no other policy did as much of the job");
  }
  const Row* own = field.best(/*baseline=*/false);
  const Row* baseline = field.best(/*baseline=*/true);
  // Beside triphase the best baseline, beside a baseline triphase, else whoever comes next.
  const Row* beside = first.cell.is_baseline() ? own : baseline;
  const Row& second = beside != nullptr ? *beside : *field.ranked[1];
  const std::string other = named(second, several_batches);
  if (first.timed.size() > 1 && first.slowest() <= second.fastest()) {
    return fmt::format(
        "{} and {} are not told apart: {:.1f} and {:.1f} generated tokens/s, and their repetitions "
        "overlap",
        winner, other, speed(first), speed(second));
  }
  const char* role = second.cell.is_baseline() && own != nullptr ? "the best baseline, " : "";
  return fmt::format("{} was fastest: {:.1f} generated tokens/s, {:.2f}x {}{} ({:.1f}){}", winner,
                     speed(first), speed(first) / speed(second), role, other, speed(second),
                     first.timed.size() > 1 ? "" : ", in one repetition");
}

// What is known of the completions of rows that ran.
std::string sameness(const Rows& rows) {
  Rows ran;
  std::ranges::copy_if(rows, std::back_inserter(ran), &Row::completed_any);
  if (ran.size() < 2) return "";
  const auto count = [&](auto&& holds) { return std::ranges::count_if(ran, holds); };
  const auto references = count([](const Row* row) { return !row->same_as; });
  if (count(&Row::wrong) > 0) return "; completions DIFFER, which they must not";
  if (count([](const Row* row) { return row->identical == false; }) > 0) {
    return "; completions differ, as they may on a GPU at close calls; --deterministic compares "
           "exactly";
  }
  if (count([](const Row* row) { return row->identical == true; }) == 0) {
    return "; no completions could be compared";
  }
  return references == 1 ? "; all completions were identical"
                         : "; completions of equal KV type were identical";
}

Verdict verdict(const Rows& rows, const std::string& beginning, bool several_batches) {
  const Field field(rows);
  if (field.ranked.empty()) {
    const bool any =
        std::ranges::any_of(rows, [](const Row* row) { return row->infeasible.empty(); });
    return {fmt::format("{} policy {}.", beginning.empty() ? "No" : beginning + "no",
                        any ? "completed a line" : "can run this job"),
            ""};
  }
  Verdict verdict{beginning + ranking(field, several_batches) + sameness(rows) + ".", ""};
  if (field.failed_lines > 0) {
    verdict.remark = fmt::format("{} {} failed in each of these cells.", field.failed_lines,
                                 field.failed_lines == 1 ? "line" : "lines");
  }
  if (!field.left_out.empty()) {
    verdict.remark += fmt::format("{}Left out: {}.", verdict.remark.empty() ? "" : " ",
                                  fmt::join(field.left_out, ", "));
  }
  return verdict;
}

}  // namespace

std::vector<Verdict> verdicts(const std::vector<Row>& rows) {
  const auto ran =
      std::ranges::find_if(rows, [](const Row& row) { return row.infeasible.empty(); });
  if (ran != rows.end() && ran->median().lines == 0) {
    return {{"The prompt file has no lines: nothing was compared.", ""}};
  }
  std::vector<std::string> methods;
  bool several_batches = false;
  for (const Row& row : rows) {
    if (std::ranges::find(methods, row.cell.attention) == methods.end()) {
      methods.push_back(row.cell.attention);
    }
    several_batches = several_batches || row.cell.batch_size != rows.front().cell.batch_size;
  }
  std::vector<Verdict> texts;
  for (const std::string& method : methods) {
    Rows own;
    for (const Row& row : rows) {
      if (row.cell.attention == method) own.push_back(&row);
    }
    texts.push_back(
        verdict(own, methods.size() > 1 ? "With " + method + " attention, " : "", several_batches));
  }
  return texts;
}

}  // namespace triphase::compare

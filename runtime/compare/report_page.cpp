#include "runtime/compare/report_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>

#include "base/format_bytes.h"
#include "runtime/compare/bars.h"
#include "runtime/compare/steps_plot.h"
#include "runtime/compare/svg.h"
#include "runtime/compare/verdict.h"

namespace triphase::compare {
namespace {

using svg::escaped;

constexpr std::size_t kCellsOnAScreen = 8;  // bars beside the verdict

// Colours are distinguishable with every common colour vision (after Wong, 2011).
constexpr const char* kStyle = R"(<style>
:root { --back: #ffffff; --text: #1a1a1a; --soft: #5a5f66; --grid: #dddddd; --note: #fff4d6;
        --two: #f1f1f1; --three: #e2e2e2; }
@media screen and (prefers-color-scheme: dark) {
  :root { --back: #16181c; --text: #e6e6e6; --soft: #a9afb6; --grid: #3a3d42; --note: #3a3320;
          --two: #23262b; --three: #30343a; }
}
body { background: var(--back); color: var(--text); font: 15px/1.5 system-ui, sans-serif;
       max-width: 860px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; line-height: 1.3; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .3rem; }
p, li { color: var(--soft); margin: .2rem 0; }
.verdict { color: var(--text); font-weight: 600; margin: .5rem 0 0; }
.option { display: inline-block; }
ul { padding-left: 1.2rem; overflow-wrap: anywhere; }
.note { background: var(--note); color: var(--text); border: 1px solid var(--grid);
        padding: .5rem .8rem; border-radius: 4px; margin: .8rem 0; }
figure { margin: .9rem 0 0; break-inside: avoid; }
figcaption { font-weight: 600; font-size: .95rem; }
figure figure { margin-top: .4rem; } figure figure figcaption { font-weight: 400; font-size: .85rem; }
svg { display: block; width: 100%; height: auto; font: 12px system-ui, sans-serif; }
svg text { fill: var(--text); } svg text.soft { fill: var(--soft); }
.scroll { overflow-x: auto; } .scroll svg { min-width: 540px; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(300px, 1fr)); gap: 0 1rem; }
.plots svg { max-width: 480px; }
.c0 { fill: #0072b2; } .c1 { fill: #d55e00; } .c2 { fill: #009e73; } .c3 { fill: #cc79a7; }
.c4 { fill: #e69f00; } .c5 { fill: #56b4e9; } .c6 { fill: #a0522d; } .c7 { fill: #7f7f7f; }
.line { fill: none; stroke-width: 2; } .s0 { stroke: #2b8fcb; }
.s1 { stroke: #d55e00; stroke-dasharray: 7 3; }
.grid { stroke: var(--grid); } .axis { stroke: var(--text); fill: none; }
.p1 { fill: none; } .p2 { fill: var(--two); } .p3 { fill: var(--three); }
.mark { stroke: var(--soft); stroke-dasharray: 2 2; }
.legend { font-size: .85rem; margin: 0; }
.legend span { display: inline-block; margin-right: 1.2em; }
.legend i { display: inline-block; width: .8em; height: .8em; margin-right: .4em; }
.legend i.l { height: 0; width: 1.6em; vertical-align: .3em; border-top: 2px solid #2b8fcb; }
.legend i.h { border-top: 2px dashed #d55e00; }
.b0 { background: #0072b2; } .b1 { background: #d55e00; } .b2 { background: #009e73; }
.b3 { background: #cc79a7; } .b4 { background: #e69f00; }
.b5 { background: var(--two); border: 1px solid var(--grid); }
.b6 { background: var(--three); border: 1px solid var(--grid); }
table { border-collapse: separate; border-spacing: 0; width: 100%; font-size: .8rem; margin-top: .6rem;
        font-variant-numeric: tabular-nums; }
td, th { border-bottom: 1px solid var(--grid); padding: .25rem .4rem; text-align: right;
         vertical-align: bottom; }
td { white-space: nowrap; } td:first-child, th:first-child { text-align: left; }
.first td:first-child, .first th:first-child { position: sticky; left: 0; background: var(--back); }
.why { text-align: left; white-space: normal; color: var(--soft); }
.group td { font-weight: 600; padding-top: .7rem; text-align: left; }
.no { font-weight: 600; color: #d55e00; }
@media print {
  :root { --back: #ffffff; --text: #000000; --soft: #444444; --grid: #cccccc; --note: #ffffff; }
  body { max-width: none; margin: 0; font-size: 10pt; }
  h2, figcaption, .legend { break-after: avoid; }
  section > p, .group { break-inside: avoid; break-after: avoid; } tr { break-inside: avoid; } thead { display: table-header-group; }
  table { font-size: 7pt; } td, th { padding: .2rem .25rem; }
  .scroll { overflow: visible; } .scroll svg { min-width: 0; }
  .many { break-inside: auto; } .plots { display: block; } .plots figure { display: inline-block; width: 48%; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
</style></head><body>
)";

struct LegendEntry {
  const char* look;  // class of its sign
  const char* words;
};

std::string legend(const std::vector<LegendEntry>& entries) {
  std::string out = "<p class=\"legend\">";
  for (const LegendEntry& entry : entries) {
    out += fmt::format("<span><i class=\"{}\"></i>{}</span>", entry.look, entry.words);
  }
  return out + "</p>\n";
}

std::string section(const std::string& title, const std::string& words, const std::string& body) {
  return fmt::format("<section><h2>{}</h2><p>{}</p>\n{}</section>\n", title, words, body);
}

std::vector<const Row*> rows_that_ran(const std::vector<Row>& rows) {
  std::vector<const Row*> ran;
  for (const Row& row : rows) {
    if (row.infeasible.empty()) ran.push_back(&row);
  }
  return ran;
}

// Policies keep their colour through the page.
int color_of(const std::vector<Row>& rows, const Row& row) {
  std::vector<std::string> policies;
  for (const Row& other : rows) {
    if (std::ranges::find(policies, other.cell.policy) == policies.end()) {
      policies.push_back(other.cell.policy);
    }
  }
  return static_cast<int>((std::ranges::find(policies, row.cell.policy) - policies.begin()) % 8);
}

// Cells that differ in their policy alone: what is compared with each other.
struct Group {
  std::string title;  // "sparq attention, batch 8"
  std::vector<const Row*> rows;

  [[nodiscard]] std::string name(const std::string& what) const { return what + ", " + title; }
};

std::vector<Group> groups_of(const std::vector<Row>& rows) {
  std::vector<Group> groups;
  for (const Row& row : rows) {
    std::string title = row.cell.attention + " attention, ";
    title +=
        row.cell.batch_size == "0" ? "largest batch that fits" : "batch " + row.cell.batch_size;
    const auto found = std::ranges::find(groups, title, &Group::title);
    if (found == groups.end()) {
      groups.push_back({std::move(title), {&row}});
    } else {
      found->rows.push_back(&row);
    }
  }
  return groups;
}

std::string figure(const std::string& caption, const std::string& body,
                   const char* attributes = "") {
  return fmt::format("<figure{}>{}{}</figure>\n", attributes,
                     caption.empty() ? "" : "<figcaption>" + escaped(caption) + "</figcaption>\n",
                     body);
}

using MakeBar = std::function<Bar(const Row&)>;

struct Chart {
  std::string name;
  std::string legend;
  std::string unit_label;
  double unit = 1.0;
};

// "8 lines failed".
std::string failures(const Measured& run) {
  return fmt::format("{} {} failed", run.failed_lines, run.failed_lines == 1 ? "line" : "lines");
}

Bar bar_without_work(const Row& row) {
  return {.label = row.cell.shown_policy(),
          .tracks = {{{}, row.infeasible.empty() ? failures(row.median()) : "cannot run"}}};
}

// A figure for each group, all on one scale; cells that did nothing keep their place.
std::string bar_figures(const std::vector<Group>& groups, const Chart& chart, const MakeBar& make) {
  std::vector<std::vector<Bar>> bars;
  BarScale scale{.unit = chart.unit, .label = chart.unit_label};
  for (const Group& group : groups) {
    std::vector<Bar>& made = bars.emplace_back();
    for (const Row* row : group.rows) {
      made.push_back(row->completed_any() ? make(*row) : bar_without_work(*row));
    }
    scale.fit(made);
  }
  std::string out;
  for (std::size_t index = 0; index < groups.size(); ++index) {
    out += figure(groups[index].title,
                  chart.legend + "<div class=\"scroll\">" +
                      bars_svg(groups[index].name(chart.name), bars[index], scale) + "</div>");
  }
  return out;
}

std::string speed_text(const Measured& run) {
  return fmt::format("{:.1f}{}", run.tokens_per_second,
                     run.failed_lines == 0 ? "" : " (" + failures(run) + ")");
}

// Tracks of what there was something of; a word where there was nothing.
std::vector<BarTrack> without_empty(std::vector<BarTrack> tracks) {
  std::erase_if(tracks, [](const BarTrack& track) {
    return std::ranges::all_of(track.parts, [](const BarPart& part) { return part.value <= 0.0; });
  });
  if (tracks.empty()) tracks.push_back({{}, "nothing"});
  return tracks;
}

Bar speed_bar(const std::vector<Row>& rows, const Row& row, const std::string& label) {
  const double speed = row.median().tokens_per_second;
  return {.label = label,
          .tracks = {{{{speed, color_of(rows, row), row.cell.shown_label()}},
                      speed_text(row.median())}},
          .low = row.slowest(),
          .high = row.timed.size() > 1 ? row.fastest() : 0.0};
}

// Of several groups: the fastest cells, as many as fit a screen.
std::string fastest_cells(const std::vector<Row>& rows) {
  std::vector<const Row*> cells = rows_that_ran(rows);
  std::erase_if(cells, [](const Row* row) { return !row->completed_any(); });
  std::ranges::stable_sort(cells, [](const Row* one, const Row* other) {
    return one->median().tokens_per_second > other->median().tokens_per_second;
  });
  const std::size_t all = cells.size();
  cells.resize(std::min(all, kCellsOnAScreen));
  std::vector<Bar> bars;
  for (const Row* row : cells) bars.push_back(speed_bar(rows, *row, row->cell.shown_label()));
  if (bars.empty()) return "";
  BarScale scale{.unit = 1.0, .label = "generated tokens per second"};
  scale.fit(bars);
  return section(
      all > cells.size() ? fmt::format("The {} fastest of {} cells", cells.size(), all)
                         : std::string("All cells by speed"),
      "Median of the repetitions. Attention is dense, and the batch the largest that fits, "
      "unless named.",
      figure("", "<div class=\"scroll\">" + bars_svg("Throughput of all cells", bars, scale) +
                     "</div>"));
}

std::string throughput(const std::vector<Row>& rows, const std::vector<Group>& groups) {
  const std::string figures =
      bar_figures(groups, {"Throughput", "", "generated tokens per second", 1.0},
                  [&](const Row& row) { return speed_bar(rows, row, row.cell.shown_policy()); });
  const bool failed = std::ranges::any_of(
      rows_that_ran(rows), [](const Row* row) { return row->median().failed_lines > 0; });
  const std::size_t repeats = rows_that_ran(rows).front()->timed.size();
  return section(
      "Throughput by policy and batch",
      (repeats > 1
           ? fmt::format(
                 "Generated tokens per second of prefill and decode together. A bar shows "
                 "the median of {} repetitions{}, its whiskers the slowest and the fastest.",
                 repeats, repeats % 2 == 0 ? " (the slower of the middle two)" : "")
           : "Generated tokens per second of prefill and decode together, in one repetition.") +
          (failed ? std::string(" A cell with failed lines did less work than the others.")
                  : std::string()),
      figures);
}

std::string lanes(const std::vector<Group>& groups) {
  const std::string figures = bar_figures(
      groups,
      {"Time by lane",
       legend({{"b0", "compute"},
               {"b1", "waiting for KV or weights"},
               {"b2", "host work"},
               {"b3", "link to device"},
               {"b4", "link to host"}}),
       "seconds", 1.0},
      [](const Row& row) {
        const LaneSeconds& s = row.traced.seconds;
        return Bar{.label = row.cell.shown_policy(),
                   .tracks = without_empty(
                       {{{{s.compute, 0, fmt::format("compute {:.3f} s", s.compute)},
                          {s.waiting, 1, fmt::format("waiting {:.3f} s", s.waiting)},
                          {s.host, 2, fmt::format("host work {:.3f} s", s.host)}},
                         fmt::format("{:.2f} s", s.compute + s.waiting + s.host)},
                        {{{s.to_device, 3, fmt::format("to device {:.3f} s", s.to_device)}},
                         fmt::format("{:.2f} s", s.to_device)},
                        {{{s.to_host, 4, fmt::format("to host {:.3f} s", s.to_host)}},
                         fmt::format("{:.2f} s", s.to_host)}})};
      });
  return section(
      "Time by lane",
      "Seconds of the traced run. The first bar divides the run's own time into compute, waiting "
      "and "
      "host work. The bars below it are the link's two directions, which work at the same time. "
      "Waiting is the part of their time that compute did not hide. On a GPU, compute and waiting "
      "are measured on the device, and host work leaves out queueing and waiting for the device.",
      figures);
}

std::string memory(const std::vector<Row>& rows, const std::vector<Group>& groups) {
  double highest = 0.0;
  for (const Row& row : rows) {
    for (const MemoryPoint& point : row.traced.memory) {
      highest = std::max({highest, point.device, point.host});
    }
  }
  const std::string signs = legend({{"l", "KV on the device"},
                                    {"l h", "KV on the host"},
                                    {"b5", "Phase II"},
                                    {"b6", "Phase III"}});
  std::string body;
  for (const Group& group : groups) {
    std::string plots;
    for (const Row* row : group.rows) {
      if (!row->infeasible.empty() || row->traced.memory.empty()) continue;
      plots +=
          figure(row->cell.shown_policy(),
                 steps_svg("KV bytes by step, " + row->cell.shown_label(), row->traced, highest));
    }
    if (plots.empty()) continue;
    body +=
        figure(group.title, signs + "<div class=\"plots\">" + plots + "</div>", " class=\"many\"");
  }
  return section("Memory by tier",
                 "KV bytes at each step of the traced run; all plots have the same scale. The "
                 "background shows the latest phase that any running request is in, a dotted line "
                 "each change of it.",
                 body);
}

std::string moved(const std::vector<Group>& groups) {
  double most = 0.0;
  for (const Group& group : groups) {
    for (const Row* row : group.rows) {
      if (!row->infeasible.empty()) continue;
      most = std::max({most, static_cast<double>(row->median().to_device_bytes),
                       static_cast<double>(row->median().to_host_bytes)});
    }
  }
  const ByteUnit unit = byte_unit(most);
  const std::string figures = bar_figures(
      groups,
      {"Bytes moved", legend({{"b3", "to the device"}, {"b4", "to the host"}}), unit.name,
       unit.bytes},
      [](const Row& row) {
        const Measured& run = row.median();
        const std::string to_device = format_bytes(run.to_device_bytes);
        const std::string to_host = format_bytes(run.to_host_bytes);
        return Bar{
            .label = row.cell.shown_policy(),
            .tracks = without_empty(
                {{{{static_cast<double>(run.to_device_bytes), 3, "to the device " + to_device}},
                  to_device},
                 {{{static_cast<double>(run.to_host_bytes), 4, "to the host " + to_host}},
                  to_host}})};
      });
  return section("Bytes moved",
                 "Bytes that crossed the link in the whole job: weights, KV, cached hidden states, "
                 "and the queries and results of attention on the host.",
                 figures);
}

bool all_reproducible(const std::vector<Row>& rows) {
  return std::ranges::all_of(rows_that_ran(rows),
                             [](const Row* row) { return row->median().reproducible; });
}

// One bar where all policies of a group agree alike.
std::string agreements(const std::vector<Row>& rows, const std::vector<Group>& groups) {
  std::vector<Bar> bars;
  const auto add = [&](const std::string& label, int color, double share) {
    bars.push_back({.label = label,
                    .tracks = {{{{share, color, label}}, fmt::format("{:.1f} %", 100.0 * share)}}});
  };
  for (const Group& group : groups) {
    std::vector<const Row*> known;
    std::ranges::copy_if(group.rows, std::back_inserter(known),
                         [](const Row* row) { return row->agreement.has_value(); });
    const bool alike = std::ranges::all_of(
        known, [&](const Row* row) { return row->agreement == known.front()->agreement; });
    if (known.size() > 1 && alike) {
      add(fmt::format("{}: {} policies", group.title, known.size()), 7, *known.front()->agreement);
      continue;
    }
    for (const Row* row : known) {
      add(fmt::format("{}: {}", group.title, row->cell.shown_policy()), color_of(rows, *row),
          *row->agreement);
    }
  }
  if (bars.empty()) return "";
  BarScale scale{.unit = 0.01, .label = "% of the tokens", .longest = 1.0};
  scale.fit(bars);
  return section(
      "Agreement with dense attention",
      "How long completions equal those of dense attention with the same KV type: the share of "
      "tokens before the first one that differs, as a mean over prompts. " +
          std::string(all_reproducible(rows)
                          ? "The placement policy must not change it."
                          : "Without --deterministic the batch may change it on a GPU."),
      figure("", "<div class=\"scroll\">" +
                     bars_svg("Agreement with dense attention", bars, scale) + "</div>"));
}

// "int8, 64 cached".
std::string kv_text(const Measured& run) {
  std::string text = escaped(run.kv_dtype);
  if (run.cached_hidden_states > 0) text += fmt::format(", {} cached", run.cached_hidden_states);
  return text;
}

std::string numbers(const Row& row) {
  if (!row.infeasible.empty()) {
    return fmt::format("<tr><td>{}</td><td class=\"why\" colspan=\"9\">cannot run: {}</td></tr>\n",
                       escaped(row.cell.shown_policy()), escaped(row.infeasible));
  }
  const Measured& run = row.median();
  return fmt::format(
      "<tr><td>{}</td><td>{}</td><td>{:.3f}</td><td>{:.3f}</td><td>{}</td><td>{}</td>"
      "<td>{}</td><td>{}</td><td>{}</td>{}</tr>\n",
      escaped(row.cell.shown_policy()),
      row.has_speed() ? fmt::format("{:.1f}", run.tokens_per_second) : "none", run.prefill_seconds,
      run.decode_seconds, run.max_batch, format_bytes(run.device_peak_bytes),
      format_bytes(run.host_peak_bytes), run.failed_lines, kv_text(run),
      run.tokens_per_second <= 0.0 ? "<td>none</td>"
      : !row.same_as               ? "<td>reference</td>"
      : !row.identical             ? "<td>none in common</td>"
      : *row.identical             ? "<td>yes</td>"
      : row.wrong()                ? "<td class=\"no\">NO</td>"
                                   : "<td>no</td>");
}

std::string table(const std::vector<Row>& rows, const std::vector<Group>& groups) {
  std::string out =
      "<div class=\"scroll first\"><table><thead><tr><th>policy</th><th>tokens/s</th><th>prefill "
      "(s)</th>"
      "<th>decode (s)</th><th>batch</th><th>device peak</th><th>host peak</th>"
      "<th>failed lines</th><th>KV type</th>"
      "<th>same comple&shy;tions</th></tr></thead>\n";
  for (const Group& group : groups) {
    out +=
        fmt::format("<tr class=\"group\"><td colspan=\"10\">{}</td></tr>\n", escaped(group.title));
    for (const Row* row : group.rows) out += numbers(*row);
  }
  return section(
      "Numbers",
      "Each row is the median repetition of a cell; compare.json has all of them, and more "
      "columns. "
      "A line that a cell has no room for fails in that cell only. "
      "KV type, N cached: K and V of each request's first N tokens are projected from cached INT8 "
      "hidden states. Both change completions. "
      "Same completions: whether they equal those of the reference, for lines that both completed. "
      "The reference is the first cell with the same attention and KV type." +
          std::string(
              all_reproducible(rows)
                  ? ""
                  : " On a GPU the last bits of a logit depend on the batch, so completions "
                    "may differ where two tokens are almost equally likely; "
                    "--deterministic compares exactly."),
      out + "</table></div>\n");
}

// Cells in which lines failed alike are one row.
std::string failed_lines(const std::vector<Row>& rows) {
  std::vector<std::pair<std::string, std::string>> reasons;  // with the cells' labels
  for (const Row* row : rows_that_ran(rows)) {
    for (const Failure& failure : row->failures) {
      const std::string reason = failure.text();
      const auto known =
          std::ranges::find(reasons, reason, &std::pair<std::string, std::string>::first);
      if (known == reasons.end()) {
        reasons.emplace_back(reason, row->cell.shown_label());
      } else {
        known->second += "; " + row->cell.shown_label();
      }
    }
  }
  if (reasons.empty()) return "";
  std::string out =
      "<div class=\"scroll\"><table><thead><tr><th class=\"why\">reason</th><th "
      "class=\"why\">cells</th></tr></thead>\n";
  for (const auto& [reason, cells] : reasons) {
    out += fmt::format("<tr><td class=\"why\">{}</td><td class=\"why\">{}</td></tr>\n",
                       escaped(reason), escaped(cells));
  }
  return section("Failed lines", "Lines that got an error record instead of a completion, and why.",
                 out + "</table></div>\n");
}

// What a reader must know before any number.
std::string notes(const std::vector<Row>& rows) {
  std::string out;
  const bool styled = std::ranges::any_of(
      rows, [](const Row& row) { return row.cell.shown_policy() != row.cell.policy; });
  if (styled) {
    out +=
        "<p>NAME-style: our version of that system's placement policy, in this engine. The system "
        "itself did not run.</p>\n";
  }
  std::vector<std::string> emulated;
  for (const Row* row : rows_that_ran(rows)) {
    for (const std::string& name : row->median().emulated) {
      if (std::ranges::find(emulated, name) == emulated.end()) emulated.push_back(name);
    }
  }
  if (emulated.empty()) return out;
  return out +
         fmt::format(
             "<p class=\"note\"><strong>Emulated: {}.</strong> These numbers compare policies "
             "with each other; they are not the speed of any device.</p>\n",
             escaped(fmt::format("{}", fmt::join(emulated, ", "))));
}

std::string what_ran(const PageFacts& facts) {
  std::string list;
  for (const std::string& fact : facts.facts) list += "<li>" + escaped(fact) + "</li>\n";
  if (!facts.options.empty()) {
    list += "<li>options:";
    for (const std::string& option : facts.options) {
      list += " <span class=\"option\">" + escaped(option) + "</span>";
    }
    list += "</li>\n";
  }
  return "<section><h2>What ran</h2><ul>\n" + list + "</ul></section>\n";
}

}  // namespace

std::string report_page(const PageFacts& facts, const std::vector<Row>& rows) {
  const std::vector<Group> groups = groups_of(rows);
  const bool any_ran = !rows_that_ran(rows).empty();
  std::string page =
      fmt::format("{}{}<h1>Placement policies compared</h1>\n", kPageBeginning, kStyle);
  for (const auto& [sentence, remark] : verdicts(rows)) {
    page += "<p class=\"verdict\">" + escaped(sentence) + "</p>\n";
    if (!remark.empty()) page += "<p>" + escaped(remark) + "</p>\n";
  }
  page += notes(rows);
  if (any_ran) page += groups.size() > 1 ? fastest_cells(rows) : throughput(rows, groups);
  page += what_ran(facts);
  if (any_ran) {
    if (groups.size() > 1) page += throughput(rows, groups);
    page += lanes(groups) + memory(rows, groups) + moved(groups) + agreements(rows, groups);
  }
  return page + table(rows, groups) + failed_lines(rows) + "</body></html>\n";
}

}  // namespace triphase::compare

#include "runtime/compare/report_page.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/format_bytes.h"
#include "runtime/base/svg.h"
#include "runtime/compare/bars.h"

namespace triphase::compare {
namespace {

using svg::escaped;

// Colours are distinguishable with every common colour vision (after Wong, 2011).
constexpr const char* kHead = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>)";
constexpr const char* kStyle = R"(</title>
<style>
:root { --back: #ffffff; --text: #1a1a1a; --soft: #5a5f66; --grid: #dddddd; --note: #fff4d6; }
@media (prefers-color-scheme: dark) {
  :root { --back: #16181c; --text: #e6e6e6; --soft: #a0a6ad; --grid: #3a3d42; --note: #3a3320; }
}
@media print {
  :root { --back: #ffffff; --text: #000000; --soft: #444444; --grid: #cccccc; --note: #ffffff; }
  section, tr { break-inside: avoid; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
body { background: var(--back); color: var(--text); font: 15px/1.5 system-ui, sans-serif;
       max-width: 860px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .4rem; }
p, li { color: var(--soft); margin: .2rem 0; }
.note { background: var(--note); color: var(--text); border: 1px solid var(--grid);
        padding: .5rem .8rem; border-radius: 4px; }
svg { width: 100%; height: auto; font: 12px system-ui, sans-serif; }
svg text { fill: var(--text); }
.c0 { fill: #0072b2; } .c1 { fill: #d55e00; } .c2 { fill: #009e73; } .c3 { fill: #cc79a7; }
.c4 { fill: #e69f00; } .c5 { fill: #56b4e9; } .c6 { fill: #a0522d; } .c7 { fill: #7f7f7f; }
.line { fill: none; stroke-width: 2; } .s0 { stroke: #0072b2; } .s1 { stroke: #d55e00; }
.grid { stroke: var(--grid); } .axis { stroke: var(--text); fill: none; }
.mark { stroke: var(--soft); stroke-dasharray: 4 3; }
.legend span { display: inline-block; margin-right: 1.2em; }
.legend i { display: inline-block; width: .8em; height: .8em; margin-right: .4em; }
.b0 { background: #0072b2; } .b1 { background: #d55e00; } .b2 { background: #009e73; }
.b3 { background: #cc79a7; } .b4 { background: #e69f00; }
table { border-collapse: collapse; width: 100%; font-size: .85rem; }
td, th { border-bottom: 1px solid var(--grid); padding: .25rem .5rem; text-align: right; }
td:first-child, th:first-child { text-align: left; }
.scroll { overflow-x: auto; }
</style></head><body>
)";

std::string legend(const std::vector<std::string>& names) {
  std::string out = "<p class=\"legend\">";
  for (std::size_t index = 0; index < names.size(); ++index) {
    out += fmt::format("<span><i class=\"b{}\"></i>{}</span>", index, names[index]);
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

std::string throughput(const std::vector<Row>& rows) {
  std::vector<Bar> bars;
  for (const Row* row : rows_that_ran(rows)) {
    const double speed = row->median().tokens_per_second;
    bars.push_back({.label = row->cell.label(),
                    .parts = {{speed, color_of(rows, *row), row->cell.label()}},
                    .text = fmt::format("{:.1f}", speed),
                    .low = row->slowest(),
                    .high = row->fastest()});
  }
  return section("Throughput",
                 "Generated tokens per second over prefill and decode: the median of the "
                 "repetitions; whiskers from the slowest to the fastest.",
                 bars_svg("Throughput by policy and batch", bars));
}

std::string lanes(const std::vector<Row>& rows) {
  std::vector<Bar> bars;
  for (const Row* row : rows_that_ran(rows)) {
    const LaneSeconds& s = row->traced.seconds;
    bars.push_back({.label = row->cell.label(),
                    .parts = {{s.compute, 0, fmt::format("compute {:.3f} s", s.compute)},
                              {s.waiting, 1, fmt::format("waiting {:.3f} s", s.waiting)},
                              {s.host, 2, fmt::format("host work {:.3f} s", s.host)}},
                    .text = fmt::format("{:.2f} s", s.compute + s.waiting + s.host)});
    bars.push_back({.label = "its link",
                    .parts = {{s.to_device, 3, fmt::format("to device {:.3f} s", s.to_device)},
                              {s.to_host, 4, fmt::format("to host {:.3f} s", s.to_host)}},
                    .text = fmt::format("{:.2f} s", s.to_device + s.to_host)});
  }
  return section(
      "Time by lane",
      "Of one traced repetition. The link works beside compute: what it could not hide is waiting.",
      legend(
          {"compute", "waiting for KV or weights", "host work", "link to device", "link to host"}) +
          bars_svg("Time by lane", bars));
}

std::string memory(const std::vector<Row>& rows) {
  double highest = 0.0;
  for (const Row& row : rows) {
    for (const MemoryPoint& point : row.traced.memory) {
      highest = std::max({highest, point.device, point.host});
    }
  }
  std::string body = legend({"KV on the device", "KV on the host"});
  for (const Row* row : rows_that_ran(rows)) {
    std::vector<StepPoint> points;
    for (const MemoryPoint& point : row->traced.memory) {
      points.push_back({static_cast<double>(point.step), point.device, point.host});
    }
    std::vector<StepMark> marks;
    for (const PhaseStart& phase : row->traced.phases) {
      marks.push_back({static_cast<double>(phase.step), phase.name});
    }
    body += fmt::format("<p>{}</p>\n", escaped(row->cell.label())) +
            steps_svg("KV bytes by step, " + row->cell.label(), points, marks, highest);
  }
  return section("Memory by tier",
                 "KV bytes over the steps of the job, on one scale; a dashed line where the batch "
                 "changes its phase.",
                 body);
}

std::string moved(const std::vector<Row>& rows) {
  std::vector<Bar> bars;
  for (const Row* row : rows_that_ran(rows)) {
    const Measured& run = row->median();
    const auto to_device = static_cast<double>(run.to_device_bytes);
    const auto to_host = static_cast<double>(run.to_host_bytes);
    bars.push_back(
        {.label = row->cell.label(),
         .parts = {{to_device, 0, "to device " + format_bytes(run.to_device_bytes)},
                   {to_host, 1, "to host " + format_bytes(run.to_host_bytes)}},
         .text = format_bytes(run.to_device_bytes) + " + " + format_bytes(run.to_host_bytes)});
  }
  return section("Bytes moved", "KV and weights across the link, in the whole job.",
                 legend({"to device", "to host"}) + bars_svg("Bytes moved", bars));
}

std::string agreements(const std::vector<Row>& rows) {
  std::vector<Bar> bars;
  for (const Row* row : rows_that_ran(rows)) {
    if (!row->agreement) continue;
    const double share = *row->agreement;
    bars.push_back({.label = row->cell.label(),
                    .parts = {{share, color_of(rows, *row), row->cell.label()}},
                    .text = fmt::format("{:.1f} %", 100.0 * share)});
  }
  if (bars.empty()) return "";
  return section("Agreement with dense attention",
                 "The share of a completion's tokens before the first that differs from dense "
                 "attention's, mean over lines. Placement alone must change nothing.",
                 bars_svg("Agreement with dense attention", bars));
}

std::string table(const std::vector<Row>& rows) {
  std::string out =
      "<div class=\"scroll\"><table><tr><th>cell</th><th>tokens/s</th><th>prefill s</th>"
      "<th>decode s</th><th>device peak</th><th>host peak</th><th>preemptions</th><th>failed "
      "lines</th><th>KV</th>"
      "<th>same completions</th></tr>\n";
  for (const Row& row : rows) {
    if (!row.infeasible.empty()) {
      out += fmt::format("<tr><td>{}</td><td colspan=\"9\">cannot run: {}</td></tr>\n",
                         escaped(row.cell.label()), escaped(row.infeasible));
      continue;
    }
    const Measured& run = row.median();
    out += fmt::format(
        "<tr><td>{}</td><td>{:.1f}</td><td>{:.3f}</td><td>{:.3f}</td><td>{}</td><td>{}</td>"
        "<td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
        escaped(row.cell.label()), run.tokens_per_second, run.prefill_seconds, run.decode_seconds,
        format_bytes(run.device_peak_bytes), format_bytes(run.host_peak_bytes), run.preemptions,
        run.failed_lines, escaped(run.kv_dtype),
        !row.same_as    ? "first of its kind"
        : row.identical ? "yes"
                        : "NO");
  }
  return section(
      "Numbers",
      "The median repetition of every cell. Lines that a cell has no room for fail there alone; "
      "completions are compared where both have them.",
      out + "</table></div>\n");
}

}  // namespace

std::string report_page(const PageFacts& facts, const std::vector<Row>& rows) {
  std::string page = kHead + escaped(facts.title) + kStyle;
  page += fmt::format("<h1>{}</h1>\n<ul>\n", escaped(facts.title));
  for (const std::string& fact : facts.facts) page += "<li>" + escaped(fact) + "</li>\n";
  page += "</ul>\n";
  std::vector<std::string> emulated;
  for (const Row* row : rows_that_ran(rows)) {
    for (const std::string& name : row->median().emulated) {
      if (std::ranges::find(emulated, name) == emulated.end()) emulated.push_back(name);
    }
  }
  if (!emulated.empty()) {
    page += fmt::format(
        "<p class=\"note\"><strong>Emulated: {}.</strong> These numbers compare policies with each "
        "other; they are not the speed of any device.</p>\n",
        escaped(fmt::format("{}", fmt::join(emulated, ", "))));
  }
  if (!rows_that_ran(rows).empty()) {
    page += throughput(rows) + lanes(rows) + memory(rows) + moved(rows) + agreements(rows);
  }
  return page + table(rows) + "</body></html>\n";
}

}  // namespace triphase::compare

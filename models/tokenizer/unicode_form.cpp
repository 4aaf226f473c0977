#include <utf8proc.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "base/error.h"
#include "base/utf8.h"
#include "models/tokenizer/normalizer.h"

namespace triphase {
namespace {

struct Range {
  utf8proc_int32_t first;
  utf8proc_int32_t last;
};

// Characters with a combining class or a decomposition that Unicode 9 did not have, up to Unicode
// 15 (utf8proc's tables). Found by comparing utf8proc with tokenizers over all code points.
constexpr Range kYoung[] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},
    {0xC3C, 0xC3C},     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},
    {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},   {0x32FF, 0x32FF},   {0xA7F2, 0xA7F4},
    {0xA82C, 0xA82C},   {0xAB69, 0xAB69},   {0x10781, 0x10785}, {0x10787, 0x107B0},
    {0x107B2, 0x107BA}, {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF},
    {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B},
    {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11930, 0x11930}, {0x11938, 0x11938},
    {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34},
    {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45},
    {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x16FF0, 0x16FF1}, {0x1E030, 0x1E06D},
    {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF},
    {0x1E4EC, 0x1E4EF}, {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9}};

bool is_young(utf8proc_int32_t code_point) {
  const Range* range =
      std::lower_bound(std::begin(kYoung), std::end(kYoung), code_point,
                       [](const Range& entry, utf8proc_int32_t c) { return entry.last < c; });
  return range != std::end(kYoung) && range->first <= code_point;
}

int combining_class(utf8proc_int32_t code_point) {
  const auto combining = static_cast<int>(utf8proc_get_property(code_point)->combining_class);
  return combining != 0 && is_young(code_point) ? 0 : combining;
}

// Full decomposition, combining marks in canonical order.
std::vector<utf8proc_int32_t> decompose(std::string_view text, bool compatibility) {
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_STABLE |
                                                      (compatibility ? UTF8PROC_COMPAT : 0));
  std::vector<utf8proc_int32_t> out;
  out.reserve(text.size());
  std::size_t position = 0;
  while (position < text.size()) {
    const std::size_t length = utf8_sequence_length(text, position);
    TRIPHASE_CHECK(length != 0, "text to normalize is not UTF-8");
    const auto code_point = static_cast<utf8proc_int32_t>(decode_utf8(text, position, length));
    position += length;
    if (is_young(code_point)) {
      out.push_back(code_point);
      continue;
    }
    utf8proc_int32_t parts[32];  // the longest decomposition in Unicode has 18
    int boundary = 0;
    const utf8proc_ssize_t count =
        utf8proc_decompose_char(code_point, parts, 32, options, &boundary);
    TRIPHASE_CHECK(count >= 0 && count <= 32, "decomposition too long");
    out.insert(out.end(), parts, parts + count);
  }
  for (auto run = out.begin(); run != out.end();) {
    run = std::find_if(run, out.end(), [](auto c) { return combining_class(c) != 0; });
    const auto end = std::find_if(run, out.end(), [](auto c) { return combining_class(c) == 0; });
    std::stable_sort(run, end,
                     [](auto a, auto b) { return combining_class(a) < combining_class(b); });
    run = end;
  }
  return out;
}

// Canonical composition in place. A young character composes with nothing and lets nothing compose
// across it, so the stretches between them are composed one by one.
void compose(std::vector<utf8proc_int32_t>& points) {
  std::size_t kept = 0;
  for (std::size_t begin = 0; begin < points.size();) {
    std::size_t end = begin;
    while (end < points.size() && !is_young(points[end])) ++end;
    if (end > begin) {
      const utf8proc_ssize_t count = utf8proc_normalize_utf32(
          points.data() + begin, static_cast<utf8proc_ssize_t>(end - begin),
          static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
      TRIPHASE_CHECK(count >= 0, "composition failed");
      std::copy_n(points.begin() + static_cast<std::ptrdiff_t>(begin), count,
                  points.begin() + static_cast<std::ptrdiff_t>(kept));
      kept += static_cast<std::size_t>(count);
    }
    if (end < points.size()) points[kept++] = points[end++];
    begin = end;
  }
  points.resize(kept);
}

}  // namespace

std::string unicode_normalized(std::string_view text, UnicodeForm form) {
  const bool compatibility = form == UnicodeForm::kNfkc || form == UnicodeForm::kNfkd;
  std::vector<utf8proc_int32_t> points = decompose(text, compatibility);
  if (form == UnicodeForm::kNfc || form == UnicodeForm::kNfkc) compose(points);
  std::string out;
  out.reserve(text.size());
  for (const utf8proc_int32_t point : points) append_utf8(static_cast<char32_t>(point), out);
  return out;
}

}  // namespace triphase

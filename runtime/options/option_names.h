#pragma once

// One name table per option enum: parsing, printing and messages use the same words.

#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "runtime/options/run_options.h"

namespace triphase {

template <class Enum, std::size_t count>
using NameTable = std::array<std::pair<std::string_view, Enum>, count>;

inline constexpr NameTable<InputFormat, 4> kInputFormatNames = {{{"auto", InputFormat::kAuto},
                                                                 {"jsonl", InputFormat::kJsonl},
                                                                 {"openai", InputFormat::kOpenAi},
                                                                 {"ids", InputFormat::kIds}}};
inline constexpr NameTable<Truncate, 3> kTruncateNames = {
    {{"none", Truncate::kNone}, {"left", Truncate::kLeft}, {"right", Truncate::kRight}}};
inline constexpr NameTable<RecordOrder, 2> kOrderNames = {
    {{"input", RecordOrder::kInput}, {"completed", RecordOrder::kCompleted}}};
inline constexpr NameTable<RecomputeMode, 3> kRecomputeNames = {
    {{"auto", RecomputeMode::kAuto}, {"on", RecomputeMode::kOn}, {"off", RecomputeMode::kOff}}};
inline constexpr NameTable<ResumeMode, 3> kResumeNames = {{{"auto", ResumeMode::kAuto},
                                                           {"never", ResumeMode::kNever},
                                                           {"require", ResumeMode::kRequire}}};
inline constexpr NameTable<ProgressMode, 4> kProgressNames = {{{"auto", ProgressMode::kAuto},
                                                               {"off", ProgressMode::kOff},
                                                               {"plain", ProgressMode::kPlain},
                                                               {"json", ProgressMode::kJson}}};
inline constexpr NameTable<LogFormat, 2> kLogFormatNames = {
    {{"text", LogFormat::kText}, {"json", LogFormat::kJson}}};
inline constexpr NameTable<WeightOptions::Check, 3> kCheckWeightsNames = {
    {{"on", WeightOptions::Check::kRefuse},
     {"warn", WeightOptions::Check::kWarn},
     {"off", WeightOptions::Check::kOff}}};

// The value of a name, or nothing.
template <class Enum, std::size_t count>
[[nodiscard]] constexpr std::optional<Enum> value_of(const NameTable<Enum, count>& table,
                                                     std::string_view name) {
  for (const auto& [known, value] : table) {
    if (known == name) return value;
  }
  return std::nullopt;
}

template <class Enum, std::size_t count>
[[nodiscard]] constexpr std::string_view name_of(const NameTable<Enum, count>& table, Enum value) {
  for (const auto& [name, known] : table) {
    if (known == value) return name;
  }
  return "?";
}

}  // namespace triphase

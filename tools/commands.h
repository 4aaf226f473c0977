#pragma once

// The commands behind `triphase COMMAND`. Each takes the arguments after its name and returns the
// exit code; errors leave as exceptions and are reported once, by main.

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "runtime/log.h"
#include "runtime/options/option_parser.h"
#include "runtime/options/run_options.h"

namespace triphase {

using Arguments = std::vector<std::string>;

[[nodiscard]] int cmd_run(const Arguments& arguments, std::unique_ptr<Log>& log);
[[nodiscard]] int cmd_compare(const Arguments& arguments, std::unique_ptr<Log>& log);
[[nodiscard]] int cmd_score(const Arguments& arguments, std::unique_ptr<Log>& log);
[[nodiscard]] int cmd_eval(const Arguments& arguments, std::unique_ptr<Log>& log);
[[nodiscard]] int cmd_profile(const Arguments& arguments, std::unique_ptr<Log>& log);
[[nodiscard]] int cmd_plan(const Arguments& arguments, std::unique_ptr<Log>& log);
[[nodiscard]] int cmd_simulate(const Arguments& arguments, std::unique_ptr<Log>& log);
[[nodiscard]] int cmd_inspect(const Arguments& arguments, std::unique_ptr<Log>& log);
[[nodiscard]] int cmd_doctor(const Arguments& arguments, std::unique_ptr<Log>& log);
[[nodiscard]] int cmd_bench(const Arguments& arguments, std::unique_ptr<Log>& log);
[[nodiscard]] int cmd_cluster(const Arguments& arguments, std::unique_ptr<Log>& log);
[[nodiscard]] int cmd_merge(const Arguments& arguments, std::unique_ptr<Log>& log);

// Parses by the option table and replaces `log` by one with the command's settings.
[[nodiscard]] OptionValues begin_command(std::string_view name, const Arguments& arguments,
                                         std::unique_ptr<Log>& log);

// Writes to stdout. A reader that went away ends the output quietly (SIGPIPE is ignored); any other
// failure throws E-IO-WRITE.
void print(std::string_view text);

// The folder of --output. One that was made here goes again if it stays empty, as when the command
// is refused later on. Throws E-IO-OPEN.
class OutputFolder {
 public:
  explicit OutputFolder(const std::filesystem::path& path);
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

 private:
  std::filesystem::path path_;
  int made_ = 0;  // of its last parts
};

// generate(), and its exit code. With --output - the job writes into a folder of its own, which
// goes with the process, and OUT is printed once it is complete.
[[nodiscard]] int run_job(RunOptions options, Log& log);

// "a,b" -> "a", "b"; an empty text is one empty part.
[[nodiscard]] std::vector<std::string> split_list(const std::string& text);
// The parts of --`option`, each as `read` has it, which returns nothing for a bad one. Throws
// E-CLI-OPTION.
template <class T, class Read>
[[nodiscard]] std::vector<T> option_list(const OptionValues& values, std::string_view option,
                                         std::string_view expected, const Read& read) {
  std::vector<T> list;
  for (const std::string& part : split_list(values.text(option))) {
    std::optional<T> value = read(part);
    if (!value) {
      throw Error(ErrorRole::kUsage, "E-CLI-OPTION", "--" + std::string(option))
          .found(part)
          .expected(expected);
    }
    list.push_back(*std::move(value));
  }
  return list;
}
// The integers of --`option`, each from `low` to `high`. Throws E-CLI-OPTION.
[[nodiscard]] std::vector<std::int64_t> integer_list(const OptionValues& values,
                                                     std::string_view option, std::int64_t low,
                                                     std::int64_t high);
// Throws E-CLI-OPTION where a word or number is twice in the list of --`option`.
void refuse_repeats(std::string_view option, const std::vector<std::string>& list);
// The words of the list option --`list`, each one of the choices of run's --`option`; with
// `labelled` perhaps followed by a colon and a label (letters, digits, - and _). Throws
// E-CLI-OPTION.
[[nodiscard]] std::vector<std::string> option_choices(const OptionValues& values, const char* list,
                                                      const char* option, bool labelled = false);
// By policy its NAME=VALUEs: those of --policy-option POLICY.NAME=VALUE. Throws E-CLI-OPTION for a
// policy that is not among `policies`.
[[nodiscard]] std::map<std::string, std::vector<std::string>> policy_options(
    const OptionValues& values, const std::vector<std::string>& policies);

}  // namespace triphase

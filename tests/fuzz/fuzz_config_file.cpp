// A --config file: what is accepted is a value of each option's type, and the job's options or a
// refusal come of it.

#include "runtime/options/parse_run_options.h"
#include "tests/fuzz/fuzz_support.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace triphase;
  const std::string path = scratch_file("job.conf", as_text(data, size));
  const CommandSpec& command = *find_command("run");
  const Environment environment = [](const char*) -> const char* { return nullptr; };
  const auto values = accepted(ErrorRole::kUsage, [&] {
    return parse_options(command, {"--model=m", "--prompts=p", "--output=o", "--config=" + path},
                         environment);
  });
  if (!values) return 0;
  require(values->text("model") == "m" && values->text("output") == "o");
  for (const auto& [name, value] : values->all()) {
    const OptionSpec& option = *find_option(command, name);
    require(value.texts.size() <= 1 || option.repeatable);
    for (const std::string& text : value.texts) {
      require(!text.empty() || value.origin == "default");
      if (option.type == OptionType::kInteger) require(read_integer(text).has_value());
      if (option.type == OptionType::kSize) require(read_size(text).has_value());
    }
  }
  (void)accepted(ErrorRole::kUsage, [&] { return parse_run_options(*values, environment); });
  return 0;
}

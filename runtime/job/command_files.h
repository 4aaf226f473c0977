#pragma once

// The files that a command reads and those it writes, as its command line names them. One check for
// every command: no output is an input, another output, a directory, a link or a special file, and
// each has a directory that can be written. Plain values; opens nothing.

#include <string>
#include <vector>

#include "runtime/job/file_ops.h"

namespace triphase {

class CommandFiles {
 public:
  // `option` is how messages name the file: "--prompts". A directory stands for the model files in
  // it. What is not there does no harm.
  void add_input(std::string option, std::string path);
  void add_output(std::string option, std::string path, OutputKind kind = OutputKind::kFile);
  // Files that come to lie beside an output, or inside of an output directory.
  void add_companions(const std::string& option, const std::vector<std::string>& paths);

  // Throws E-CLI-OUTPUT (usage) for the first output that must not be written, E-IO-OPEN where its
  // directory is missing or not writable.
  void check() const;

 private:
  struct Input {
    std::string option;
    std::string path;
  };
  struct Output {
    std::string option;
    std::string path;
    OutputKind kind;
    bool companion;
  };

  void check_target(const Output& output) const;
  void check_inputs(const Output& output) const;
  void check_others(const Output& output) const;

  std::vector<Input> inputs_;
  std::vector<Output> outputs_;
};

}  // namespace triphase

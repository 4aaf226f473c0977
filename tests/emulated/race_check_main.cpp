// Runs the tests it is linked with and writes the kernels they launched, one a line with the most
// threads of a block, into the file given. Fails where the kernels do not announce their accesses.

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "tests/emulated/race_check.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc != 2 || !triphase::emulated::race::active()) {
    std::fputs("usage: race_check_NAME LAUNCHED, with kernels compiled for the race check\n",
               stderr);
    return 2;
  }
  const int failed = RUN_ALL_TESTS();
  std::ofstream launched(argv[1]);
  for (const auto& [kernel, threads] : triphase::emulated::race::launched_kernels()) {
    launched << kernel << ' ' << threads << '\n';
  }
  launched.close();
  return failed != 0 || !launched ? 1 : 0;
}

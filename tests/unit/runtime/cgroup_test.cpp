// What control groups leave to this process, read from a folder that stands for /sys/fs/cgroup.

#include "runtime/cgroup.h"

#include <gtest/gtest.h>

#include "job_fixture.h"
#include "runtime/machine.h"

namespace triphase {
namespace {

using testing::TempFolder;

class CgroupTest : public ::testing::Test {
 protected:
  void write(const std::string& name, std::string_view text) {
    const std::string path = folder_ / name;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    testing::write_text(path, text);
  }
  void write_memory(const std::string& group, const std::string& limit, const std::string& usage) {
    write(group + "/memory.max", limit + "\n");
    write(group + "/memory.current", usage + "\n");
  }
  [[nodiscard]] std::optional<std::uint64_t> memory() const { return cgroup_memory_left(files_); }
  [[nodiscard]] std::optional<std::int64_t> cores() const { return cgroup_cores(files_); }

  TempFolder folder_;
  CgroupFiles files_{.mount = folder_ / "mount", .own_groups = folder_ / "own"};
};

TEST_F(CgroupTest, NothingIsKnownWithoutFiles) {
  EXPECT_EQ(memory(), std::nullopt);
  EXPECT_EQ(cores(), std::nullopt);
  write("own", "no line of the kernel\n0::odd\n");
  EXPECT_EQ(memory(), std::nullopt);
}

TEST_F(CgroupTest, NoLimitIsNone) {
  write("own", "0::/a\n");
  write_memory("mount/a", "max", "1000");
  write("mount/a/cpu.max", "max 100000\n");
  write("mount/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("mount/memory/memory.usage_in_bytes", "1000\n");
  write("mount/cpu/cpu.cfs_quota_us", "-1\n");
  write("mount/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(memory(), std::nullopt);
  EXPECT_EQ(cores(), std::nullopt);
}

TEST_F(CgroupTest, TheLeastOfAGroupAndItsParentsCounts) {
  write("own", "0::/a/b\n");
  write_memory("mount/a/b", "5000", "1000");
  EXPECT_EQ(memory(), 4000U);
  write_memory("mount/a", "9000", "6000");
  EXPECT_EQ(memory(), 3000U);
  write_memory("mount/a/b", "5000", "6000");
  EXPECT_EQ(memory(), 0U) << "the limit was lowered below the usage";

  write("mount/a/b/cpu.max", "800000 100000\n");
  EXPECT_EQ(cores(), 8);
  write("mount/a/cpu.max", "250000 100000\n");
  EXPECT_EQ(cores(), 3) << "rounded up";
  write("mount/cpu.max", "50000 100000\n");
  EXPECT_EQ(cores(), 1);
}

TEST_F(CgroupTest, AContainerSeesItsOwnGroupAsTheRoot) {
  write("own", "0::/docker/0123\n");
  write_memory("mount", "5000", "1000");
  write("mount/cpu.max", "200000 100000\n");
  EXPECT_EQ(memory(), 4000U);
  EXPECT_EQ(cores(), 2);
}

TEST_F(CgroupTest, UnusedPageCacheIsLeft) {
  write("own", "0::/\n");
  write_memory("mount", "64000", "60000");
  write("mount/memory.stat", "anon 1000\ninactive_file 58000\nactive_file 1000\n");
  EXPECT_EQ(memory(), 62000U);
  // The files are not read at one moment.
  write("mount/memory.stat", "inactive_file 61000\n");
  EXPECT_EQ(memory(), 64000U);

  write("mount/memory/memory.limit_in_bytes", "50000\n");
  write("mount/memory/memory.usage_in_bytes", "40000\n");
  write("mount/memory/memory.stat", "inactive_file 1000\ntotal_inactive_file 30000\n");
  EXPECT_EQ(memory(), 40000U) << "v1 has the whole of a group under total_";
}

TEST_F(CgroupTest, QuotasOfVersionOneCount) {
  write("own", "5:memory:/m\n4:cpuacct,cpu:/a/b\n0::/other\n");
  write("mount/cpu/a/cpu.cfs_quota_us", "150000\n");
  write("mount/cpu/a/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cores(), 2);
  write("mount/cpu/a/b/cpu.cfs_quota_us", "100000\n");
  write("mount/cpu/a/b/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cores(), 1);
}

TEST(Machine, HasMemoryAndCoresForThisProcess) {
  const MachineInfo machine = inspect_machine();
  EXPECT_GT(usable_host_memory(), 0U);
  EXPECT_LE(usable_host_memory(), machine.memory_total);
  EXPECT_GE(machine.usable_cores, 1);
  EXPECT_LE(machine.usable_cores, cgroup_cores().value_or(machine.usable_cores));
}

}  // namespace
}  // namespace triphase

#pragma once

// Memory that can be closed: whoever touches it then dies of SIGSEGV at that line. A block ends
// where pages begin that are never open. Large blocks lie in large pages where the system has them:
// opening and closing 50 MiB of small ones took a third of a job's time on the emulated device.

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>

namespace triphase::emulated {

class ClosedPages {
 public:
  // Open, and filled with 0xFF up to its end; `alignment` is a power of two below a page's bytes.
  ClosedPages(std::size_t bytes, std::size_t alignment)
      : bytes_(round_up(bytes < 1 ? 1 : bytes, alignment)) {
    constexpr std::size_t kLargePage = std::size_t{2} << 20;
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t step = bytes_ < kLargePage ? page : kLargePage;
    opened_bytes_ = round_up(bytes_, step);
    mapped_bytes_ = opened_bytes_ + 2 * step;
    mapped_ =
        mmap(nullptr, mapped_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped_ == MAP_FAILED) throw std::bad_alloc();
    const std::size_t first = reinterpret_cast<std::uintptr_t>(mapped_) % step;
    opened_ = static_cast<std::byte*>(mapped_) + step - first;
    if (step == kLargePage) madvise(opened_, opened_bytes_, MADV_HUGEPAGE);
    protect(PROT_READ | PROT_WRITE);
    std::memset(data(), 0xFF, bytes_);
  }
  ClosedPages(const ClosedPages&) = delete;
  ClosedPages& operator=(const ClosedPages&) = delete;
  ~ClosedPages() { munmap(mapped_, mapped_bytes_); }

  [[nodiscard]] std::byte* data() const { return opened_ + opened_bytes_ - bytes_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  // protection: PROT_NONE closes it.
  void protect(int protection) const { mprotect(opened_, opened_bytes_, protection); }

 private:
  static std::size_t round_up(std::size_t bytes, std::size_t step) {
    return (bytes + step - 1) / step * step;
  }

  std::size_t bytes_;
  void* mapped_ = nullptr;
  std::size_t mapped_bytes_ = 0;
  std::byte* opened_ = nullptr;
  std::size_t opened_bytes_ = 0;
};

}  // namespace triphase::emulated

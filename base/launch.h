#pragma once

// A kernel on its way to a GPU. Wrappers describe each launch as a value; the queue of the stream
// runs it at once or as a part of a graph (memory/launch_graphs.h). A library's call, such as a
// matrix product, takes the same way.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>

struct CUstream_st;

namespace triphase {

struct Launch {
  using Thread = void (*)(const void* kernel, const std::byte* arguments);
  using Call = void (*)(const std::byte* arguments, CUstream_st* stream);

  const void* kernel = nullptr;  // its address on the host; null: a library's call
  const char* name = "";         // for errors; a literal
  std::array<std::uint32_t, 3> grid{1, 1, 1};
  std::array<std::uint32_t, 3> block{1, 1, 1};
  std::size_t shared_bytes = 0;          // dynamic
  std::span<const std::byte> arguments;  // what the kernel or the call takes, aligned to 16
  std::span<const std::size_t> offsets;  // a kernel's: where each of its values begins
  Thread thread = nullptr;  // one thread of the kernel, where the host runs it; null on a GPU
  Call call = nullptr;      // of a library; a call of equal arguments does the same work
  // It may run at the same time as the launch added before it: neither needs the other's results.
  bool beside = false;
};

class LaunchQueue {
 public:
  virtual ~LaunchQueue() = default;
  // After all that the stream has been given, but for Launch::beside. Copies what `launch` points
  // to.
  virtual void add(const Launch& launch) = 0;
  // The next launch is the first of a step; it and those that follow are likely those of the steps
  // before.
  virtual void begin_step() = 0;
};

inline constexpr std::size_t kLaunchAlignment = 16;

// Values behind each other as a launch takes them; bytes between them are zero.
template <class... Values>
class LaunchArguments {
  static_assert((std::is_trivially_copyable_v<Values> && ...));
  static_assert(((alignof(Values) <= kLaunchAlignment) && ...));
  static constexpr std::size_t kCount = sizeof...(Values);

  // The last one is where all of them end.
  static constexpr std::array<std::size_t, kCount + 1> make_offsets() {
    std::array<std::size_t, kCount + 1> offsets{};
    std::size_t at = 0;
    std::size_t value = 0;
    ((at = (at + alignof(Values) - 1) / alignof(Values) * alignof(Values), offsets[value++] = at,
      at += sizeof(Values)),
     ...);
    offsets[kCount] = at;
    return offsets;
  }

 public:
  static constexpr std::array<std::size_t, kCount + 1> kOffsets = make_offsets();

  explicit LaunchArguments(const Values&... values) {
    std::size_t value = 0;
    (std::memcpy(bytes_ + kOffsets[value++], &values, sizeof(Values)), ...);
  }

  [[nodiscard]] std::span<const std::byte> bytes() const { return {bytes_, kOffsets[kCount]}; }
  [[nodiscard]] static std::span<const std::size_t> offsets() { return {kOffsets.data(), kCount}; }

  // From bytes() of an object of this type.
  [[nodiscard]] static std::tuple<Values...> read(const std::byte* bytes) {
    return read_each(bytes, std::index_sequence_for<Values...>());
  }

 private:
  template <class Value>
  static Value read_one(const std::byte* from) {
    Value value;
    std::memcpy(&value, from, sizeof(Value));
    return value;
  }
  template <std::size_t... kValues>
  static std::tuple<Values...> read_each(const std::byte* bytes, std::index_sequence<kValues...>) {
    return {read_one<Values>(bytes + kOffsets[kValues])...};
  }

  alignas(kLaunchAlignment) std::byte bytes_[std::max<std::size_t>(kOffsets[kCount], 1)] = {};
};

// A library's call that depends on `values` alone: kFunction(values..., stream).
template <auto kFunction, class... Values>
void add_call(LaunchQueue& queue, const char* name, const Values&... values) {
  const LaunchArguments<Values...> arguments(values...);
  Launch launch;
  launch.name = name;
  launch.arguments = arguments.bytes();
  launch.call = [](const std::byte* bytes, CUstream_st* stream) {
    std::apply([stream](const Values&... read) { kFunction(read..., stream); },
               LaunchArguments<Values...>::read(bytes));
  };
  queue.add(launch);
}

}  // namespace triphase

#pragma once

// What wrappers launch on: the queue of a stream's launches.

namespace triphase {
class LaunchQueue;
}  // namespace triphase

namespace triphase::cuda {

// Null, in tests of kernels alone: a launch runs at once.
using StreamHandle = LaunchQueue*;

}  // namespace triphase::cuda

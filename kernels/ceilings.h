#pragma once

// What a device can do at most, as measured. Reported speeds are compared with it.

namespace triphase {

struct Ceilings {
  double read_bytes_per_second = 0.0;  // a sum over far more bytes than any cache holds
  double copy_bytes_per_second = 0.0;  // within the device; bytes read plus bytes written
  double fma_flops = 0.0;              // F32 multiply-adds in registers, two operations each
};

}  // namespace triphase

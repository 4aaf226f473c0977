#pragma once

// Runs code that must throw a triphase::Error and hands the error back.

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "base/error.h"

namespace triphase {

template <class Body>
Error thrown_by(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return Error(ErrorRole::kInternal, "none", "none");
}

// Code and a part of the message.
inline void expect_error(const Error& error, const std::string& code, const std::string& text) {
  EXPECT_EQ(error.code(), code) << error.message();
  EXPECT_NE(error.message().find(text), std::string::npos) << error.message();
}

}  // namespace triphase

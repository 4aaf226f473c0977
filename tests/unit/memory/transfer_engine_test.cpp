#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>
#include <vector>

#include "base/error.h"
#include "memory/transfer/host_transfer_engine.h"

namespace triphase {
namespace {

using Bytes = std::vector<std::byte>;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Tiers {
  static constexpr std::int64_t kPages = 4;
  static constexpr std::int64_t kTokens = 8;
  static constexpr std::int64_t kHeads = 3;
  static constexpr std::int64_t kHeadBytes = 10;

  Tiers() {
    std::mt19937 random(1);
    for (Bytes* bytes : {&k, &v, &host}) {
      for (std::byte& byte : *bytes) byte = static_cast<std::byte>(random());
    }
  }
  KvGeometry geometry() {
    return {.device_k = k.data(),
            .device_v = v.data(),
            .host = host.data(),
            .page_tokens = kTokens,
            .kv_heads = kHeads,
            .head_bytes = kHeadBytes};
  }
  // One token's K and V of one head, as they lie on the device.
  [[nodiscard]] Bytes device_token(std::int64_t slot, std::int64_t head) const {
    const auto at = static_cast<std::ptrdiff_t>(
        ((slot / kTokens * kHeads + head) * kTokens + slot % kTokens) * kHeadBytes);
    Bytes token(2 * kHeadBytes);
    std::copy_n(k.begin() + at, kHeadBytes, token.begin());
    std::copy_n(v.begin() + at, kHeadBytes, token.begin() + kHeadBytes);
    return token;
  }
  [[nodiscard]] Bytes host_token(std::int64_t record, std::int64_t head) const {
    const auto at = static_cast<std::ptrdiff_t>((record * kHeads + head) * 2 * kHeadBytes);
    return {host.begin() + at, host.begin() + at + 2 * kHeadBytes};
  }

  Bytes k = Bytes(kPages * kTokens * kHeads * kHeadBytes);
  Bytes v = Bytes(kPages * kTokens * kHeads * kHeadBytes);
  Bytes host = Bytes(kPages * kTokens * kHeads * 2 * kHeadBytes);
};

TEST(HostTransferEngine, MovesTokensBothWaysAndNothingElse) {
  Tiers tiers;
  const Tiers before = tiers;
  HostTransferEngine engine(std::nullopt);
  const std::vector<TokenRun> out = {
      {.slot = 9, .record = 2, .count = 5, .head_count = 3},
      {.slot = 0, .record = 20, .count = 1, .head_begin = 1, .head_count = 1}};
  engine.wait(engine.move_tokens(Lane::kToHost, tiers.geometry(), out));
  EXPECT_EQ(tiers.k, before.k);
  EXPECT_EQ(tiers.v, before.v);
  for (std::int64_t record = 0; record < 32; ++record) {
    for (std::int64_t head = 0; head < 3; ++head) {
      const bool first = record >= 2 && record < 7;
      const bool second = record == 20 && head == 1;
      EXPECT_EQ(tiers.host_token(record, head), first    ? before.device_token(9 + record - 2, head)
                                                : second ? before.device_token(0, 1)
                                                         : before.host_token(record, head));
    }
  }
  const std::vector<TokenRun> back = {{.slot = 24, .record = 3, .count = 2, .head_count = 3}};
  engine.wait(engine.move_tokens(Lane::kToDevice, tiers.geometry(), back));
  EXPECT_EQ(tiers.device_token(25, 2), before.device_token(11, 2));
  EXPECT_EQ(tiers.device_token(26, 2), before.device_token(26, 2));
  EXPECT_EQ(engine.stats(Lane::kToHost).bytes, (5U * 3U + 1U) * 20U);
  EXPECT_EQ(engine.stats(Lane::kToHost).records, 2U);
  EXPECT_EQ(engine.stats(Lane::kToDevice).bytes, 2U * 3U * 20U);
}

TEST(HostTransferEngine, PacesATransferToTheEmulatedLink) {
  Bytes from(1 << 20);
  Bytes to(from.size());
  HostTransferEngine engine(EmulatedLink{.bytes_per_second = 50e6, .seconds_per_record = 1e-3});
  const double alone = static_cast<double>(from.size()) / 50e6 + 1e-3;
  const auto start = Clock::now();
  const Ticket ticket = engine.move_bytes(Lane::kToDevice, to.data(), from.data(), from.size());
  const bool done = engine.done(ticket);
  // A test that waited for the processor may ask too late.
  EXPECT_TRUE(!done || seconds_since(start) >= alone);
  engine.wait(ticket);
  EXPECT_GE(seconds_since(start), alone);
  EXPECT_TRUE(engine.done(ticket));
}

// While one lane sleeps the other moves. A busy machine may let one lane's thread wait for as long
// as the other's transfer takes: lanes that take turns never overlap, others do soon.
TEST(HostTransferEngine, TheLanesRunBesideEachOther) {
  Bytes from(1 << 18);
  Bytes to(from.size());
  Bytes other(from.size());
  HostTransferEngine engine(EmulatedLink{.bytes_per_second = 50e6, .seconds_per_record = 1e-3});
  Trace trace;
  std::vector<TraceEvent> spans;
  trace.set_sink([&](const std::vector<TraceEvent>& events) { spans = events; });
  engine.set_trace(&trace);
  bool beside = false;
  for (int attempt = 0; attempt < 200 && !beside; ++attempt) {
    const Ticket in = engine.move_bytes(Lane::kToDevice, to.data(), from.data(), from.size());
    const Ticket out = engine.move_bytes(Lane::kToHost, other.data(), from.data(), from.size());
    engine.wait(in);
    engine.wait(out);
    trace.flush();
    ASSERT_EQ(spans.size(), 2U);
    EXPECT_NE(spans[0].lane, spans[1].lane);
    beside = spans[0].begin < spans[1].end && spans[1].begin < spans[0].end;
  }
  EXPECT_TRUE(beside);
}

TEST(HostTransferEngine, CountsNeighboursAsOnePiece) {
  Tiers tiers;
  HostTransferEngine engine(std::nullopt);
  // Records 2..6 and 7, then heads 0 and 1 of record 8: one piece; record 20 is another.
  const std::vector<TokenRun> runs = {{.slot = 0, .record = 2, .count = 5, .head_count = 3},
                                      {.slot = 9, .record = 7, .count = 1, .head_count = 3},
                                      {.slot = 12, .record = 8, .count = 1, .head_count = 2},
                                      {.slot = 16, .record = 20, .count = 1, .head_count = 3}};
  engine.wait(engine.move_tokens(Lane::kToDevice, tiers.geometry(), runs));
  EXPECT_EQ(engine.stats(Lane::kToDevice).records, 2U);
}

// Each goes to its own slot; those that follow each other on the host are one piece of it.
TEST(HostTransferEngine, BringsNamedPartsInTheOrderOfTheHost) {
  Tiers tiers;
  HostTransferEngine engine(std::nullopt);
  const std::vector<std::int32_t> slots = {20, 3, 9};
  const std::vector<std::int32_t> records = {5, 5, 8};
  const std::vector<std::int32_t> heads = {1, 0, 2};
  const std::vector<std::int32_t> widths = {1, 1, 1};
  const std::int32_t count = 3;
  EXPECT_TRUE(engine.reaches(tiers.host.data(), tiers.host.size()));
  const MissingTokens missing{.slots = slots.data(),
                              .records = records.data(),
                              .first_heads = heads.data(),
                              .head_counts = widths.data(),
                              .count = &count,
                              .most = count};
  engine.wait(engine.bring(tiers.geometry(), [&](Stream* lane) {
    EXPECT_EQ(lane, nullptr);
    return missing;
  }));
  for (std::size_t i = 0; i < slots.size(); ++i) {
    EXPECT_EQ(tiers.device_token(slots[i], heads[i]), tiers.host_token(records[i], heads[i]));
  }
  EXPECT_EQ(engine.stats(Lane::kToDevice).records, 2U);
  EXPECT_EQ(engine.stats(Lane::kToDevice).bytes, 3U * 2 * Tiers::kHeadBytes);
}

// A token's codes go through its KV heads, of which the last one gets what is left; its scale goes
// to where its V will be. Nothing else changes.
TEST(HostTransferEngine, BringsHiddenStatesByteAfterByteThroughTheHeads) {
  constexpr std::int64_t kWidth = 2 * Tiers::kHeadBytes + 4;
  constexpr std::int64_t kBlock = Tiers::kTokens * (kWidth + 4);
  Bytes saved(2 * kBlock);
  std::mt19937 random(2);
  for (std::byte& byte : saved) byte = static_cast<std::byte>(random());
  Tiers tiers;
  Bytes k = tiers.k;
  Bytes v = tiers.v;
  const std::vector<RecomputedToken> tokens = {{.slot = 20, .input = 3}, {.slot = 9, .input = 10}};
  for (const RecomputedToken& token : tokens) {
    const std::byte* block = saved.data() + token.input / Tiers::kTokens * kBlock;
    const std::int64_t offset = token.input % Tiers::kTokens;
    const std::int64_t page = token.slot / Tiers::kTokens * Tiers::kHeads;
    const auto line = [&](std::int64_t head) {
      return ((page + head) * Tiers::kTokens + token.slot % Tiers::kTokens) * Tiers::kHeadBytes;
    };
    for (std::int64_t c = 0; c < kWidth; ++c) {
      k[static_cast<std::size_t>(line(c / Tiers::kHeadBytes) + c % Tiers::kHeadBytes)] =
          block[offset * kWidth + c];
    }
    std::copy_n(block + Tiers::kTokens * kWidth + offset * 4, 4, v.begin() + line(0));
  }
  HostTransferEngine engine(std::nullopt);
  const auto count = static_cast<std::int32_t>(tokens.size());
  engine.wait(engine.bring_inputs(tiers.geometry(), {saved.data(), kWidth},
                                  {.tokens = tokens.data(), .count = &count, .most = count}));
  EXPECT_EQ(tiers.k, k);
  EXPECT_EQ(tiers.v, v);
}

TEST(TransferSize, RefusesRunsThatCrossAPage) {
  Tiers tiers;
  const std::vector<TokenRun> runs = {
      {.slot = Tiers::kTokens - 1, .record = 0, .count = 2, .head_count = 3}};
  EXPECT_THROW((void)transfer_size(tiers.geometry(), runs), Error);
}

TEST(HostTransferEngine, AFailureReachesItsTicketAlone) {
  Bytes from(64);
  Bytes to(64);
  HostTransferEngine engine(std::nullopt);
  engine.fail_transfer(2);
  const Ticket good = engine.move_bytes(Lane::kToHost, to.data(), from.data(), from.size());
  const Ticket bad = engine.move_bytes(Lane::kToHost, to.data(), from.data(), from.size());
  const Ticket after = engine.move_bytes(Lane::kToHost, to.data(), from.data(), from.size());
  EXPECT_NO_THROW(engine.wait(good));
  EXPECT_NO_THROW(engine.wait(after));
  try {
    engine.wait(bad);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), "E-DEV-TRANSFER");
    EXPECT_EQ(exit_code(error.role()), 7);
  }
  EXPECT_NO_THROW(engine.wait(bad)) << "thrown once";
}

TEST(HostTransferEngine, PiecesThatFollowEachOtherOnTheHostAreOneRecord) {
  Bytes host(64);
  for (std::size_t i = 0; i < host.size(); ++i) host[i] = static_cast<std::byte>(i);
  Bytes device(64);
  HostTransferEngine engine(std::nullopt);
  EXPECT_EQ(engine.move_pieces(Lane::kToDevice, {}).value, 0U);
  const std::vector<BytePiece> pieces = {{device.data() + 40, host.data() + 8, 4},
                                         {device.data(), host.data() + 12, 4},
                                         {device.data() + 20, host.data() + 60, 2}};
  engine.wait(engine.move_pieces(Lane::kToDevice, pieces));
  EXPECT_EQ(device[40], std::byte{8});
  EXPECT_EQ(device[3], std::byte{15});
  EXPECT_EQ(device[21], std::byte{61});
  EXPECT_EQ(device[4], std::byte{0});
  EXPECT_EQ(engine.stats(Lane::kToDevice).bytes, 10U);
  EXPECT_EQ(engine.stats(Lane::kToDevice).records, 2U);
  EXPECT_EQ(engine.stats(Lane::kToDevice).transfers, 1U);
}

TEST(HostTransferEngine, EndsWithTransfersStillQueued) {
  constexpr std::size_t kTransfers = 1000;  // a tenth of a second each
  const std::byte moved{1};
  Bytes to(kTransfers);
  {
    HostTransferEngine engine(EmulatedLink{.bytes_per_second = 10.0, .seconds_per_record = 0.0});
    for (std::byte& place : to) {
      static_cast<void>(engine.move_bytes(Lane::kToDevice, &place, &moved, 1));
    }
  }
  EXPECT_LT(std::ranges::count(to, moved), static_cast<std::ptrdiff_t>(kTransfers));
}

}  // namespace
}  // namespace triphase

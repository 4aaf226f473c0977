// Clusters, thresholds and the artefact of a fixed context, beside float64 arithmetic and damage.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>

#include "base/content_hash.h"
#include "runtime/context/build_context.h"
#include "runtime/context/calibration.h"
#include "runtime/context/context_facts.h"
#include "runtime/context/context_file.h"
#include "runtime/context/row_clusters.h"
#include "tests/support/paths.h"
#include "tests/unit/runtime/json_schema.h"

namespace triphase {
namespace {

std::vector<float> random_keys(std::int64_t tokens, std::int64_t dim, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> keys(static_cast<std::size_t>(tokens * dim));
  for (float& key : keys) key = normal(random);
  return keys;
}

TEST(ClusterRow, MeansAreOfTheKeysAndGroupsOfTheMeans) {
  constexpr std::int64_t kTokens = 900;
  constexpr std::int64_t kDim = 12;
  std::vector<float> keys = random_keys(kTokens, kDim, 3);
  // Lengths differ, so that a mean of directions would show; some keys are nothing at all.
  for (std::int64_t t = 0; t < kTokens; ++t) {
    const float length = t % 100 == 7 ? 0.0F : 0.1F + static_cast<float>(t % 13);
    for (std::int64_t c = 0; c < kDim; ++c) keys[static_cast<std::size_t>(t * kDim + c)] *= length;
  }
  ThreadPool pool(2);
  const ClusterOptions options{.centroids = 0.05, .coarse_centroids = 0.01, .levels = 2};
  const RowClusters row = cluster_row(pool, keys, kDim, options, 0);
  ASSERT_EQ(row.fine.keys.size(), 45U);
  ASSERT_EQ(row.coarse.keys.size(), 9U);
  for (std::int64_t k = 0; k < 45; ++k) {
    double members = 0.0;
    std::vector<double> mean(kDim);
    for (std::int64_t t = 0; t < kTokens; ++t) {
      if (row.labels[static_cast<std::size_t>(t)] != k) continue;
      members += 1.0;
      for (std::int64_t c = 0; c < kDim; ++c) {
        mean[static_cast<std::size_t>(c)] += keys[static_cast<std::size_t>(t * kDim + c)];
      }
    }
    ASSERT_EQ(row.fine.keys[static_cast<std::size_t>(k)], members);
    for (std::int64_t c = 0; c < kDim; ++c) {
      const double expected = members == 0.0 ? 0.0 : mean[static_cast<std::size_t>(c)] / members;
      ASSERT_NEAR(row.fine.means[static_cast<std::size_t>(k * kDim + c)], expected, 1e-5);
    }
  }
  for (std::int64_t k = 0; k < 9; ++k) {
    double keys_in = 0.0;
    double children = 0.0;
    std::vector<double> mean(kDim);
    for (std::size_t i = 0; i < 45; ++i) {
      if (row.parents[i] != k || row.fine.keys[i] == 0.0F) continue;
      keys_in += row.fine.keys[i];
      children += 1.0;
      for (std::size_t c = 0; c < kDim; ++c) mean[c] += row.fine.means[i * kDim + c];
    }
    ASSERT_EQ(row.coarse.keys[static_cast<std::size_t>(k)], keys_in);
    for (std::size_t c = 0; c < kDim; ++c) {
      ASSERT_NEAR(row.coarse.means[static_cast<std::size_t>(k) * kDim + c],
                  children == 0.0 ? 0.0 : mean[c] / children, 1e-5);
    }
  }
}

TEST(ClusterRow, OneDirectionMakesOneClusterAndEmptyOnes) {
  std::vector<float> keys;
  for (int t = 1; t <= 40; ++t) {
    for (int c = 0; c < 4; ++c) keys.push_back(static_cast<float>(t));
  }
  ThreadPool pool(1);
  const RowClusters row =
      cluster_row(pool, keys, 4, {.centroids = 0.2, .coarse_centroids = 0.1, .levels = 2}, 0);
  ASSERT_EQ(row.fine.keys.size(), 8U);
  EXPECT_EQ(row.fine.keys[0], 40.0F);
  EXPECT_FLOAT_EQ(row.fine.means[0], 20.5F);
  for (std::size_t k = 1; k < 8; ++k) {
    EXPECT_EQ(row.fine.keys[k], 0.0F);
    EXPECT_EQ(row.fine.means[4 * k], 0.0F);
  }
  EXPECT_EQ(row.coarse.keys[static_cast<std::size_t>(row.parents[0])], 40.0F);
  EXPECT_EQ(cluster_count(0.05, 19), 1);
  EXPECT_EQ(cluster_count(0.05, 1687), 84);
}

TEST(WeightedQuantile, IsNumpysOverRepeatedValues) {
  std::mt19937 random(9);
  for (int round = 0; round < 50; ++round) {
    std::vector<WeightedValue> values;
    std::vector<double> all;
    for (unsigned i = 0, n = 1 + random() % 20; i < n; ++i) {
      const auto value = static_cast<float>(random() % 7);
      const unsigned keys = random() % 4;
      values.push_back({value, static_cast<float>(keys)});
      all.insert(all.end(), keys, static_cast<double>(value));
    }
    if (all.empty()) {
      EXPECT_EQ(weighted_quantile(values, 0.5), 0.0);
      continue;
    }
    std::ranges::sort(all);
    for (const double share : {0.0, 0.25, 0.5, 0.9, 0.97, 1.0}) {
      const double place = share * static_cast<double>(all.size() - 1);
      const auto low = static_cast<std::size_t>(place);
      const std::size_t high = std::min(low + 1, all.size() - 1);
      const double expected =
          all[low] + (place - static_cast<double>(low)) * (all[high] - all[low]);
      EXPECT_NEAR(weighted_quantile(values, share), expected, 1e-9);
    }
  }
}

class FixedContextTest : public ::testing::Test {
 protected:
  static constexpr std::int64_t kTokens = 330;

  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) /
              ("fixed_context_" +
               std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()));
    std::filesystem::remove_all(folder_);
    options_.files.model = source_path("bench/shapes/tiny-test/config.json");
    options_.weights.random = true;
    options_.machine.device = "cpu";
    options_.machine.threads = 2;
    options_.machine.kv_dtype = DType::kF32;
    options_.machine.policy = "device-only";
    options_.machine.batch_size = 1;
    options_.machine.prefill_chunk = 64;
    options_.machine.max_context = kTokens;
    options_.machine.device_memory = std::uint64_t{256} << 20;
    options_.attention.kind = AttentionKind::kLocal;
    std::mt19937 random(4);
    for (std::int64_t t = 0; t < kTokens; ++t) {
      tokens_.push_back(static_cast<TokenId>(3 + random() % 500));
    }
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  FixedContext build(const ClusterOptions& clusters, std::int64_t threads = 2) {
    options_.machine.threads = threads;
    model_ = open_model(options_);
    backend_ = Backend::open("cpu", threads);
    const RunPlan plan = plan_run(options_, model_, backend_->machine());
    Log quiet({.verbosity = -1});
    Progress progress(quiet, ProgressMode::kOff);
    const Workplace place{model_, *backend_, progress, quiet};
    LoadedModel loaded(options_, plan, place);
    FixedContext made = build_fixed_context(tokens_, clusters, plan, loaded, place);
    made.text_hash = hash_text("text");
    return made;
  }
  FixedContext read() { return read_fixed_context(folder_, model_.identity, model_.config); }
  std::string read_error() {
    try {
      (void)read();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), "E-IN-CLUSTERS") << error.message();
      EXPECT_EQ(error.role(), ErrorRole::kInput);
      return error.message();
    }
    return "";
  }
  [[nodiscard]] std::string content(std::string_view name) const {
    std::ifstream file(folder_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void put(std::string_view name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }

  std::filesystem::path folder_;
  RunOptions options_;
  std::vector<TokenId> tokens_;
  ModelBundle model_;
  std::unique_ptr<Backend> backend_;
};

constexpr ClusterOptions kSmall{
    .centroids = 0.1, .coarse_centroids = 0.02, .levels = 2, .window = 50};

// The keys of every layer as a second pass over the tokens computes them.
class KeyReader final : public AttentionObserver {
 public:
  void decoded(SequenceId, const LayerCall&, ConstMatrix, std::int64_t,
               const TokenChoice&) override {}
  void prefilled(SequenceId, const LayerCall& call, ConstMatrix) override {
    const KvLayerView& cache = call.cache;
    std::vector<float>& all = keys[static_cast<std::size_t>(call.layer)];
    all.clear();
    for (std::int64_t head = 0; head < cache.kv_heads; ++head) {
      for (std::int64_t t = 0; t < call.keys.context_tokens; ++t) {
        const std::int64_t page =
            call.keys.pages[static_cast<std::size_t>(t / cache.page_tokens)].value;
        const float* at =
            static_cast<const float*>(cache.k) +
            ((page * cache.kv_heads + head) * cache.page_tokens + t % cache.page_tokens) *
                cache.head_dim;
        all.insert(all.end(), at, at + cache.head_dim);
      }
    }
  }
  std::vector<float> keys[2];  // of two layers: [kv_head][token][dim]
};

TEST_F(FixedContextTest, MeansAreOfTheKeysThatTheModelAttends) {
  const FixedContext made = build(kSmall);
  EXPECT_EQ(made.clusters.clustered_tokens, kTokens - 50);
  EXPECT_EQ(made.clusters.fine.count, 28);
  EXPECT_EQ(made.clusters.coarse.count, 5);
  // Once more, in one chunk.
  options_.machine.prefill_chunk = kTokens;
  const RunPlan plan = plan_run(options_, model_, backend_->machine());
  Log quiet({.verbosity = -1});
  Progress progress(quiet, ProgressMode::kOff);
  const Workplace place{model_, *backend_, progress, quiet};
  LoadedModel loaded(options_, plan, place);
  KeyReader reader;
  loaded.decoder.attention().runner()->set_observer(&reader);
  const auto admission = loaded.kv.book().admit(tokens_, kTokens, 0);
  loaded.decoder.attention().begin_sequence(admission.sequence, kTokens, kTokens);
  loaded.kv.book().append(admission.sequence, kTokens);
  const BatchSegment segment{.sequence = admission.sequence, .count = kTokens};
  (void)loaded.decoder.forward({tokens_, {&segment, 1}, {}}, loaded.kv, backend_->stream());
  const std::int64_t dim = made.shape.head_dim;
  const ContextClusters& clusters = made.clusters;
  for (std::int64_t row = 0; row < 4; ++row) {
    const std::vector<float>& keys = reader.keys[row / 2];
    const std::int64_t first = row % 2 * kTokens;
    std::vector<double> sums(static_cast<std::size_t>(28 * dim));
    std::vector<double> counts(28);
    for (std::int64_t t = 0; t < clusters.clustered_tokens; ++t) {
      const auto label = static_cast<std::size_t>(
          clusters.labels[static_cast<std::size_t>(row * clusters.clustered_tokens + t)]);
      counts[label] += 1.0;
      for (std::int64_t c = 0; c < dim; ++c) {
        sums[label * static_cast<std::size_t>(dim) + static_cast<std::size_t>(c)] +=
            keys[static_cast<std::size_t>((first + t) * dim + c)];
      }
    }
    for (std::size_t k = 0; k < 28; ++k) {
      const std::size_t at = static_cast<std::size_t>(row) * 28 + k;
      ASSERT_EQ(clusters.fine.keys[at], counts[k]);
      for (std::int64_t c = 0; c < dim && counts[k] > 0; ++c) {
        const auto channel = static_cast<std::size_t>(c);
        ASSERT_NEAR(clusters.fine.means[at * static_cast<std::size_t>(dim) + channel],
                    sums[k * static_cast<std::size_t>(dim) + channel] / counts[k], 1e-4);
      }
    }
  }
}

// Scores of one query in float64: mean over the group, as the paper's equation with 1 / sqrt(d).
std::vector<double> scores(const FixedContext& context, const ContextClusters::Level& level,
                           std::int64_t row, const float* query, const std::vector<bool>& alive) {
  const MethodShape& shape = context.shape;
  const std::int64_t head = row % shape.kv_heads;
  std::vector<double> result(static_cast<std::size_t>(level.count));
  for (std::int64_t q = head * shape.group(); q < (head + 1) * shape.group(); ++q) {
    std::vector<double> weights;
    double total = 0.0;
    for (std::int64_t k = 0; k < level.count; ++k) {
      const std::int64_t at = row * level.count + k;
      double logit = 0.0;
      for (std::int64_t c = 0; c < shape.head_dim; ++c) {
        logit += static_cast<double>(query[q * shape.head_dim + c]) *
                 level.means[static_cast<std::size_t>(at * shape.head_dim + c)];
      }
      const double keys = level.keys[static_cast<std::size_t>(at)];
      const bool counts = keys > 0 && (alive.empty() || alive[static_cast<std::size_t>(k)]);
      weights.push_back(counts ? std::exp(logit / std::sqrt(static_cast<double>(shape.head_dim)))
                               : 0.0);
      total += keys * weights.back();
    }
    for (std::size_t k = 0; k < weights.size(); ++k) {
      result[k] += weights[k] / total / static_cast<double>(shape.group());
    }
  }
  return result;
}

TEST_F(FixedContextTest, ThresholdsAreQuantilesOverEveryKey) {
  for (const bool pruned : {false, true}) {
    ClusterOptions options = kSmall;
    options.pruned_calibration = pruned;
    options.quantile = 0.8;
    FixedContext context = build(options);
    const MethodShape& shape = context.shape;
    constexpr std::int64_t kQueries = 7;
    std::vector<std::vector<float>> queries;
    for (unsigned layer = 0; layer < 2; ++layer) {
      queries.push_back(random_keys(kQueries, shape.heads * shape.head_dim, 20 + layer));
    }
    const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_dim)));
    ContextClusters& clusters = context.clusters;
    const CalibrationFacts facts = calibrate(backend_->sparse_ops(), backend_->stream(), shape,
                                             options, queries, scale, clusters);
    // [row][query]: which fine clusters the thresholded coarse scores leave.
    const auto alive_for = [&](std::int64_t row, const float* query) {
      const std::vector<double> coarse = scores(context, clusters.coarse, row, query, {});
      std::vector<bool> alive;
      for (std::int64_t k = 0; k < clusters.fine.count; ++k) {
        const auto parent = static_cast<std::size_t>(
            clusters.parents[static_cast<std::size_t>(row * clusters.fine.count + k)]);
        alive.push_back(coarse[parent] >= clusters.coarse.threshold);
      }
      return alive;
    };
    double kept = 0.0;
    double kept_levels2 = 0.0;
    double looked_up = 0.0;
    const auto quantile = [&](const ContextClusters::Level& level, double share, bool by_pruned) {
      std::vector<double> all;
      for (std::int64_t row = 0; row < 4; ++row) {
        std::vector<double> means(static_cast<std::size_t>(level.count));
        for (std::int64_t q = 0; q < kQueries; ++q) {
          const float* query =
              queries[static_cast<std::size_t>(row / 2)].data() + q * shape.heads * shape.head_dim;
          const std::vector<double> one = scores(
              context, level, row, query, by_pruned ? alive_for(row, query) : std::vector<bool>());
          for (std::size_t k = 0; k < one.size(); ++k) means[k] += one[k] / kQueries;
        }
        for (std::size_t k = 0; k < means.size(); ++k) {
          const float keys = level.keys[static_cast<std::size_t>(row * level.count) + k];
          all.insert(all.end(), static_cast<std::size_t>(keys), means[k]);
        }
      }
      EXPECT_EQ(all.size(), static_cast<std::size_t>(4 * clusters.clustered_tokens));
      std::ranges::sort(all);
      const double place = share * static_cast<double>(all.size() - 1);
      const auto low = static_cast<std::size_t>(place);
      return all[low] + (place - std::floor(place)) * (all[low + 1] - all[low]);
    };
    const double fine = quantile(clusters.fine, 0.8, pruned);
    EXPECT_NEAR(clusters.coarse.threshold, quantile(clusters.coarse, 0.5, false), 1e-7);
    EXPECT_NEAR(clusters.fine.threshold, fine, 1e-5 * fine);
    for (std::int64_t row = 0; row < 4; ++row) {
      for (std::int64_t q = 0; q < kQueries; ++q) {
        const float* query =
            queries[static_cast<std::size_t>(row / 2)].data() + q * shape.heads * shape.head_dim;
        const std::vector<bool> alive = alive_for(row, query);
        const std::vector<double> all = scores(context, clusters.fine, row, query, {});
        const std::vector<double> left = scores(context, clusters.fine, row, query, alive);
        for (std::size_t k = 0; k < all.size(); ++k) {
          const double keys =
              clusters.fine.keys[static_cast<std::size_t>(row * clusters.fine.count) + k];
          if (all[k] >= clusters.fine.threshold) kept += keys;
          if (alive[k] && left[k] >= clusters.fine.threshold) kept_levels2 += keys;
          looked_up += alive[k] ? 1.0 : 0.0;
        }
        looked_up += static_cast<double>(clusters.coarse.count);
      }
    }
    const double lookups = 4.0 * kQueries * static_cast<double>(clusters.clustered_tokens);
    EXPECT_NEAR(facts.kept_share, kept / lookups, 0.01);
    EXPECT_NEAR(facts.kept_share_levels2, kept_levels2 / lookups, 0.01);
    EXPECT_NEAR(facts.looked_up_share, looked_up / lookups, 0.001);
    EXPECT_GT(facts.kept_share, 0.02);
    EXPECT_LT(facts.kept_share, 0.6);
  }
}

TEST_F(FixedContextTest, IsTheSameOnAnyThreadsAndComesBackFromDisk) {
  for (const std::int64_t levels : {1, 2}) {
    ClusterOptions options = kSmall;
    options.levels = levels;
    const FixedContext one = build(options, 1);
    const ContextFileSizes sizes = write_fixed_context(system_file_ops(), folder_.string(), one);
    const std::string json = content(kClustersJson);
    const std::string data = content(kClustersData);
    EXPECT_EQ(sizes.json, json.size());
    EXPECT_EQ(sizes.data, data.size());
    const std::string schema_text = [] {
      std::ifstream file(source_path("docs/schemas/clusters.schema.json"));
      return std::string(std::istreambuf_iterator<char>(file), {});
    }();
    const Json schema = parse_json_file(schema_text, "schema", ErrorRole::kInput, "E-IN-CLUSTERS");
    EXPECT_EQ(
        testing::schema_violation(
            schema, parse_json_file(json, "facts", ErrorRole::kInput, "E-IN-CLUSTERS"), schema),
        "");
    (void)write_fixed_context(system_file_ops(), folder_.string(), build(options, 3));
    EXPECT_EQ(content(kClustersJson), json);
    EXPECT_EQ(content(kClustersData), data);
    const FixedContext back = read();
    EXPECT_EQ(back.tokens, one.tokens);
    EXPECT_EQ(back.clusters.fine.means, one.clusters.fine.means);
    EXPECT_EQ(back.clusters.fine.keys, one.clusters.fine.keys);
    EXPECT_EQ(back.clusters.labels, one.clusters.labels);
    EXPECT_EQ(back.clusters.coarse.means, one.clusters.coarse.means);
    EXPECT_EQ(back.clusters.parents, one.clusters.parents);
    EXPECT_EQ(back.clusters.fine.threshold, one.clusters.fine.threshold);
    EXPECT_EQ(back.clusters.coarse.threshold, one.clusters.coarse.threshold);
    EXPECT_EQ(back.options.window, 50);
    EXPECT_EQ(back.calibration.kept_share, one.calibration.kept_share);
    EXPECT_EQ(back.hash.substr(0, 5), "xxh3:");
  }
}

// The header's text and where the tensor's numbers begin in the file.
std::size_t begin_of(const std::string& data, const std::string& tensor) {
  std::uint64_t length = 0;
  std::memcpy(&length, data.data(), sizeof(length));
  const std::string header = data.substr(8, length);
  const std::size_t at = header.find("\"" + tensor + "\"");
  const std::size_t offsets = header.find("data_offsets\":[", at) + 15;
  return 8 + length + std::stoull(header.substr(offsets));
}

// Earlier programs wrote whose scores the thresholds are of.
TEST_F(FixedContextTest, ThresholdsOfQueryHeadsAreOfKvHeadsOnlyWhereEachHasOne) {
  const auto read_with_scope = [this](const std::string& scope) {
    std::string text = content(kClustersJson);
    const std::string seed = "\"seed\": 0";
    put(kClustersJson,
        text.replace(text.find(seed), seed.size(), "\"scope\": \"" + scope + "\", " + seed));
    return read_error();
  };
  (void)write_fixed_context(system_file_ops(), folder_.string(), build(kSmall));
  ASSERT_GT(model_.config.heads, model_.config.kv_heads);
  EXPECT_EQ(read_with_scope("kv_head"), "");
  (void)write_fixed_context(system_file_ops(), folder_.string(), build(kSmall));
  const std::string refused = read_with_scope("query_head");
  EXPECT_NE(refused.find("options.scope"), std::string::npos) << refused;
  EXPECT_NE(refused.find("triphase cluster"), std::string::npos) << refused;
}

TEST_F(FixedContextTest, RefusesDamageByField) {
  (void)write_fixed_context(system_file_ops(), folder_.string(), build(kSmall));
  const std::string json = content(kClustersJson);
  const std::string data = content(kClustersData);
  ASSERT_EQ(read_error(), "");
  const auto with_json = [&](const std::string& from, const std::string& to) {
    std::string text = json;
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    put(kClustersJson, text.replace(at, from.size(), to));
    return read_error();
  };
  // What the JSON says.
  for (const auto& [from, to, field] : std::vector<std::array<std::string, 3>>{
           {"triphase-clusters/1", "triphase-clusters/2", "format"},
           {"\"layers\": 2", "\"layers\": 3", "model.layers"},
           {"\"head_dim\": 32", "\"head_dim\": 0", "model.head_dim"},
           {"\"fingerprint\": \"xxh3:", "\"fingerprint\": \"xxh3:0", "model.fingerprint"},
           {"\"tokenizer\": \"\"", "\"tokenizer\": \"xxh3:1\"", "model.tokenizer"},
           {"\"clustered_tokens\": 280", "\"clustered_tokens\": 281", "clustered_tokens"},
           {"\"window\": 50", "\"window\": 51", "clustered_tokens"},
           {"\"tokens\": 330", "\"tokens\": 99999999999", "context.tokens"},
           {"\"clusters\": 28", "\"clusters\": 281", "fine.clusters"},
           {"\"clusters\": 28", "\"clusters\": 27", "fine_means"},
           {"\"clusters\": 5,", "\"clusters\": 29,", "coarse.clusters"},
           {"\"threshold\": 0.", "\"threshold\": 7.", "fine.threshold"},
           {"\"levels\": 2", "\"levels\": 1", "coarse"},
           {"\"levels\": 2", "\"levels\": 3", "options.levels"},
           {"\"calibrate\": \"full\"", "\"calibrate\": \"half\"", "options.calibrate"},
           {"\"seed\": 0", "\"scope\": \"head\", \"seed\": 0", "options.scope"},
           {"\"seed\": 0", "\"seed\": -1", "options.seed"},
           {"\"bytes\": ", "\"bytes\": 1", "data.bytes"},
           {"\"hash\": \"xxh3:", "\"hash\": \"xxh3:f", "data.hash"},
           {"\"queries\"", "\"querys\"", "calibration.queries"},
           {"\"format\"", "\"extra\": 1, \"format\"", "extra"},
           {"{", "", "E-IN-CLUSTERS"}}) {
    EXPECT_NE(with_json(from, to).find(field), std::string::npos) << from << ": " << read_error();
  }
  // The numbers, with a hash that agrees: somebody else's file, not an accident.
  const auto with_data = [&](const std::function<void(std::string&)>& damage) {
    std::string changed = data;
    damage(changed);
    put(kClustersData, changed);
    std::string text = json;
    const std::size_t at = text.find("\"data\"");
    const std::string facts = "\"data\": {\"bytes\": " + std::to_string(changed.size()) +
                              ", \"hash\": \"" + hash_text(changed) + "\"}\n}\n";
    put(kClustersJson, text.replace(at, std::string::npos, facts));
    return read_error();
  };
  const auto set_int = [&](const std::string& tensor, std::size_t index, std::int32_t value) {
    return with_data([&](std::string& bytes) {
      std::memcpy(bytes.data() + begin_of(bytes, tensor) + 4 * index, &value, sizeof(value));
    });
  };
  EXPECT_EQ(with_data([](std::string&) {}), "");
  EXPECT_NE(set_int("labels", 17, 28).find("labels[17]: 28"), std::string::npos);
  EXPECT_NE(set_int("labels", 3, -1).find("labels[3]: -1"), std::string::npos);
  EXPECT_NE(set_int("parents", 2, 5).find("parents[2]: 5"), std::string::npos);
  EXPECT_NE(set_int("token_ids", 0, 512).find("token_ids[0]: 512"), std::string::npos);
  EXPECT_NE(set_int("fine_keys", 1, 1000).find("fine_keys[1]: 1000"), std::string::npos);
  EXPECT_NE(set_int("coarse_keys", 0, -4).find("coarse_keys[0]: -4"), std::string::npos);
  EXPECT_NE(set_int("fine_means", 5, 0x7FC00000).find("fine_means[5]: nan"), std::string::npos);
  EXPECT_NE(set_int("coarse_means", 1, 0x7F800000).find("coarse_means[1]: inf"), std::string::npos);
  EXPECT_NE(with_data([](std::string& bytes) { bytes.resize(bytes.size() - 4); }), "");
  EXPECT_NE(with_data([](std::string& bytes) { bytes += "1234"; }), "");
  EXPECT_NE(with_data([](std::string& bytes) { bytes.resize(5); }), "");
  EXPECT_NE(with_data([](std::string& bytes) { bytes.clear(); }), "");
  EXPECT_NE(with_data([](std::string& bytes) {
              bytes.replace(bytes.find("labels"), 6, "lables");
            }).find("labels: missing"),
            std::string::npos);
  EXPECT_NE(with_data([](std::string& bytes) { bytes[0] = '\x7F'; }), "");
  // Without the hash's consent nothing is even parsed.
  put(kClustersJson, json);
  put(kClustersData, data.substr(0, data.size() - 1) + "x");
  EXPECT_NE(read_error().find("data.hash"), std::string::npos);
  std::filesystem::remove(folder_ / kClustersData);
  EXPECT_NE(read_error().find(kClustersData), std::string::npos);
  std::filesystem::remove(folder_ / kClustersJson);
  EXPECT_NE(read_error().find(kClustersJson), std::string::npos);
  std::filesystem::remove_all(folder_);
  EXPECT_NE(read_error().find("nothing there"), std::string::npos);
  std::ofstream(folder_.string()) << "a file";
  EXPECT_NE(read_error().find("not a directory"), std::string::npos);
}

}  // namespace
}  // namespace triphase

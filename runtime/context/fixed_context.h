#pragma once

// A fixed context with the clusters of its keys: what `triphase cluster` makes of a text and a
// model, and what a job with --fixed-context puts in front of every prompt. docs/fixed-context.md.
// Plain values.

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "models/attention/attention_method.h"

namespace triphase {

// How clusters are made; the paper's defaults (Squeezed Attention, section 4 and its appendices).
struct ClusterOptions {
  double centroids = 0.05;          // clusters per clustered token
  double coarse_centroids = 0.01;   // level 1 of two: clusters of clusters, per clustered token
  std::int64_t levels = 2;          // 1 or 2
  double quantile = 0.9;            // share of the keys whose mean score lies below the threshold
  double coarse_quantile = 0.5;     // share of the keys that lie below level 1's threshold
  bool pruned_calibration = false;  // level 2 is calibrated with the clusters that level 1 leaves
  std::int64_t window = 100;        // last tokens: always attended, and the calibration's queries
  std::uint64_t seed = 0;
  std::int64_t max_iterations = 300;  // of one K-means
};

// What the calibration's queries keep of the clustered keys under the thresholds.
struct CalibrationFacts {
  std::int64_t queries = 0;
  double kept_share = 1.0;          // one level
  double kept_share_levels2 = 1.0;  // two levels, with the denominator that decoding has
  double looked_up_share = 0.0;  // two levels: centroids scored, as a share of the clustered keys
};

struct FixedContext {
  std::string program_version;  // that made it
  std::string program_commit;
  std::string model_fingerprint;      // ModelIdentity::fingerprint
  std::string tokenizer_fingerprint;  // empty: the context was given as token ids
  std::string text_hash;              // of the file it was made from
  std::vector<TokenId> tokens;        // with what the tokenizer puts in front
  MethodShape shape;                  // of the model
  ClusterOptions options;
  CalibrationFacts calibration;
  ContextClusters clusters;

  // Not stored: where it was read from, and what makes two artefacts the same.
  std::string path;
  std::string hash;
};

// Bytes of means, counts, labels and parents in memory.
[[nodiscard]] std::uint64_t cluster_bytes(const ContextClusters& clusters);

}  // namespace triphase

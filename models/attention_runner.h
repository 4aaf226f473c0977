#pragma once

// Runs an attention method inside the decoder: keeps its state of every sequence, and turns what a
// step attends (dense segments) into the method's choices, layer by layer. Prompt rows are attended
// densely but where they choose for themselves (prompt_units). Not thread safe; method's ops and
// the pool must outlive it.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "kernels/sizing/attention_workspace.h"
#include "memory/memory_pool.h"
#include "models/attention/attention_method.h"
#include "models/attention/device_floats.h"
#include "models/attention/prompt_choices.h"
#include "models/attention/selection_reader.h"
#include "models/config/model_config.h"
#include "models/forward_batch.h"

namespace triphase {

// Sees every decoded row with its chosen tokens, before it is attended. Sees every chunk of a
// prompt in every layer, after it was attended.
class AttentionObserver {
 public:
  virtual ~AttentionObserver() = default;
  // `row` of q is the query; choice.dense: the whole context of call.keys.context_tokens.
  virtual void decoded(SequenceId, const LayerCall& /*call*/, ConstMatrix /*q*/,
                       std::int64_t /*row*/, const TokenChoice& /*choice*/) {}
  // The chunk's rows of q are call.keys' queries; its keys are in call.cache.
  virtual void prefilled(SequenceId, const LayerCall& /*call*/, ConstMatrix /*q*/) {}
};

// The model's layers without a sliding window choose tokens. Where every layer has one all do, and
// no context may be longer than the shortest window (ModelConfig::window_of_every_layer).
[[nodiscard]] MethodShape method_shape(const ModelConfig& config);
// Of the layers that choose tokens: the share in which the method attends everything.
[[nodiscard]] double dense_layer_share(const AttentionOptions& options, const MethodShape& shape);

class AttentionRunner {
 public:
  // Tokens attended and tokens of the context, summed over decode steps and layers. Means over
  // lists.
  struct TokenCounts {
    double attended = 0.0;
    double context = 0.0;
    double rows = 0.0;       // decoded rows times layers
    double centroids = 0.0;  // looked up (ClusterCounts)
    // For rows of prompts that choose, layer by layer; 0 where prompts are dense.
    double prompt_attended = 0.0;
    double prompt_context = 0.0;
  };

  // `clusters`: as of make_attention_method.
  AttentionRunner(const AttentionOptions& options, const MethodShape& shape, SparseOps& ops,
                  const AttentionShape& largest, MemoryPool& pool,
                  const ContextClusters* clusters = nullptr);

  // Bytes of workspace that the constructor takes.
  [[nodiscard]] static std::uint64_t workspace_bytes(const AttentionShape& largest);

  // A sequence starts (or starts over) with a prompt of so many tokens; every later row is decoded.
  // longest: tokens that its context can grow to.
  void begin(SequenceId sequence, std::int64_t prompt_tokens, std::int64_t longest);
  // Starts with `state`, which a method of the same kind made of the prompt elsewhere.
  void begin(SequenceId sequence, std::int64_t prompt_tokens,
             std::unique_ptr<AttentionMethod::State> state);
  void end(SequenceId sequence);

  // When the layer's tokens are chosen.
  [[nodiscard]] AttentionMethod::Timing timing(LayerId layer) const {
    const std::int64_t number = method_layer(layer);
    return number < 0 ? AttentionMethod::Timing::kDense : method_->timing(number);
  }
  // The last of the model's layers that the method sees.
  [[nodiscard]] LayerId last_layer() const {
    return LayerId(shape_.model_layer(shape_.layers - 1));
  }

  // Whether the row that makes the sequence so long is decoded, not of the prompt.
  [[nodiscard]] bool decodes(SequenceId sequence, std::int64_t context_tokens) {
    return context_tokens > entry_of(sequence).prompt_tokens;
  }
  // The first key of full blocks that the method reads to choose for the sequence's next decoded
  // row, in a cache of such pages (AttentionMethod::first_key). 0: all, or a row of the prompt.
  [[nodiscard]] std::int64_t first_key_to_choose(LayerId layer, SequenceId sequence,
                                                 std::int64_t context_tokens, bool quantized,
                                                 std::int64_t page_tokens);

  // Whether the sequence's row at position context_tokens - 1 is decoded and attends chosen tokens
  // in every layer that chooses.
  [[nodiscard]] bool chooses(SequenceId sequence, std::int64_t context_tokens);
  // How many tokens each list of that row has.
  [[nodiscard]] std::int64_t list_tokens(SequenceId sequence, std::int64_t context_tokens);
  // Early methods: chooses for those of a step's rows that attend chosen tokens, in every layer,
  // before the first layer begins. Others: does nothing. With `announces` it only announces the
  // host arrays that this takes (Ops::begin_step).
  void choose_ahead(std::span<const BatchSegment> rows, bool announces, Stream& stream);
  // What `rows` of these rows, that of `first` and those that follow it, attend in a layer. Valid
  // until choose_ahead().
  [[nodiscard]] Selection chosen_ahead(LayerId layer, SequenceId first, std::int64_t rows);

  // Some rows of a step in a layer; their K and V are in the cache.
  struct Rows {
    LayerId layer;
    std::span<const AttentionSegment> segments;
    std::span<const SequenceId> sequences;  // by segment
    ConstMatrix q;
    ConstMatrix v;  // unquantized
    KvLayerView cache;
    ScoreScale scale;
    Stream* stream = nullptr;
  };
  // The method's choice for the decoded rows that do not attend all, in their order; no rows: there
  // are none. `looked_up`: that choice, made ahead, with slots; or null. Valid until attend(),
  // which must follow.
  [[nodiscard]] Selection choose(const Rows& rows, const Selection* looked_up);
  // out = the method's attention of the rows last chosen for. `chosen`: what choose() gave, with
  // slots or without. Without `wanted` nobody reads `out`, and no row is decoded.
  void attend(const Rows& rows, const Selection& chosen, Matrix out, bool wanted, Ops& ops,
              Workspace dense);
  // The layer's output product has just been given to the stream. Only now does the method add up
  // the scores of attend(), beside that product; else it does so when it chooses again.
  void projected() { add_scores(true); }

  // Announces the other host arrays of the step's decoded rows, from what choose() and attend() get
  // in the first layer that chooses. Does nothing in steps with other rows.
  void announce(const Rows& rows);

  // Tokens at the start of a prompt whose KV may be taken from another sequence.
  [[nodiscard]] std::int64_t shareable_tokens(std::int64_t prompt_tokens) const;
  // The units of prompts: a unit is computed in one step, and no other request shares its KV.
  [[nodiscard]] const PromptUnits& prompt_units() const { return prompts_.units(); }

  // The observer is told of every row from now on; null: none. It must outlive the runner's calls.
  void set_observer(AttentionObserver* observer) { observer_ = observer; }

  // Waits for the device where the method counts there.
  [[nodiscard]] TokenCounts token_counts() const;
  // KV bytes that the decoded rows read, row by row by the method's formula, and what dense
  // attention would have read. Waits as token_counts().
  struct ReadBytes {
    double attended = 0.0;
    double dense = 0.0;
  };
  [[nodiscard]] ReadBytes read_bytes() const;
  [[nodiscard]] const AttentionMethod& method() const { return *method_; }

 private:
  struct Entry {
    std::unique_ptr<AttentionMethod::State> state;
    std::int64_t prompt_tokens = 0;
    std::int64_t row_ahead = -1;  // of a layer's rows in ahead_
  };

  // The method's number of a layer; -1: the layer has a sliding window.
  [[nodiscard]] std::int64_t method_layer(LayerId layer) const;
  [[nodiscard]] Entry& entry_of(SequenceId sequence);
  // A layer with a sliding window: what its decoded rows attend.
  void show_windows(const Rows& rows);
  [[nodiscard]] LayerCall call_of(const Rows& rows);
  // attend() in a layer that chooses.
  void attend_chosen(const Rows& rows, const Selection& chosen, Matrix out, Ops& ops,
                     Workspace dense);
  // For the rows of chosen_sequences(), and the units of prompts.
  [[nodiscard]] Selection choose(const LayerCall& call, ConstMatrix q);
  void tell_appended(const Rows& rows, LayerCall call);
  // Shows the observer what each decoded row attends.
  void show(const LayerCall& call, const Rows& rows, const Selection& selection);
  [[nodiscard]] AttendedScores scores_for(const Selection& chosen, Stream& stream);
  // What AttentionSegment::log_sums of a prompt's rows is.
  [[nodiscard]] float* prompt_log_sums() const {
    return method_->wants_scores() ? reinterpret_cast<float*>(log_sums_.data()) : nullptr;
  }
  // Tells the method of scored_. `beside`: as in SparseOps::add_weights.
  void add_scores(bool beside);
  [[nodiscard]] AttentionMethod::Sequences chosen_sequences() const {
    return {chosen_states_, chosen_segments_};
  }
  // Without centroids.
  [[nodiscard]] AttendedShape byte_shape() const;
  // A decoded row's tokens in each list. `chosen`: by the method, which reads more to choose.
  void count(std::int64_t attended, std::int64_t context, bool chosen);

  PoolDevice memory_;        // of the states
  PoolDevice score_memory_;  // of scores_
  MethodShape shape_;
  std::unique_ptr<AttentionMethod> method_;
  SparseOps* ops_;
  Buffer workspace_;  // of SparseOps
  Buffer log_sums_;   // of prompts' rows in one layer
  std::unordered_map<std::int32_t, Entry> states_;
  PromptChoices prompts_;
  Selection prompt_lists_;          // of a layer's decoded rows, then of prompts' units
  TokenCounts token_counts_;        // without what the method itself counts
  ReadBytes read_bytes_;            // the same
  std::int64_t element_bytes_ = 0;  // of a stored key or value
  Stream* stream_ = nullptr;        // of the last step
  Selection ahead_;                 // of the step
  std::int64_t rows_ahead_ = 0;     // of one layer in ahead_
  AttentionObserver* observer_ = nullptr;

  // Scratch of one layer, kept to reuse its memory.
  std::vector<AttentionMethod::State*> states_of_;  // by segment
  // Decoded rows that attend chosen tokens: by segment their row of the selection or -1, and by
  // that row the segment.
  std::vector<std::int64_t> row_of_;
  std::vector<std::size_t> chosen_;
  std::vector<AttentionMethod::State*> chosen_states_;
  std::vector<AttentionSegment> chosen_segments_;
  std::vector<AttentionMethod::State*> prompt_states_;
  std::vector<AttentionSegment> prompt_segments_;
  SelectionReader reader_;
  DeviceFloats scores_;  // of one layer's lists
  // What the chosen rows attended last, until the method has been told.
  struct Scored {
    LayerCall call;
    Selection lists;
  };
  std::optional<Scored> scored_;
  std::vector<AttentionSegment> dense_;
  std::vector<AttentionSegment> sparse_;
};

}  // namespace triphase

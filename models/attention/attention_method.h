#pragma once

// Which tokens of a sequence a decode step attends: every attention method behind one interface.
// A method is a value made from AttentionOptions; what it knows about a sequence is in a State that
// travels with the sequence (it is part of what a preempted sequence keeps). Prefill is dense but
// where a method chooses for prompts too.
//
// Matrices (q, v) lie in the device's memory; methods reach them through SparseOps alone.
//
// What the caller does in one layer, after writing the new tokens' K and V:
//
//   method.appended(sequences, call, v)              always; v: the new rows, unquantized
//   prefill:  dense attention, for its log-sums too if method.wants_scores(), or with prompt units
//             (scheduler/attention/prompt_units.h) attention over what
//             method.choose_with_prompts() chose for each unit, whose rows attend the chosen
//             tokens up to themselves; then method.prefilled(chunks, call, q)
//   decode, all rows together that attends_all() does not name:
//             lists = method.choose(sequences, call, q)
//             (appended() and choose() may read keys from first_key() on, no others)
//             attend the lists, for their scores too if method.wants_scores(), and then, before
//                  anything is chosen or attended again: method.attended(sequences, call, lists)
//
// Layers with a sliding window attend their window, whole: no method sees them (method_shape() in
// models/attention_runner.h).
//
// Early methods choose without the query: choose_ahead() takes the place of choose(). It chooses
// for all rows of a step in all layers, before the first layer begins, so that their tokens can be
// fetched ahead. Methods keep buffers: one thread at a time.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/sparse_ops.h"
#include "scheduler/attention/attended_bytes.h"
#include "scheduler/attention/attention_options.h"
#include "scheduler/attention/prompt_units.h"

namespace triphase {

// Layers here are those that choose tokens, from 0 on.
struct MethodShape {
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  // Their numbers in the model, ascending; empty: all of its layers choose.
  std::vector<std::int64_t> in_model{};

  [[nodiscard]] std::int64_t group() const { return heads / kv_heads; }
  [[nodiscard]] std::int64_t model_layer(std::int64_t layer) const {
    return in_model.empty() ? layer : in_model[layer];
  }
};

// One sequence in one layer, with its new tokens in the cache. `keys`: the sequence's tokens as for
// dense attention, the queries being the new rows (INT8: of one block).
struct LayerCall {
  std::int64_t layer = 0;
  AttentionSegment keys;
  KvLayerView cache;
  ScoreScale scale;  // of q . k
  SparseOps* ops = nullptr;
  Device* memory = nullptr;  // of the device: for what a method remembers
  Workspace workspace;       // kernels/sizing/sparse_workspace.h
  Stream* stream = nullptr;
  // Of appended() and attended(): what sums they add may be added beside what the stream was given
  // last (SparseOps::add_weights).
  bool beside = false;
};

class AttentionMethod {
 public:
  // What a method remembers of one sequence, all layers.
  class State {
   public:
    virtual ~State() = default;
    [[nodiscard]] virtual std::uint64_t bytes() const { return 0; }
  };
  enum class Timing : std::uint8_t {
    kDense,  // this layer is always dense: nothing is chosen
    kEarly,  // tokens are known before the step; so in every layer
    kLate,   // choose() needs the query, and keys from first_key() on
  };
  // Some sequences in one layer, each once: states[i] belongs to segments[i].
  struct Sequences {
    std::span<State* const> states;
    std::span<const AttentionSegment> segments;
  };

  AttentionMethod(const AttentionOptions& options, const MethodShape& shape)
      : options_(options), shape_(shape) {}
  virtual ~AttentionMethod() = default;
  AttentionMethod(const AttentionMethod&) = delete;
  AttentionMethod& operator=(const AttentionMethod&) = delete;

  [[nodiscard]] virtual Timing timing(std::int64_t layer) const = 0;
  // Whether tokens are known before the step.
  [[nodiscard]] bool chooses_early() const { return timing(0) == Timing::kEarly; }
  // Lists of a choice: 1 for all heads, or one per KV head. With one list a token moves as a whole
  // record, else each KV head's part of it on its own.
  [[nodiscard]] virtual std::int64_t lists() const { return 1; }
  // Whether attended() reads the scores of the lists, and prefilled() the log-sums of its keys
  // (AttentionSegment::log_sums).
  [[nodiscard]] virtual bool wants_scores() const { return false; }
  // Late methods, for a decoded row: of the keys of full blocks, the first that
  // appended() and choose() read; what lies before it is needed only if it is chosen. 0: the whole
  // context. The call has its layer, keys.context_tokens, keys.query_count and the cache's shape.
  [[nodiscard]] virtual std::int64_t first_key(const State&, const LayerCall&) const { return 0; }
  // Whether choose() reads the keys that first_key() leaves out as K^T, for which every full block
  // must then have a place (KvLayerView::kt).
  [[nodiscard]] virtual bool reads_transposed_k() const { return false; }
  // Whether some layer's choice leaves keys of the context unread.
  [[nodiscard]] virtual bool chooses_without_keys() const { return false; }
  // Whether chosen tokens alone are brought from KV on the host, ahead or once they are chosen.
  [[nodiscard]] bool fetches_tokens() const { return chooses_early() || chooses_without_keys(); }
  // How many of the prompt's last rows must pass through prefilled(): a sequence that shares a
  // longer part of its prompt's KV with others must still compute these rows.
  [[nodiscard]] virtual std::int64_t prefill_rows(std::int64_t prompt_tokens) const;
  // Whether every row of the prompt must pass through appended().
  [[nodiscard]] virtual bool needs_every_row() const { return false; }
  // Tokens at the start of a prompt whose KV may be taken from another sequence: the method need
  // not see their rows, and they attend nothing behind them.
  [[nodiscard]] std::int64_t shareable_tokens(std::int64_t prompt_tokens,
                                              const PromptUnits& units) const {
    if (needs_every_row()) return 0;
    const std::int64_t unseen = prompt_tokens - prefill_rows(prompt_tokens);
    return std::clamp<std::int64_t>(unseen, 0, units.causal_tokens(prompt_tokens));
  }

  // Bytes of the device's memory that the states of so many sequences of at most so many tokens
  // take together, at most.
  [[nodiscard]] virtual std::uint64_t state_bytes(std::int64_t /*sequences*/,
                                                  std::int64_t /*tokens*/) const {
    return 0;
  }
  // longest: tokens that the sequence's context can grow to.
  [[nodiscard]] virtual std::unique_ptr<State> begin(std::int64_t prompt_tokens,
                                                     std::int64_t longest) const;
  // Rows of v are those of the segments' queries. For several sequences, here and below, call.keys
  // is not looked at.
  virtual void appended(const Sequences& sequences, const LayerCall& call, ConstMatrix v);
  // Chunks of prompts, a prompt's one behind another.
  virtual void prefilled(const Sequences& chunks, const LayerCall& call, ConstMatrix q);
  // Whether a row attends its whole context. Else: how many tokens each of its lists has, in a
  // sequence with a prompt of `prompt` tokens; at most so many where counts_on_device().
  [[nodiscard]] virtual bool attends_all(std::int64_t layer, std::int64_t context) const {
    return timing(layer) == Timing::kDense ||
           is_dense(budget_tokens(options_, context, context), context);
  }
  [[nodiscard]] virtual std::int64_t list_tokens(std::int64_t context, std::int64_t prompt) const {
    return budget_tokens(options_, context, prompt);
  }
  // A choice for each sequence, in the device's memory, valid until the next one. Each segment has
  // one query. Each list ascends and holds the current token, context_tokens - 1.
  [[nodiscard]] virtual Selection choose(const Sequences& sequences, const LayerCall& call,
                                         ConstMatrix q);
  // Early methods: the same for each of layers_ahead() layers. Sequence i in layer l is row
  // l * sequences + i of the selection. Of the segments context_tokens is looked at, of the call
  // ops, memory and stream.
  [[nodiscard]] virtual Selection choose_ahead(const Sequences& sequences, const LayerCall& call);
  // All layers, or 1: the lists are the same in every layer.
  [[nodiscard]] virtual std::int64_t layers_ahead() const { return 1; }
  // Whether the device alone knows the lengths of lists; then the counts of what choose() has
  // chosen so far. Waits for the stream.
  [[nodiscard]] virtual bool counts_on_device() const { return false; }
  [[nodiscard]] virtual ClusterCounts counted(Stream&) const { return {}; }
  // What was chosen has been attended, and has scores.
  virtual void attended(const Sequences& sequences, const LayerCall& call,
                        const Selection& selection);
  // Announces the host arrays of choose_ahead() (Ops::begin_step): makes its calls of SparseOps and
  // changes no state.
  virtual void announce_ahead(const Sequences& choosing, const LayerCall& call) {
    static_cast<void>(choose_ahead(choosing, call));
  }
  // The same of a step whose rows are all decoded: the calls that appended() of `all`, and choose()
  // and attended() of `choosing`, will make in each layer.
  virtual void announce(const Sequences& /*all*/, const Sequences& choosing, const LayerCall& call,
                        ConstMatrix q, ConstMatrix /*v*/) {
    if (timing(call.layer) == Timing::kLate) static_cast<void>(choose(choosing, call, q));
  }
  // choose(), and behind those rows a row of the selection for each unit of a prompt, whose queries
  // choose together (Selection::all_from). Methods that prompt_units() gives units implement it.
  [[nodiscard]] virtual Selection choose_with_prompts(const Sequences& sequences,
                                                      std::span<const AttentionSegment> units,
                                                      const LayerCall& call, ConstMatrix q);

  [[nodiscard]] const AttentionOptions& options() const { return options_; }
  [[nodiscard]] const MethodShape& shape() const { return shape_; }

 protected:
  // Whether a budget of `tokens` takes the dense path.
  [[nodiscard]] bool is_dense(std::int64_t tokens, std::int64_t context) const {
    return options_.dense_shortcut && tokens >= context;
  }
  // Bytes that the scores of so many sequences' lists, of at most so many tokens, take at most in
  // the layer that is attended.
  [[nodiscard]] std::uint64_t score_bytes(std::int64_t sequences, std::int64_t tokens) const;

  AttentionOptions options_;
  MethodShape shape_;
};

// Keys of a job's fixed context, clustered (Squeezed Attention). All layers; token labels cover
// positions [0, clustered_tokens).
struct ContextClusters {
  struct Level {
    std::int64_t count = 0;    // clusters per KV head
    std::vector<float> means;  // [layer][kv_head][count][head_dim]
    std::vector<float> keys;   // [layer][kv_head][count]
    double threshold = 0;      // clusters of at least this score are kept
  };
  std::int64_t clustered_tokens = 0;
  std::int64_t context_tokens = 0;  // of the context: the clustered ones and those behind them
  Level fine;
  std::vector<std::int32_t> labels;   // [layer][kv_head][token]: fine cluster
  Level coarse;                       // two levels only
  std::vector<std::int32_t> parents;  // [layer][kv_head][fine cluster]: coarse cluster
};

// `clusters` is for squeezed alone, must then not be null and outlives the method. Throws
// E-CLI-ATTOPTION where the options do not fit the model.
[[nodiscard]] std::unique_ptr<AttentionMethod> make_attention_method(
    const AttentionOptions& options, const MethodShape& shape,
    const ContextClusters* clusters = nullptr);

}  // namespace triphase

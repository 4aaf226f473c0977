#pragma once

// Runs an attention method inside the decoder: keeps its state of every sequence, and turns what a
// step attends (dense segments) into the method's choices, layer by layer. Prompt rows are attended
// densely but where they choose for themselves (prompt_units). Not thread safe; method's ops and
// the pool must outlive it.

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "kernels/sizing/attention_workspace.h"
#include "memory/memory_pool.h"
#include "models/attention/attention_method.h"
#include "models/attention/device_floats.h"
#include "models/attention/prompt_choices.h"
#include "models/attention/selection_reader.h"
#include "models/forward_batch.h"

namespace triphase {

// Sees every decoded row with what was chosen for it, before it is attended; and every chunk of a
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

class AttentionRunner {
 public:
  // Tokens attended and tokens there were, summed over decode steps and layers, means over lists.
  struct Touched {
    double attended = 0.0;
    double context = 0.0;
    double rows = 0.0;       // decoded rows times layers
    double centroids = 0.0;  // looked up (ClusterCounts)
    // The same of prompt rows that chose, layer by layer; 0 where prompts are dense.
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
  // The same, with what such a method remembers of a prompt that passed through it elsewhere.
  void begin(SequenceId sequence, std::int64_t prompt_tokens,
             std::unique_ptr<AttentionMethod::State> state);
  void end(SequenceId sequence);

  // A step of these segments begins. Before anything else is asked of its rows.
  void begin_step(std::span<const BatchSegment> segments, Stream& stream);

  // The tokens that the sequence's next decoded row, at position context_tokens - 1, will attend in
  // this layer, where they are known before its query: asked before the layer begins, so that they
  // can be fetched ahead. Null: the whole context, or not known yet, or a row of the prompt. Valid
  // until the same is asked, or attended, two layers on.
  [[nodiscard]] const TokenChoice* early_choice(LayerId layer, SequenceId sequence,
                                                std::int64_t context_tokens);

  // The same of the decoded row after the one at hand, of which this layer has been attended; null
  // too where rows are chosen for together. Valid until it is asked for the second row after that;
  // early_choice() and choose() return it.
  [[nodiscard]] const TokenChoice* next_choice(LayerId layer, SequenceId sequence,
                                               std::int64_t context_tokens);

  // Whether the row that makes the sequence so long is decoded, not of the prompt.
  [[nodiscard]] bool decodes(SequenceId sequence, std::int64_t context_tokens) {
    return context_tokens > entry_of(sequence).prompt_tokens;
  }
  // Of the closed or full blocks' keys the first that the method reads to choose for the
  // sequence's next decoded row, in a cache of such pages (AttentionMethod::first_key); 0: all, or
  // a row of the prompt.
  [[nodiscard]] std::int64_t first_key_to_choose(LayerId layer, SequenceId sequence,
                                                 std::int64_t context_tokens, bool quantized,
                                                 std::int64_t page_tokens);

  // Whether the sequence's decoded row at position context_tokens - 1 chooses on the device, where
  // its tokens can be looked up, in every layer that chooses.
  [[nodiscard]] bool chooses_on_device(SequenceId sequence, std::int64_t context_tokens);
  // Tokens of each of its lists then.
  [[nodiscard]] std::int64_t list_tokens(SequenceId sequence, std::int64_t context_tokens);
  // Early methods: what such rows attend in this layer, before it begins. Valid until the next
  // choice.
  [[nodiscard]] Selection choose_ahead(LayerId layer, std::span<const BatchSegment> rows,
                                       Stream& stream);

  // What becomes of a choice.
  struct ChoiceUse {
    bool fetches = false;              // the host brings what is chosen, and must know it
    const Selection* ahead = nullptr;  // choose_ahead() of all decoded rows, looked up
  };
  // The method's choices for the segments of one layer: by segment, null where the whole context
  // is attended, or where the choice lies on the device alone. `sequences` names each segment's
  // sequence. The new rows' K and V are in the cache; v holds them unquantized. Valid until
  // attend(), which must follow.
  [[nodiscard]] std::span<const TokenChoice* const> choose(
      LayerId layer, std::span<const AttentionSegment> segments,
      std::span<const SequenceId> sequences, ConstMatrix q, ConstMatrix v, const KvLayerView& cache,
      float scale, const ChoiceUse& use, Stream& stream);
  // What choose() left on the device; and that choice looked up, to be attended so.
  [[nodiscard]] const Selection& chosen_on_device() const { return selection_; }
  void set_looked_up(const Selection& lists) { selection_ = lists; }
  // out = the method's attention of the segments last chosen for; `slots` says where their chosen
  // tokens lie (KvStep::segment_slots).
  void attend(LayerId layer, std::span<const AttentionSegment> segments,
              std::span<const SequenceId> sequences,
              std::span<const std::span<const std::int32_t>> slots, ConstMatrix q,
              const KvLayerView& cache, float scale, Matrix out, Ops& ops, Workspace dense,
              Stream& stream);

  // Says ahead which arrays of the host the step's decoded rows take (Ops::begin_step), with what
  // choose() and attend() get in the first layer that chooses. Nothing in steps with other rows.
  void announce(LayerId layer, std::span<const AttentionSegment> segments,
                std::span<const SequenceId> sequences, ConstMatrix q, ConstMatrix v,
                const KvLayerView& cache, float scale, Matrix out, Ops& ops, Stream& stream);

  // Tokens at the start of a prompt whose KV may be taken from another sequence.
  [[nodiscard]] std::int64_t shareable_tokens(std::int64_t prompt_tokens) const;
  // What of a prompt must be computed in one step, and alone (its KV depends on all of it).
  [[nodiscard]] const PromptUnits& prompt_units() const { return prompts_.units(); }

  // Tells it of every row from now on; null: nobody. It must outlive the runner's calls.
  void set_observer(AttentionObserver* observer) { observer_ = observer; }

  // Waits for the device where the method counts there.
  [[nodiscard]] Touched touched() const;
  // KV bytes that the decoded rows read, by the methods' formulae at the mean context, and what
  // dense attention would have read. `element_bytes` of a stored key or value. Waits as touched().
  struct ReadBytes {
    double touched = 0.0;
    double dense = 0.0;
  };
  [[nodiscard]] ReadBytes read_bytes(std::int64_t element_bytes) const;
  [[nodiscard]] const AttentionMethod& method() const { return *method_; }

 private:
  // What was chosen for one row in one layer.
  struct Made {
    std::int64_t layer = -1;
    std::int64_t context_tokens = 0;
    TokenChoice choice;

    [[nodiscard]] bool is_for(const LayerCall& call) const {
      return layer == call.layer && context_tokens == call.keys.context_tokens;
    }
  };
  struct Entry {
    [[nodiscard]] Made& next_of(const LayerCall& call) {
      return next[static_cast<std::size_t>(2 * call.layer + call.keys.context_tokens % 2)];
    }

    std::unique_ptr<AttentionMethod::State> state;
    std::int64_t prompt_tokens = 0;
    std::array<Made, 2> made;  // of the layer at hand and of the next, by layer
    std::vector<Made> next;    // before the row's step began, [layer][of a row and the one after]
  };
  // One decoded row whose tokens were chosen.
  struct Chosen {
    std::size_t segment = 0;
    const TokenChoice* choice = nullptr;
    std::vector<std::int32_t> slots;
    std::vector<float> weights;  // where work runs at once
  };

  [[nodiscard]] Entry& entry_of(SequenceId sequence);
  [[nodiscard]] LayerCall call_of(LayerId layer, const AttentionSegment& segment,
                                  const KvLayerView& cache, float scale, Stream& stream);
  // The sequence, where the method knows early what that row attends in this layer, and the call to
  // ask it with; else null.
  [[nodiscard]] Entry* early_entry(LayerId layer, SequenceId sequence, std::int64_t context_tokens,
                                   LayerCall& call);
  void make(Entry& entry, const LayerCall& call, ConstMatrix q, std::int64_t row, Made& made);
  // Chooses unless it is done already; `row` is the query's.
  const TokenChoice& choose(Entry& entry, const LayerCall& call, ConstMatrix q, std::int64_t row);
  void find_slots(const AttentionSegment& segment, const KvLayerView& cache,
                  std::span<const std::int32_t> tokens, std::span<const std::int32_t> known,
                  std::vector<std::int32_t>& slots);
  // announce() of lists that the host has.
  void announce_lists(LayerId layer, std::span<const AttentionSegment> segments,
                      std::span<const SequenceId> sequences, ConstMatrix q,
                      const KvLayerView& cache, float scale, Matrix out, Ops& ops, Stream& stream);
  void choose_for_prompt(const LayerCall& call, std::int64_t prompt_tokens, ConstMatrix q);
  // Whether rows are chosen for together. Early methods are asked for each where work runs at once:
  // it costs no wait, and tokens of the step after can be asked for as soon as a layer is done.
  [[nodiscard]] bool chooses_rows() const {
    return method_->chooses_rows() && !(memory_.runs_at_once() && method_->chooses_early());
  }
  // Where that is, and early: what all of the step's rows attend in every layer, with one wait.
  void choose_early();
  // Of one of those rows in a layer; null: the whole context.
  [[nodiscard]] const TokenChoice* chosen_early(LayerId layer, SequenceId sequence,
                                                std::int64_t context_tokens);
  void tell_appended(std::span<const AttentionSegment> segments,
                     std::span<const SequenceId> sequences, const LayerCall& call, ConstMatrix v);
  // One decoded row, the segment `index`, of a method that chooses for each by itself.
  void choose_row(std::size_t index, SequenceId sequence, const LayerCall& call, ConstMatrix q);
  // All of late_, of methods that choose for several at once.
  void choose_rows(const LayerCall& call, std::span<const AttentionSegment> segments,
                   std::span<const SequenceId> sequences, ConstMatrix q, const ChoiceUse& use);
  void make_late_weights(Stream& stream);
  [[nodiscard]] AttentionMethod::Sequences late_sequences() const {
    return {late_states_, late_segments_};
  }
  // A decoded row that attends so many tokens of its context, a mean over its lists.
  void count(double attended, std::int64_t context);

  PoolDevice memory_;  // of the states
  MethodShape shape_;
  std::unique_ptr<AttentionMethod> method_;
  SparseOps* ops_;
  Buffer workspace_;
  std::unordered_map<std::int32_t, Entry> states_;
  PromptChoices prompts_;
  Touched touched_;           // but for what the method counts
  Stream* stream_ = nullptr;  // of the last step
  AttentionObserver* observer_ = nullptr;

  // Of the layer at hand; kept to reuse their memory.
  std::vector<const TokenChoice*> choices_;         // by segment
  std::vector<AttentionMethod::State*> states_of_;  // by segment
  // What method_->choose_rows() chooses for: segments, and by segment the row of the selection or
  // -1.
  std::vector<std::size_t> late_;
  std::vector<std::int64_t> late_rows_;
  std::vector<AttentionMethod::State*> late_states_;
  std::vector<AttentionSegment> late_segments_;
  Selection selection_;     // of them
  bool on_device_ = false;  // it is attended as it lies there
  SelectionReader reader_;
  DeviceFloats late_weights_;  // [row of selection_][list][capacity]

  // The step's decoded rows that do not attend all, for choose_early().
  struct EarlyRow {
    std::int64_t row = 0;
    std::int64_t context_tokens = 0;
  };
  std::unordered_map<std::int32_t, EarlyRow> early_rows_;  // by sequence
  std::vector<AttentionMethod::State*> early_states_;
  std::vector<AttentionSegment> early_segments_;
  bool chosen_early_ = false;
  std::vector<SelectionReader> early_readers_;  // by layer
  std::vector<AttentionSegment> dense_;
  std::vector<AttentionSegment> sparse_;
  std::vector<Chosen> chosen_;
  std::vector<std::int32_t> shifts_;  // by block, from a token to its slot
};

}  // namespace triphase

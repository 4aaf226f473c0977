#include "runtime/engine/sequence.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"
#include "runtime/engine/request_key.h"
#include "runtime/engine/sampling_limits.h"

namespace triphase {
namespace {

static_assert(kLogprobsLimit <= kMaxAlternatives);

TokenLogprob logprob_of(const SampleResult& result) {
  TokenLogprob logprob{
      .token = result.token, .logprob = log_probability(result, result.logit), .top = {}};
  for (std::int32_t i = 0; i < result.count; ++i) {
    logprob.top.emplace_back(result.ids[i], log_probability(result, result.logits[i]));
  }
  return logprob;
}

bool starts_character(std::string_view bytes) { return count_characters(bytes.substr(0, 1)) == 1; }

}  // namespace

Sequence::Sequence(Request request, std::uint64_t job_seed, std::span<const std::int32_t> eos_ids,
                   const Tokenizer* tokenizer)
    : request_(std::move(request)),
      key_(request_key(request_.sampling, job_seed, request_.index, request_.part)),
      eos_ids_(eos_ids),
      tokens_(std::move(request_.tokens)),
      prompt_tokens_(std::ssize(tokens_)) {
  // Reserves room for the whole completion now: decode steps do not allocate.
  tokens_.reserve(tokens_.size() + static_cast<std::size_t>(request_.sampling.max_tokens));
  tokenizer_ = tokenizer;
  if (tokenizer != nullptr) decoder_ = make_stream_decoder(*tokenizer, tokens_);
  for (const std::string& stop : request_.sampling.stop) {
    longest_stop_ = std::max(longest_stop_, stop.size());
  }
  if (tokenizer != nullptr && longest_stop_ > 0 && request_.prompt_form == PromptForm::kChat) {
    markers_ = channel_markers(*tokenizer);
  }
}

Sequence::Sequence(ScoreTask task)
    : tokens_(std::move(task.tokens)), first_scored_(task.first_scored) {
  const auto size = std::ssize(tokens_);
  TRIPHASE_CHECK(first_scored_ >= 1 && first_scored_ < size, "something to score");
  request_.index = task.index;
  prompt_tokens_ = std::clamp<std::int64_t>(task.prefill_tokens, 1, size - 1);
  scores_.resize(static_cast<std::size_t>(size - first_scored_));
}

std::int64_t Sequence::max_kv_tokens() const {
  if (scored()) return std::ssize(tokens_) - 1;
  return prompt_tokens_ + request_.sampling.max_tokens - 1;
}

SampleRow Sequence::score_row(std::int64_t position, std::int64_t vocab) const {
  return {.vocab = vocab, .score_token = tokens_[static_cast<std::size_t>(position) + 1]};
}

void Sequence::score(std::int64_t position, const SampleResult& result) {
  scores_[score_index(position)] =
      result.finite ? TokenScore{score_of(result), result.token} : TokenScore{.logprob = NAN};
  if (position + 1 == max_kv_tokens()) finished_ = true;
}

SampleRow Sequence::next_row(std::int64_t vocab) const {
  const SamplingParams& params = request_.sampling;
  return {.vocab = vocab,
          .temperature = params.temperature,
          .top_k = params.top_k,
          .top_p = params.top_p,
          .min_p = params.min_p,
          .repetition_penalty = params.repetition_penalty,
          .history = tokens_,
          .key = key_,
          .position = static_cast<std::uint64_t>(completion_tokens() + awaited_),
          .alternatives = static_cast<int>(params.logprobs)};
}

void Sequence::sample_next(const SampleResult& result) {
  if (awaited_ > 0) --awaited_;
  if (!result.finite) {
    error_ = RecordError{
        "E-NUM-LOGITS",
        fmt::format("logits of completion token {} hold NaN or Inf", completion_tokens())};
    finished_ = true;
    return;
  }
  const bool is_eos = std::ranges::find(eos_ids_, result.token) != eos_ids_.end();
  if (is_eos && !request_.sampling.ignore_eos) {
    finish(FinishReason::kStop);
    return;
  }
  if (request_.sampling.logprobs >= 0) note_logprob(result);
  accept(result.token);
}

void Sequence::note_logprob(const SampleResult& result) {
  TokenLogprob& logprob = logprobs_.emplace_back(logprob_of(result));
  if (request_.line_form != LineForm::kOpenAi || tokenizer_ == nullptr) return;
  logprob.pieces.push_back(tokenizer_->token_bytes(logprob.token));
  for (const auto& alternative : logprob.top) {
    logprob.pieces.push_back(tokenizer_->token_bytes(alternative.first));
  }
}

void Sequence::note_offset(std::string_view settled, std::int64_t held) {
  const std::string& piece = logprobs_.back().pieces.front();
  std::int64_t before = held;
  // A run of bytes that ended malformed is not what it held.
  if (starts_character(piece) && settled.ends_with(piece)) {
    before = count_characters(settled) - count_characters(piece);
  }
  const std::int64_t last = logprobs_.size() < 2 ? 0 : logprobs_[logprobs_.size() - 2].text_offset;
  logprobs_.back().text_offset = std::max(last, text_chars_ + before);
  text_chars_ += count_characters(settled);
}

void Sequence::accept(TokenId token) {
  tokens_.push_back(token);
  if (decoder_) {
    const std::size_t before = text_.size();
    const std::int64_t held = count_characters(decoder_->held());
    decoder_->push(token, text_);
    if (!logprobs_.empty() && !logprobs_.back().pieces.empty()) {
      note_offset(std::string_view(text_).substr(before), held);
    }
    if (markers_) follow_channels(token);
    look_for_stop_strings(before);
    if (finished_) {
      std::string rest;  // a begun character would follow in the whole text
      decoder_->finish(rest);
      cut_ += rest.size();
      return;
    }
    if (held_text_stops()) return finish(FinishReason::kStop);
  }
  if (completion_tokens() >= request_.sampling.max_tokens) finish(FinishReason::kLength);
}

void Sequence::follow_channels(TokenId token) {
  if (token == markers_->start || token == markers_->channel) {
    in_header_ = true;
  } else if (token == markers_->message) {
    in_header_ = false;
    stoppable_from_ = text_.size();
  }
}

bool Sequence::held_text_stops() const {
  if (longest_stop_ == 0 || in_header_) return false;
  const std::string_view held = decoder_->held();
  if (held.empty()) return false;
  const std::size_t from =
      std::max(stoppable_from_, text_.size() - std::min(text_.size(), longest_stop_));
  const std::string text = text_.substr(from).append(held);
  return std::ranges::any_of(request_.sampling.stop, [&](const std::string& stop) {
    return text.find(stop) != std::string::npos;
  });
}

void Sequence::look_for_stop_strings(std::size_t new_from) {
  if (longest_stop_ == 0 || in_header_) return;
  // A stop string may have begun before the new text.
  const std::size_t from = std::max(stoppable_from_, new_from - std::min(new_from, longest_stop_));
  std::size_t first = std::string::npos;
  for (const std::string& stop : request_.sampling.stop) {
    first = std::min(first, text_.find(stop, from));
  }
  if (first == std::string::npos) return;
  cut_ = text_.size() - first;
  text_.resize(first);
  finished_ = true;
  reason_ = FinishReason::kStop;
}

void Sequence::finish(FinishReason reason) {
  finished_ = true;
  reason_ = reason;
  if (!decoder_) return;
  // Bytes held back inside a character are text too, and may complete a stop string.
  const std::size_t before = text_.size();
  decoder_->finish(text_);
  look_for_stop_strings(before);
}

void Sequence::divide_channels(Completion& completion) const {
  auto answer = answer_channels(
      *tokenizer_, std::span(tokens_).subspan(static_cast<std::size_t>(prompt_tokens_)), cut_);
  if (!answer) return;
  completion.text = std::move(answer->content);
  completion.reasoning = std::move(answer->reasoning);
}

Completion Sequence::take_completion() {
  Completion completion;
  completion.index = request_.index;
  completion.part = request_.part;
  if (error_) {
    completion.error = std::move(error_);
    return completion;
  }
  if (scored()) {
    if (std::ranges::any_of(scores_,
                            [](const TokenScore& one) { return std::isnan(one.logprob); })) {
      completion.error = RecordError{
          "E-NUM-LOGITS", "logits: NaN or infinity among the scored positions, expected numbers"};
    } else {
      completion.scores = std::move(scores_);
    }
    return completion;
  }
  if (!logprobs_.empty()) {
    // A stop string may have taken text back.
    const std::int64_t end = count_characters(text_);
    for (TokenLogprob& one : logprobs_) one.text_offset = std::min(one.text_offset, end);
  }
  if (decoder_) completion.text = std::move(text_);
  if (decoder_ && request_.prompt_form == PromptForm::kChat) divide_channels(completion);
  completion.tokens.assign(tokens_.begin() + prompt_tokens_, tokens_.end());
  completion.finish_reason = reason_;
  completion.prompt_tokens = prompt_tokens_;
  completion.logprobs = std::move(logprobs_);
  return completion;
}

}  // namespace triphase
